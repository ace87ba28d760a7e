"""Find how often the optimizer ran in a recording without marks of steps, whose figures are of the whole recording."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.timeline.columns import Ints, size
from overlapscope.timeline.optimizer_marks import optimizer_marks, optimizers_on_device
from overlapscope.timeline.run import RankTimeline, Run

FEWEST: Final = 3
"""Optimizers from which their period is known to be even or not, ..."""
A_PAIR: Final = 2
"""... and those of which it is only known how far they are apart, where they are alike on the device: of a job with one
optimizer a step that is its step, which the title leaves open."""
OF_PAIR: Final = 0.5
"""Two are of two steps only if each computes for at most this share of the time between their begins: else they follow
each other at the end of one. A choice."""
EVEN: Final = 0.1
"""Longest and shortest time between two differ at most by this share of the median. A choice: a job with two optimizers
in a step, or with steps of several kinds, has more."""
EVEN_OF_ALIKE: Final = 0.25
"""The same where all optimizers are alike on the device: two in a step, of models of other sizes, are not. A choice."""
ALIKE: Final = 0.05
"""Optimizers that launch equally many kernels are alike if how long these take differs at most by this share. A choice:
they read and write all parameters and states, so this follows the size of the model."""
MARK_STEPS: Final = "mark steps: prof.step() after each with torch's profiler, an NVTX range around each with others"


def unmarked_steps(run: Run) -> list[Finding]:
    """Return a finding where no rank has marks of steps, and on each its optimizer begins at an even period.

    On the device, where that is known: a host that runs ahead begins several at once, and waits later.
    """
    ranks = [each for each in run.ranks.values() if each.num_spans]
    if not ranks or any(size(each.steps) for each in ranks):
        return []
    begun = [_begins(each.at_hand()) for each in ranks]
    known = [each for each in begun if each is not None]
    if len(known) < len(ranks):
        pairs = [_pair_ns(each.at_hand()) for each in ranks]
        return _of_pairs([ns for ns in pairs if ns is not None], len(ranks))
    between = np.concatenate([np.diff(each) for each in known])
    times = sorted({each.size for each in known})
    often = f"{times[0]} times" if len(times) == 1 else f"{times[0]} to {times[-1]} times"
    period_ns = float(np.median([np.median(np.diff(each)) for each in known]))
    uneven = np.ptp(between) > EVEN * period_ns
    lengths = f" in the median (from {between.min() / 1e6:.3f} to {between.max() / 1e6:.3f} ms)" if uneven else ""
    return [
        Finding(
            id="unmarked_steps",
            severity="info",
            title=f"no step marks: the optimizer runs every {format_ms(period_ns)}{lengths} ({often}), and figures are "
            f"of the whole recording; {MARK_STEPS}",
            evidence={"period_ns": round(period_ns), "optimizers": times[0]},
            known_from="trace",
        )
    ]


def _begins(timeline: RankTimeline) -> Ints | None:
    """Return when a rank's optimizers begin, ascending: on the device, or where not all were recorded there, or they
    are not alike, on the host; None where that is not at an even period."""
    device, marks = optimizers_on_device(timeline), optimizer_marks(timeline)
    if device.mark.size == marks.size and _are_alike(device.kernels, device.busy_ns):
        begun, even = np.sort(device.start_ns), EVEN_OF_ALIKE
    else:
        begun, even = timeline.annotations.start_ns[marks], EVEN
    return begun if _is_even(begun, even) else None


def _pair_ns(timeline: RankTimeline) -> int | None:
    """Return how far the only two optimizers of a rank are apart on its device; None where there are others, or these
    are not alike, or too close."""
    device, marks = optimizers_on_device(timeline), optimizer_marks(timeline)
    if device.mark.size != A_PAIR or marks.size != A_PAIR or not _are_alike(device.kernels, device.busy_ns):
        return None
    names = timeline.annotations.name[marks]
    apart_ns = int(np.ptp(device.start_ns))
    return apart_ns if names[0] == names[1] and device.busy_ns.max() <= OF_PAIR * apart_ns else None


def _of_pairs(apart_ns: Sequence[int], ranks: int) -> list[Finding]:
    """Return the finding where each rank has two optimizers, as far apart on all."""
    if len(apart_ns) < ranks or max(apart_ns) - min(apart_ns) > EVEN * min(apart_ns):
        return []
    period_ns = float(np.median(apart_ns))
    alike = f" on each of {ranks} ranks" if ranks > 1 else ""
    return [
        Finding(
            id="unmarked_steps",
            severity="info",
            title=f"no step marks: the optimizer runs twice, {format_ms(period_ns)} apart{alike}: a step takes that, "
            f"if it has one optimizer; figures are of the whole recording; {MARK_STEPS}",
            evidence={"period_ns": round(period_ns), "optimizers": A_PAIR},
            known_from="trace",
        )
    ]


def _are_alike(kernels: Ints, busy_ns: Ints) -> bool:
    if not kernels.size:
        return False
    return bool(np.ptp(kernels) == 0 and np.ptp(busy_ns) <= ALIKE * np.median(busy_ns))


def _is_even(begun: Ints, even: float) -> bool:
    if begun.size < FEWEST:
        return False
    between = np.diff(begun)
    return bool(np.ptp(between) <= even * np.median(between))

"""Find how often the optimizer ran in a recording without marks of steps, whose figures are of the whole recording."""

from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.timeline.columns import Ints, size
from overlapscope.timeline.optimizer_marks import optimizer_marks, optimizers_on_device
from overlapscope.timeline.run import RankTimeline, Run

FEWEST: Final = 3
"""Optimizers from which their period is known to be even or not."""
EVEN: Final = 0.1
"""Longest and shortest time between two differ at most by this share of the median. A choice: a job with two optimizers
in a step, or with steps of several kinds, has more."""
EVEN_OF_ALIKE: Final = 0.25
"""The same where all optimizers are alike on the device: two in a step, of models of other sizes, are not. A choice."""
ALIKE: Final = 0.05
"""Optimizers that launch equally many kernels are alike if how long these take differs at most by this share. A choice:
they read and write all parameters and states, so this follows the size of the model."""


def unmarked_steps(run: Run) -> list[Finding]:
    """Return a finding where no rank has marks of steps, and on each its optimizer begins at an even period.

    On the device, where that is known: a host that runs ahead begins several at once, and waits later.
    """
    ranks = [each for each in run.ranks.values() if each.num_spans]
    if not ranks or any(size(each.steps) for each in ranks):
        return []
    begun = [_begins(each.at_hand()) for each in ranks]
    if any(each is None for each in begun):
        return []
    known = [each for each in begun if each is not None]
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
            "of the whole recording; mark steps: prof.step() after each with torch's profiler, an NVTX range around "
            "each with others",
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


def _are_alike(kernels: Ints, busy_ns: Ints) -> bool:
    if not kernels.size:
        return False
    return bool(np.ptp(kernels) == 0 and np.ptp(busy_ns) <= ALIKE * np.median(busy_ns))


def _is_even(begun: Ints, even: float) -> bool:
    if begun.size < FEWEST:
        return False
    between = np.diff(begun)
    return bool(np.ptp(between) <= even * np.median(between))

"""State which steps are outliers, on which ranks, and what most of one went to.

Most outliers concern many ranks at once: one step on several ranks is one finding. A step is odd for one figure only:
where its length is, that is said, and what most of it went to.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from overlapscope.analysis.checks.steps.more_work import MoreWork, more_work
from overlapscope.analysis.checks.steps.outlier_steps import (
    COMPUTED,
    FIGURES,
    IDLED,
    MOSTLY,
    OutlierStep,
    Steps,
    kind_of_step,
    more_than_usual,
    outliers,
)
from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.per_rank.longer_step import LongerStep, longer_step
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import Run

ODD_LENGTH: Final = "odd_step:window_ns:"
"""Begin of the ids of findings on the length of a step."""
WAITS: Final = "waits for other ranks"
"""What a step mostly does for longer, in its title and as evidence (`mostly`)."""
OTHER_WORK: Final = "kernels_of_others"
"""Evidence of a step that does other work than the others: the most kernels that one of these runs."""
LONGER_KERNELS: Final = "longer_kernels"
"""Evidence of a step that computes longer in the same kernels: fields of `LongerStep`."""
MAX_STEPS: Final = 4
"""Steps of a figure with a finding of their own, those on the most ranks; the others share one finding."""
MAX_RANKS: Final = 64
"""Ranks listed as evidence."""
MAX_NAMED: Final = 8
"""Ranks named in a title."""
Waits = Mapping[tuple[int, int], int]
"""Waiting for late ranks by (rank, step); 0 or absent where none is known."""


def outlier_steps(
    ranks: Mapping[int, Steps],
    known_from: Mapping[int, str],
    *,
    waited_ns: Waits = MappingProxyType({}),
    in_calls_ns: Waits = MappingProxyType({}),
    stopped_ns: Mapping[tuple[int, int], float] = MappingProxyType({}),
    led_ns: Mapping[tuple[int, int], float] = MappingProxyType({}),
    by_chance: bool = False,
    run: Run | None = None,
) -> list[Finding]:
    """Find the outliers among the complete steps of each rank, of which at least three are needed.

    A step that is an outlier on several ranks is one finding. `known_from` holds the basis of each rank's times; by
    (rank, step), `waited_ns` holds how long ranks waited for others, exposed, `in_calls_ns` how long in their matched
    calls, overlapped or not, `stopped_ns` what may be the recorder's stop, and `led_ns` how far ahead of the others a
    rank began the last step of a recording.
    Where hosts share cores (`by_chance`), which rank communicates or idles for longer is the scheduler's choice: then
    only how long steps take is compared. Kernels are counted in `run`, where it is given: a step that is longer on all
    ranks for more of them does other work, which is information, and no matter of chance.
    """
    other_work = {} if run is None else more_work(ranks, run)
    odd = {
        name: [
            each
            for each in (() if by_chance and name != "window_ns" else outliers(name, ranks))
            if not _pays_its_lead(each, ranks[each.rank], led_ns)
        ]
        for name, _, _ in FIGURES
    }
    stand_out = {(each.rank, each.step) for each in odd["window_ns"]}
    odd["window_ns"] += [each.odd for at, each in other_work.items() if at not in stand_out]
    once = _of_one_figure(odd, ranks, stopped_ns, (waited_ns, in_calls_ns))
    findings: list[Finding] = []
    for name, verb, _ in FIGURES:
        listed_alone, rest = _by_step(once[name])
        for found in listed_alone:
            most = _most(found)
            mostly = _mostly(most, ranks[most.rank], waited_ns) if name == "window_ns" else None
            works = other_work.get((most.rank, most.step)) if name == "window_ns" else None
            told = _finding(name, verb, found, known_from, mostly, works)
            if run is not None and name == "window_ns" and mostly is None and works is None:
                told = _with_longer(told, most, ranks[most.rank], run)
            findings.append(told)
        if rest:
            findings.append(_others(name, verb, rest, known_from))
    return findings


def _of_one_figure(
    odd: Mapping[str, Sequence[OutlierStep]],
    ranks: Mapping[int, Steps],
    stopped_ns: Mapping[tuple[int, int], float],
    waited_ns: Sequence[Waits],
) -> dict[str, list[OutlierStep]]:
    """Return the outliers of each figure without those that another figure says, or that the recorder's stop or, of
    communication, waits for others may explain; `waited_ns` has such waits by more than one measure."""
    long = {(each.rank, each.step) for each in odd["window_ns"]}
    idle = [each for each in odd["idle_ns"] if (each.rank, each.step) not in long]
    found = {
        name: [each for each in every if stopped_ns.get((each.rank, each.step), 0) < MOSTLY * each.more_ns]
        for name, every in (("window_ns", odd["window_ns"]), ("idle_ns", idle))
    }
    named = {each.step for every in found.values() for each in every}
    found["comm_ns"] = [
        each
        for each in odd["comm_ns"]
        if each.step not in named and all(_waits(each, ranks[each.rank], waits) is None for waits in waited_ns)
    ]
    return found


def _by_step(odd: Sequence[OutlierStep]) -> tuple[list[list[OutlierStep]], list[OutlierStep]]:
    """Return the outliers of one figure by step, of the steps that have a finding of their own, and those of the
    others."""
    by_step: dict[int, list[OutlierStep]] = defaultdict(list)
    for each in odd:
        by_step[each.step].append(each)
    order = sorted(by_step.values(), key=lambda found: (-len(found), -_most(found).value_ns))
    listed_alone = order if len(order) == MAX_STEPS + 1 else order[:MAX_STEPS]
    rest = [each for found in order[len(listed_alone) :] for each in found]
    return sorted(listed_alone, key=lambda each: each[0].rank), rest


def waits_in_calls(run: Run, splits: Sequence[Split]) -> dict[tuple[int, int], int]:
    """Return how long each rank waited for others in its matched calls of each step, overlapped with compute or not, in
    ns."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for split in splits:
        for rank, rows, waited in zip(split.block.ranks, split.block.rows, split.wait_ns, strict=True):
            steps, at = np.unique(run.ranks[rank].collectives.step[rows], return_inverse=True)
            for step, ns in zip(steps.tolist(), sum_by(at, waited, steps.size).tolist(), strict=True):
                found[rank, step] += ns
    return found


def _waits(odd: OutlierStep, steps: Steps, waited_ns: Waits) -> float | None:
    """Return how much longer than usual the rank waited for others, where that is most of what is more."""
    of_steps = {step[0]: waited_ns.get((odd.rank, step[0]), 0) for step in kind_of_step(odd.step, steps)}
    more_ns = of_steps.pop(odd.step) - statistics.median(of_steps.values())
    return more_ns if more_ns >= MOSTLY * odd.more_ns else None


def _pays_its_lead(odd: OutlierStep, steps: Steps, led_ns: Mapping[tuple[int, int], float]) -> bool:
    """Return whether most of what is more is a lead of the rank, which ends with the recording, and no compute."""
    if led_ns.get((odd.rank, odd.step), 0) < MOSTLY * odd.more_ns:
        return False
    computed_ns = more_than_usual(odd.step, steps, COMPUTED)
    return computed_ns is None or computed_ns < MOSTLY * odd.more_ns


def _mostly(odd: OutlierStep, steps: Steps, waited_ns: Waits) -> tuple[str, float] | None:
    """Return what most of the longer step is, with how long that is more than usual, where it is known."""
    more_ns = _waits(odd, steps, waited_ns)
    if more_ns is not None:
        return WAITS, more_ns
    more_ns = more_than_usual(odd.step, steps, IDLED)
    return ("idles", more_ns) if more_ns is not None and more_ns >= MOSTLY * odd.more_ns else None


def _finding(
    name: str,
    verb: str,
    found: Sequence[OutlierStep],
    known_from: Mapping[int, str],
    mostly: tuple[str, float] | None,
    works: MoreWork | None,
) -> Finding:
    most = _most(found)
    evidence: dict[str, Any] = {
        "rank": most.rank, "step": most.step, name: most.value_ns, "median_of_others_ns": most.usual_ns,
    }  # fmt: skip
    what = f"{verb} {_compared_with_median(most)}"
    if mostly is not None:
        evidence |= {"mostly": mostly[0], "mostly_more_ns": mostly[1]}
        what = f"{what}; it {mostly[0]} for {format_ms(mostly[1])} more than usual"
    if works is not None:
        evidence |= {"kernels": works.kernels, OTHER_WORK: works.usual_kernels}
        what = (
            f"{what}; it computes for {format_ms(works.computes_ns)} more than usual, in {works.kernels} kernels, not "
            f"{works.usual_kernels}: other work on each rank, as an evaluation, or the optimizer where "
            "gradients accumulate"
        )
    if len(found) == 1:
        return Finding(
            id=f"odd_step:{name}:rank{most.rank}:step{most.step}",
            severity="warning" if works is None else "info",
            title=f"step {most.step} of rank {most.rank} {what}",
            evidence=evidence,
            known_from=known_from[most.rank],
        )
    ranks = [each.rank for each in found]
    return Finding(
        id=f"odd_step:{name}:step{most.step}",
        severity="warning" if works is None else "info",
        title=f"step {most.step} is an outlier on {len(ranks)} ranks ({_named(ranks)}): on rank {most.rank}, the "
        f"worst, it {what}",
        evidence=evidence | {"ranks": ranks[:MAX_RANKS], "ranks_in_all": len(ranks)},
        known_from=_basis(found, known_from),
    )


def _with_longer(found: Finding, odd: OutlierStep, steps: Steps, run: Run) -> Finding:
    """Return the finding with why the step computes longer, where that is most of what it takes more, in the same
    kernels."""
    more_ns = more_than_usual(odd.step, steps, COMPUTED)
    if more_ns is None or more_ns < MOSTLY * odd.more_ns or not run.ranks[odd.rank].has_device:
        return found
    known = {step[0] for step in kind_of_step(odd.step, steps) if step[COMPUTED] is not None}
    longer = longer_step(run.ranks[odd.rank].at_hand(), odd.step, sorted(known - {odd.step}))
    if longer is None:
        return found
    return replace(
        found,
        title=f"{found.title}; it computes for {format_ms(more_ns)} more than usual, in the same {longer.kernels} "
        f"kernels: {longer_words(longer)}",
        evidence=found.evidence | {"more_compute_ns": more_ns, LONGER_KERNELS: to_builtins(longer)},
    )


def longer_words(longer: LongerStep) -> str:
    """Return why the same kernels took longer, in words."""
    times, of_optimizer = f"{longer.times:.2f} times as long", f"{longer.optimizer_times:.2f} times"
    if not longer.slower_device:
        return (
            f"all but the optimizer's take {times}, those {of_optimizer}: more to compute, as with a longer batch or "
            "longer sequences, and no slower device"
        )
    return f"nearly all take {times}, the optimizer's, too ({of_optimizer}): a lower clock, or another process there"


def _others(name: str, verb: str, found: Sequence[OutlierStep], known_from: Mapping[int, str]) -> Finding:
    most = _most(found)
    steps = len({each.step for each in found})
    return Finding(
        id=f"odd_step:{name}:others",
        severity="warning",
        title=f"{steps} more steps are outliers, each on few ranks: the worst, step {most.step} of rank {most.rank}, "
        f"{verb} {_compared_with_median(most)}",
        evidence={
            "rank": most.rank, "step": most.step, name: most.value_ns, "median_of_others_ns": most.usual_ns,
            "steps": [{"rank": each.rank, "step": each.step, name: each.value_ns} for each in found[:MAX_RANKS]],
            "steps_in_all": steps,
        },
        known_from=_basis(found, known_from),
    )  # fmt: skip


def _most(found: Sequence[OutlierStep]) -> OutlierStep:
    return max(found, key=lambda each: each.more_ns)


def _compared_with_median(odd: OutlierStep) -> str:
    times = f", {odd.value_ns / odd.usual_ns:.1f} times" if odd.usual_ns else ", compared with"
    return f"{format_ms(odd.value_ns)}{times} the median of the {odd.others} ({format_ms(odd.usual_ns)})"


def _named(ranks: Sequence[int]) -> str:
    words = ", ".join(map(str, ranks[:MAX_NAMED]))
    return words if len(ranks) <= MAX_NAMED else f"{words} and {len(ranks) - MAX_NAMED} more"


def _basis(found: Sequence[OutlierStep], known_from: Mapping[int, str]) -> str:
    return ", ".join(sorted({known_from[each.rank] for each in found}))

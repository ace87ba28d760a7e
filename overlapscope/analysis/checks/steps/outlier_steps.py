"""Find outlier steps: a step that communicates, takes or idles far longer than the other steps of a rank.

Most outliers concern many ranks at once: one step on several ranks is one finding. A step is odd for one figure only:
where its length is, that is said, and what most of it went to.
"""

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding, format_ms
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.per_rank.longer_step import LongerStep, longer_step
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline, Run

FEWEST: Final = 3
"""Complete steps of a rank, at least, to compare."""
ODD_FACTOR: Final = 1.5
"""A step is an outlier when a figure is at least this many times the median of the other steps ..."""
ODD_PAST_LARGEST: Final = 1.25
"""... and at least this many times their maximum, and far from it beside the range of the others: where these differ
too, the figure simply varies ..."""
FAR: Final = {3: 8.0, 4: 3.0, 5: 2.0, 6: 1.6, 7: 1.4, 8: 1.2, 9: 1.1}
"""How many times the range of the others it is above their maximum, by the number of steps; 1 from ten steps on. Of n
times with an exponential tail the largest is c ranges above the others with probability 2/(2+c) ... (n-1)/(n-1+c): a
fifth, in each of these. Two other steps may be alike by luck, so that their range is at least ..."""
RANGE: Final = 0.1
"""... this share of their median."""
ODD_AT_LEAST_NS: Final = MILLISECOND_NS
"""... and the difference to the median is at least this."""
EARLY: Final = 0.5
"""Where its compute is shorter than usual by this share of what communication is longer, the rank came early and waited
for the others: the step is not odd for that."""
IDLE_OF_STEP: Final = 0.1
"""Idle time is longer by at least this share of the rank's usual step: short pauses of a host are many. Where the
step's length is odd, that is said alone."""
LONGEST: Final = 1.1
"""A step that communicates or idles for longer takes this many times as long as the longest of the others ..."""
MOSTLY: Final = 0.5
"""... and each is at least this share of the other: what it communicates or idles more, and takes more. Elsewhere that
was hidden, or made up for, or the step is long for another reason. This share of what is more says what it is, too."""
MORE_KERNELS, ALIKE = 1.25, 0.05
"""A step does other work than the others where it runs this many times as many kernels as any of them on each rank,
while they differ by at most this share of their number. Choices: an evaluation that a step holds, or the
optimizer, where each micro-batch is a step."""
COMPUTED, IDLED = 3, 4
"""Positions of compute and idle time in a step's tuple."""
FIGURES: Final = (("comm_ns", "communicates for", 2), ("window_ns", "takes", 1), ("idle_ns", "idles for", IDLED))
"""The checked figures: name, verb for the title, position in a step's tuple."""
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
Steps = Sequence[tuple[int, int | None, int | None, int | None, int | None]]
"""(number, window_ns, comm_ns, compute_ns, idle_ns) of complete steps."""
Waits = Mapping[tuple[int, int], int]
"""Waiting for late ranks by (rank, step); 0 or absent where none is known."""


class _MoreWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does more in a step than in the others."""

    odd: "OutlierStep"
    computes_ns: float
    """For how much longer than usual it computes."""
    kernels: int
    usual_kernels: int
    """The most in another step."""


class OutlierStep(msgspec.Struct, frozen=True, kw_only=True):
    """An outlier step of one rank in one figure; `usual_ns` is the median of its `others`, steps of the same kind."""

    rank: int
    step: int
    value_ns: int
    usual_ns: float
    others: str

    @property
    def more_ns(self) -> float:
        """Return how much more it is than usual."""
        return self.value_ns - self.usual_ns


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
    more_work = {} if run is None else _more_work(ranks, run)
    odd = {
        name: [
            each
            for each in (() if by_chance and name != "window_ns" else _outliers(name, ranks))
            if not _pays_its_lead(each, ranks[each.rank], led_ns)
        ]
        for name, _, _ in FIGURES
    }
    stand_out = {(each.rank, each.step) for each in odd["window_ns"]}
    odd["window_ns"] += [each.odd for at, each in more_work.items() if at not in stand_out]
    once = _of_one_figure(odd, ranks, stopped_ns, (waited_ns, in_calls_ns))
    findings: list[Finding] = []
    for name, verb, _ in FIGURES:
        listed_alone, rest = _by_step(once[name])
        for found in listed_alone:
            most = _most(found)
            mostly = _mostly(most, ranks[most.rank], waited_ns) if name == "window_ns" else None
            works = more_work.get((most.rank, most.step)) if name == "window_ns" else None
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


def _more_work(ranks: Mapping[int, Steps], run: Run) -> dict[tuple[int, int], _MoreWork]:
    """Return the steps that take longer on each rank, by about what they compute longer, for more kernels, by (rank,
    step), sorted; none of a run without devices, whose compute is no kernels."""
    longer = {rank: own for rank, steps in ranks.items() if (own := _compute_longer(rank, steps)) is not None}
    everywhere = set[int]().union(*longer.values()).intersection(*longer.values())
    found = {}
    for rank, own in longer.items():
        if not everywhere or not run.ranks[rank].has_device:
            return {}
        counts = _kernels(run.ranks[rank])
        for step in sorted(everywhere):
            others = [counts.get(each[0], 0) for each in _kind_of(step, ranks[rank]) if each[0] != step]
            alike = max(others) - min(others) <= ALIKE * min(others)
            if not alike or counts.get(step, 0) < MORE_KERNELS * max(others):
                everywhere = everywhere - {step}
                continue
            odd, computes_ns = own[step]
            found[rank, step] = _MoreWork(
                odd=odd, computes_ns=computes_ns, kernels=counts[step], usual_kernels=max(others)
            )
    return {key: each for key, each in found.items() if key[1] in everywhere}


def _compute_longer(rank: int, steps: Steps) -> dict[int, tuple[OutlierStep, float]] | None:
    """Return the steps that take longer than all others of their kind, by about what they compute longer, with that;
    None for a rank with too few steps to say."""
    kinds = [(others, own) for others, own in _kinds(steps) if len(own) >= FEWEST]
    found = {}
    for others, own in kinds:
        known = [(step, window_ns, compute_ns) for step, window_ns, _, compute_ns, _ in own
                 if window_ns is not None and compute_ns is not None]  # fmt: skip
        if len({step for step, _, _ in known}) < len(own):  # not known, or several recordings use its number
            continue
        step, window_ns, compute_ns = max(known, key=lambda each: each[1])
        rest = [each for each in known if each[0] != step]
        usual_ns = statistics.median(each[1] for each in rest)
        more_ns, computes_ns = window_ns - usual_ns, compute_ns - statistics.median(each[2] for each in rest)
        longest = window_ns >= LONGEST * max(each[1] for each in rest) and more_ns >= ODD_AT_LEAST_NS
        if longest and min(more_ns, computes_ns) >= MOSTLY * max(more_ns, computes_ns):
            odd = OutlierStep(rank=rank, step=step, value_ns=window_ns, usual_ns=usual_ns, others=others)
            found[step] = odd, computes_ns
    return found if kinds else None


def _kernels(timeline: RankTimeline) -> dict[int, int]:
    """Return how many kernels that compute each step launched."""
    steps, counts = np.unique(timeline.spans.step[timeline.spans.kind == COMPUTE], return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


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


def long_steps(ranks: Mapping[int, Steps]) -> list[OutlierStep]:
    """Return the steps that are outliers in length, or that idle so much longer, by rank: none is typical of a run."""
    long = _outliers("window_ns", ranks)
    known = {(each.rank, each.step) for each in long}
    idle = (each for each in _outliers("idle_ns", ranks) if (each.rank, each.step) not in known)
    return long + [_length_of(each, ranks[each.rank]) for each in idle]


def _length_of(idle: OutlierStep, steps: Steps) -> OutlierStep:
    """Return the length of a step that idles for longer, which is longer by no more than that."""
    taken = {step[0]: step[1] for step in _kind_of(idle.step, steps) if step[1] is not None}
    length_ns = taken.pop(idle.step)
    more_ns = min(length_ns - statistics.median(taken.values()), idle.more_ns)
    return replace(idle, value_ns=length_ns, usual_ns=length_ns - more_ns)


def _outliers(name: str, ranks: Mapping[int, Steps]) -> list[OutlierStep]:
    """Return the outliers in one figure, rank by rank, with the ranks on which the same step stands out less far."""
    kinds = [(rank, *kind) for rank, every in ranks.items() for kind in _kinds(every)]
    known = {each.step for rank, others, steps in kinds for each in _of_kind(name, rank, others, steps, far=True)}
    return [
        each
        for rank, others, steps in (kinds if known else ())
        for each in _of_kind(name, rank, others, steps, far=False)
        if each.step in known
    ]


def _of_kind(name: str, rank: int, others: str, steps: Steps, *, far: bool) -> list[OutlierStep]:
    """Return the outliers in one figure among steps of a kind."""
    (place,) = (at for each, _, at in FIGURES if each == name)
    least_ns = float(ODD_AT_LEAST_NS)
    if name == "idle_ns":
        lengths = [step[1] for step in steps if step[1] is not None]
        least_ns = max(least_ns, IDLE_OF_STEP * statistics.median(lengths or [0]))
    found = _of_rank(rank, others, [(step[0], step[place]) for step in steps], least_ns, far=far)
    if name == "window_ns":
        return found
    return [each for each in found if _is_longer(each, steps) and not (name == "comm_ns" and _came_early(each, steps))]


def _kinds(steps: Steps) -> list[tuple[str, Steps]]:
    """Return the steps of a rank that are compared with each other, with words for them: where several
    communicate nothing, as with gradient accumulation, those that do are steps of another kind."""
    silent = [step for step in steps if step[2] == 0]
    if len(silent) < 2:
        return [("other steps", steps)]
    communicate = [step for step in steps if step[2] != 0]
    return [("other steps that communicate nothing", silent), ("other steps that communicate", communicate)]


def _of_rank(
    rank: int, others: str, steps: Sequence[tuple[int, int | None]], least_ns: float, *, far: bool
) -> list[OutlierStep]:
    """Return the steps that stand out, only those far from the others if `far`."""
    known = [(step, value) for step, value in steps if value is not None]
    ordered = sorted(value for _, value in known)
    if len(ordered) < FEWEST:
        return []
    found = []
    # The lower middle of the others is this value at least: most steps need no look at them.
    least = max(ODD_FACTOR * ordered[len(ordered) // 2 - 1], ordered[0] + least_ns)
    for step, value in known:
        if value < least:
            continue
        usual, smallest, largest = _without(ordered, bisect_left(ordered, value))
        stands_out = value >= ODD_FACTOR * usual and value >= ODD_PAST_LARGEST * largest
        is_far = value - largest > FAR.get(len(ordered), 1.0) * max(largest - smallest, RANGE * usual)
        if stands_out and (is_far or not far) and value - usual >= least_ns:
            found.append(OutlierStep(rank=rank, step=step, value_ns=value, usual_ns=usual, others=others))
    return found


def _is_longer(odd: OutlierStep, steps: Steps) -> bool:
    """Return whether the step takes longer than all others, by about what it communicates or idles more."""
    taken = {step: window_ns for step, window_ns, _, _, _ in steps if window_ns is not None}
    window_ns = taken.pop(odd.step, None)
    if window_ns is None or not taken:
        return False
    longer_ns, more_ns = window_ns - statistics.median(taken.values()), odd.more_ns
    return window_ns >= LONGEST * max(taken.values()) and min(longer_ns, more_ns) >= MOSTLY * max(longer_ns, more_ns)


def _waits(odd: OutlierStep, steps: Steps, waited_ns: Waits) -> float | None:
    """Return how much longer than usual the rank waited for others, where that is most of what is more."""
    of_steps = {step[0]: waited_ns.get((odd.rank, step[0]), 0) for step in _kind_of(odd.step, steps)}
    more_ns = of_steps.pop(odd.step) - statistics.median(of_steps.values())
    return more_ns if more_ns >= MOSTLY * odd.more_ns else None


def _pays_its_lead(odd: OutlierStep, steps: Steps, led_ns: Mapping[tuple[int, int], float]) -> bool:
    """Return whether most of what is more is a lead of the rank, which ends with the recording, and no compute."""
    if led_ns.get((odd.rank, odd.step), 0) < MOSTLY * odd.more_ns:
        return False
    computed_ns = _more_than_usual(odd.step, steps, COMPUTED)
    return computed_ns is None or computed_ns < MOSTLY * odd.more_ns


def _mostly(odd: OutlierStep, steps: Steps, waited_ns: Waits) -> tuple[str, float] | None:
    """Return what most of the longer step is, with how long that is more than usual, where it is known."""
    more_ns = _waits(odd, steps, waited_ns)
    if more_ns is not None:
        return WAITS, more_ns
    more_ns = _more_than_usual(odd.step, steps, IDLED)
    return ("idles", more_ns) if more_ns is not None and more_ns >= MOSTLY * odd.more_ns else None


def _more_than_usual(number: int, steps: Steps, place: int) -> float | None:
    """Return by how much a figure of a step, by its position in the tuple, is above the median of the steps that it is
    compared with; None where either is not known."""
    known = {step[0]: value for step in _kind_of(number, steps) if (value := step[place]) is not None}
    own = known.pop(number, None)
    return None if own is None or not known else own - statistics.median(known.values())


def _kind_of(number: int, steps: Steps) -> Steps:
    """Return the steps that one is compared with, and it."""
    return next(kind for _, kind in _kinds(steps) if any(step[0] == number for step in kind))


def _came_early(odd: OutlierStep, steps: Steps) -> bool:
    """Return whether its communication was longer because the rank computed for less time than usual."""
    computed = {step: compute_ns for step, _, _, compute_ns, _ in steps if compute_ns is not None}
    if odd.step not in computed or len(computed) < 2:
        return False
    usual = statistics.median(ns for step, ns in computed.items() if step != odd.step)
    return usual - computed[odd.step] >= EARLY * odd.more_ns


def _without(ordered: Sequence[int], left_out: int) -> tuple[float, int, int]:
    """Return the median, the smallest and the largest of sorted values without the one at `left_out`."""
    rest = len(ordered) - 1

    def at(row: int) -> int:
        return ordered[row + (row >= left_out)]

    middle = (at((rest - 1) // 2) + at(rest // 2)) / 2
    return middle, at(0), at(rest - 1)


def _finding(
    name: str,
    verb: str,
    found: Sequence[OutlierStep],
    known_from: Mapping[int, str],
    mostly: tuple[str, float] | None,
    works: _MoreWork | None,
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
    more_ns = _more_than_usual(odd.step, steps, COMPUTED)
    if more_ns is None or more_ns < MOSTLY * odd.more_ns or not run.ranks[odd.rank].has_device:
        return found
    known = {step[0] for step in _kind_of(odd.step, steps) if step[COMPUTED] is not None}
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

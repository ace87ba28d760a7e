"""Find outlier steps: a step that communicates, takes or idles far longer than the other steps of a rank.

Most outliers concern many ranks at once: one step on several ranks is one finding.
"""

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import MILLISECOND_NS, Finding, format_ms

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
"""... and the difference to the median is at least this, and at least ..."""
ODD_OF_STEP: Final = 0.05
"""... this share of the rank's usual step: more communication that hardly lengthens anything is nobody's concern."""
EARLY: Final = 0.5
"""Where its compute is shorter than usual by this share of what communication is longer, the rank came early and waited
for the others: the step is not odd for that."""
IDLE_OF_STEP: Final = 0.1
"""Of idle time this share: short pauses of a host are many. Where the step's length is odd, that is said alone."""
FIGURES: Final = (("comm_ns", "communicates for", 2), ("window_ns", "takes", 1), ("idle_ns", "idles for", 4))
"""The checked figures: name, verb for the title, position in a step's tuple."""
MAX_STEPS: Final = 4
"""Steps of a figure with a finding of their own, those on the most ranks; the others share one finding."""
MAX_RANKS: Final = 64
"""Ranks listed as evidence."""
MAX_NAMED: Final = 8
"""Ranks named in a title."""
Steps = Sequence[tuple[int, int | None, int | None, int | None, int | None]]
"""(number, window_ns, comm_ns, compute_ns, idle_ns) of complete steps."""


class OutlierStep(msgspec.Struct, frozen=True, kw_only=True):
    """An outlier step of one rank in one figure; `usual_ns` is the median of its `others`, steps of the same kind."""

    rank: int
    step: int
    value_ns: int
    usual_ns: float
    others: str


def outlier_steps(
    ranks: Mapping[int, Steps], known_from: Mapping[int, str], *, by_chance: bool = False
) -> list[Finding]:
    """Find the outliers among the complete steps of each rank, of which at least three are needed.

    A step that is an outlier on several ranks is one finding. `known_from` holds the basis of each rank's times. Where
    hosts share cores (`by_chance`), which rank communicates or idles for longer is the scheduler's choice: then only
    how long steps take is compared.
    """
    findings: list[Finding] = []
    long = {(each.rank, each.step) for each in long_steps(ranks)}
    for name, verb, _ in FIGURES:
        if by_chance and name != "window_ns":
            continue
        by_step: dict[int, list[OutlierStep]] = defaultdict(list)
        for each in _outliers(name, ranks):
            if name != "idle_ns" or (each.rank, each.step) not in long:
                by_step[each.step].append(each)
        order = sorted(by_step.values(), key=lambda found: (-len(found), -_most(found).value_ns))
        listed_alone = order if len(order) == MAX_STEPS + 1 else order[:MAX_STEPS]
        rest = [each for found in order[len(listed_alone) :] for each in found]
        findings += [
            _finding(name, verb, found, known_from) for found in sorted(listed_alone, key=lambda each: each[0].rank)
        ]
        if rest:
            findings.append(_others(name, verb, rest, known_from))
    return findings


def long_steps(ranks: Mapping[int, Steps]) -> list[OutlierStep]:
    """Return the steps that are outliers in length, by rank: none of them is typical of a run."""
    return list(_outliers("window_ns", ranks))


def _outliers(name: str, ranks: Mapping[int, Steps]) -> Iterator[OutlierStep]:
    """Yield the outliers in one figure, rank by rank."""
    (place,) = (at for each, _, at in FIGURES if each == name)
    share = IDLE_OF_STEP if name == "idle_ns" else ODD_OF_STEP
    for rank, (others, steps) in ((rank, kind) for rank, every in ranks.items() for kind in _kinds(every)):
        usual_step_ns = np.median([step[1] for step in steps if step[1] is not None] or [0])
        least_ns = max(ODD_AT_LEAST_NS, share * float(usual_step_ns))
        for each in _of_rank(rank, others, [(step[0], step[place]) for step in steps], least_ns):
            if name != "comm_ns" or not _came_early(each, steps):
                yield each


def _kinds(steps: Steps) -> list[tuple[str, Steps]]:
    """Return the steps of a rank that are compared with each other, with words for them: where several
    communicate nothing, as with gradient accumulation, those that do are steps of another kind."""
    silent = [step for step in steps if step[2] == 0]
    if len(silent) < 2:
        return [("other steps", steps)]
    communicate = [step for step in steps if step[2] != 0]
    return [("other steps that communicate nothing", silent), ("other steps that communicate", communicate)]


def _of_rank(rank: int, others: str, steps: Sequence[tuple[int, int | None]], least_ns: float) -> list[OutlierStep]:
    known = [(step, value) for step, value in steps if value is not None]
    ordered = sorted(value for _, value in known)
    if len(ordered) < 3:
        return []
    found = []
    for step, value in known:
        usual, smallest, largest = _without(ordered, bisect_left(ordered, value))
        stands_out = value >= ODD_FACTOR * usual and value >= ODD_PAST_LARGEST * largest
        far = value - largest > FAR.get(len(ordered), 1.0) * max(largest - smallest, RANGE * usual)
        if stands_out and far and value - usual >= least_ns:
            found.append(OutlierStep(rank=rank, step=step, value_ns=value, usual_ns=usual, others=others))
    return found


def _came_early(odd: OutlierStep, steps: Steps) -> bool:
    """Return whether its communication was longer because the rank computed for less time than usual."""
    computed = {step: compute_ns for step, _, _, compute_ns, _ in steps if compute_ns is not None}
    if odd.step not in computed or len(computed) < 2:
        return False
    usual = statistics.median(ns for step, ns in computed.items() if step != odd.step)
    return usual - computed[odd.step] >= EARLY * (odd.value_ns - odd.usual_ns)


def _without(ordered: Sequence[int], left_out: int) -> tuple[float, int, int]:
    """Return the median, the smallest and the largest of sorted values without the one at `left_out`."""
    rest = len(ordered) - 1

    def at(row: int) -> int:
        return ordered[row + (row >= left_out)]

    middle = (at((rest - 1) // 2) + at(rest // 2)) / 2
    return middle, at(0), at(rest - 1)


def _finding(name: str, verb: str, found: Sequence[OutlierStep], known_from: Mapping[int, str]) -> Finding:
    most = _most(found)
    evidence = {"rank": most.rank, "step": most.step, name: most.value_ns, "median_of_others_ns": most.usual_ns}
    if len(found) == 1:
        return Finding(
            id=f"odd_step:{name}:rank{most.rank}:step{most.step}",
            severity="warning",
            title=f"step {most.step} of rank {most.rank} {verb} {_compared_with_median(most)}",
            evidence=evidence,
            known_from=known_from[most.rank],
        )
    ranks = [each.rank for each in found]
    return Finding(
        id=f"odd_step:{name}:step{most.step}",
        severity="warning",
        title=f"step {most.step} is an outlier on {len(ranks)} ranks ({_named(ranks)}): on rank {most.rank}, the "
        f"worst, it {verb} {_compared_with_median(most)}",
        evidence=evidence | {"ranks": ranks[:MAX_RANKS], "ranks_in_all": len(ranks)},
        known_from=_basis(found, known_from),
    )


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
    return max(found, key=lambda each: each.value_ns - each.usual_ns)


def _compared_with_median(odd: OutlierStep) -> str:
    times = f", {odd.value_ns / odd.usual_ns:.1f} times" if odd.usual_ns else ", compared with"
    return f"{format_ms(odd.value_ns)}{times} the median of the {odd.others} ({format_ms(odd.usual_ns)})"


def _named(ranks: Sequence[int]) -> str:
    words = ", ".join(map(str, ranks[:MAX_NAMED]))
    return words if len(ranks) <= MAX_NAMED else f"{words} and {len(ranks) - MAX_NAMED} more"


def _basis(found: Sequence[OutlierStep], known_from: Mapping[int, str]) -> str:
    return ", ".join(sorted({known_from[each.rank] for each in found}))

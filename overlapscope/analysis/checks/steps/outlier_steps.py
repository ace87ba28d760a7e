"""Find outlier steps: a step that communicates, takes or idles far longer than the other steps of a rank."""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.common.findings import MILLISECOND_NS

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
COMPUTED, IDLED = 3, 4
"""Positions of compute and idle time in a step's tuple."""
FIGURES: Final = (("comm_ns", "communicates for", 2), ("window_ns", "takes", 1), ("idle_ns", "idles for", IDLED))
"""The checked figures: name, verb for the title, position in a step's tuple."""
Steps = Sequence[tuple[int, int | None, int | None, int | None, int | None]]
"""(number, window_ns, comm_ns, compute_ns, idle_ns) of complete steps."""


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


def long_steps(ranks: Mapping[int, Steps]) -> list[OutlierStep]:
    """Return the steps that are outliers in length, or that idle so much longer, by rank: none is typical of a run."""
    long = outliers("window_ns", ranks)
    known = {(each.rank, each.step) for each in long}
    idle = (each for each in outliers("idle_ns", ranks) if (each.rank, each.step) not in known)
    return long + [_length_of(each, ranks[each.rank]) for each in idle]


def _length_of(idle: OutlierStep, steps: Steps) -> OutlierStep:
    """Return the length of a step that idles for longer, which is longer by no more than that."""
    taken = {step[0]: step[1] for step in kind_of_step(idle.step, steps) if step[1] is not None}
    length_ns = taken.pop(idle.step)
    more_ns = min(length_ns - statistics.median(taken.values()), idle.more_ns)
    return replace(idle, value_ns=length_ns, usual_ns=length_ns - more_ns)


def outliers(name: str, ranks: Mapping[int, Steps]) -> list[OutlierStep]:
    """Return the outliers in one figure, rank by rank, with the ranks on which the same step stands out less far."""
    kinds = [(rank, *kind) for rank, every in ranks.items() for kind in kinds_of_steps(every)]
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


def kinds_of_steps(steps: Steps) -> list[tuple[str, Steps]]:
    """Return the steps of a rank that are compared with each other, with words for them: where several
    communicate nothing, as with gradient accumulation, those that do are steps of another kind."""
    silent = [step for step in steps if step[2] == 0]
    if len(silent) < 2:
        return [("other steps", steps)]
    communicate = [step for step in steps if step[2] != 0]
    return [("other steps that communicate nothing", silent), ("other steps that communicate", communicate)]


def kind_of_step(number: int, steps: Steps) -> Steps:
    """Return the steps that one is compared with, and it."""
    return next(kind for _, kind in kinds_of_steps(steps) if any(step[0] == number for step in kind))


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


def _came_early(odd: OutlierStep, steps: Steps) -> bool:
    """Return whether its communication was longer because the rank computed for less time than usual."""
    computed = {step: compute_ns for step, _, _, compute_ns, _ in steps if compute_ns is not None}
    if odd.step not in computed or len(computed) < 2:
        return False
    usual = statistics.median(ns for step, ns in computed.items() if step != odd.step)
    return usual - computed[odd.step] >= EARLY * odd.more_ns


def more_than_usual(number: int, steps: Steps, place: int) -> float | None:
    """Return by how much a figure of a step, by its position in the tuple, is above the median of the steps that it is
    compared with; None where either is not known."""
    known = {step[0]: value for step in kind_of_step(number, steps) if (value := step[place]) is not None}
    own = known.pop(number, None)
    return None if own is None or not known else own - statistics.median(known.values())


def _without(ordered: Sequence[int], left_out: int) -> tuple[float, int, int]:
    """Return the median, the smallest and the largest of sorted values without the one at `left_out`."""
    rest = len(ordered) - 1

    def at(row: int) -> int:
        return ordered[row + (row >= left_out)]

    middle = (at((rest - 1) // 2) + at(rest // 2)) / 2
    return middle, at(0), at(rest - 1)

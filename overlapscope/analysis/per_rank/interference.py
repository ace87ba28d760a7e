"""Estimate how much longer compute takes beside communication: the same launch beside it and free of it.

The same launch is the n-th of its name, grid and stream in each step: steps differ a little in when communication
runs. Where that is not enough, as in fewer than `FEWEST_STEPS` steps or in steps that overlap alike, launches of one
name, grid and stream stand for each other, as those of repeated layers do, if they last alike and take turns beside
communication and free of it in each step. Where these are too few as well, those between the same two neighbours on
their stream do: one matrix product of a layer has the name and grid of another that takes longer. And where steps
change from free to beside only once, as before and in the last of several micro-batches, those with more neighbours in
common, which three steps or more repeat: backward has forward's kernels, but not in forward's order.

A kernel whose work differs from step to step, as attention of documents of any length, is not compared across steps.

Kernels of different duration suffer differently, and short ones are compared more often than their share of the time:
each class of duration has its own factor, weighted by the compute time that the class has beside communication. What
runs beside one transfer is slowed together: intervals follow how transfers differ, too.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Floats, Ints, Spans
from overlapscope.timeline.intervals import BusyTime, Intervals, WindowSets, difference, intersection, union
from overlapscope.timeline.rows import ascending, factorize_rows, sort_order, values_in

FREE: Final = 0.05
"""A launch with less of its time beside communication is free of it."""
BESIDE: Final = 0.95
"""A launch with more of its time beside communication is beside it."""
SHORT_NS: Final = 10_000
EDGES_NS: Final = (0, SHORT_NS, 100_000)
"""Least duration of each class; only those from `SHORT_NS` on may stand for each other."""
FEWEST_STEPS: Final = 3
"""With fewer steps, a launch that only one step has cannot be recognised."""
FEWEST_LAUNCHES: Final = 5
"""A class with fewer compared launches has no factor of its own."""
LEAST_COMPARED: Final = 0.1
"""Compared launches stand for at most ten times their time beside communication."""
LEAST_KNOWN: Final = 0.9
"""Least share of the compute time beside communication in classes with a factor."""
FEWEST_REPLICATES: Final = 3
FEWEST_PACED: Final = 20
"""Fewer launches that are free in all steps do not show how fast a step was."""
ALIKE: Final = 0.2
"""Replicates of one launch, but for an `OUTLIERS`th at each end, differ by at most this share of their median."""
OUTLIERS: Final = 20
TURNS: Final = 2
"""Replicates change between beside and free so many times a step: backward is not compared with forward."""
NEIGHBOURS: Final = 1
"""So many kernels on each side are the same for launches between the same neighbours ..."""
NEIGHBOURS_OF_ONE_TURN: Final = 3
"""... and so many for those that change once a step: a run of one kernel may be in forward and in backward ..."""
COMPARED_OF_ONE_TURN: Final = 0.5
"""... and this share of the compute beside communication is of such launches: micro-batches repeat forward and
backward; backward that recomputes forward repeats that alone, whose caches hold other data then."""
UNEVEN: Final = 0.08
"""A kernel does other work in each step whose launches, free of communication, differ by more than this share of their
mean (standard deviation). A choice: as much as compute is mostly slowed beside communication; smaller differences
average out over launches."""
DRAWS: Final = 500
MOST_BLOCKS: Final = 200
"""The bootstrap draws blocks of launches where there are more launches than that."""
TAILS: Final = (0.05, 0.95)
LEAST_TIMES: Final = 0.1
"""Widened draws stay above this: a factor is positive."""
QUANTILE: Final = 1.645
"""Of the normal distribution, at the upper end of a 90 % interval."""

NoInterference = Literal["no_kernels", "not_beside", "never_both", "too_few"]
NO_INTERFERENCE: Final[dict[NoInterference, str]] = {
    "no_kernels": "no kernels of a device were recorded",
    "not_beside": "no compute ran beside communication",
    "never_both": "no launch ran beside communication at one time and free of it at another",
    "too_few": "too few launches ran both beside communication and free of it",
}


class DurationClass(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one class of duration; the interval is of 90 %."""

    from_ns: int
    until_ns: int | None
    """Their duration free of communication is from `from_ns` to below `until_ns`; None without an upper limit."""
    times: float
    low: float
    high: float
    launches: int
    """Number of launches that were compared."""
    beside_ns: int
    """Compute time beside communication that the class has in the recording."""


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long compute takes beside communication, with its interval of 90 %."""

    times: float
    low: float
    high: float
    launches: int
    compared_share: float
    """Share of the compute time beside communication that was compared."""
    classes: list[DurationClass]


class Estimate(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of the interference on one rank."""

    value: Interference | NoInterference
    """The reason where there is none."""
    lost: Floats
    """Share of its time beside communication by which each class is longer; shape (classes)."""
    drawn: Floats
    """The same by draw of the bootstrap; shape (DRAWS, classes)."""
    beside: Sequence[Intervals]
    """Compute beside communication of each class; disjoint."""

    def within(self, sets: WindowSets) -> list[tuple[int, int, int] | None]:
        """Return ns by which compute is longer in each set of windows, with their interval; None where unknown."""
        if isinstance(self.value, str):
            return [None] * sets.sets
        times = np.array([sets.within(BusyTime(each)) for each in self.beside], np.float64)  # (classes, sets)
        value, (low, high) = self.lost @ times, np.quantile(self.drawn @ times, TAILS, axis=0)
        ends = np.stack([value, np.minimum(low, value), np.maximum(high, value)])
        columns = np.rint(np.maximum(ends, 0)).astype(np.int64)
        return [(one, least, most) for one, least, most in columns.T.tolist()]


def interference(
    spans: Spans, communication: Intervals | None = None, *, other: Intervals | None = None, has_kernels: bool = True
) -> Estimate:
    """Compare launches beside communication with the same launches free of it; with the reason where that cannot be.

    `communication` is when the rank communicated, in ns; None for its recorded communication, with wait time. Beside
    `other` communication, at other times, launches are neither beside it nor free.
    """
    if not has_kernels:
        return _unknown("no_kernels")
    if communication is None:
        chosen = spans.kind == COMM
        communication = union((spans.start_ns[chosen], spans.end_ns[chosen]))
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.end_ns > spans.start_ns))
    lasted = (spans.end_ns - spans.start_ns)[rows]
    beside = _beside_by_class(spans, rows, lasted, communication)
    totals = np.array([(each.ends - each.starts).sum() for each in beside], np.float64)
    if not totals.sum():
        return _unknown("not_beside")
    launches = _launches_of(spans, rows, lasted, communication, union() if other is None else other)
    reasons: list[NoInterference] = []
    if launches.steps >= FEWEST_STEPS:
        found = _estimate(_same_launches(launches), beside, totals)
        if not isinstance(found, str):
            return found
        reasons.append(found)
    found = _estimate(_like_launches(launches), beside, totals)
    if not isinstance(found, str):
        return found
    turns = [(NEIGHBOURS, TURNS, LEAST_COMPARED), (NEIGHBOURS_OF_ONE_TURN, 1, COMPARED_OF_ONE_TURN)]
    for neighbours, least_turns, least_compared in turns[: 1 + (launches.steps >= FEWEST_STEPS)]:
        between = _between_neighbours(launches.kernel, spans.lane[rows], spans.start_ns[rows], neighbours)
        like = _like_launches(msgspec.structs.replace(launches, kernel=between), least_turns)
        closer = _estimate(like, beside, totals, least_compared)
        if not isinstance(closer, str):
            return closer
    return _unknown("too_few" if "too_few" in (*reasons, found) else found)


def _estimate(
    found: "_Compared", beside: Sequence[Intervals], totals: Floats, least_compared: float = LEAST_COMPARED
) -> Estimate | NoInterference:
    """Return the estimate from what was compared, or the reason why that is not enough.

    `beside` is compute beside communication by class of duration, `totals` how long that is, of which this share must
    be compared for a class to be known.
    """
    if not found.free_ns.size:
        return "never_both"
    kind = np.searchsorted(EDGES_NS, found.free_ns, "right") - 1
    first = np.flatnonzero(np.diff(found.launch, prepend=-1))
    edges = _edges(np.bincount(kind[first], minlength=len(EDGES_NS)))
    numbers = np.searchsorted(edges, EDGES_NS, "right") - 1
    kind = numbers[kind]
    slower, free = (_totals(kind, each, len(edges)) for each in (found.beside_ns, found.free_ns))
    launches = np.bincount(kind[first], minlength=len(edges))
    totals = _totals(numbers, totals, len(edges))
    known = np.flatnonzero((launches >= FEWEST_LAUNCHES) & (slower >= least_compared * totals))
    if totals[known].sum() < LEAST_KNOWN * totals.sum():
        return "too_few"
    merged = [union(*[beside[at] for at in np.flatnonzero(numbers == each).tolist()]) for each in known.tolist()]
    times, drawn = slower[known] / free[known], _drawn(found, kind, len(edges))[:, known]
    classes = []
    for place, at in enumerate(known.tolist()):
        mean, least, most = _interval(drawn[:, place], float(times[place]))
        classes.append(
            DurationClass(
                from_ns=edges[at], until_ns=edges[at + 1] if at + 1 < len(edges) else None, times=mean, low=least,
                high=most, launches=int(launches[at]), beside_ns=round(totals[at]),
            )
        )  # fmt: skip
    lost, lost_drawn, weights = 1 - 1 / times, 1 - 1 / drawn, totals[known] / totals[known].sum()
    mean, least, most = (1 / (1 - each) for each in _interval(lost_drawn @ weights, float(lost @ weights)))
    share = min(float(slower[known].sum() / totals[known].sum()), 1.0)
    value = Interference(
        times=mean, low=least, high=most, launches=int(launches[known].sum()), compared_share=share,
        classes=classes,
    )  # fmt: skip
    return Estimate(value=value, lost=lost, drawn=lost_drawn, beside=merged)


class _Compared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The compared executions of launches beside communication, sorted by launch."""

    beside_ns: Floats
    free_ns: Floats
    """The mean time of the same launch, or of those that stand for it, free of communication."""
    launch: Ints
    transfer: Ints
    """Number of the stretch of communication that each ran beside."""
    spread: Floats
    """By how much of their mean those that stand for each other differ, free of communication (standard deviation); 0
    of the same launch."""


class _Launches(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Every kernel of a device that was recorded."""

    kernel: Ints
    """Number of its name, grid and stream."""
    step: Ints
    launched_ns: Ints
    taken_ns: Floats
    free: Flags
    """Free of communication, and no other compute beside it."""
    beside: Flags
    transfer: Ints
    """The last stretch of communication that had begun when it ended."""
    steps: int


def _unknown(reason: NoInterference) -> Estimate:
    none = np.zeros(0)
    return Estimate(value=reason, lost=none, drawn=none, beside=())


def _beside_by_class(spans: Spans, rows: Ints, lasted: Ints, communication: Intervals) -> list[Intervals]:
    """Return the compute beside communication of each class; where kernels overlap, it is that of the longest."""
    found: list[Intervals] = []
    covered = union()
    kind = np.searchsorted(EDGES_NS, lasted, "right") - 1
    for each in reversed(range(len(EDGES_NS))):
        own = rows[kind == each]
        mine = intersection(union((spans.start_ns[own], spans.end_ns[own])), communication)
        found.append(difference(mine, covered))
        covered = union(covered, mine)
    return found[::-1]


def _edges(launches: Ints) -> list[int]:
    """Return the least duration of each class; one with few launches joins the next shorter one, but not short ones."""
    edges: list[int] = []
    number = 0
    for least_ns, own in zip(EDGES_NS[::-1], launches[::-1].tolist(), strict=True):
        number += own
        if number >= FEWEST_LAUNCHES or least_ns <= SHORT_NS:
            edges.append(least_ns)
            number = 0
    return edges[::-1]


def _launches_of(spans: Spans, rows: Ints, lasted: Ints, communication: Intervals, other: Intervals) -> _Launches:
    start, end, step = spans.start_ns[rows], spans.end_ns[rows], spans.step[rows]
    share, alone = BusyTime(communication).within(start, end) / lasted, _alone(start, end)
    elsewhere = BusyTime(other).within(start, end) / lasted
    return _Launches(
        # Codes of names differ in a run directory: the order of the launches must not.
        kernel=factorize_rows([spans.name[rows], spans.blocks[rows], spans.lane[rows]])[0],
        step=step,
        launched_ns=np.where(spans.launch_ns[rows] == NONE, start, spans.launch_ns[rows]),
        taken_ns=lasted.astype(np.float64),
        free=alone & (share + elsewhere < FREE),
        beside=alone & (share > BESIDE),
        transfer=np.searchsorted(communication.starts, end) - 1,
        steps=values_in(step[step != NONE]).size,
    )


def _same_launches(every: _Launches) -> _Compared:
    """Return the launches that ran beside communication in some steps and free of it in others."""
    chosen, place = _by_place(every.kernel, every.step, every.launched_ns)
    group = _numbers(every.kernel[chosen], place)
    free, beside, taken = every.free[chosen], every.beside[chosen], every.taken_ns[chosen]
    free_count, number = np.bincount(group, free), int(group[-1]) + 1 if group.size else 0
    taken = taken / _pace(every.step[chosen], group, taken, free_count == np.bincount(group))
    both = (free_count > 0) & (np.bincount(group, beside) > 0) & ~_uneven(every.kernel[chosen], group, taken, free)
    return _compared(every, chosen, group, taken, both, np.zeros(number))


def _uneven(kernel: Ints, group: Ints, taken: Floats, free: Flags) -> Flags:
    """Return which groups of equal launches are of a kernel that does other work in each step: free of communication,
    the same launch takes now longer, now shorter. Short kernels differ by chance."""
    opens = np.diff(group, prepend=-1) != 0
    groups, kernels = int(opens.sum()), int(kernel.max(initial=-1)) + 1
    count = np.bincount(group, free, groups)
    mean = np.bincount(group, taken * free, groups) / np.maximum(count, 1)
    apart = (taken / np.maximum(mean, 1)[group] - 1) ** 2 * (free & (mean >= SHORT_NS)[group])
    beyond_first = np.bincount(kernel, free, kernels) - np.bincount(kernel[opens], count > 0, kernels)
    uneven = np.bincount(kernel, apart, kernels) > UNEVEN**2 * np.maximum(beyond_first, 1)
    found: Flags = uneven[kernel[opens]]
    return found


def _like_launches(every: _Launches, least_turns: int = TURNS) -> _Compared:
    """Return the launches of one kernel that stand for each other: they last alike, free and beside, and change between
    the two so many times a step."""
    chosen = sort_order(every.kernel, every.launched_ns)
    group, taken, free = every.kernel[chosen], every.taken_ns[chosen], every.free[chosen]
    number = int(group.max(initial=-1)) + 1
    count = np.maximum(np.bincount(group, free, number), 1)
    mean = np.bincount(group, taken * free, number) / count
    spread = np.sqrt(np.bincount(group, (taken - mean[group]) ** 2 * free, number) / count) / np.maximum(mean, 1)
    good = _replicates(group, every.step[chosen], taken, free, every.beside[chosen], number, least_turns)
    return _compared(every, chosen, group, taken, good, spread)


def _between_neighbours(kernel: Ints, stream: Ints, start_ns: Ints, neighbours: int) -> Ints:
    """Return a number for each row, equal where a kernel, so many before it on its stream, and as many after it are."""
    order = sort_order(stream, start_ns)
    own, of = kernel[order], stream[order]
    around = [own]
    for away in range(1, neighbours + 1):
        before, after = np.full((2, own.size), NONE, np.int64)
        follows = of[away:] == of[:-away]
        before[away:] = np.where(follows, own[:-away], NONE)
        after[:-away] = np.where(follows, own[away:], NONE)
        around += [before, after]
    numbers = np.empty(own.size, np.int64)
    numbers[order] = factorize_rows(around)[0]
    return numbers


def _compared(every: _Launches, chosen: Ints, group: Ints, taken: Floats, good: Flags, spread: Floats) -> _Compared:
    """Return what is compared of chosen rows: those of good groups, which hold launches of both kinds."""
    free = every.free[chosen]
    free_ns = np.bincount(group, taken * free, good.size) / np.maximum(np.bincount(group, free, good.size), 1)
    rows = np.flatnonzero(every.beside[chosen] & good[group])
    own = group[rows]
    return _Compared(
        beside_ns=taken[rows], free_ns=free_ns[own], launch=own, transfer=every.transfer[chosen[rows]],
        spread=spread[own],
    )  # fmt: skip


def _pace(step: Ints, group: Ints, taken: Floats, always_free: Flags) -> Floats:
    """Return how long each row's step takes for launches that are free in all steps; 1 is usual.

    The clock of a device, and so all of a step, may be some percent faster or slower than in another.
    """
    ratio = taken / (np.bincount(group, taken) / np.bincount(group))[group]
    steps = values_in(step)
    at = np.searchsorted(steps, step)
    rows = np.flatnonzero(always_free[group])
    rows = rows[np.lexsort((ratio[rows], at[rows]))]
    count = np.bincount(at[rows], minlength=steps.size)
    middle = (np.cumsum(count) - count + count // 2)[known := count >= FEWEST_PACED]
    pace = np.ones(steps.size)
    pace[known] = ratio[rows[middle]]
    found: Floats = pace[at]
    return found


def _by_place(kernel: Ints, step: Ints, launched: Ints) -> tuple[Ints, Ints]:
    """Sort rows by kernel, place in the step, and step; return them with that place.

    For each kernel, steps in which it was launched another number of times than in most are left out: they did other
    work, or are recorded in part.
    """
    rows = np.flatnonzero(step != NONE)
    rows = rows[sort_order(kernel[rows], step[rows], launched[rows])]
    group = _numbers(kernel[rows], step[rows])
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    place = np.arange(rows.size) - begins[group]
    count = np.bincount(group)
    keep = (count == _usual(kernel[rows][begins], count))[group]
    rows, place = rows[keep], place[keep]
    order = sort_order(kernel[rows], place, step[rows])
    return rows[order], place[order]


def _usual(kernel: Ints, count: Ints) -> Ints:
    """Return for each step of a kernel the launch count that most steps of it have; on a tie the smallest."""
    kind, first = factorize_rows([kernel, count])
    often = np.bincount(kind)
    best = first[sort_order(kernel[first], -often, count[first])]
    best = best[np.diff(kernel[best], prepend=-1) != 0]
    usual: Ints = count[best][np.searchsorted(kernel[best], kernel)]
    return usual


def _numbers(*columns: Ints) -> Ints:
    """Return numbers from 0 of the groups of equal values in sorted columns."""
    opens = np.zeros(columns[0].size, np.bool_)
    for each in columns:
        opens[1:] |= each[1:] != each[:-1]
    numbers: Ints = np.cumsum(opens)
    return numbers


def _alone(start_ns: Ints, end_ns: Ints) -> Flags:
    """Return which spans overlap no other one."""
    order = sort_order(start_ns)
    found = np.ones(order.size, np.bool_)
    follows = np.maximum.accumulate(end_ns[order])[:-1] <= start_ns[order][1:]
    found[order[1:]] &= follows
    found[order[:-1]] &= end_ns[order][:-1] <= start_ns[order][1:]
    return found


def _replicates(
    group: Ints, step: Ints, taken: Floats, free: Flags, beside: Flags, number: int, least_turns: int
) -> Flags:
    """Return the groups whose launches do the same work: they last alike, free and beside, and take turns."""
    good = np.ones(number, np.bool_)
    for chosen in (free, beside):
        at = np.flatnonzero(chosen)
        width = int(taken[at].max(initial=0)) + 1
        by_group = ascending(group[at] * width + taken[at].astype(np.int64)) % width
        count = np.bincount(group[at], minlength=number)
        first = np.cumsum(count) - count
        there = count >= FEWEST_REPLICATES
        good &= there
        ends = (count // OUTLIERS, count - 1 - count // OUTLIERS, count // 2)
        low, high, middle = (by_group[(first + each)[there]] for each in ends)
        good[there] &= high - low <= ALIKE * middle
    rows = np.flatnonzero(free | beside)
    same = (group[rows][1:] == group[rows][:-1]) & (step[rows][1:] == step[rows][:-1])
    turns = np.bincount(group[rows][1:], same & (free[rows][1:] != free[rows][:-1]), number)
    begins = np.append(True, (group[rows][1:] != group[rows][:-1]) | (step[rows][1:] != step[rows][:-1]))[: rows.size]
    steps = np.bincount(group[rows], begins, number)
    return good & (turns >= least_turns * steps)


def _totals(group: Ints, values: Floats, groups: int) -> Floats:
    found: Floats = np.bincount(group, values, groups).astype(np.float64)
    return found


def _drawn(found: _Compared, kind: Ints, classes: int) -> Floats:
    """Return the factor of each class in each draw of the bootstrap, shape (DRAWS, classes).

    Launches are drawn, and stretches of communication; of the two the one that varies more counts for each class.
    Launches that merely stand for each other may all be longer beside communication for another reason, by as much as
    they differ free of it.
    """
    by_launch, by_transfer = (_redrawn(found, kind, classes, each) for each in (found.launch, found.transfer))
    drawn = np.where(by_transfer.std(axis=0) > by_launch.std(axis=0), by_transfer, by_launch)
    count = np.maximum(np.bincount(kind, minlength=classes), 1)
    spread = np.bincount(kind, found.spread, classes) / count
    apart = np.random.default_rng(1).standard_normal(DRAWS)
    shifted: Floats = drawn * np.exp(np.multiply.outer(apart, spread))
    return shifted


def _redrawn(found: _Compared, kind: Ints, classes: int, unit: Ints) -> Floats:
    """Return the factor of each class where units are drawn; a draw without the class, or a class with one unit, has
    the estimate.

    Draws of few units vary too little: they are moved away from the estimate as far as Student's t lies outside the
    normal quantile (expanded percentile interval: Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
    """
    units = values_in(unit)
    number = np.searchsorted(units, unit)
    blocks = min(units.size, MOST_BLOCKS)
    key = number % blocks * classes + kind
    slower, free = (
        _totals(key, times, blocks * classes).reshape(blocks, classes) for times in (found.beside_ns, found.free_ns)
    )
    there = free.sum(axis=0) > 0
    times = np.where(there, slower.sum(axis=0) / np.where(there, free.sum(axis=0), 1.0), 1.0)
    weights = _weights()[:, :blocks]
    drawn_free = weights @ free
    drawn = np.where(drawn_free > 0, weights @ slower / np.where(drawn_free > 0, drawn_free, 1.0), times)
    there = np.zeros((classes, units.size), np.bool_)
    there[kind, number] = True
    of_class = there.sum(axis=1)
    others = np.maximum(of_class - 1, 1)
    wider = np.where(of_class > 1, np.sqrt(of_class / others) * (1 + (QUANTILE**2 + 1) / (4 * others)), 0.0)
    redrawn: Floats = np.maximum(times + (drawn - times) * wider, LEAST_TIMES)
    return redrawn


@cache
def _weights() -> Floats:
    """Return how often each block is drawn, shape (DRAWS, MOST_BLOCKS): independent, as ratios allow (Poisson)."""
    found: Floats = np.random.default_rng(0).poisson(1.0, (DRAWS, MOST_BLOCKS)).astype(np.float64)
    return found


def _interval(drawn: Floats, value: float) -> tuple[float, float, float]:
    """Return the value with the ends of its interval of 90 %."""
    low, high = np.quantile(drawn, TAILS).tolist()
    return value, min(low, value), max(high, value)

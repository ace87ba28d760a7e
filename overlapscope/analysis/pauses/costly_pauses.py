"""List the pauses of hosts that left their devices idle, over all ranks, with how long another rank waited for each."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.pauses.long_pauses import LongPauses
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import Run

MOST_IDLE: Final = 0.5
"""A place is where devices mostly idle in pauses if more than this share of that time is in those there."""
AT_ONE_PLACE: Final = 0.75
"""Pauses are at one place if this share of them is between the same operations. A choice."""
ALIKE: Final = 0.05
"""Pauses are of one length if they differ from their median by at most this share, and a rank idles for longer in
pauses than another if by more than this share. A choice."""
FEWEST_RECURRING: Final = 2
"""Of a single step nobody knows whether its pauses recur. In a recording without marks of steps a rank pauses so often
at one place: a single pause may be what comes before a loop."""


class CostlyPause(msgspec.Struct, frozen=True, kw_only=True):
    """One pause, as listed as evidence."""

    rank: int
    step: int | None
    """None where no steps are marked."""
    start_ns: int
    """On the rank's own clock."""
    paused_ns: int
    idle_ns: int
    """Of it, the device of the rank was idle."""
    waited_ns: int
    """At most so long another rank waited for this one in the next call that both make, for the time by which this one
    idled for longer in pauses; 0 where none was matched, or they paused alike."""
    into_step_ns: int
    before: str
    after: str
    inside: str | None
    lane: int = -1
    """The thread (row in `Lanes`) that goes on after it, else the one before it; -1 for none."""

    @property
    def end_ns(self) -> int:
        """On the rank's own clock."""
        return self.start_ns + self.paused_ns


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """The matched calls that a rank made."""

    number: Ints
    """Which of all matched calls it is, ascending."""
    launch_ns: Ints
    """On the rank's own clock; NONE where it is not known."""
    by_launch: Ints
    """Rows of the calls of which it is known, by launch."""


class _Matched(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls, by number; `last`, `waiter` and `wait_ns` have one value for each."""

    made: Mapping[int, _Made]
    """Which of them each rank made."""
    last: Ints
    """The rank that arrived last."""
    waiter: Ints
    """The rank that waited for longest, ..."""
    wait_ns: Ints
    """... and for how long."""


def costly_pauses(run: Run, known: Mapping[int, LongPauses], splits: Sequence[Split]) -> list[CostlyPause]:
    """Return the pauses of all ranks: of each in the order of `known`, by begin.

    `known` holds the long pauses of each rank where they are known, `splits` the matched calls of the run.
    """
    matched = _matched(run, known.keys(), splits)
    return [each for rank in known for each in _of_rank(rank, known, matched)]


def common_place(found: Sequence[CostlyPause]) -> tuple[tuple[str, str], bool]:
    """Return between which operations most of one or more pauses are, and whether that is nearly all of them."""
    ((between, times),) = Counter((each.before, each.after) for each in found).most_common(1)
    return between, times >= AT_ONE_PLACE * len(found)


def costliest_place(found: Sequence[CostlyPause]) -> tuple[tuple[str, str], bool]:
    """Return between which operations the pauses are in which devices idle for longest of one or more, and whether most
    of the idle time in all of them is there."""
    idle_ns = Counter[tuple[str, str]]()
    for each in found:
        idle_ns[each.before, each.after] += each.idle_ns
    ((between, ns),) = idle_ns.most_common(1)
    return between, ns > MOST_IDLE * idle_ns.total()


def usual_length_ns(found: Sequence[CostlyPause]) -> int:
    """Return how long the pause is in which the middle of the idle time in one or more lies, the shortest first: about
    as long as those that cost most together, which the longest one need not be of."""
    by_length = sorted(found, key=lambda each: each.paused_ns)
    until = np.cumsum([each.idle_ns for each in by_length])
    return by_length[int(np.searchsorted(2 * until, until[-1]))].paused_ns


def times_in_steps(found: Sequence[CostlyPause]) -> list[int]:
    """Return how often each rank paused in each step in which it did, fewest first."""
    return sorted(Counter((each.rank, each.step) for each in found).values())


def ranks_by_step(found: Sequence[CostlyPause]) -> dict[int, set[int]]:
    """Return which ranks paused in each step; empty where none is marked."""
    ranks_of: defaultdict[int, set[int]] = defaultdict(set)
    for each in found:
        if each.step is not None:
            ranks_of[each.step].add(each.rank)
    return ranks_of


def _of_rank(rank: int, known: Mapping[int, LongPauses], matched: _Matched) -> Iterator[CostlyPause]:
    own = known[rank]
    waited = _waited_ns(rank, known, matched).tolist()
    columns = (own.start_ns, own.end_ns, own.idle_ns, own.step, own.into_step_ns)
    rows = zip(*(each.tolist() for each in columns), waited, own.between, own.inside, own.lane, strict=True)
    for start, end, idle, step, into, waits, (before, after), inside, lane in rows:
        yield CostlyPause(
            rank=rank, step=None if step == NONE else step, start_ns=start, paused_ns=end - start, idle_ns=idle,
            waited_ns=waits, into_step_ns=into, before=before, after=after, inside=inside, lane=lane,
        )  # fmt: skip


def _matched(run: Run, ranks: Collection[int], splits: Sequence[Split]) -> _Matched:
    """Return all matched calls, numbered over the splits, and which of them each of these ranks made."""
    rows: dict[int, list[tuple[Ints, Ints]]] = {rank: [] for rank in ranks}
    last, waiter, wait_ns = ([np.empty(0, np.int64)] for _ in range(3))
    begin = 0
    for each in splits:
        members, waits = np.array(each.block.ranks), each.wait_ns
        last.append(members[each.last])
        waiter.append(members[waits.argmax(axis=0)])
        wait_ns.append(waits.max(axis=0))
        number = np.arange(begin, begin + each.last.size)
        begin += each.last.size
        for rank, calls in zip(each.block.ranks, each.block.rows, strict=True):
            if rank in rows:
                rows[rank].append((number, run.ranks[rank].collectives.launch_ns[calls]))
    return _Matched(
        made={rank: _made(own) for rank, own in rows.items()},
        last=np.concatenate(last), waiter=np.concatenate(waiter), wait_ns=np.concatenate(wait_ns),
    )  # fmt: skip


def _made(parts: Sequence[tuple[Ints, Ints]]) -> _Made:
    none = (np.empty(0, np.int64), np.empty(0, np.int64))
    number, launch_ns = (np.concatenate(each) for each in zip(none, *parts, strict=True))
    order = np.argsort(launch_ns, kind="stable")
    return _Made(number=number, launch_ns=launch_ns, by_launch=order[launch_ns[order] != NONE])


def _waited_ns(rank: int, known: Mapping[int, LongPauses], matched: _Matched) -> Ints:
    """Return for each pause how long another rank waited for this one, if it came last to the call that it launched
    next: at most as long as it idled in it, and as it idled for longer in pauses, since the call before that both made,
    than the one that waited for longest. 0 where that is not known, or they idled alike."""
    own, made = known[rank], matched.made[rank]
    place = np.searchsorted(made.launch_ns[made.by_launch], own.end_ns)
    there = np.flatnonzero(place < made.by_launch.size)
    row = made.by_launch[place[there]]
    is_last = matched.last[made.number[row]] == rank
    there, row = there[is_last], row[is_last]
    call = made.number[row]
    more = np.zeros(own.start_ns.size, np.int64)
    for other in known.keys() & {*matched.waiter[call].tolist()}:
        of_it = matched.waiter[call] == other
        launched_ns = made.launch_ns[row[of_it]]
        more[there[of_it]] = _idled_more_ns((rank, other), known, matched, launched_ns)
    more[more <= ALIKE * own.idle_ns] = 0
    found = np.zeros(own.start_ns.size, np.int64)
    found[there] = matched.wait_ns[call]
    clipped: Ints = np.minimum(np.minimum(found, own.idle_ns), more)
    return clipped


def _idled_more_ns(
    pair: tuple[int, int], known: Mapping[int, LongPauses], matched: _Matched, launched_ns: Ints
) -> Ints:  # fmt: skip
    """Return by how much longer the first of two ranks idled in pauses than the second, before its launches of some of
    the calls that both made (`launched_ns`), and after those of the calls before them; 0 where one of these launches is
    not known."""
    first, second = (matched.made[rank] for rank in pair)
    rows = first.by_launch[np.isin(first.number[first.by_launch], second.number)]
    launches = (first.launch_ns[rows], second.launch_ns[np.searchsorted(second.number, first.number[rows])])
    at = np.searchsorted(launches[0], launched_ns)
    idled, unknown = [], np.zeros(at.size, np.bool_)
    for rank, launch_ns in zip(pair, launches, strict=True):
        since, until = np.where(at > 0, launch_ns[at - 1], np.iinfo(np.int64).min + 1), launch_ns[at]
        unknown |= (since == NONE) | (until == NONE)
        idled.append(_idle_between(known[rank], since, until))
    more: Ints = np.where(unknown, 0, idled[0] - idled[1])
    return more


def _idle_between(pauses: LongPauses, since_ns: Ints, until_ns: Ints) -> Ints:
    """Return for how long a device was idle in the pauses that began between each two moments."""
    idle_ns = np.append(0, np.cumsum(pauses.idle_ns))
    first, end = (np.searchsorted(pauses.start_ns, each) for each in (since_ns, until_ns))
    found: Ints = idle_ns[end] - idle_ns[first]
    return found

"""Compare what the hosts of a late rank and of its peers ran: how many operations, and how much these were given."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.stragglers.lateness import LateArrivals
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import NONE, OPERATION, HostSpans, Ints, make
from overlapscope.timeline.intervals import BusyTime, Intervals, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""More operations are more work if they take more than this share of what the rank computed longer."""
LARGER: Final = 1.05
"""Inputs of a rank's operations are larger than its peers' from this factor of their median."""
ALIKE_STEPS, AS_LATE = 3, 0.8
"""Of a rank that did more in some steps than a peer, so many steps with the same shapes show that it is slower, if it
was late in them by this share of what it was in the mean of all."""
LONG_ONES, ALIKE = 2.0, 0.2
"""Operations that a rank ran more are its longest if they took so many times as long as any of its peers, and the
others together what those of a peer took, but for this share: no core is so much slower for these alone."""


def by_sizes(
    rank: int, others: Sequence[int], run: Run, times_as_long: float, lead_ns: Mapping[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """Decide between more work and slower compute of a host, from the shapes of what its operations were given; with
    evidence. It computed `times_as_long` as its peers, and was late by `lead_ns` in each step.

    Compute is slower where the shapes are those of a peer in all steps, or in some in which it was as late as in the
    others: what it does besides in those, such as writing a checkpoint, is not why.
    Larger inputs are the cause where they are larger by more than a part (MOST) of that: parameters are inputs, too, so
    that twice the batch makes them less than twice as large.
    """
    if any(_slower(run.ranks[rank], run.ranks[each], lead_ns or {}) for each in others):
        return "slower_compute", {}
    times = [found for each in others if (found := _times_as_large(run.ranks[rank], run.ranks[each])) is not None]
    usual = float(np.median(times)) if times else 0.0
    if usual < LARGER:
        return "longer_compute", {}
    most = usual - 1 >= MOST * (times_as_long - 1)
    return "more_work" if most else "longer_compute", {"input_elements_times": usual}


def _slower(one: RankTimeline, other: RankTimeline, lead_ns: Mapping[int, int]) -> bool:
    """Return whether two ranks ran the same operations, with inputs of the same shapes, in all steps that both
    recorded, or in at least ALIKE_STEPS in which the one was as late as in the others; False where that is not known of
    any."""
    own, theirs = (_of_steps(each, each.steps.input_shapes) for each in (one, other))
    both = own.keys() & theirs.keys()
    same = [step for step in both if own[step] == theirs[step]]
    if not both or len(same) == len(both):
        return bool(both)
    late_ns = sum(lead_ns.get(step, 0) for step in same)
    usual_ns = sum(lead_ns.get(step, 0) for step in both) / len(both)
    return len(same) >= ALIKE_STEPS and late_ns >= AS_LATE * usual_ns * len(same) > 0


def _times_as_large(one: RankTimeline, other: RankTimeline) -> float | None:
    """Return how many times as large the inputs of one rank's operations were as another's, over the steps that both
    recorded; None where that is not known."""
    own, theirs = (_of_steps(each, each.steps.input_elements) for each in (one, other))
    both = own.keys() & theirs.keys()
    return sum(own[step] for step in both) / sum(theirs[step] for step in both) if both else None


def _of_steps(timeline: RankTimeline, column: Ints) -> dict[int, int]:
    """Return the values of a column by complete step, where they are known."""
    known = (column != NONE) & ~timeline.steps.cut
    return dict(zip(timeline.steps.step[known].tolist(), column[known].tolist(), strict=True))


def longer_operation(
    rank: int, others: Sequence[int], operation_ns: Mapping[int, Mapping[str, int]], longer_ns: float
) -> dict[str, Any]:
    """Return the name of the operation in which most of what a host computed longer than its peers lies, and how much
    that is; empty where none has more than MOST of `longer_ns`, or that is not known.

    `operation_ns` holds by rank the result of `operation_times`, where operations were recorded.
    """
    if not all(operation_ns.get(each) for each in (rank, *others)):
        return {}
    more = {
        name: ns - float(np.median([operation_ns[each].get(name, 0) for each in others]))
        for name, ns in operation_ns[rank].items()
    }
    name = max(more, key=more.__getitem__)
    return {"longer_op": name, "longer_op_ns": round(more[name])} if more[name] > MOST * longer_ns else {}


def same_operations(rank: int, others: Sequence[int], run: Run) -> bool:
    """Return whether the host ran as many operations of each name as that of a rank that it delayed.

    Then either they were larger or its core was slower. False where operations were not recorded.
    """
    mine = _operations(run.ranks[rank]).counts()
    return bool(mine) and any(_operations(run.ranks[each]).counts() == mine for each in others)


def more_operations(
    late: Sequence[LateArrivals], others: Sequence[int], run: Run, coverage: Mapping[int, Coverage], computed_ns: int
) -> dict[str, Any]:
    """Return the name of operations, how many more the rank ran than each one that it delayed, and what these took: at
    least its shortest, or its longest where these are LONG_ONES times as long as any of the ranks that it delayed.

    Empty where that is less than MOST of what it computed longer, in the intervals or in all if that is less, or
    operations of a rank were not recorded. Operations nest, so those of one name count alone, if they are so much, else
    those of several names. They are more in the intervals and in the whole recording: calls that queue behind others
    may divide the same work otherwise, and a rank may have recorded another step.
    """
    rank = late[0].rank
    ran = {each: _operations(run.ranks[each]) for each in (rank, *others)}
    whole = {each: operations.counts() for each, operations in ran.items()}
    if not all(whole.values()):
        return {}
    more: Counter[str] = Counter()
    for each in late:
        counts = {
            member: ran[member].counts(union((begin, end)))
            for member, begin, end in zip(each.met.ranks, each.met.begin_ns, each.met.end_ns, strict=True)
        }
        peers = [own for member, own in counts.items() if member != rank]
        more.update({name: number - max(own.get(name, 0) for own in peers) for name, number in counts[rank].items()})
    in_all = {name: whole[rank][name] - max(whole[each].get(name, 0) for each in others) for name in more}
    number = {name: min(in_intervals, in_all[name]) for name, in_intervals in more.items()}
    number = {name: count for name, count in number.items() if count > 0}
    if not number:
        return {}
    computing = {each: BusyTime(coverage[each].compute) for each in ran}
    took: dict[str, int] = {}
    for name, count in number.items():
        taken = ran[rank].taken_ns(name, computing[rank])
        theirs = [ran[other].taken_ns(name, computing[other]) for other in others]
        of_them = _longest(taken, theirs, in_all[name])
        took[name] = round(taken[:count].sum() if of_them is None else of_them * count)
    most = max(took, key=took.__getitem__, default=None)
    if most is not None and took[most] >= MOST * computed_ns:
        return {"host_op": most, "operations_more": number[most], "operations_more_ns": min(took[most], computed_ns)}
    return _of_several_names(ran, rank, number, computing[rank], computed_ns)


def _longest(taken: Ints, theirs: Sequence[Ints], number: int) -> float | None:
    """Return the mean of so many longest operations of a name, where these are what the rank ran more; else None."""
    usual_ns = float(np.median([each.sum() for each in theirs]))
    are_longest = (
        taken[-number] >= LONG_ONES * max(int(each.max(initial=0)) for each in theirs)
        and abs(taken[:-number].sum() - usual_ns) <= ALIKE * usual_ns
    )
    return float(taken[-number:].mean()) if are_longest else None


def _of_several_names(
    ran: Mapping[int, "_Operations"], rank: int, more: Mapping[str, int], computing: BusyTime, computed_ns: int
) -> dict[str, Any]:
    """Return the same of operations of several names together, as of an evaluation: of those not inside another one of
    them, with the name of most of their time."""
    outer = {each: operations.outermost(set(more)) for each, operations in ran.items()}
    counts = {each: operations.counts() for each, operations in outer.items()}
    took: dict[str, int] = {}
    number = 0
    for name in counts[rank]:
        of_name = counts[rank][name] - max(own.get(name, 0) for each, own in counts.items() if each != rank)
        if (of_name := min(of_name, more[name])) > 0:
            took[name] = int(outer[rank].taken_ns(name, computing)[:of_name].sum())
            number += of_name
    total_ns = min(sum(took.values()), computed_ns)
    if total_ns < MOST * computed_ns:
        return {}
    return {
        "host_op": max(took, key=took.__getitem__), "operations_more": number, "operations_more_ns": total_ns,
        "operation_names": len(took),
    }  # fmt: skip


class _Operations(msgspec.Struct, frozen=True, kw_only=True):
    """The operations that the host of a rank ran."""

    names: tuple[str, ...]
    name: Ints
    """Code in `names`."""
    start_ns: Ints
    end_ns: Ints

    def counts(self, times: Intervals | None = None) -> dict[str, int]:
        """Return how many of each name it ran, or began in these times."""
        name = self.name
        if times is not None:
            name = name[BusyTime(times).within(self.start_ns, self.start_ns + 1) > 0]
        counts = np.bincount(name, minlength=len(self.names))
        return {self.names[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()}

    def outermost(self, names: set[str]) -> "_Operations":
        """Return those of these names that do not lie inside another one of them, on any thread."""
        rows = np.flatnonzero(np.isin(self.name, [code for code, name in enumerate(self.names) if name in names]))
        rows = rows[sort_order(self.start_ns[rows], -self.end_ns[rows])]
        latest = np.maximum.accumulate(self.end_ns[rows])
        rows = rows[np.append(True, self.end_ns[rows][1:] > latest[:-1])] if rows.size else rows
        return replace(self, name=self.name[rows], start_ns=self.start_ns[rows], end_ns=self.end_ns[rows])

    def taken_ns(self, name: str, computing: BusyTime) -> Ints:
        """Return how long it computed in each operation of a name, the shortest first."""
        rows = self.name == (self.names.index(name) if name in self.names else NONE)
        return np.sort(computing.within(self.start_ns[rows], self.end_ns[rows]))


def _operations(timeline: RankTimeline) -> _Operations:
    """Return the operations that the host ran; none where they were not recorded."""
    try:
        host = without_functions(timeline.host) if timeline.has_host_events else make(HostSpans, 0)
    except HostEventsError:
        host = make(HostSpans, 0)
    rows = host.kind == OPERATION
    return _Operations(
        names=timeline.names, name=host.name[rows], start_ns=host.start_ns[rows], end_ns=host.end_ns[rows]
    )

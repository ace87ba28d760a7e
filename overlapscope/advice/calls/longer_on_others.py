"""How much longer calls that could not be matched last on other ranks than on a straggler: they wait for it there."""

from collections.abc import Mapping

import numpy as np

from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.common.cause_table import MAY_BE_WAITING, WAITS_FOR_LATE_RANK
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import unmatched_calls
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, union
from overlapscope.timeline.rows import sort_order, values_in
from overlapscope.timeline.run import RankTimeline


def longer_on_others_ns(given: RuleInput, straggler: int) -> float:
    """Return for how long of a step ranks are exposed to waiting for late ranks, in the mean over ranks, beyond what
    its causes hold: in calls without a match, as far as these take longer than the same calls do on a straggler, or are
    in flight beside a call that is known to wait. At most what may be waiting of exposed time.

    The same calls are the n-th ones of an operation, on ranks that made as many: who waits for a straggler in other
    calls comes to these before it, and neither their bytes nor its link make them shorter on it alone. 0 where others
    made more of them, or fewer.
    """
    ranks = [each for each in given.some_ranks() if each[0].rank != straggler]
    asked = {timeline.rank: timeline for timeline, _ in ranks} | {straggler: given.run.ranks[straggler]}
    unmatched = unmatched_calls(asked, given.cross_rank.matching, given.cross_rank.pairs)
    theirs = _without_match(asked[straggler], unmatched[straggler])
    waited_ns = 0
    for timeline, windows in ranks:
        longer = _longer(timeline, asked[straggler], _without_match(timeline, unmatched[timeline.rank]), theirs)
        if longer is None:
            return 0.0
        arrived, start_ns = given.arrivals[timeline.rank], timeline.collectives.start_ns
        waits = (arrived.last != NONE) & (arrived.arrived_ns > start_ns)
        known = union((start_ns[waits], arrived.arrived_ns[waits]))
        exposed = BusyTime(difference(union(longer, known), given.coverage[timeline.rank].compute))
        starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
        waited_ns += int(exposed.within(starts, ends).sum())
    of_step = waited_ns / ((len(ranks) + 1) * max(given.steps, 1))
    may_be = (*MAY_BE_WAITING, "unknown")
    in_causes, may_wait = (sum(map(given.cause_ns, causes)) for causes in (WAITS_FOR_LATE_RANK, may_be))
    return min(max(of_step - in_causes, 0.0), float(may_wait))


def _without_match(timeline: RankTimeline, unmatched: Flags) -> dict[str | None, Ints]:
    """Return the rows of a rank's `unmatched` calls, by operation, in the order in which they began."""
    calls = timeline.collectives
    rows = np.flatnonzero(unmatched & (calls.start_ns != NONE))
    rows = rows[sort_order(calls.start_ns[rows])]
    return {timeline.name(op): rows[calls.op[rows] == op] for op in values_in(calls.op[rows]).tolist()}


def _longer(
    timeline: RankTimeline, straggler: RankTimeline, own: Mapping[str | None, Ints], theirs: Mapping[str | None, Ints]
) -> Intervals | None:
    """Return when a rank was in calls for longer than a straggler was in the same ones, from their begin on; None where
    it made more of them, or fewer. Rows of both are those of `_without_match`."""
    calls, others = timeline.collectives, straggler.collectives
    if {op: rows.size for op, rows in own.items()} != {op: rows.size for op, rows in theirs.items()}:
        return None
    longer = [union()]
    for op, rows in own.items():
        same = theirs[op]
        took = others.end_ns[same] - others.start_ns[same]
        longer.append(union((calls.start_ns[rows], np.maximum(calls.end_ns[rows] - took, calls.start_ns[rows]))))
    return union(*longer)

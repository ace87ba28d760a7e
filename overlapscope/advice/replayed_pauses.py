"""What replays say of pauses of hosts beside waits for their devices: whether both are the same time, and of how many
steps the gain without waits is."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.checks.hosts.host_pauses import rows_of
from overlapscope.analysis.graph.bounds import Bounds
from overlapscope.analysis.graph.chains import shift_ns
from overlapscope.analysis.graph.model import CALL, HAND_OVER, HOST_STRETCH, Graph
from overlapscope.analysis.graph.scenarios import Change, outcome
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import EMPTY, BusyTime, Intervals, union
from overlapscope.timeline.rows import is_one_of
from overlapscope.timeline.run import RankTimeline

HOST_TIME: Final = (HOST_STRETCH, HAND_OVER, CALL)
MOSTLY: Final = 0.5
"""Pauses, or waits, are time of the other if without either alone a replay gains this share of what it gains without
them; a pause or fetch is one as others are if it takes this share of the longest. Choices."""
LATEST: Final = int(np.iinfo(np.int64).max)
FEWEST_STEPS: Final = 2
"""A gain in a single step is not said to recur."""
OF_WAITS_TOO: Final = "; most of it is time that blocking_calls names, too: without these waits the device works then"
OF_PAUSES_TOO: Final = "; most of it is time that host_pauses names, too"


def shortened_ns(graph: Graph, window: Bounds, change: Change) -> int:
    """Return how much shorter the window gets under a change, at most."""
    after = outcome(graph, window, change)
    return max(after.recorded_ns - min(after.kept_ns, after.dropped_ns), 0)


def host_ns(graph: Graph, times: Mapping[int, Intervals]) -> Ints:
    """Return for each edge how much of the time of its host lies in these times, by rank, on the clock of the graph; 0
    for other edges."""
    edges = graph.edges
    found = np.zeros(graph.num_edges, np.int64)
    for part in graph.ranks:
        of_part = (edges.node >= part.first) & (edges.node < part.first + part.nodes)
        mine = np.flatnonzero(is_one_of(edges.kind, HOST_TIME) & of_part & (edges.lag_ns > 0))
        end = graph.nodes.time_ns[edges.node[mine]]
        found[mine] = BusyTime(times[part.rank]).within(end - edges.lag_ns[mine], end)
    return found


def paused(
    of: Mapping[str, Any], graph: Graph, ranks: Mapping[int, RankTimeline], alone: Mapping[int, RankSummary]
) -> dict[int, Intervals]:
    """Return the pauses that `host_pauses` is of, by its evidence, by rank, on the clock of the graph: all of its ranks
    and steps, or, without marks of steps, at its place.

    Those before the first calls of a recording are none of them: no edge of the graph leads there.
    """
    found = dict.fromkeys(ranks, EMPTY)
    for part in graph.ranks:
        own = alone[part.rank].long_pauses
        if own is None or not of:
            continue
        rows, shift = rows_of(of, part.rank, own), shift_ns(graph, part, ranks[part.rank])
        found[part.rank] = union((own.start_ns[rows] + shift, own.end_ns[rows] + shift))
    return found


def steps_after_waits(graph: Graph, late: Mapping[int, Intervals], steps: int) -> int:
    """Return in how many of so many steps hosts are late because they had waited: one less where the host of a rank is
    late after its first wait once in each step but the first, before which no wait was recorded."""
    for part in graph.ranks:
        waits, own = graph.nodes.time_ns[part.begins()][part.blocks & (part.awaited >= 0)], late[part.rank]
        lasted = own.ends - own.starts
        after = (own.starts >= waits.min(initial=LATEST)) & (lasted >= MOSTLY * lasted.max(initial=0))
        if after.sum() == steps - 1 >= FEWEST_STEPS:
            return steps - 1
    return steps


def naming_each_other(
    found: Sequence[Recommendation],
    graph: Graph,
    window: Bounds,
    no_waits: Change,
    pauses: Mapping[int, Intervals],
) -> list[Recommendation]:
    """Return recommendations; the titles of `host_pauses` and `blocking_calls` name each other where most of their time
    is the same, so that their gains do not add up. `pauses` are those of `paused`."""
    by_id = {each.id: each for each in found}
    if not {"host_pauses", "blocking_calls"} <= by_id.keys():
        return list(found)
    change = Change.none(graph)
    no_pauses = replace(change, lag_ns=change.lag_ns - host_ns(graph, pauses))
    both = replace(no_pauses, lag_ns=np.minimum(no_pauses.lag_ns, no_waits.lag_ns))
    own_ns = [shortened_ns(graph, window, each) for each in (no_pauses, no_waits)]
    either_ns = sum(own_ns) - shortened_ns(graph, window, both)
    shares = zip(("host_pauses", "blocking_calls"), (OF_WAITS_TOO, OF_PAUSES_TOO), own_ns, strict=True)
    ends = {name: end for name, end, ns in shares if either_ns >= MOSTLY * ns > 0}
    return [replace(each, title=each.title + ends.get(each.id, "")) for each in found]

"""What the recording would have gained without a loss: the dependency graph of all ranks, replayed without it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.advice.job_kind import JobKind, job_kind
from overlapscope.advice.losses.blocked_host import AVOIDED, VERSIONED, instead_of, named_waits, not_at_once
from overlapscope.advice.losses.host_time import LEAST_IDLE
from overlapscope.advice.losses.stream_copies import BETWEEN
from overlapscope.advice.rule_input import MOST_RANKS, ms
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.host_calls import ALLOCATES, CALL_TAKES_NS
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.model import (
    ALLOCATE,
    CALL,
    HAND_OVER,
    HOST_STRETCH,
    POLL,
    RUN_COPY,
    SYNC,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.scenarios import NEVER, Change, outcome
from overlapscope.analysis.graph.self_test import self_test
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.build.host_ranges import innermost_range
from overlapscope.timeline.columns import OPERATION, Flags, Ints, size
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.lazy_host_spans import select_host_spans, without_functions
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import is_one_of
from overlapscope.timeline.run import RankTimeline, Run

Ranks = Mapping[int, RankTimeline]
HOST_TIME: Final = (HOST_STRETCH, HAND_OVER, CALL)
REPLAYED: Final = "a replay of the dependency graph without it"
OPTIMISTIC: Final = "that nothing takes its place which never bound in this recording: the gain is an upper bound"
ALONE: Final = "that {ranks} alone change{s}: if ranks that were not recorded lose as much, the gain may be larger"
Waits = Mapping[tuple[str, str | None], int]
"""The time in calls that wait, in ns, by name and by the operation that makes them, None without one."""


def with_replayed_gains(
    found: Sequence[Recommendation], run: Run, cross_rank: CrossRank, graphs: BuiltGraphs
) -> list[Recommendation]:
    """Return recommendations whose upper bound is what a replay gains, where the graph may answer; others unchanged.

    It may for up to `MOST_RANKS` ranks with host events, recorded at once, whose graph passes its tests. A host that is
    late only because it waits for its device is seen by replay alone: `blocking_calls` is added beside `launch_bound`
    where removing these calls gains `LEAST_IDLE` of the recording or more.
    """
    wanted = {each.id for each in found} & CHANGES.keys()
    wanted |= {"blocking_calls"} & CHANGES.keys() if "launch_bound" in wanted else set()
    ranks = run.ranks
    known = all(each.has_host_events and size(each.recordings) == 1 for each in ranks.values())
    if not wanted or not known or len(ranks) > MOST_RANKS:
        return list(found)
    if not any(timeline.has_device for timeline in ranks.values()):
        wanted -= {"data_loading"}  # a replay keeps what the host computes for a batch
    if run.world_size is not None and len(ranks) < run.world_size:
        # Their calls hold waiting for ranks that copy as well: a replay, which keeps it, gains less than all would.
        wanted -= {"copies_on_compute_stream"}
    graph = graphs.of_ranks(tuple(ranks), cross_rank, 0)
    window = whole_bounds(graph)
    if window is None or not self_test(graph, [window]).answers(None, None):
        return list(found)
    gains, least_ns = {}, 0.0
    for name in wanted:
        after = outcome(graph, window, CHANGES[name](graph, ranks))
        gains[name] = max(after.recorded_ns - min(after.kept_ns, after.dropped_ns), 0)
        least_ns = LEAST_IDLE * after.recorded_ns
    steps = max((size(each.steps) for each in ranks.values()), default=0)
    bound = OPTIMISTIC
    if len(ranks) != run.world_size and any(size(each.collectives) for each in ranks.values()):
        bound = ALONE.format(ranks=rank_list(ranks), s="s" if len(ranks) == 1 else "")
    bounded = [_bounded(each, gains[each.id], steps, bound) if each.id in gains else each for each in found]
    by_id = {each.id: each for each in bounded}
    if "blocking_calls" in gains.keys() - by_id.keys() and gains["blocking_calls"] >= least_ns:
        waits, gain_ns = _waiting_calls(graph, ranks), _each_step(by_id["launch_bound"], gains["blocking_calls"], steps)
        bounded.append(_run_ahead(by_id["launch_bound"], gain_ns, waits, job_kind(run), bound))
    return bounded


def _run_ahead(launches: Recommendation, gain_ns: int, waits: Waits, job: JobKind, bound: str) -> Recommendation:
    """Return `blocking_calls` for a host whose launches, by replay, are late because it had waited in these calls."""
    calls: dict[str, int] = {}
    for (name, _), ns in waits.items():
        calls[name] = calls.get(name, 0) + ns
    most = " at most" if bound == OPTIMISTIC else ""
    return replace(
        launches,
        id="blocking_calls",
        title=f"Let the host run ahead: its launches are late because it waits for the device "
        f"({named_waits(calls, waits)}); a replay in which it does not is{most} {ms(gain_ns)} a {launches.per} shorter",
        gain_low_ns=0,
        gain_high_ns=gain_ns,
        bound_from="replay",
        loss_ns=gain_ns,
        apply=instead_of(job, waits),
        evidence={"replayed_gain_ns": gain_ns, "waited_in_ns": calls},
        shown_by=None,
        published=[],
        measured=["calls that wait for the device", REPLAYED],
        assumed=[not_at_once(job), bound],
    )


def _waiting_calls(graph: Graph, ranks: Ranks) -> dict[tuple[str, str | None], int]:
    """Return the time in calls that wait for the device, but for allocations, the longest first.

    Calls after a rank's last launch, as a profiler makes at its end, make no launch late.
    """
    found: dict[tuple[str, str | None], int] = {}
    time = graph.nodes.time_ns
    for part in graph.ranks:
        timeline = ranks[part.rank]
        begin = time[part.begins()]
        launches = begin[part.launched_by[part.launched_by >= 0]]
        waits = part.blocks & ~rows_named(part.call_name, timeline.names, ALLOCATES.search)
        waits &= begin < launches.max(initial=0)
        calls = select_host_spans(timeline.host, (OPERATION,))
        op = innermost_range(calls, part.call_lane[waits], begin[waits] - _shift(graph, part, timeline))
        by = np.append(calls.name, -1)[op]
        taken = (time[part.returns()] - begin)[waits]
        for code, caller, ns in zip(part.call_name[waits].tolist(), by.tolist(), taken.tolist(), strict=True):
            key = VERSIONED.sub("", timeline.names[code]), timeline.name(caller)
            found[key] = found.get(key, 0) + ns
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _each_step(each: Recommendation, gain_ns: int, steps: int) -> int:
    return round(gain_ns / max(steps, 1)) if each.per == "step" else gain_ns


def _bounded(each: Recommendation, gain_ns: int, steps: int, bound: str) -> Recommendation:
    gain = _each_step(each, gain_ns, steps)
    kept = [one for one in each.assumed if "upper bound" not in one and AVOIDED not in one]
    return replace(
        each,
        gain_low_ns=0,
        gain_high_ns=gain,
        bound_from="replay",
        evidence={**each.evidence, "replayed_gain_ns": gain},
        measured=[*each.measured, REPLAYED],
        assumed=[*kept, bound],
    )


def _instant_hosts(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which hosts take no time but for waits, and for fetching batches."""
    change = Change.none(graph)
    host = is_one_of(graph.edges.kind, HOST_TIME)
    return replace(change, lag_ns=np.where(host, _loading_ns(graph, ranks), change.lag_ns))


def _without_loading(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which the host takes no time under marks of fetching a batch."""
    change = Change.none(graph)
    return replace(change, lag_ns=change.lag_ns - _loading_ns(graph, ranks))


def _loading_ns(graph: Graph, ranks: Ranks) -> Ints:
    """Return for each edge the time of its host under marks of fetching a batch; 0 for other edges."""
    edges = graph.edges
    found = np.zeros(graph.num_edges, np.int64)
    for part in graph.ranks:
        timeline = ranks[part.rank]
        host, notes = without_functions(timeline.host), timeline.annotations
        shift = _shift(graph, part, timeline)
        loads, marks = (loads_data(timeline, each.name, each.start_ns, each.end_ns) for each in (host, notes))
        busy = BusyTime(
            union(
                (host.start_ns[loads] + shift, host.end_ns[loads] + shift),
                (notes.start_ns[marks] + shift, notes.end_ns[marks] + shift),
            )
        )
        mine = np.flatnonzero(is_one_of(edges.kind, HOST_TIME) & _of_part(graph, part) & (edges.lag_ns > 0))
        end = graph.nodes.time_ns[edges.node[mine]]
        found[mine] = busy.within(end - edges.lag_ns[mine], end)
    return found


def _shift(graph: Graph, part: RankPart, timeline: RankTimeline) -> int:
    """Return how far the graph's clock is ahead of the rank's, at its first span."""
    if not part.spans:
        return 0
    return int(graph.nodes.time_ns[part.starts().start]) - int(timeline.spans.start_ns[part.span_row[0]])


def _without_calls(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which calls that wait for the device, but for allocations, return at once."""
    return _returning(graph, ranks, allocations=False)


def _without_allocations(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which calls that allocate or free return at once."""
    return _returning(graph, ranks, allocations=True)


def _returning(graph: Graph, ranks: Ranks, *, allocations: bool) -> Change:
    change, edges = Change.none(graph), graph.edges
    lag = change.lag_ns.copy()
    for part in graph.ranks:
        timeline = ranks[part.rank]
        allocates = rows_named(part.call_name, timeline.names, ALLOCATES.search)
        chosen = part.blocks & (allocates == allocations)
        mine = np.flatnonzero(_of_part(graph, part) & (edges.node < part.starts().start))
        mine = mine[chosen[(edges.node[mine] - part.first) % max(part.calls, 1)]]
        kind = edges.kind[mine]
        lag[mine[kind == SYNC]] = NEVER
        within = mine[is_one_of(kind, (CALL, ALLOCATE))]
        lag[within] = np.minimum(lag[within], CALL_TAKES_NS)
    if not allocations:
        lag[edges.kind == POLL] = NEVER
    return replace(change, lag_ns=lag)


def _without_copies(graph: Graph, ranks: Ranks) -> Change:
    """Return a change in which copies between host and device take no time."""
    change = Change.none(graph)
    lag = change.lag_ns.copy()
    for part in graph.ranks:
        timeline = ranks[part.rank]
        copies = rows_named(timeline.spans.name[part.span_row], timeline.names, BETWEEN.search)
        first = part.ends().start
        mine = np.flatnonzero((graph.edges.kind == RUN_COPY) & _of_part(graph, part) & (graph.edges.node >= first))
        lag[mine[copies[graph.edges.node[mine] - first]]] = 0
    return replace(change, lag_ns=lag)


def _of_part(graph: Graph, part: RankPart) -> Flags:
    return np.asarray((graph.edges.node >= part.first) & (graph.edges.node < part.first + part.nodes), np.bool_)


CHANGES: Final[Mapping[str, Callable[[Graph, Ranks], Change]]] = {
    "launch_bound": _instant_hosts,
    "data_loading": _without_loading,
    "blocking_calls": _without_calls,
    "allocator_churn": _without_allocations,
    "copies_on_compute_stream": _without_copies,
}
"""By id of the recommendation."""

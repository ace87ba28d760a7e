"""The critical path of each step of the job, from the dependency graph: what decided how long the step took.

It is followed backwards from the end of the step: from each moment to what bound it, from a collective to the member
that arrived last, on aligned clocks. So wait time is not on the path; what the other ranks waited for is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from statistics import median_low
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NO_CAUSES
from overlapscope.analysis.common.user_ranges import row_of_pause
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.graph.answers import (
    REFUSED,
    CriticalPath,
    HostPauses,
    LongestLoss,
    PathOperation,
    SelfTest,
    StepPath,
    Windows,
    ranks_of_graph,
)
from overlapscope.analysis.graph.bounds import Bounds, JobWindow, job_windows, whole_bounds, window_bounds
from overlapscope.analysis.graph.building.build import graph_too_large
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.explained import longest_loss, with_late_ends
from overlapscope.analysis.graph.model import OWN_NS, Graph, RankPart
from overlapscope.analysis.graph.path_segments import Segments, segments_of
from overlapscope.analysis.graph.scenarios import own_chain_lengths
from overlapscope.analysis.graph.self_test import SWAPPED_EDGES, self_test, swap_test
from overlapscope.analysis.graph.walk import (
    COMPUTE,
    COPY,
    ENDED_LATE,
    HOST,
    IDLE,
    LATENCY,
    MATCHED,
    PARTS,
    UNMATCHED,
    Path,
    critical_path,
)
from overlapscope.analysis.per_rank.host_operations import (
    EnqueuingCalls,
    OperationPieces,
    enqueuing_calls,
    operation_pieces,
    pieces_within,
)
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import COMM, NONE, Codes, Flags, Ints, Small, concat, size, take
from overlapscope.timeline.intervals import Activity, BusyTime, union
from overlapscope.timeline.rows import factorize_rows, sort_order, sum_by, unique, values_in
from overlapscope.timeline.run import RankTimeline, Run

MOST_STEPS: Final = 11
"""Steps whose path is followed; of more steps, a selection from the shortest to the longest."""
MOST_OPERATIONS: Final = 20
BANDED_EDGES: Final = 200_000
"""In a larger graph only the path of a typical step gets bands."""
NEVER_WAITS: Final = 0.99
"""A host that makes up this share of a path waits for nothing: its calls follow each other to the last launch."""
WORK: Final = (COMPUTE, COPY, MATCHED, UNMATCHED, ENDED_LATE)
"""Parts of a path in which it computes, copies or communicates."""

LEAST_LOSS: Final = 0.01
"""Least share of a step for a longest loss. A choice: less explains nothing of it."""
MOST_BEFORE: Final = 0.02
"""Share of the path of a typical step, at most, that lies before the recording: a first step may have begun earlier."""


class FollowedPath(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path of one step with its segments; times on the aligned clock."""

    step: int | None
    rank: int
    start_ns: int
    end_ns: int
    before_ns: int
    """How much of it lies before the recording of a rank."""
    segments: Segments
    bands: Mapping[str, tuple[int, int]]
    own_chains_ns: Mapping[int, int]


class FollowedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The critical paths with all their segments."""

    scope: Literal["ranks", "rank"] | None = None
    reason: str | None = None
    median_step: int | None = None
    paths: tuple[FollowedPath, ...] = ()
    left_out: int = 0
    longest_loss: LongestLoss | None = None
    self_tests: tuple[SelfTest, ...] = ()


def summed_paths(
    run: Run, windows: Windows, cross_rank: CrossRank, graphs: BuiltGraphs, odd: frozenset[int],
    pauses: Mapping[int, HostPauses],
) -> CriticalPath:  # fmt: skip
    """Return the critical paths of a run's steps, with their parts and operations, as `critical_paths` does."""
    found = follow_paths(run, windows, cross_rank, graphs, odd=odd)
    pieces = cache(lambda rank: operation_pieces(run.ranks[rank]))
    return CriticalPath(
        scope=found.scope,
        reason=found.reason,
        median_step=found.median_step,
        steps=[_summed(run, path, cross_rank.clocks, pauses, pieces) for path in found.paths],
        left_out=found.left_out,
        longest_loss=found.longest_loss,
        self_tests=list(found.self_tests),
    )


def follow_paths(
    run: Run,
    windows: Windows,
    cross_rank: CrossRank,
    graphs: BuiltGraphs | None = None,
    only: frozenset[int] | None = None,
    odd: frozenset[int] = frozenset(),
) -> FollowedPaths:
    """Follow the paths of the complete steps (of all steps where none is complete); of `only` these if given.

    `odd` steps are not typical, unless all are.
    """
    ranks, reason = ranks_of_graph(run, cross_rank)
    if reason is not None:
        return FollowedPaths(reason=reason)
    try:
        return _follow(run, windows, cross_rank, graphs or BuiltGraphs(run), ranks, only, odd)
    except HostEventsError:
        return FollowedPaths(reason=NO_CAUSES["unreadable_host_events"])


def _follow(
    run: Run,
    windows: Windows,
    cross_rank: CrossRank,
    graphs: BuiltGraphs,
    ranks: Sequence[int],
    only: frozenset[int] | None,
    odd: frozenset[int],
) -> FollowedPaths:
    chosen = replace(run, ranks={rank: run.ranks[rank] for rank in ranks})
    if (reason := graph_too_large(chosen)) is not None:
        return FollowedPaths(reason=reason)
    marked = any(windows[rank] for rank in ranks)
    every = [
        each
        for each in job_windows({rank: windows[rank] for rank in ranks}, cross_rank.clocks)
        if only is None or each.step in only
    ]
    parts = max(size(timeline.recordings) for timeline in chosen.ranks.values())
    if not every and (marked or parts > 1 or only is not None):
        return FollowedPaths(reason=_why_no_window(chosen, only, marked=marked))
    followed = _spread(every, odd)
    lengths = [each.end_ns - each.start_ns for each in every if each.step not in odd]
    typical_ns = median_low(lengths or [each.end_ns - each.start_ns for each in every] or [0])
    paths: list[FollowedPath] = []
    tests: list[SelfTest] = []
    losses: dict[int | None, LongestLoss | None] = {}
    late_ns = cross_rank.ended_late_ns(chosen)
    for recording in sorted({each.recording for each in followed} or {0}):
        graph = graphs.of_ranks(ranks, cross_rank, recording)
        found = [each for each in followed if each.recording == recording]
        tested, answered = _of_recording(graph, chosen, found, odd)
        tests.append(tested)
        answered = [
            replace(each, segments=_with_late_ends(run, each.segments, cross_rank.clocks, late_ns)) for each in answered
        ]
        paths += answered
        if answered:
            median = _median(answered, odd, typical_ns)
            window = next((each for each in found if each.step == median.step), None)
            losses[recording] = _loss(graph, chosen, median, window, late_ns)
    count = len(every) if marked else 1
    if not paths:
        failed = [name for name in REFUSED if any(name in each.failed for each in tests)]
        return FollowedPaths(
            reason=" and ".join(REFUSED[name] for name in failed), left_out=count, self_tests=tuple(tests)
        )
    median = _median(paths, odd, typical_ns)
    return FollowedPaths(
        scope="ranks" if len(ranks) > 1 else "rank",
        median_step=median.step,
        longest_loss=next((each for each in losses.values() if each and each.step == median.step), None),
        paths=tuple(sorted(paths, key=lambda path: path.start_ns)),
        left_out=count - len(paths),
        self_tests=tuple(tests),
    )


def _why_no_window(run: Run, only: frozenset[int] | None, *, marked: bool) -> str:
    """Return why no step, and not the whole recording either, has a path."""
    if only is not None:
        return "none of the chosen steps was recorded with a begin and an end"
    if not marked:
        return "no step is marked, and the recording has several parts"
    if not any(timeline.num_spans for timeline in run.ranks.values()):
        return "steps are marked, but nothing was recorded in them"
    if any(timeline.has_device for timeline in run.ranks.values()):
        return "steps are marked, but no kernel in them could be linked to a launch"
    return "steps are marked, but no operation in them was recorded"


def _loss(
    graph: Graph, run: Run, path: FollowedPath, window: JobWindow | None, late_ns: Mapping[int, Ints]
) -> LongestLoss | None:
    """Return the longest loss of a step: what a rank loses before or after its own window is of another one."""
    whole = dict.fromkeys(run.ranks, (path.start_ns, path.end_ns))
    found = longest_loss(graph, run.ranks, path.step, whole if window is None else window.ranks)
    if found is None or found.end_ns - found.start_ns < LEAST_LOSS * (path.end_ns - path.start_ns):
        return None
    return replace(found, chain=with_late_ends(found.chain, run.ranks, late_ns))


def _median(paths: Sequence[FollowedPath], odd: frozenset[int], typical_ns: int) -> FollowedPath:
    """Return the path of a typical step: closest to this length of those that are not `odd`, if there are any.

    Of these those count that lie in the recording, but for MOST_BEFORE.
    """
    usual = [path for path in paths if path.step not in odd] or paths
    usual = [path for path in usual if path.before_ns <= MOST_BEFORE * (path.end_ns - path.start_ns)] or usual
    return min(usual, key=lambda path: (abs(path.end_ns - path.start_ns - typical_ns), path.start_ns))


def _of_recording(
    graph: Graph, run: Run, windows: Sequence[JobWindow], odd: frozenset[int]
) -> tuple[SelfTest, list[FollowedPath]]:
    """Test a graph, and follow the paths of those windows that it may answer; of the whole without windows."""
    whole = whole_bounds(graph)
    assert whole is not None
    time = graph.nodes.time_ns
    steps = [window_bounds(graph, each) for each in windows]
    tested = self_test(graph, [whole, *steps], swap_test(graph, run.ranks, steps, most_edges=SWAPPED_EDGES))
    asked: list[tuple[JobWindow | None, Bounds]] = [*zip(windows, steps, strict=True)] or [(None, whole)]
    asked = [(window, bounds) for window, bounds in asked if tested.answers(bounds.step, None)]
    usual = [bounds for _, bounds in asked if bounds.step not in odd] or [bounds for _, bounds in asked]
    typical = median_low([bounds.length_ns(time) for bounds in usual] or [0])
    return tested, [
        _followed(
            graph, run, bounds, window,
            with_bands=graph.num_edges <= BANDED_EDGES or bounds.length_ns(time) == typical,
        )
        for window, bounds in asked
    ]  # fmt: skip


def _followed(graph: Graph, run: Run, bounds: Bounds, window: JobWindow | None, *, with_bands: bool) -> FollowedPath:
    time = graph.nodes.time_ns
    last = _last(graph, bounds, window)
    start_ns = window.start_ns if window else int(time[bounds.start].min())
    end_ns = window.end_ns if window else int(time[last])
    path = critical_path(graph, last, start_ns, with_bands=with_bands)
    return FollowedPath(
        step=bounds.step,
        rank=graph.ranks[int(graph.part_index(np.array([last]))[0])].rank,
        start_ns=start_ns,
        end_ns=end_ns,
        before_ns=int(path.parts["before_recording"]),
        segments=segments_of(graph, run.ranks, path, last, end_ns),
        bands={part: band for part, band in path.bands.items() if band[1]},
        own_chains_ns=own_chain_lengths(graph, bounds, start_ns) if _never_waits(graph, path) else {},
    )


def _last(graph: Graph, bounds: Bounds, window: JobWindow | None) -> int:
    """Return the node that ends a path: without a device that of the rank whose step ended last.

    What its host did after its last operation, such as collecting garbage, is then its own; where it mostly
    communicated there, as in a broadcast after the optimizer, its last call ends the path.
    """
    time = graph.nodes.time_ns
    if window is None or any(part.on_device for part in graph.ranks):
        return bounds.last(time)
    ends = []
    for part, node in zip((each for each in graph.ranks if each.rank in window.ranks), bounds.end, strict=True):
        if window.ranks[part.rank][1] < window.end_ns - OWN_NS:
            continue
        left_ns = window.end_ns - int(time[node])
        calls = _communicated_ns(graph, part, int(time[node]), window.end_ns) > left_ns / 2
        ends.append(_last_call(graph, part, int(node), window.end_ns) if calls else int(node))
    return max(ends, key=lambda node: int(time[node]), default=bounds.last(time))


def _last_call(graph: Graph, part: RankPart, node: int, until_ns: int) -> int:
    """Return the node at which a rank's communication after `node` and before a moment ended last; `node` where none
    did."""
    ended = graph.nodes.time_ns[part.ends()]
    calls = np.flatnonzero((part.span_kind == COMM) & (ended > graph.nodes.time_ns[node]) & (ended <= until_ns))
    first: int = part.ends().start
    return first + int(calls[ended[calls].argmax()]) if calls.size else node


def _communicated_ns(graph: Graph, part: RankPart, since_ns: int, until_ns: int) -> int:
    """Return for how long a rank communicated between two moments."""
    rows = part.span_kind == COMM
    start, end = (graph.nodes.time_ns[nodes][rows] for nodes in (part.starts(), part.ends()))
    return int(BusyTime(union((start, end))).within(since_ns, until_ns))


def _never_waits(graph: Graph, path: Path) -> bool:
    """Return whether, of several ranks, a path is the host of one and next to nothing else."""
    recorded_ns = path.length_ns - path.parts["before_recording"]
    ranks = graph.part_index(graph.edges.node[path.edges])
    return bool(
        len(graph.ranks) > 1 and (ranks == ranks[:1]).all() and path.parts["host"] >= NEVER_WAITS * recorded_ns > 0
    )


def _spread(windows: Sequence[JobWindow], odd: frozenset[int]) -> list[JobWindow]:
    """Return all windows, or a typical one and MOST_STEPS spread evenly over the lengths."""
    if len(windows) <= MOST_STEPS:
        return list(windows)
    by_length = sorted(windows, key=lambda each: each.end_ns - each.start_ns)
    chosen = {round(at * (len(windows) - 1) / (MOST_STEPS - 1)) for at in range(MOST_STEPS)}
    usual = [at for at, each in enumerate(by_length) if each.step not in odd] or range(len(windows))
    return [by_length[at] for at in sorted(chosen | {usual[(len(usual) - 1) // 2]})]


def _summed(
    run: Run, path: FollowedPath, clocks: Clocks, pauses: Mapping[int, HostPauses],
    pieces: Callable[[int], OperationPieces | None],
) -> StepPath:  # fmt: skip
    """Sum the segments of a path; `pieces` returns in which operations a rank computed."""
    segments = path.segments
    length = segments.end_ns - segments.start_ns
    ranks: dict[int, int] = {}
    without_work: dict[int, int] = {}
    works = np.isin(segments.part, WORK)
    operations: dict[tuple[str, str, bool], tuple[int, int]] = {}
    paused_ns, gaps_ns = np.zeros(4, np.int64), 0
    for rank in unique(segments.rank).tolist():
        own = segments.rank == rank
        ranks[rank] = int(length[own].sum())
        without_work[rank] = int(length[own & ~works].sum())
        gaps_ns += _beside_work_ns(run.ranks[rank], take(segments, own & (segments.part == IDLE)), clocks)
        if rank in pauses:
            paused_ns += _paused_ns(pauses[rank], take(segments, own), rank, clocks)
        own &= (segments.name >= 0) & (segments.part != LATENCY)
        names, named = run.ranks[rank].names, take(segments, own)
        for (at, code, inside), ns, count in _totals(*_in_operations(run.ranks[rank], named, clocks, pieces)):
            key = PARTS[at], names[code], bool(inside)
            before = operations.get(key, (0, 0))
            operations[key] = before[0] + ns, before[1] + count
    most = sorted(operations.items(), key=lambda item: (-item[1][0], item[0]))[:MOST_OPERATIONS]
    parts = {part: int(length[segments.part == at].sum()) for at, part in enumerate(PARTS)}
    stood_still_ns, waited_ns, collected_ns, in_calls_ns = paused_ns.tolist()
    return StepPath(
        step=path.step,
        rank=path.rank,
        length_ns=path.end_ns - path.start_ns,
        parts={part: total for part, total in parts.items() if total},
        ranks={str(rank): total for rank, total in sorted(ranks.items(), key=lambda item: (-item[1], item[0]))},
        operations=[
            PathOperation(part=part, name=name, ns=ns, count=count, inside=inside)
            for (part, name, inside), (ns, count) in most
        ],
        bands=_bands(path, parts),
        own_chains_ns={str(rank): ns for rank, ns in path.own_chains_ns.items()},
        without_work_ns={str(rank): total for rank, total in sorted(without_work.items()) if total},
        stood_still_ns=stood_still_ns,
        waited_for_core_ns=waited_ns,
        garbage_collected_ns=collected_ns,
        computed_in_calls_ns=in_calls_ns,
        gaps_beside_work_ns=gaps_ns,
    )


def _bands(path: FollowedPath, parts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the least and the most of each part of a path over all ways along ties; the path that is shown is one."""
    # Each of them has as much of late ends as the one that is shown: what is known of no other.
    apart_ns = {PARTS[MATCHED]: parts[PARTS[ENDED_LATE]]}
    # What a node waited for may be recorded later than the node: back in time, which is nobody's time.
    return {
        part: (
            max(min(least - apart_ns.get(part, 0), parts[part]), 0),
            min(max(most - apart_ns.get(part, 0), parts[part]), path.end_ns - path.start_ns),
        )
        for part, (least, most) in path.bands.items()
    }


def _paused_ns(found: HostPauses, segments: Segments, rank: int, clocks: Clocks) -> Ints:
    """Return for how long a host stood still, waited for a core and collected garbage in the compute of these segments
    of its rank, and computed in their calls."""

    def edges(parts: Sequence[int]) -> list[Ints]:
        chosen = np.isin(segments.part, parts)
        return [clocks.own_ns(rank, edge[chosen]) for edge in (segments.start_ns, segments.end_ns)]

    compute, calls = edges((COMPUTE,)), edges((MATCHED, UNMATCHED, ENDED_LATE))
    in_compute = [_within(each, *compute) for each in (found.stood_still, found.waited_for_core, found.collected)]
    return np.array([*in_compute, _within(found.in_calls, *calls)], np.int64)


def _beside_work_ns(timeline: RankTimeline, segments: Segments, clocks: Clocks) -> int:
    """Return for how long the device of a rank ran anything in these segments; 0 without a device."""
    if not timeline.has_device or not size(segments):
        return 0
    works = BusyTime(union((timeline.spans.start_ns, timeline.spans.end_ns)))
    start, end = (clocks.own_ns(timeline.rank, edge) for edge in (segments.start_ns, segments.end_ns))
    return int(works.within(start, end).sum())


def _with_late_ends(run: Run, segments: Segments, clocks: Clocks, late_ns: Mapping[int, Ints]) -> Segments:
    """Return the segments with those of transfers cut where their calls had ended on another rank."""
    until = segments.end_ns.copy()
    for rank in unique(segments.rank).tolist():
        calls, spans = run.ranks[rank].collectives, run.ranks[rank].spans
        own = np.flatnonzero((segments.rank == rank) & (segments.part == MATCHED) & (segments.row != NONE))
        call = spans.collective[segments.row[own]]
        own, call = own[call != NONE], call[call != NONE]
        ended = clocks.aligned_ns(rank, calls.end_ns[call]) - late_ns[rank][call]
        until[own] = np.clip(ended, segments.start_ns[own], segments.end_ns[own])
    cut = np.flatnonzero(until < segments.end_ns)
    if not cut.size:
        return segments
    late = replace(take(segments, cut), part=np.full(cut.size, ENDED_LATE, np.int8), start_ns=until[cut])
    found = concat([replace(segments, end_ns=until), late])
    return take(found, sort_order(found.start_ns, found.end_ns))


def _in_operations(
    timeline: RankTimeline, segments: Segments, clocks: Clocks, pieces: Callable[[int], OperationPieces | None]
) -> tuple[Small, Codes, Flags, Ints]:
    """Return the part, the name, whether that is of a range, and the length of each of a rank's segments.

    What a host computes has the names of the innermost operations, as its compute spans are unions of them, and what it
    does for long besides that of the range in which it does it, if there is one.
    """
    part, length = segments.part, segments.end_ns - segments.start_ns
    name, ranged = _in_ranges(timeline, segments, clocks)
    own = pieces(timeline.rank) if not timeline.has_device and (part == COMPUTE).any() else None
    if own is None:
        return part, name, ranged, length
    computes = (part == COMPUTE) & (segments.row != NONE)
    start, end = (clocks.own_ns(timeline.rank, edge[computes]) for edge in (segments.start_ns, segments.end_ns))
    inside = pieces_within(own, timeline.spans.lane[segments.row[computes]], start, end)
    return (
        np.concatenate([part[~computes], np.full(size(inside), COMPUTE, np.int8)]),
        np.concatenate([name[~computes], inside.name]),
        np.concatenate([ranged[~computes], np.zeros(size(inside), np.bool_)]),
        np.concatenate([length[~computes], inside.end_ns - inside.start_ns]),
    )


def _in_ranges(timeline: RankTimeline, segments: Segments, clocks: Clocks) -> tuple[Codes, Flags]:
    """Return the name of each segment, of those in which a host does something else for long that of the call of a
    collective that it stands in, else that of the range that it is in (of a device's host on the thread of the steps'
    marks); and which these are."""
    name, ranged = segments.name.copy(), np.zeros(segments.name.size, np.bool_)
    length = segments.end_ns - segments.start_ns
    long = np.flatnonzero((segments.part == HOST) & (segments.row != NONE) & (length >= SILENCE_NS))
    on_host = not timeline.has_device
    calls = enqueuing_calls(timeline) if long.size and on_host and not timeline.host_is_lost else None
    marked = values_in(timeline.annotations.lane[np.isin(timeline.annotations.start_ns, timeline.steps.start_ns)])
    for at in long.tolist() if on_host or marked.size == 1 else ():
        begin, end = clocks.own_ns(timeline.rank, np.array([segments.start_ns[at], segments.end_ns[at]])).tolist()
        lane = int(timeline.spans.lane[segments.row[at]] if on_host else marked[0])
        code = None if calls is None else _call_around(calls, lane, begin, end)
        if code is None:
            row = row_of_pause(timeline, lane, begin, end)
            code = None if row is None else int(timeline.annotations.name[row])
        if code is not None:
            name[at], ranged[at] = code, True
    return name, ranged


def _call_around(calls: EnqueuingCalls, lane: int, begin_ns: int, end_ns: int) -> int | None:
    """Return the name of the call in which a thread was for most of a time; None for none."""
    first, last = np.searchsorted(calls.lane, [lane, lane + 1]).tolist()
    at = first + int(np.searchsorted(calls.end_ns[first:last], begin_ns, side="right"))
    if at == last:
        return None
    inside_ns = min(int(calls.end_ns[at]), end_ns) - max(int(calls.start_ns[at]), begin_ns)
    return int(calls.name[at]) if 2 * inside_ns >= end_ns - begin_ns else None


def _within(act: Activity | None, start_ns: Ints, end_ns: Ints) -> int:
    return 0 if act is None else int(act.within(start_ns, end_ns).sum())


def _totals(part: Small, code: Codes, ranged: Flags, length: Ints) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """Return ((part, name, whether it is of a range), nanoseconds, count) of each distinct key."""
    which, first = factorize_rows([part, code, ranged.astype(np.int8)])
    total = sum_by(which, length, first.size)
    count = np.bincount(which, minlength=first.size)
    keys = zip(part[first].tolist(), code[first].tolist(), ranged[first].tolist(), strict=True)
    return zip(keys, total.tolist(), count.tolist(), strict=True)

"""What a graph may answer: four tests of it, all of which its path and its scenarios need.

A replay sees missing edges between spans only: a wait of the host without an edge is part of a host stretch, and the
replay is exact though the path is wrong. So the path's own waits are tested, too, and steps predict each other.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Final

import numpy as np

from overlapscope.analysis.graph.answers import (
    HIDDEN_WAITS,
    REPLAY,
    REPLAY_WITHIN,
    UNKNOWN,
    SelfTest,
    StepReplay,
    Swap,
)
from overlapscope.analysis.graph.bounds import Bounds, step_bounds, whole_bounds
from overlapscope.analysis.graph.build import rank_graph
from overlapscope.analysis.graph.host_calls import SILENCE_NS
from overlapscope.analysis.graph.model import (
    HOST_EDGES,
    HOST_STRETCH,
    UNEXPLAINED,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.replay import replay, replay_part, run_edges, scans_of, with_durations
from overlapscope.analysis.graph.walk import Path, chain, unknown_ns
from overlapscope.timeline.columns import Flags, Ints
from overlapscope.timeline.rows import values_in
from overlapscope.timeline.run import RankTimeline, Run

UNKNOWN_WITHIN: Final = 0.02
HIDDEN_WAITS_WITHIN: Final = 0.25
DRAINED_WITHIN_NS: Final = 100_000
"""A host stretch that ends this soon after a stream drained in it may have been a wait for it."""
ALIKE_STEPS: Final = 3
LEAST_SWAPS: Final = 6
MOST_SWAPS: Final = 30
SWAPPED_EDGES: Final = 50_000
"""Pairs of steps that are swapped, spread over all pairs: so many that their edges stay below a limit."""


def self_test(graph: Graph, path: Path, windows: Sequence[Bounds], swap: Swap | None = None) -> SelfTest:
    """Test a graph; `path` is its critical path, `windows` its steps, or the whole recording where there are none."""
    unexplained_starts = bool((graph.nodes.gap == UNEXPLAINED).any())
    value = replay(graph) if unexplained_starts else graph.nodes.time_ns  # it replays exactly where all is explained
    replays = tuple(
        StepReplay(
            step=each.step, rank=each.rank, recorded_ns=each.length_ns(graph.nodes.time_ns),
            replayed_ns=each.length_ns(value),
        )
        for each in windows
    )  # fmt: skip
    unknown_share = path.parts["unknown"] / path.length_ns if path.length_ns > 0 else 0.0
    unexplained = unexplained_share(graph)
    hidden = hidden_wait_share(graph, path.edges)
    failed = {
        REPLAY: any(abs(each.error) > REPLAY_WITHIN for each in replays),
        UNKNOWN: unknown_share > UNKNOWN_WITHIN or unexplained > UNKNOWN_WITHIN,
        HIDDEN_WAITS: hidden > HIDDEN_WAITS_WITHIN,
    }
    return SelfTest(
        windows=replays, unknown_share=unknown_share, unexplained_share=unexplained, hidden_wait_share=hidden,
        swap=swap, failed=tuple(name for name, fails in failed.items() if fails),
    )  # fmt: skip


def causes_failed(graph: Graph, binding: Ints) -> str | None:
    """Return which test forbids the graph of one rank to name causes; None if none does.

    `binding` holds the edges that bound each node, as paths show them. A replay is not needed: what it lacks, the
    causes call `unknown`.
    """
    if unexplained_share(graph) > UNKNOWN_WITHIN:
        return UNKNOWN
    window, time = whole_bounds(graph), graph.nodes.time_ns
    if window is None:
        return None
    first = int(time[window.start].min())
    edges = chain(graph, binding, window.last(time), first)
    if int(unknown_ns(graph, edges, first).sum()) > UNKNOWN_WITHIN * window.length_ns(time):
        return UNKNOWN
    return HIDDEN_WAITS if hidden_wait_share(graph, edges) > HIDDEN_WAITS_WITHIN else None


def unexplained_share(graph: Graph) -> float:
    """Return the share of the spans whose start no rule explains."""
    starts = [graph.nodes.gap[part.starts()] for part in graph.ranks]
    spans = sum(each.size for each in starts)
    return sum(int(np.count_nonzero(each == UNEXPLAINED)) for each in starts) / spans if spans else 0.0


def hidden_wait_share(graph: Graph, edges: Ints) -> float:
    """Return the share of the long host stretches among a path's edges that may be waits.

    Those end right after a stream drained in them, or another thread of the process called meanwhile.
    """
    kind, lag = graph.edges.kind[edges], graph.edges.lag_ns[edges]
    long = edges[np.isin(kind, HOST_EDGES) & (lag >= SILENCE_NS)]
    node, taken = graph.edges.node[long], graph.edges.lag_ns[long]
    begin = graph.nodes.time_ns[node]
    own_stretch = graph.edges.kind[long] == HOST_STRETCH
    hidden = np.zeros(long.size, np.bool_)
    for part in graph.ranks:
        mine = np.flatnonzero((node >= part.first) & (node < part.first + part.nodes))
        since = (begin - taken)[mine]
        others = own_stretch[mine] & _others_returned(graph, part, node[mine] - part.first, since)
        hidden[mine] = others | _drained(graph, part, since, begin[mine])
    total = int(taken.sum())
    return int(taken[hidden].sum()) / total if total else 0.0


def _others_returned(graph: Graph, part: RankPart, call: Ints, since: Ints) -> Flags:
    """Return for each stretch before a call whether another thread's call returned in it."""
    begin, end = graph.nodes.time_ns[part.begins()], graph.nodes.time_ns[part.returns()]
    call = np.minimum(call, max(part.calls - 1, 0))
    found = np.zeros(call.size, np.bool_)
    for lane in values_in(part.call_lane).tolist():
        theirs = np.sort(end[(part.call_lane == lane)])
        same_process = part.call_process[call] == part.call_process[part.call_lane == lane][0]
        inside = np.searchsorted(theirs, begin[call], side="right") > np.searchsorted(theirs, since, side="right")
        found |= inside & same_process & (part.call_lane[call] != lane)
    return found


def _drained(graph: Graph, part: RankPart, since: Ints, begin: Ints) -> Flags:
    """Return for each stretch whether a stream drained in it, shortly before its end, and stayed empty until then."""
    found = np.zeros(begin.size, np.bool_)
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    for lane in values_in(part.span_lane).tolist():
        on_lane = np.flatnonzero(part.span_lane == lane)
        begun = np.searchsorted(start[on_lane], begin, side="left")
        until = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[on_lane]))[begun]
        found |= (until > since) & (until <= begin) & (until >= begin - DRAINED_WITHIN_NS)
    return found


def rank_swaps(graph: Graph, run: Run) -> Swap | None:
    """Return the swap test of the first rank of a graph, of which its own graph is swapped."""
    part = graph.ranks[0]
    timeline = run.ranks[part.rank].at_hand()
    own = graph if len(graph.ranks) == 1 else rank_graph(timeline, part.recording)
    return swap_test(own, timeline, step_bounds(own, {part.rank: timeline}))


def swap_test(graph: Graph, timeline: RankTimeline, steps: Sequence[Bounds]) -> Swap | None:
    """Predict each of a rank's alike steps from each other; None with fewer than three.

    Steps are alike if they ran the same kernels in the same order on the same streams. `graph` has this rank alone.
    """
    (part,) = graph.ranks
    spans = timeline.spans
    step, name = spans.step[part.span_row], spans.name[part.span_row]
    run = run_edges(graph, part)
    members = {each.step: _by_lane(part, np.flatnonzero(step == each.step)) for each in steps}
    kinds: dict[tuple[bytes, bytes], list[Bounds]] = {}
    for each in steps:
        rows = members[each.step]
        kinds.setdefault((part.span_lane[rows].tobytes(), name[rows].tobytes()), []).append(each)
    alike = max(kinds.values(), key=len, default=[])
    if len(alike) < ALIKE_STEPS:
        return None
    taken = np.array([each.length_ns(graph.nodes.time_ns) for each in alike])
    scan = scans_of(graph, [(each.start, each.end) for each in alike])
    errors, unchanged = [], []
    pairs = list(permutations(range(len(alike)), 2))
    edges = max(last - first for first, last in scan)
    count = min(max(SWAPPED_EDGES // max(edges, 1), LEAST_SWAPS), MOST_SWAPS, len(pairs))
    for one, other in (pairs[round(at * (len(pairs) - 1) / (count - 1))] for at in range(count)):
        mine, theirs = members[alike[one].step], members[alike[other].step]
        duration = graph.edges.lag_ns[run].copy()
        duration[mine] = duration[theirs]
        predicted = alike[one].length_ns(
            replay_part(graph, *scan[one], with_durations(graph, part, run, duration), graph.nodes.own_ns)
        )
        errors.append(abs(predicted - taken[other]) / taken[other])
        unchanged.append(abs(taken[one] - taken[other]) / taken[other])
    return Swap(
        pairs=len(errors), median=float(np.median(errors)), worst=float(max(errors)),
        unchanged=float(np.median(unchanged)),
    )  # fmt: skip


def _by_lane(part: RankPart, spans: Ints) -> Ints:
    return spans[np.argsort(part.span_lane[spans], kind="stable")]

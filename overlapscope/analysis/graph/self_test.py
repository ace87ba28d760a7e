"""What a graph may answer: four tests of it, all of which its path and its scenarios need.

A replay sees missing edges between spans only: a wait of the host without an edge is part of a host stretch, and the
replay is exact though the path is wrong. So the path's own waits are tested, too, and steps predict each other.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Final

import msgspec
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
from overlapscope.analysis.graph.bounds import Bounds
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.model import (
    HOST_EDGES,
    HOST_STRETCH,
    TRANSFER,
    UNEXPLAINED,
    Graph,
    RankPart,
    once_a_graph,
)
from overlapscope.analysis.graph.replay import edge_to_end, replay, replay_part, scans_of, with_durations
from overlapscope.analysis.graph.walk import Path, whole_path
from overlapscope.timeline.columns import Codes, Flags, Floats, Ints
from overlapscope.timeline.rows import ascending, is_one_of, values_in
from overlapscope.timeline.run import RankTimeline

UNKNOWN_WITHIN: Final = 0.02
HIDDEN_WAITS_WITHIN: Final = 0.25
HIDDEN_OF_PATH: Final = 0.1
"""Waits that may be hidden in so much of a path change none of its conclusions. A choice."""
DRAINED_WITHIN_NS: Final = 100_000
"""A host stretch that ends this soon after a stream drained in it may have been a wait for it ..."""
DRAINED_SHARE: Final = 0.02
"""... or within this share of its length: the first call to the device may come later, as after a future of another
library. Streams that drain by chance seldom do so just at the end of a long stretch ..."""
DRAINED_MOST_NS: Final = 2_000_000
"""... but at most within this: what a host does between a future and its next call does not grow with the wait. A
choice: of a pause of half a second a hundredth is as long as a step's kernels, some of which ends in it by chance."""
ALIKE_STEPS: Final = 3
LEAST_SWAPS: Final = 6
MOST_SWAPS: Final = 30
SWAPPED_EDGES: Final = 50_000
"""Edges that are swapped where few are wanted: of so many pairs of steps, spread over all pairs."""
STUDENT: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t that 5 % exceed, for 1 to 10 degrees of freedom ..."""
STUDENT_TENDS_TO: Final = (1.645, 1.6)
"""... and beyond: the first, plus the second over the degrees of freedom."""


def self_test(graph: Graph, windows: Sequence[Bounds], swap: Swap | None = None) -> SelfTest:
    """Test a graph with spans; `windows` are its steps, or the whole recording where there are none."""
    path = whole_path(graph)
    assert path is not None
    unexplained_starts = bool((graph.nodes.gap == UNEXPLAINED).any())
    value = replay(graph) if unexplained_starts else graph.nodes.time_ns  # it replays exactly where all is explained
    replays = tuple(
        StepReplay(
            step=each.step, rank=each.rank, recorded_ns=each.length_ns(graph.nodes.time_ns),
            replayed_ns=each.length_ns(value),
        )
        for each in windows
    )  # fmt: skip
    unknown_share = _unknown_share(path)
    unexplained = unexplained_share(graph)
    hidden = _hidden(graph)
    failed = {
        REPLAY: any(abs(each.error) > REPLAY_WITHIN for each in replays),
        UNKNOWN: unknown_share > UNKNOWN_WITHIN or unexplained > UNKNOWN_WITHIN,
        HIDDEN_WAITS: hidden.decide,
    }
    return SelfTest(
        windows=replays, unknown_share=unknown_share, unexplained_share=unexplained, hidden_wait_share=hidden.share,
        swap=swap, failed=tuple(name for name, fails in failed.items() if fails),
    )  # fmt: skip


def causes_failed(graph: Graph) -> str | None:
    """Return which test forbids the graph of one rank to name causes; None if none does.

    A replay is not needed: what it lacks, the causes call `unknown`.
    """
    if unexplained_share(graph) > UNKNOWN_WITHIN:
        return UNKNOWN
    path = whole_path(graph)
    if path is None:
        return None
    if _unknown_share(path) > UNKNOWN_WITHIN:
        return UNKNOWN
    return HIDDEN_WAITS if _hidden(graph).decide else None


def _unknown_share(path: Path) -> float:
    """Return the share of a path, but for what lies before the recording, that no rule names."""
    recorded_ns = path.length_ns - path.parts["before_recording"]
    return path.parts["unknown"] / recorded_ns if recorded_ns > 0 else 0.0


def unexplained_share(graph: Graph) -> float:
    """Return the share of the spans whose start no rule explains."""
    starts = [graph.nodes.gap[part.starts()] for part in graph.ranks]
    spans = sum(each.size for each in starts)
    return sum(int(np.count_nonzero(each == UNEXPLAINED)) for each in starts) / spans if spans else 0.0


class _Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """The long host stretches of a path that may be waits."""

    share: float
    """Of all its long host stretches."""
    of_path: float
    """Of its length."""

    @property
    def decide(self) -> bool:
        """Whether they may decide what the path is: many of its stretches, and much of it."""
        return self.share > HIDDEN_WAITS_WITHIN and self.of_path > HIDDEN_OF_PATH


@once_a_graph
def _hidden(graph: Graph) -> _Hidden:
    path = whole_path(graph)
    if path is None:
        return _Hidden(share=0.0, of_path=0.0)
    hidden_ns, long_ns = hidden_waits_ns(graph, path.edges)
    return _Hidden(share=hidden_ns / max(long_ns, 1), of_path=hidden_ns / max(path.length_ns, 1))


def hidden_waits_ns(graph: Graph, edges: Ints) -> tuple[int, int]:
    """Return how long the long host stretches among a path's edges are that may be waits, and how long all of them.

    Waits may be those that end right after a stream drained in them, or a copy to the host that was asked for last
    ended in them, or another thread of the process called meanwhile.
    """
    kind, lag = graph.edges.kind[edges], graph.edges.lag_ns[edges]
    long = edges[is_one_of(kind, HOST_EDGES) & (lag >= SILENCE_NS)]
    node, taken = graph.edges.node[long].astype(np.int64), graph.edges.lag_ns[long]
    begin = graph.nodes.time_ns[node]
    own_stretch = graph.edges.kind[long] == HOST_STRETCH
    hidden = np.zeros(long.size, np.bool_)
    for part in graph.ranks:
        mine = np.flatnonzero((node >= part.first) & (node < part.first + part.nodes))
        since = (begin - taken)[mine]
        others = own_stretch[mine] & _others_returned(graph, part, node[mine] - part.first, since)
        hidden[mine] = others | _drained(graph, part, since, begin[mine])
        if part.may_wait is not None and part.calls:
            call = node[mine] - part.first
            hidden[mine] |= (call < part.calls) & part.may_wait[np.minimum(call, part.calls - 1)]
    return int(taken[hidden].sum()), int(taken.sum())


def _others_returned(graph: Graph, part: RankPart, call: Ints, since: Ints) -> Flags:
    """Return for each stretch before a call whether another thread's call returned in it."""
    begin, end = graph.nodes.time_ns[part.begins()], graph.nodes.time_ns[part.returns()]
    call = np.minimum(call, max(part.calls - 1, 0))
    found = np.zeros(call.size, np.bool_)
    for lane in values_in(part.call_lane).tolist():
        theirs = ascending(end[part.call_lane == lane])
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
        soon = np.clip((DRAINED_SHARE * (begin - since)).astype(np.int64), DRAINED_WITHIN_NS, DRAINED_MOST_NS)
        found |= (until > since) & (until <= begin) & (until >= begin - soon)
    return found


def swap_test(
    graph: Graph, ranks: Mapping[int, RankTimeline], steps: Sequence[Bounds], *, most_edges: int | None = None
) -> Swap | None:
    """Predict each of the alike steps of a graph from each other; None with fewer than three.

    Steps are alike if every rank ran the same kernels in the same order on the same streams. `steps` are those of all
    ranks of the graph (`job_bounds`). All durations are swapped: of kernels and copies, and of transfers.
    """
    if len(steps) < ALIKE_STEPS:
        return None
    swapped = _SwappedSteps.of(graph, ranks, steps)
    kinds: dict[tuple[bytes, ...], list[int]] = {}
    for at, kind in enumerate(swapped.kinds):
        kinds.setdefault(kind, []).append(at)
    alike = max(kinds.values(), key=len, default=[])
    if len(alike) < ALIKE_STEPS:
        return None
    taken = {at: steps[at].length_ns(graph.nodes.time_ns) for at in alike}
    scan = dict(zip(alike, scans_of(graph, [(steps[at].start, steps[at].end) for at in alike]), strict=True))
    swaps = []
    for one, other in _pairs(alike, max(graph.edges.node[each].size for each in scan.values()), most_edges):
        value = replay_part(graph, scan[one], swapped.lag_ns(graph, one, other), graph.nodes.own_ns)
        predicted = steps[one].length_ns(value)
        swaps.append(
            (one, other, (predicted - taken[other]) / taken[other], (taken[one] - taken[other]) / taken[other])
        )
    errors = np.array([abs(error) for *_, error, _ in swaps])
    return Swap(
        pairs=len(swaps), median=float(np.median(errors)), worst=float(errors.max()),
        unchanged=float(np.median([abs(plain) for *_, plain in swaps])), interval=interval_of(errors, len(alike)),
        errors=tuple((steps[one].step or 0, steps[other].step or 0, error) for one, other, error, _ in swaps),
    )  # fmt: skip


def _pairs(steps: Sequence[int], edges: int, most_edges: int | None) -> list[tuple[int, int]]:
    """Return pairs of steps that are swapped, spread over all: at most `MOST_SWAPS`, fewer with `most_edges`."""
    pairs = list(permutations(steps, 2))
    count = min(MOST_SWAPS, len(pairs))
    if most_edges is not None:
        count = min(max(most_edges // max(edges, 1), LEAST_SWAPS), count)
    return [pairs[at * len(pairs) // count] for at in range(count)]


def interval_of(errors: Floats, steps: int) -> float:
    """Return half of the 90 % interval of a prediction whose relative `errors` were measured between so many steps.

    Student's t for steps that scatter normally: a few steps show little of how far they scatter.
    """
    free = max(steps - 1, 1)
    factor = STUDENT[free - 1] if free <= len(STUDENT) else STUDENT_TENDS_TO[0] + STUDENT_TENDS_TO[1] / free
    return factor * float(np.sqrt(np.mean(np.square(errors))))


class _SwappedSteps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The spans of each step, on all ranks in the same order, and the edges that hold their transfer times."""

    transfer: Codes
    """For each node that is the end of a span the edge from its collective's last arrival; -1 without one."""
    ends: tuple[Ints, ...]
    """Nodes of the ends of each step's spans."""
    kinds: tuple[tuple[bytes, ...], ...]
    """Lanes and names of each step's spans, by rank."""

    @classmethod
    def of(cls, graph: Graph, ranks: Mapping[int, RankTimeline], steps: Sequence[Bounds]) -> "_SwappedSteps":
        transfer = np.full(graph.num_nodes, -1, np.int32)
        found = np.flatnonzero(graph.edges.kind == TRANSFER)
        transfer[graph.edges.node[found]] = found
        numbers = np.array([each.step for each in steps], np.int64)
        ends: list[list[Ints]] = [[] for _ in steps]
        kinds: list[list[bytes]] = [[] for _ in steps]
        for part in graph.ranks:
            spans = ranks[part.rank].spans
            step, name = spans.step[part.span_row], spans.name[part.span_row]
            order = np.lexsort((part.span_lane, step))
            begin, end = (np.searchsorted(step[order], numbers, side) for side in ("left", "right"))
            for at in range(len(steps)):
                members = order[begin[at] : end[at]]
                ends[at].append(part.ends().start + members)
                kinds[at] += [part.span_lane[members].tobytes(), name[members].tobytes()]
        return cls(transfer=transfer, ends=tuple(map(np.concatenate, ends)), kinds=tuple(map(tuple, kinds)))

    def lag_ns(self, graph: Graph, one: int, other: int) -> Ints:
        """Return the lags where the spans of one step take as long as those of another."""
        mine, theirs, recorded = self.ends[one], self.ends[other], graph.edges.lag_ns
        lag = with_durations(graph, mine, recorded[edge_to_end(graph)[theirs]], recorded)
        moved, from_ = self.transfer[mine], self.transfer[theirs]
        both = (moved >= 0) & (from_ >= 0)
        lag[moved[both]] = recorded[from_[both]]
        return lag

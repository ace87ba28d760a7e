"""What late ranks are worth: how much shorter a recording gets if their own work takes the time that a peer's takes.

Whole peers are transplanted, never the median of each stretch: pauses are rare and long, and vanish from medians. The
range over peers says how far the answer depends on the choice. Recordings that start apart are aligned first: jobs do
not start apart, profilers do.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import NoRemoval
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.answers import HIDDEN_WAITS, REPLAY, REPLAY_WITHIN, UNKNOWN
from overlapscope.analysis.graph.bounds import Bounds, job_bounds, step_runs, whole_bounds, window_of_run
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.model import (
    CALL,
    HAND_OVER,
    HOST_STRETCH,
    RUN_COMM,
    Graph,
    RankPart,
)
from overlapscope.analysis.graph.replay import replay, run_edges
from overlapscope.analysis.graph.scenarios import (
    Change,
    aligned_starts,
    changed_times,
    devices_lag,
    own_chain_ends,
    own_chain_lengths,
)
from overlapscope.analysis.graph.self_test import causes_failed
from overlapscope.analysis.graph.walk import begun_late_ns
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Ints
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.rows import is_one_of, sum_by, values_in
from overlapscope.timeline.run import RankTimeline, Run

MOST_PEERS: Final = 8
REPLAYED_EDGES: Final = 2_000_000
"""Edges of all replays of one removal: of large graphs fewer peers are transplanted, but at least two."""
SLOWDOWN: Final = 1.3
"""Compute is taken to last up to so many times as long beside communication (Echo, arXiv 2412.12487, measured 1.27 for
matrix products): waits that are gone no longer slow what ran beside them."""
ROUNDS: Final = 3
ERROR: Final = 0.03
"""A replay with the work of peers that are very alike is no more exact than this share of the gain: no two steps take
the same time. A choice."""
MOST_SPANS: Final = 250_000
"""Of all ranks: a larger recording is not replayed rank by rank, which would take longer than everything else."""
MOST_LATE: Final = 8
"""Of more ranks that are late together none is tried without."""
CLUSTER: Final = 0.5
"""Ranks are late together if their own work is longer than their peers' by this share of the latest one's."""
NEEDED: Final = 0.9
"""A rank belongs to those who are late only if without it the others are worth less than this share."""

_OF_TEST: Final[Mapping[str, NoRemoval]] = {
    UNKNOWN: "unexplained_waits", HIDDEN_WAITS: "hidden_waits", REPLAY: "replay_differs",
}  # fmt: skip


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """How much shorter windows get without the excess of ranks: the median over peers, and its range; nanoseconds.

    The range also holds what compute gains that no longer runs beside waits for these ranks; so does the value, where
    it was measured how much these waits slow compute down (`relieved`).
    """

    ranks: tuple[int, ...]
    aligned_ns: int
    """The windows with all recordings begun together, nothing replaced."""
    gain_ns: int
    low_ns: int
    high_ns: int
    a_step: "Removal | None" = None
    """The same of a step, the mean over those that all ranks recorded completely; None where that is not asked."""
    since: "Removal | None" = None
    """The same of a step, of those alone since which the rank's device is slower; None where it always was."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of the graph of one recording."""

    graph: Graph
    windows: tuple[Bounds, ...]

    def length_ns(self, change: Change) -> int:
        """Return what the windows take together under a change, replayed from the begin of the recording."""
        value = changed_times(self.graph, change)
        return sum(each.length_ns(value) for each in self.windows)


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of a run that passes its tests, and its whole window."""

    graph: Graph
    window: Bounds

    @property
    def replayed(self) -> tuple[Replayed, ...]:
        """The whole window, for `removal`."""
        return (Replayed(graph=self.graph, windows=(self.window,)),)


def answering_graph(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs | None = None) -> RunGraph | NoRemoval:
    """Return the graph of the first recording of all ranks, which hold host events, or why it may not answer."""
    graph = (graphs or BuiltGraphs(run)).of_ranks(tuple(run.ranks), cross_rank, 0)
    window = whole_bounds(graph)
    if window is None:
        return "no_host_events"
    failed = causes_failed(graph)
    if failed is not None:
        return _OF_TEST[failed]
    recorded = window.length_ns(graph.nodes.time_ns)
    if abs(window.length_ns(replay(graph)) - recorded) > REPLAY_WITHIN * recorded:
        return _OF_TEST[REPLAY]
    return RunGraph(graph=graph, window=window)


def late_together(graph: Graph, programs: Mapping[int, object]) -> dict[int, int]:
    """Return the ranks whose own work is longer than that of ranks with an equal program, and by how much (ns).

    Compared is when each would end without waits for its peers, with all recordings begun together. Half of the ranks
    may be late together.
    """
    ends = own_chain_ends(graph, aligned_starts(graph))
    alike: dict[object, list[int]] = {}
    for rank in ends:
        alike.setdefault(programs[rank], []).append(rank)
    excess: dict[int, int] = {}
    for ranks in alike.values():
        usual = sorted(ends[rank] for rank in ranks)[(len(ranks) - 1) // 2]
        excess |= {rank: ends[rank] - usual for rank in ranks}
    most = max(excess.values(), default=0)
    return {rank: late for rank, late in sorted(excess.items()) if late > 0 and late >= CLUSTER * most}


def late_in_step(graph: Graph, window: Bounds) -> set[int]:
    """Return the ranks that would end a step late if none waited for its peers in it: later than usual by CLUSTER of
    what the latest one does."""
    ends = own_chain_lengths(graph, window, int(graph.nodes.time_ns[window.start].min()))
    usual = sorted(ends.values())[(len(ends) - 1) // 2]
    most = max(ends.values()) - usual
    return {rank for rank, end in ends.items() if end - usual >= CLUSTER * most > 0}


def programs_of(ranks: Mapping[int, RankTimeline]) -> dict[int, object]:
    """Return for each rank what identifies its program: how many collectives of each operation it launched.

    Where launches are recorded, those before the recording are left out: a device that lags has more of them.
    """
    found: dict[int, object] = {}
    for rank, timeline in ranks.items():
        op, launched = timeline.collectives.op, timeline.collectives.launch_ns != NONE
        codes, counts = np.unique(op[launched] if launched.any() else op, return_counts=True)
        found[rank] = tuple(
            sorted((timeline.name(int(code)) or "", int(count)) for code, count in zip(codes, counts, strict=True))
        )
    return found


def with_work_of(graph: Graph, peer_of: Mapping[int, int], change: Change | None = None) -> Change | None:
    """Return a change in which the own work of ranks (keys), on host and device, takes the time of a peer's (values).

    None where one launched another number of collectives than its peer.
    """
    change = change or Change.none(graph)
    parts = {part.rank: part for part in graph.ranks}
    work = {rank: _Work.of(graph, parts[rank]) for rank in {*peer_of, *peer_of.values()}}
    if not all(work[rank].parts == work[peer].parts for rank, peer in peer_of.items()):
        return None
    lag, time = change.lag_ns.copy(), change.time_ns.copy()
    late = {} if devices_lag(graph) else begun_late_ns(graph)
    for rank, peer in peer_of.items():
        _transplant(lag, change.lag_ns, work[rank], work[peer])
        part = parts[rank]
        time[part.first : part.first + part.nodes] -= late.get(rank, 0) - late.get(peer, 0)
    return replace(change, lag_ns=lag, time_ns=time)


def removal(
    recordings: Sequence[Replayed], ranks: Sequence[int], programs: Mapping[int, object], *, most: int = MOST_PEERS
) -> Removal | None:
    """Return what the ranks are worth together in the windows of one recording or several.

    None where no other rank ran the program of one of them.
    """
    found = [_lengths(each, ranks, programs, most) for each in recordings]
    count = min(map(len, found), default=0)
    if count < 2:
        return None
    aligned, *taken = (sum(each[at] for each in found) for at in range(count))
    gains = [aligned - each for each in taken]
    lengths = [aligned]
    if most > 1 and sum(each.graph.num_edges for each in recordings) * MOST_PEERS <= REPLAYED_EDGES:
        lengths.append(sum(_relieved_ns(each, ranks, programs)[1] for each in recordings))
    return Removal(
        ranks=tuple(ranks), aligned_ns=aligned, gain_ns=round(float(np.median(gains))), low_ns=min(gains),
        high_ns=max(*gains, aligned - lengths[-1]),
    )  # fmt: skip


def with_relief(
    recordings: Sequence[Replayed], found: Removal, programs: Mapping[int, object], slowdown: float | None
) -> Removal:
    """Return the value of ranks with what compute gains that no longer runs beside waits for them, if it takes
    `slowdown` times as long beside communication: what was measured of them; None where it was not.

    Compute beside transfers may be slowed more than beside waits, or less: the range holds the value without that, too.
    It is at least as wide as a replay may be wrong.
    """
    gain_ns, edges = found.gain_ns, sum(each.graph.num_edges for each in recordings)
    if slowdown is not None and slowdown > 1 and edges * MOST_PEERS <= REPLAYED_EDGES:
        both = [_relieved_ns(each, found.ranks, programs, slowdown) for each in recordings]
        gain_ns += max(sum(kept - eased for kept, eased in both), 0)
    low_ns, high_ns = (round(gain_ns * (1 + each)) for each in (-ERROR, ERROR))
    return replace(found, gain_ns=gain_ns, low_ns=min(found.low_ns, low_ns), high_ns=max(found.high_ns, high_ns))


def of_a_step(
    whole: RunGraph, timelines: Mapping[int, RankTimeline], ranks: Sequence[int], programs: Mapping[int, object],
    since: int | None = None, slowdown: float | None = None,
) -> Removal | None:  # fmt: skip
    """Return what the ranks are worth together in the mean of the steps that all ranks recorded completely, or of those
    from the step `since` on; None where there is no such step, or no other rank ran the program of one of them.
    `slowdown` as for `relieved`.

    Steps that follow each other are one window. Where the first of them has no communication it begins where the late
    ranks begin it: they carry into it what earlier steps delayed them by.
    """
    steps = job_bounds(whole.graph, timelines)
    runs = step_runs([each for each in steps if since is None or (each.step is not None and each.step >= since)])
    count = sum(map(len, runs))
    windows = tuple(window_of_run([_carrying(whole.graph, run[0], ranks), *run[1:]]) for run in runs)
    replayed = [Replayed(graph=whole.graph, windows=windows)]
    found = removal(replayed, ranks, programs) if count else None
    if found is None:
        return None
    found = with_relief(replayed, found, programs, slowdown)
    return replace(
        found, aligned_ns=round(found.aligned_ns / count), gain_ns=round(found.gain_ns / count),
        low_ns=round(found.low_ns / count), high_ns=round(found.high_ns / count),
    )  # fmt: skip


def _carrying(graph: Graph, step: Bounds, ranks: Sequence[int]) -> Bounds:
    """Return a step as it is, or begun by these ranks alone where no rank communicates in it."""
    time, starts, ends = graph.nodes.time_ns, graph.part_index(step.start), graph.part_index(step.end)
    for at in np.unique(starts):
        part = graph.ranks[at]
        begun = time[part.starts()][part.span_kind == COMM]
        begin_ns, end_ns = time[step.start[starts == at]].min(), time[step.end[ends == at]].max()
        if ((begun >= begin_ns) & (begun < end_ns)).any():
            return step
    own = np.array([graph.ranks[at].rank in ranks for at in starts])
    return replace(step, start=step.start[own]) if own.any() else step


def _lengths(one: Replayed, ranks: Sequence[int], programs: Mapping[int, object], most: int) -> list[int]:
    """Return what the windows take with all recordings begun together, then with the work of each of several peers."""
    graph = one.graph
    start = aligned_starts(graph)
    peers = _peers(graph, ranks, programs)
    if not ranks or not all(peers.values()):
        return []
    most = min(most, max(REPLAYED_EDGES // max(graph.num_edges, 1), 2))
    found = [one.length_ns(start)]
    for at in range(min(most, max(len(own) for own in peers.values()))):
        peer_of = {rank: own[at * max(len(own) // most, 1) % len(own)] for rank, own in peers.items()}
        change = with_work_of(graph, peer_of, start)
        if change is not None:
            found.append(one.length_ns(change))
    return found


def _peers(graph: Graph, ranks: Sequence[int], programs: Mapping[int, object]) -> dict[int, list[int]]:
    """Return for each rank the others that ran its program."""
    others = [part.rank for part in graph.ranks if part.spans and part.rank not in ranks]
    return {rank: [each for each in others if programs[each] == programs[rank]] for rank in ranks}


def _relieved_ns(
    one: Replayed, ranks: Sequence[int], programs: Mapping[int, object], slowdown: float = SLOWDOWN
) -> tuple[int, int]:
    """Return what windows take with the work of a peer as recorded, and if compute is `slowdown` times as long beside
    communication.

    What ran beside a wait that is gone is then shorter. Where communication runs depends on that in turn: the times are
    replayed a few times, first with that of a replay in which compute takes what it took. Begun without any slowdown,
    where calls lie elsewhere, they had not settled after many rounds.
    """
    graph, start = one.graph, aligned_starts(one.graph)
    peer_of = {rank: own[0] for rank, own in _peers(graph, ranks, programs).items()}
    free = _scaled_compute(graph, start, graph.nodes.time_ns, slowdown, faster=True)
    change, gone = with_work_of(graph, peer_of, free), with_work_of(graph, peer_of, start)
    if change is None or gone is None:
        return (one.length_ns(start),) * 2
    value = changed_times(graph, gone)
    kept_ns = sum(each.length_ns(value) for each in one.windows)
    for _ in range(ROUNDS):
        value = changed_times(graph, _scaled_compute(graph, change, value, slowdown, faster=False))
    return kept_ns, sum(each.length_ns(value) for each in one.windows)


def _scaled_compute(graph: Graph, change: Change, value: Ints, slowdown: float, *, faster: bool) -> Change:
    """Return a change in which compute takes the time that it needs free of communication, or beside it again."""
    lag = change.lag_ns.copy()
    for part in graph.ranks:
        comm, compute = (np.flatnonzero(part.span_kind == kind) for kind in (COMM, COMPUTE))
        start, end = value[part.starts()], value[part.ends()]
        busy = BusyTime(union((start[comm], end[comm]))).within(start[compute], end[compute])
        needs = 1 - busy / np.maximum(end[compute] - start[compute], 1) * (1 - 1 / slowdown)
        edges = run_edges(graph, part)[compute]
        lag[edges] = np.rint(lag[edges] * (needs if faster else 1 / needs)).astype(np.int64)
    return replace(change, lag_ns=lag)


def needed(recordings: Sequence[Replayed], found: Removal, programs: Mapping[int, object]) -> Removal:
    """Return the value of those of the ranks without whom the others are worth much less."""
    if not 1 < len(found.ranks) <= MOST_LATE:
        return found
    without = {
        rank: removal(recordings, [each for each in found.ranks if each != rank], programs, most=1)
        for rank in found.ranks
    }
    kept = [rank for rank, rest in without.items() if rest is None or rest.gain_ns < NEEDED * found.gain_ns]
    if not kept or len(kept) == len(found.ranks):
        return found
    return removal(recordings, kept, programs) or found


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """The edges of a rank's own work, each with the number of collectives that its host had launched before."""

    host: Ints
    host_part: Ints
    device: Ints
    device_part: Ints
    parts: int

    @classmethod
    def of(cls, graph: Graph, part: RankPart) -> "_Work":
        time, edges = graph.nodes.time_ns, graph.edges
        begin = time[part.begins()]
        calls = part.launched_by[(part.collective != NONE) & (part.launched_by >= 0)]
        bounds = np.sort(begin[values_in(calls)])
        host = np.flatnonzero(
            is_one_of(edges.kind, (HOST_STRETCH, HAND_OVER, CALL))
            & (edges.node >= part.first) & (edges.node < part.first + 2 * part.calls)
        )  # fmt: skip
        call, returns = np.divmod(edges.node[host] - part.first, max(part.calls, 1))[::-1]
        host_part = np.searchsorted(bounds, time[edges.node[host]], side="left")
        order = np.lexsort((edges.kind[host], returns, call, host_part))
        runs = run_edges(graph, part)
        recorded = part.launched_by >= 0  # what was launched before the recording is work of an earlier step
        own = np.flatnonzero((edges.kind[runs] != RUN_COMM) & (recorded | ~recorded.any()))
        launched = np.where(part.launched_by >= 0, np.append(begin, NONE)[part.launched_by], time[part.starts()])[own]
        device_part = np.searchsorted(bounds, launched, side="left")
        by_launch = np.lexsort((launched, device_part))
        return cls(
            host=host[order], host_part=host_part[order], device=runs[own][by_launch],
            device_part=device_part[by_launch], parts=bounds.size + 1,
        )  # fmt: skip


def _transplant(lag: Ints, recorded: Ints, own: _Work, peer: _Work) -> None:
    """Replace a rank's times by those of a peer, in place: edge by edge where a part has as many, else the total."""
    for mine, my_part, theirs, their_part in (
        (own.host, own.host_part, peer.host, peer.host_part),
        (own.device, own.device_part, peer.device, peer.device_part),
    ):
        my_count, their_count = (np.bincount(each, minlength=own.parts) for each in (my_part, their_part))
        same = my_count == their_count
        lag[mine[same[my_part]]] = recorded[theirs[same[their_part]]]
        my_sum, their_sum = (
            sum_by(part, recorded[edges], own.parts).astype(np.float64)
            for part, edges in ((my_part, mine), (their_part, theirs))
        )
        scale = np.divide(their_sum, my_sum, out=np.ones(own.parts), where=my_sum > 0)
        other = ~same[my_part]
        lag[mine[other]] = np.rint(recorded[mine[other]] * scale[my_part[other]]).astype(np.int64)

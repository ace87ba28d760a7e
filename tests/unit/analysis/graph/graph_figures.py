"""All that the graph of a run answers, as one value that tests look at; what it may not answer is None."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.answers import SelfTest
from overlapscope.analysis.graph.bounds import Bounds, job_bounds, step_bounds, whole_bounds
from overlapscope.analysis.graph.building.build import graph_too_large, run_graph
from overlapscope.analysis.graph.exposed import EXPOSED_CAUSES, ExposedPieces, exposed_pieces
from overlapscope.analysis.graph.idle import BLOCKERS, BY_CALL, IDLE_CAUSES, STRETCHES, IdlePieces, idle_pieces
from overlapscope.analysis.graph.model import Graph, RankPart
from overlapscope.analysis.graph.scenarios import (
    PAUSE_CAP_NS,
    Change,
    Outcome,
    aligned_starts,
    capped_pauses,
    instant_transfers,
    outcome,
    own_chain_ends,
    without_communication,
)
from overlapscope.analysis.graph.self_test import self_test, swap_test
from overlapscope.analysis.graph.walk import binding_edges, critical_path
from overlapscope.timeline.columns import Ints, Small
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline, Run
from tests.unit.analysis.graph.graph_changes import scaled_transfers

SCENARIOS: Final[Mapping[str, Callable[[Graph], Change]]] = {
    "no_communication": without_communication,
    "instant_transfers": instant_transfers,
    "half_transfers": lambda graph: scaled_transfers(graph, 0.5),
    "pauses_capped_3ms": lambda graph: capped_pauses(graph, PAUSE_CAP_NS),
    "starts_aligned": aligned_starts,
}


class PathFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A critical path; nanoseconds by part, and the least and the most of each over ties."""

    length_ns: int
    parts_ns: Mapping[str, int]
    bands_ns: Mapping[str, tuple[int, int]]


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Causes of one rank's idle and exposed time in the whole recording; each mapping sums to its total."""

    rank: int
    idle_ns: int
    idle_causes: Mapping[str, int]
    launch_bound_ns: Mapping[str, int]
    """`launch_bound` by length of the host stretch."""
    blocked_by_ns: Mapping[str, int]
    """`blocked_host` by call, or by `poll`, `data_loading`, `garbage_collection`."""
    drained_by_ns: Mapping[str, int]
    exposed_ns: int
    exposed_causes: Mapping[str, int]
    own_chain_end_ns: int | None
    """When its last span would end without waits for its peers, from the start of the run's first span."""
    early_launches: int


class GraphFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the graph of a run."""

    nodes: int
    edges: int
    self_test: SelfTest
    path: PathFigures | None
    """None where a test fails."""
    ranks: tuple[RankFigures, ...]
    scenarios: Mapping[str, Outcome] | None
    """None where a test fails; only what the ranks can answer: alone, a rank's recording has one start."""


def graph_figures(run: Run, cross_rank: CrossRank, recording: int = 0) -> GraphFigures | None:
    """Return what the graph of one recording window of all ranks answers; None without spans, or with too many."""
    if not run.ranks or graph_too_large(run):
        return None
    graph = run_graph(run, cross_rank, recording)
    window = whole_bounds(graph)
    if window is None:
        return None
    time = graph.nodes.time_ns
    first = int(time[window.start].min())
    path = critical_path(graph, window.last(time), first)
    swap = swap_test(graph, run.ranks, job_bounds(graph, run.ranks))
    tested = self_test(graph, [window, *step_bounds(graph, run.ranks)], swap)
    # A step that fails the replay loses its own answers, not those of the recording.
    answers = tested.answers(None, None)
    ends = own_chain_ends(graph)
    last = binding_edges(graph)
    return GraphFigures(
        nodes=graph.num_nodes, edges=graph.num_edges, self_test=tested,
        path=PathFigures(length_ns=path.length_ns, parts_ns=path.parts, bands_ns=path.bands) if answers else None,
        ranks=tuple(
            _of_rank(
                part, run.ranks[part.rank], idle_pieces(graph, part, run.ranks[part.rank], last),
                exposed_pieces(graph, part, run.ranks[part.rank], last),
                ends[part.rank] - first if part.rank in ends else None,
            )
            for part in graph.ranks
        ),
        scenarios=_scenarios(graph, window) if answers else None,
    )  # fmt: skip


def _scenarios(graph: Graph, window: Bounds) -> dict[str, Outcome]:
    wanted = (
        SCENARIOS if len(graph.ranks) > 1 else {name: SCENARIOS[name] for name in SCENARIOS if name != "starts_aligned"}
    )
    return {name: outcome(graph, window, change(graph)) for name, change in wanted.items()}


def _of_rank(
    part: RankPart, timeline: RankTimeline, idle: IdlePieces, exposed: ExposedPieces, ends_ns: int | None
) -> RankFigures:
    taken = idle.end_ns - idle.start_ns
    names = [
        timeline.name(int(part.call_name[call])) if by == BY_CALL else BLOCKERS[by]
        for by, call in _kinds(idle.blocker, idle.call)
    ]
    _, blocker = np.unique(np.stack([idle.blocker, idle.call]), axis=1, return_inverse=True)
    blocker = blocker.reshape(-1)  # numpy 2.0 gives it another shape
    return RankFigures(
        rank=part.rank,
        idle_ns=int(taken.sum()),
        idle_causes=_sums(idle.cause, taken, IDLE_CAUSES),
        launch_bound_ns=_sums(idle.stretch[idle.cause == 0], taken[idle.cause == 0], STRETCHES),
        blocked_by_ns=_named(blocker[idle.cause == 1], taken[idle.cause == 1], names),
        drained_by_ns=_named(blocker[idle.cause == 2], taken[idle.cause == 2], names),
        exposed_ns=int((exposed.end_ns - exposed.start_ns).sum()),
        exposed_causes=_sums(exposed.cause, exposed.end_ns - exposed.start_ns, EXPOSED_CAUSES),
        own_chain_end_ns=ends_ns,
        early_launches=part.early_launches,
    )


def _kinds(blocker: Small, call: Ints) -> list[tuple[int, int]]:
    pairs = np.unique(np.stack([blocker, call]), axis=1)
    return [(int(by), int(of)) for by, of in pairs.T.tolist()]


def causes_within(
    pieces: IdlePieces | ExposedPieces, causes: tuple[str, ...], begin_ns: int, end_ns: int
) -> dict[str, int]:
    """Return the nanoseconds of each cause inside a window, in its order; causes without any are left out."""
    taken = np.minimum(pieces.end_ns, end_ns) - np.maximum(pieces.start_ns, begin_ns)
    return _sums(pieces.cause, np.maximum(taken, 0), causes)


def _sums(group: Small, taken_ns: Ints, names: tuple[str, ...]) -> dict[str, int]:
    sums = sum_by(group, taken_ns, len(names)).tolist()
    return {name: total for name, total in zip(names, sums, strict=True) if total}


def _named(group: Ints, taken_ns: Ints, names: list[str | None]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, total in zip(names, sum_by(group, taken_ns, len(names)).tolist(), strict=True):
        if total:
            found[name or "unnamed"] = found.get(name or "unnamed", 0) + total
    return dict(sorted(found.items(), key=lambda item: -item[1]))

"""Causes of a rank's idle and exposed time from its own graph."""

from collections.abc import Mapping, Sequence
from typing import Final

from overlapscope.analysis.common.cause_table import NoCauses
from overlapscope.analysis.graph.answers import HIDDEN_WAITS, UNKNOWN
from overlapscope.analysis.graph.build import rank_graph
from overlapscope.analysis.graph.exposed import EXPOSED_CAUSES, ExposedPieces, exposed_pieces
from overlapscope.analysis.graph.idle import IDLE_CAUSES, IdlePieces, idle_pieces
from overlapscope.analysis.graph.self_test import causes_failed
from overlapscope.analysis.graph.walk import binding_edges, shown_binding
from overlapscope.timeline.columns import size
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import RankTimeline

ByCause = Mapping[str, Intervals]
REASONS: Final[Mapping[str, NoCauses]] = {UNKNOWN: "unexplained_waits", HIDDEN_WAITS: "hidden_waits"}


def rank_causes(timeline: RankTimeline) -> tuple[ByCause, ByCause] | NoCauses:
    """Return when a rank was idle and when exposed, by cause, on its own clock; a reason if its graph may not say.

    Both cover what lies between the first and the last span of each recording exactly.
    """
    idle, exposed = [], []
    for recording in range(size(timeline.recordings)):
        graph = rank_graph(timeline, recording)
        (part,) = graph.ranks
        shown = shown_binding(graph)
        failed = causes_failed(graph, shown)
        if failed is not None:
            return REASONS[failed]
        idle.append(idle_pieces(graph, part, timeline, binding_edges(graph)))
        exposed.append(exposed_pieces(graph, part, shown))
    return _by_cause(idle, IDLE_CAUSES), _by_cause(exposed, EXPOSED_CAUSES)


def _by_cause(found: Sequence[IdlePieces | ExposedPieces], causes: Sequence[str]) -> ByCause:
    return {
        cause: union(*[(each.start_ns[each.cause == at], each.end_ns[each.cause == at]) for each in found])
        for at, cause in enumerate(causes)
    }

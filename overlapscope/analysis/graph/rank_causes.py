"""Causes of a rank's idle and exposed time from its own graph."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.cause_table import SAMPLED, NoCauses
from overlapscope.analysis.graph.answers import HIDDEN_WAITS, UNKNOWN
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.exposed import AHEAD, EXPOSED_CAUSES, ExposedPieces, exposed_pieces
from overlapscope.analysis.graph.found_causes import Ahead, HostLoss, OwnCauses
from overlapscope.analysis.graph.host_losses import awaited_communication, host_losses
from overlapscope.analysis.graph.idle import IDLE_CAUSES, IdlePieces, idle_pieces
from overlapscope.analysis.graph.model import HAND_OVER, HOST_STRETCH, POLL, UNEXPLAINED, Graph, RankPart
from overlapscope.analysis.graph.self_test import causes_failed
from overlapscope.analysis.graph.walk import binding_edges
from overlapscope.analysis.per_rank.recorded_calls import calls_and_numbers
from overlapscope.timeline.columns import Ints, concat, size, take
from overlapscope.timeline.intervals import Intervals, complement, union
from overlapscope.timeline.rows import is_one_of
from overlapscope.timeline.run import RankTimeline, Run

REASONS: Final[Mapping[str, NoCauses]] = {UNKNOWN: "unexplained_waits", HIDDEN_WAITS: "hidden_waits"}
FEWEST_CALLS: Final = 100
"""A recording is sampled if it holds at least so many calls ..."""
FEW_RECORDED: Final = 0.02
"""... that are at most this share of those that the process numbered meanwhile, and if ..."""
HELD_BY_NOTHING: Final = 0.25
"""... in this share of its idle time or more the next span was launched, and nothing recorded held it. Measured: 0.005
and 0.6 where over 90 % of events had been left out; 0.09 to 1 and at most 0.06 on thirteen ranks of ten whole
recordings. Choices: either alone may be of a host that polls without end, or of a wait a profiler does not show."""


def rank_causes(timeline: RankTimeline, graphs: BuiltGraphs | None = None) -> OwnCauses:
    """Return when a rank was idle and when exposed, by cause, on its own clock; a reason if its graph may not say.

    Both cover what lies between the first and the last span of each recording exactly.
    """
    graphs = graphs or BuiltGraphs(Run(world_size=None, ranks={timeline.rank: timeline}))
    idle, exposed, ahead, losses, polled, finishing = [], [], [], list[HostLoss](), [], []
    for recording in range(size(timeline.recordings)):
        graph = graphs.of_rank(timeline, recording)
        (part,) = graph.ranks
        polled.append(_polled(graph, part))
        failed = causes_failed(graph)
        if failed is not None:
            sampled = failed == UNKNOWN and _is_sampled(graph, part, timeline)
            return OwnCauses(reason=SAMPLED if sampled else REASONS[failed], polled=union(*polled))
        binding = binding_edges(graph)
        idle.append(idle_pieces(graph, part, timeline, binding))
        exposed.append(exposed_pieces(graph, part, timeline, binding))
        ahead.append(_ahead(exposed[-1], part))
        if part.finishes is not None:
            finishing.append(part.span_row[part.finishes])
        losses += host_losses(graph, part, timeline, idle[-1])
        losses += awaited_communication(graph, part, timeline, exposed[-1])
    return OwnCauses(
        idle=_by_cause(idle, IDLE_CAUSES),
        exposed=_by_cause(exposed, EXPOSED_CAUSES),
        ahead=concat(ahead) if ahead else None,
        finishing=np.concatenate(finishing) if finishing else None,
        host_losses=_joined(losses),
        polled=union(*polled),
    )


def _is_sampled(graph: Graph, part: RankPart, timeline: RankTimeline) -> bool:
    """Return whether most events of a rank were left out: few of its calls are there, and much idle time ends with a
    span that was launched before, and that nothing recorded held until then."""
    calls, numbers = calls_and_numbers(timeline)
    if not FEWEST_CALLS <= calls <= FEW_RECORDED * numbers:
        return False
    start, end = graph.nodes.time_ns[part.starts()], graph.nodes.time_ns[part.ends()]
    idle = complement(union((start, end)), int(start.min()), int(end.max()))
    ends_it = np.searchsorted(start, idle.ends, side="left") + part.starts().start
    lasted = idle.ends - idle.starts
    held_ns = np.minimum(graph.nodes.own_ns[ends_it], lasted)[graph.nodes.gap[ends_it] == UNEXPLAINED]
    return bool(held_ns.sum() >= HELD_BY_NOTHING * lasted.sum())


def _polled(graph: Graph, part: RankPart) -> tuple[Ints, Ints]:
    """Return the silences of the host in which it polled, or may have waited for a copy: from call to call."""
    edges, time = graph.edges, graph.nodes.time_ns
    silent = np.zeros(graph.num_nodes, np.bool_)
    silent[edges.node[edges.kind == POLL]] = True
    if part.may_wait is not None:
        silent[part.begins()] |= part.may_wait
    hosts = np.flatnonzero(is_one_of(edges.kind, (HOST_STRETCH, HAND_OVER)) & silent[edges.node])
    return time[edges.before[hosts]], time[edges.node[hosts]]


def _ahead(exposed: ExposedPieces, part: RankPart) -> Ahead:
    own = take(exposed, np.flatnonzero(exposed.cause == AHEAD))
    return Ahead(start_ns=own.start_ns, end_ns=own.end_ns, needed=part.collective[own.needed].astype(np.int64))


def _by_cause(found: Sequence[IdlePieces | ExposedPieces], causes: Sequence[str]) -> Mapping[str, Intervals]:
    return {
        cause: union(*[(each.start_ns[each.cause == at], each.end_ns[each.cause == at]) for each in found])
        for at, cause in enumerate(causes)
    }


def _joined(losses: Sequence[HostLoss]) -> tuple[HostLoss, ...]:
    """Return the losses of all recordings, one for each kind and call: that with the longest piece, with all times."""

    def what(each: HostLoss) -> tuple[str, str]:
        return each.kind, each.call or ""

    same = [list(each) for _, each in groupby(sorted(losses, key=what), key=what)]
    return tuple(
        replace(
            max(each, key=lambda one: one.longest[1] - one.longest[0]),
            when=union(*(one.when for one in each)),
            after=union(*after) if (after := [one.after for one in each if one.after is not None]) else None,
        )
        for each in same
    )

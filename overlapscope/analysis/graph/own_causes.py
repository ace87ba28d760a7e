"""Ask dependency graphs, where the recording can hold them: a rank's for the causes of its idle and exposed time, the
run's for the critical paths of its steps."""

from collections.abc import Mapping

from overlapscope.analysis.common.cause_table import CUT_FILE
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.answers import CriticalPath, HostPauses, Windows, ranks_of_graph
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.errors import HostEventsError
from overlapscope.timeline.run import RankTimeline, Run


def own_causes(timeline: RankTimeline, graphs: BuiltGraphs | None = None) -> OwnCauses:
    """Return the causes that the graph of a rank names."""
    if timeline.ends_early:
        return OwnCauses(reason=CUT_FILE)
    if timeline.host_is_lost:
        return OwnCauses(reason="unreadable_host_events")
    if not timeline.has_host_events:
        return OwnCauses(reason="no_host_events")
    from overlapscope.analysis.graph.rank_causes import rank_causes  # noqa: PLC0415 - a recording without host events needs no graph

    try:
        return rank_causes(timeline, graphs)
    except HostEventsError:  # the rank's other figures do not need them
        return OwnCauses(reason="unreadable_host_events")


def critical_paths(
    run: Run,
    windows: Windows,
    cross_rank: CrossRank,
    graphs: BuiltGraphs | None = None,
    odd: frozenset[int] = frozenset(),
    pauses: Mapping[int, HostPauses] | None = None,
) -> CriticalPath:
    """Return the critical paths of a run's steps, with their parts and operations; a reason where there is none.

    `odd` steps are not typical, unless all are. `pauses` are those of hosts while they seemed to compute, by rank.
    """
    _, reason = ranks_of_graph(run, cross_rank)
    if reason is not None:
        return CriticalPath(reason=reason)
    from overlapscope.analysis.graph.step_paths import summed_paths  # noqa: PLC0415 - a run without a graph needs none

    return summed_paths(run, windows, cross_rank, graphs or BuiltGraphs(run), odd, pauses or {})

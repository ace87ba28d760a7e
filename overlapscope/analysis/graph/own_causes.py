"""Ask the dependency graph of a rank for the causes of its idle and exposed time, where its recording can hold them."""

from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.errors import HostEventsError
from overlapscope.timeline.run import RankTimeline


def own_causes(timeline: RankTimeline) -> OwnCauses:
    """Return the causes that the graph of a rank names."""
    if not timeline.has_host_events:
        return OwnCauses(reason="no_host_events")
    from overlapscope.analysis.graph.rank_causes import rank_causes  # noqa: PLC0415 - a recording without host events needs no graph

    try:
        return rank_causes(timeline)
    except HostEventsError as error:  # the rank's other figures do not need them
        return OwnCauses(reason="unreadable_host_events", unreadable=(error.path, error.why))

"""Ask dependency graphs, where the recording can hold them: a rank's for the causes of its idle and exposed time, the
run's for the critical paths of its steps."""

from collections.abc import Mapping

import msgspec

from overlapscope.analysis.common.cause_table import NoCauses
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.answers import CriticalPath, Windows, ranks_of_graph
from overlapscope.errors import HostEventsError
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import RankTimeline, Run


class OwnCauses(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank was idle and when exposed, by cause, on its own clock; None where `reason` says why not."""

    idle: Mapping[str, Intervals] | None = None
    exposed: Mapping[str, Intervals] | None = None
    reason: NoCauses | None = None
    unreadable: tuple[str, str] | None = None
    """File of its host events and why it cannot be read, if it cannot."""


def own_causes(timeline: RankTimeline) -> OwnCauses:
    """Return the causes that the graph of a rank names."""
    if not timeline.has_host_events:
        return OwnCauses(reason="no_host_events")
    from overlapscope.analysis.graph.rank_causes import rank_causes  # noqa: PLC0415 - a recording without host events needs no graph

    try:
        found = rank_causes(timeline)
    except HostEventsError as error:  # the rank's other figures do not need them
        return OwnCauses(reason="unreadable_host_events", unreadable=(error.path, error.why))
    return OwnCauses(reason=found) if isinstance(found, str) else OwnCauses(idle=found[0], exposed=found[1])


def critical_paths(run: Run, windows: Windows, cross_rank: CrossRank) -> CriticalPath:
    """Return the critical paths of a run's steps, with their parts and operations; a reason where there is none."""
    _, reason = ranks_of_graph(run, cross_rank)
    if reason is not None:
        return CriticalPath(reason=reason)
    from overlapscope.analysis.graph.step_paths import summed_paths  # noqa: PLC0415 - a run without a graph needs none

    return summed_paths(run, windows, cross_rank)

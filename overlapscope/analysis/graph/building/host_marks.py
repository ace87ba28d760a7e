"""Operations and ranges of a host whose names say that it loads data, or collects garbage, and recorded collections."""

import re
from typing import Final

import numpy as np

from overlapscope.analysis.graph.model import Graph
from overlapscope.timeline.columns import ANNOTATION, NONE, OPERATION, HostSpans, concat, make
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import RankTimeline

COLLECTS_GARBAGE: Final = re.compile(r"(?i)\bgc\b|garbage")


def marked_times(graph: Graph, timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    """Return the operations and ranges of a rank's host whose names match, with the garbage collections that capture
    noted where the name is that of these; None without any.

    They are kept with the graph: a host's table is looked through once.
    """
    kept: dict[tuple[int, re.Pattern[str]], HostSpans | None] = vars(graph).setdefault("marked_times", {})
    if (timeline.rank, name) not in kept:
        kept[timeline.rank, name] = _marked(timeline, name)
    return kept[timeline.rank, name]


def _marked(timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    marks = [_named(timeline, name), _collections(timeline) if name is COLLECTS_GARBAGE else None]
    found = [each for each in marks if each is not None and each.name.size]
    return concat(found) if found else None


def _named(timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    fitting = np.array([name.search(each) is not None for each in timeline.names], np.bool_)
    if not fitting.any():  # names are few, host spans may be millions
        return None
    return select_host_spans(timeline.host, (OPERATION, ANNOTATION), fitting)


def _collections(timeline: RankTimeline) -> HostSpans | None:
    """Return the recorded garbage collections as ranges of the reading's name; None where it was not read."""
    if COLLECTOR not in timeline.names:
        return None
    pauses = recorded_pauses(timeline, COLLECTOR)
    return make(
        HostSpans, pauses.starts.size, recording=0, lane=0, kind=ANNOTATION, name=timeline.names.index(COLLECTOR),
        start_ns=pauses.starts, end_ns=pauses.ends, correlation=NONE,
    )  # fmt: skip

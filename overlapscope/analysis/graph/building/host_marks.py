"""Operations and ranges of a host whose names say that it loads data, or collects garbage, and recorded collections."""

import re
from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from overlapscope.analysis.common.loading import LOADS_DATA, loads_data
from overlapscope.analysis.graph.model import Graph
from overlapscope.timeline.columns import ANNOTATION, NONE, OPERATION, HostSpans, concat, make
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from overlapscope.timeline.run import RankTimeline

COLLECTS_GARBAGE: Final = re.compile(r"(?i)\bgc\b|garbage")
Mark = Literal["data_loading", "garbage_collection"]


def marked_times(graph: Graph, timeline: RankTimeline, mark: Mark) -> HostSpans | None:
    """Return the operations and ranges of a rank's host in which data were loaded, or garbage was collected, with the
    collections that capture noted; None without any.

    They are kept with the graph: a host's table is looked through once.
    """
    kept: dict[tuple[int, Mark], HostSpans | None] = vars(graph).setdefault("marked_times", {})
    if (timeline.rank, mark) not in kept:
        kept[timeline.rank, mark] = _marked(timeline, mark)
    return kept[timeline.rank, mark]


def _marked(timeline: RankTimeline, mark: Mark) -> HostSpans | None:
    if mark == "garbage_collection":
        marks = [_named(timeline, COLLECTS_GARBAGE.search), _collections(timeline)]
    else:
        marks = [_named(timeline, LOADS_DATA.search), _ranges(timeline)]
    found = [each for each in marks if each is not None and each.name.size]
    return concat(found) if found else None


def _named(timeline: RankTimeline, fits: Callable[[str], object]) -> HostSpans | None:
    fitting = np.array([bool(fits(each)) for each in timeline.names], np.bool_)
    if not fitting.any():  # names are few, host spans may be millions
        return None
    return select_host_spans(timeline.host, (OPERATION, ANNOTATION), fitting)


def _ranges(timeline: RankTimeline) -> HostSpans:
    """Return the ranges in which data are loaded: their table is read also where that of the host is damaged."""
    notes = timeline.annotations
    rows = loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)
    return make(
        HostSpans, int(rows.sum()), recording=notes.recording[rows], lane=notes.lane[rows], kind=ANNOTATION,
        name=notes.name[rows], start_ns=notes.start_ns[rows], end_ns=notes.end_ns[rows], correlation=NONE,
    )  # fmt: skip


def _collections(timeline: RankTimeline) -> HostSpans | None:
    """Return the recorded garbage collections as ranges of the reading's name; None where it was not read."""
    if COLLECTOR not in timeline.names:
        return None
    pauses = recorded_pauses(timeline, COLLECTOR)
    return make(
        HostSpans, pauses.starts.size, recording=0, lane=0, kind=ANNOTATION, name=timeline.names.index(COLLECTOR),
        start_ns=pauses.starts, end_ns=pauses.ends, correlation=NONE,
    )  # fmt: skip

"""Operations and ranges of a host whose names say that it loads data, or collects garbage."""

import re
from typing import Final

import numpy as np

from overlapscope.analysis.graph.model import Graph
from overlapscope.timeline.columns import ANNOTATION, OPERATION, HostSpans
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import RankTimeline

LOADS_DATA: Final = re.compile(r"DataLoader|(?i:data_?load|load_?batch|fetch_?batch|next_?batch)")
COLLECTS_GARBAGE: Final = re.compile(r"(?i)\bgc\b|garbage")


def marked_times(graph: Graph, timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    """Return the operations and ranges of a rank's host whose names match; None without any.

    They are kept with the graph: a host's table is looked through once.
    """
    kept: dict[tuple[int, re.Pattern[str]], HostSpans | None] = vars(graph).setdefault("marked_times", {})
    if (timeline.rank, name) not in kept:
        kept[timeline.rank, name] = _marked(timeline, name)
    return kept[timeline.rank, name]


def _marked(timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    fitting = np.array([name.search(each) is not None for each in timeline.names], np.bool_)
    if not fitting.any():  # names are few, host spans may be millions
        return None
    marks = select_host_spans(timeline.host, (OPERATION, ANNOTATION), fitting)
    return marks if marks.name.size else None

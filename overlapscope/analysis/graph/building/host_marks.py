"""Operations and ranges of a host whose names say that it loads data, or collects garbage."""

import re
from typing import Final

import numpy as np

from overlapscope.timeline.columns import ANNOTATION, OPERATION, HostSpans
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import RankTimeline

LOADS_DATA: Final = re.compile(r"DataLoader|(?i:data_?load|load_?batch|fetch_?batch|next_?batch)")
COLLECTS_GARBAGE: Final = re.compile(r"(?i)\bgc\b|garbage")


def marked_times(timeline: RankTimeline, name: re.Pattern[str]) -> HostSpans | None:
    """Return the operations and ranges of a rank's host whose names match; None without any."""
    fitting = np.array([name.search(each) is not None for each in timeline.names], np.bool_)
    if not fitting.any():  # names are few, host spans may be millions
        return None
    marks = select_host_spans(timeline.host, (OPERATION, ANNOTATION), fitting)
    return marks if marks.name.size else None

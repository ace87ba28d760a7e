"""When a host fetched a batch, by the names of its ranges and operations."""

import re
from typing import Final

import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Codes, Flags, Ints
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

LOADS_DATA: Final = re.compile(r"DataLoader|(?i:data_?load|load_?batch|fetch_?batch|next_?batch)")
"""Searched for: torch's own names, and those that say it."""
MAY_LOAD: Final = re.compile(
    r"(?i:((get|next|load|fetch|read)[ _.(-]?)?(data|batch|batches)"
    r"([ _.-]?(load(er|ing)?|fetch(ing)?|wait(ing)?|time))?\)?|load(er|ing)?|fetch(ing)?|collate([_ ](fn|batch))?)"
)
"""Whole names that users commonly choose; some also mean all that is done with a batch."""
MOSTLY: Final = 0.5
"""A range of such a name in which a host computes for this share of the time is no loading."""


def loads_data(timeline: RankTimeline, name: Codes, start_ns: Ints, end_ns: Ints) -> Flags:
    """Return in which ranges or operations of a rank's host a batch is fetched: by their names, those that MAY_LOAD if
    no compute is launched in them, nor, without a device, most of the time computed."""
    surely = rows_named(name, timeline.names, LOADS_DATA.search)
    maybe = np.flatnonzero(rows_named(name, timeline.names, MAY_LOAD.fullmatch) & ~surely)
    if not maybe.size:
        return surely
    spans, start, end = timeline.spans, start_ns[maybe], end_ns[maybe]
    rows = np.flatnonzero(spans.kind == COMPUTE)
    if timeline.has_device:
        launched = np.sort(spans.launch_ns[rows][spans.launch_ns[rows] != NONE])
        works = np.searchsorted(launched, end) > np.searchsorted(launched, start)
    else:
        computing = BusyTime(union((spans.start_ns[rows], spans.end_ns[rows])))
        works = computing.within(start, end) >= MOSTLY * np.maximum(end - start, 1)
    surely[maybe[~works]] = True
    return surely

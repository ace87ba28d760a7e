"""Find what a step computes after a collective: other work that depends on it, only the optimizer, or nothing."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.intervals import union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import largest_by, values_in
from overlapscope.timeline.run import RankTimeline

OPTIMIZER: Final = re.compile(r"^(Optimizer\.step#|optimizer$|overlapscope\.optimizer)")
"""torch's annotation around every optimizer step, and OverlapScope's own mark of the phase."""


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """For each step: begin of its last compute other than the optimizer's, and whether its optimizer was recorded."""

    last_start_ns: dict[int, int]
    with_optimizer: frozenset[int]

    def depends(self, steps: Ints, ends_ns: Ints) -> Flags:
        """Return for each (step, end of a collective) whether compute other than the optimizer's follows in it."""
        last = np.array([self.last_start_ns.get(step, NONE) for step in steps.tolist()], np.int64)
        return np.asarray(last >= ends_ns, np.bool_)

    def known(self, steps: Ints) -> Flags:
        """Return for each step whether its optimizer was recorded; without it, `depends` is not known."""
        return np.isin(steps, list(self.with_optimizer))


def following(timeline: RankTimeline) -> Following:
    """Return what each step of a rank computes."""
    spans = timeline.spans
    computes = np.flatnonzero((spans.kind == COMPUTE) & (spans.step != NONE))
    optimizes = in_optimizer(timeline, computes)
    steps = spans.step[computes]
    others = computes[~optimizes]
    of_others = spans.step[others]
    numbers = values_in(of_others)
    last = largest_by(np.searchsorted(numbers, of_others), spans.start_ns[others], numbers.size)
    return Following(
        last_start_ns=dict(zip(numbers.tolist(), last.tolist(), strict=True)),
        with_optimizer=frozenset(values_in(steps[optimizes]).tolist()),
    )


def in_optimizer(timeline: RankTimeline, spans: Ints) -> Flags:
    """Return which of these spans (rows) belong to the optimizer, by their names or by when they were launched."""
    table, notes = timeline.spans, timeline.annotations
    marks = rows_named(notes.name, timeline.names, OPTIMIZER.match)
    marked = union((notes.start_ns[marks], notes.end_ns[marks]))
    begun = np.where(table.launch_ns == NONE, table.start_ns, table.launch_ns)[spans]
    at = np.searchsorted(marked.starts, begun, side="right") - 1
    optimizes = rows_named(table.name[spans], timeline.names, OPTIMIZER.match)
    if marked.starts.size:
        optimizes |= (at >= 0) & (begun < marked.ends[np.maximum(at, 0)])
    return optimizes

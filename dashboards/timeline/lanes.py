"""The lanes (streams and threads) of single ranks: their spans, and the time that these cover."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import COMPUTE_ONLY, COPY_ONLY, EXPOSED, OVERLAPPED, STATES, Occupancy
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Intervals, difference, intersection, union
from overlapscope.timeline.run import RankTimeline

MAX_RANKS: Final = 16
MAX_LANES: Final = 8
"""Most lanes shown for a rank: the busiest ones."""
MAX_SPANS: Final = 2_000
"""More would take a browser half a second or longer to draw."""


class SpanLane(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of one lane ordered by start, on the common clock."""

    lane: int
    label: str
    rows: Ints
    """Rows in the rank's `Spans`."""
    start_ns: Ints
    end_ns: Ints
    reach_ns: Ints
    """Running maximum of `end_ns`; it is sorted, so a window can be found by bisection."""
    occupancy: Occupancy

    def in_view(self, start_ns: int, end_ns: int) -> Ints:
        """Return the positions of the spans that overlap [start, end), including zero-length ones, in order."""
        return places_in_view(self.start_ns, self.end_ns, self.reach_ns, start_ns, end_ns)


def places_in_view(starts_ns: Ints, ends_ns: Ints, reach_ns: Ints, start_ns: int, end_ns: int) -> Ints:
    """Return the positions of the times, sorted by start, that overlap [start, end), including zero-length ones.

    `reach_ns` is the running maximum of their ends.
    """
    first = int(np.searchsorted(reach_ns, start_ns, side="left"))
    last = int(np.searchsorted(starts_ns, end_ns, side="left"))
    at = np.arange(first, max(last, first))
    return at[(ends_ns[at] > start_ns) | (starts_ns[at] >= start_ns)]


class RankLanes(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's lanes, and the intervals of exposed communication; on the common clock."""

    rank: int
    lanes: tuple[SpanLane, ...]
    left_out: int
    """Number of lanes beyond MAX_LANES."""
    exposed: Intervals


def lanes_of(timeline: RankTimeline, start_ns: Ints, end_ns: Ints, labels: Sequence[str]) -> RankLanes:
    """Return the lanes of a rank that have spans, in order; `start_ns` and `end_ns` are its aligned span times."""
    spans = timeline.spans
    cover = Coverage.of_times(spans.kind, start_ns, end_ns)
    order = np.lexsort((-end_ns, start_ns, spans.lane))
    found, first = np.unique(spans.lane[order], return_index=True)
    parts = dict(zip(found.tolist(), np.split(order, first[1:]) if order.size else [], strict=True))
    busy = {lane: int((end_ns[rows] - start_ns[rows]).sum()) for lane, rows in parts.items()}
    chosen = sorted(sorted(parts, key=lambda lane: -busy[lane])[:MAX_LANES])
    return RankLanes(
        rank=timeline.rank,
        lanes=tuple(_lane(timeline, lane, labels[lane], parts[lane], start_ns, end_ns, cover) for lane in chosen),
        left_out=len(parts) - len(chosen),
        exposed=difference(cover.comm, cover.compute),
    )


def pieces(lane: SpanLane, at: Ints, exposed: Intervals) -> tuple[Ints, Ints, Ints]:
    """Return the exposed pieces of the spans at positions `at`: (index into `at`, start, end)."""
    start, end = lane.start_ns[at], lane.end_ns[at]
    first = np.searchsorted(exposed.ends, start, side="right")
    counts = np.maximum(np.searchsorted(exposed.starts, end, side="left") - first, 0)
    of = np.repeat(np.arange(at.size), counts)
    within = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)
    part = np.repeat(first, counts) + within
    return of, np.maximum(start[of], exposed.starts[part]), np.minimum(end[of], exposed.ends[part])


def _lane(
    timeline: RankTimeline, lane: int, label: str, rows: Ints, start_ns: Ints, end_ns: Ints, cover: Coverage
) -> SpanLane:
    start, end, kind = start_ns[rows], end_ns[rows], timeline.spans.kind[rows]
    own = Coverage.of_times(kind, start, end)
    rest = difference(own.comm, own.compute)
    parts = (
        (own.compute, COMPUTE_ONLY),
        (intersection(rest, cover.compute), OVERLAPPED),
        (difference(rest, cover.compute), EXPOSED),
        (difference(own.copy, union(own.comm, own.compute)), COPY_ONLY),
    )
    return SpanLane(
        lane=lane,
        label=label,
        rows=rows,
        start_ns=start,
        end_ns=end,
        reach_ns=np.maximum.accumulate(end) if end.size else end,
        occupancy=Occupancy.of_parts(parts),
    )


def state_cells(lanes: Sequence[SpanLane], edges_ns: Ints) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    """Return cells of shape (lanes, bins): 0 where nothing ran, else the state with the most time."""
    cells = np.zeros((len(lanes), max(edges_ns.size - 1, 0)), np.uint8)
    for at, lane in enumerate(lanes):
        spent = lane.occupancy.spent(edges_ns)[:, COMPUTE_ONLY : len(STATES)]
        cells[at] = np.where(spent.any(axis=1), spent.argmax(axis=1) + COMPUTE_ONLY, 0)
    return cells

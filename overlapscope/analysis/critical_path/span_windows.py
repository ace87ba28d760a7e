"""The spans of each rank around the windows whose paths are followed, read once for all windows.

Many paths lead through the same ranks, and reading one step of a rank on disk reads all of its steps.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.host_waits import WaitNames
from overlapscope.timeline.columns import NONE, Flags, Ints, Spans, size, take
from overlapscope.timeline.run import RankTimeline

Window = tuple[int, int]


class SpanWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of a rank (all, or those around a window), with its copies to the host and synchronization calls."""

    spans: Spans
    row: Ints | None
    """Row of each span in the rank's `Spans`; None where all spans are held."""
    to_host: Flags
    """Whether each span is a copy to the host."""
    begun_ns: Ints
    """Begin of the rank's synchronization calls ..."""
    ended_ns: Ints
    """... and their end; over the whole recording."""

    def rows(self, position: Ints) -> Ints:
        """Convert positions in these spans to rows in the rank's `Spans`."""
        return position if self.row is None else self.row[position]

    def positions(self, row: Ints) -> Ints:
        """Convert rows in the rank's `Spans` to positions in these spans."""
        return row if self.row is None else np.searchsorted(self.row, row)


class SpanWindows:
    """The spans of each rank around a set of windows."""

    def __init__(self, ranks: Mapping[int, RankTimeline], windows: Callable[[int], Sequence[Window]]) -> None:
        """Prepare for windows [begin, end); `windows(rank)` returns them on that rank's clock."""
        self._ranks, self._windows = ranks, windows
        self._whole: dict[int, SpanWindow] = {}
        self._cuts: dict[int, dict[Window, SpanWindow]] = {}

    def of(self, rank: int, window: Window) -> SpanWindow:
        """Return at least the spans that a rank ran or launched in one of its windows."""
        if rank in self._whole:
            return self._whole[rank]
        if rank not in self._cuts:
            timeline = self._ranks[rank].at_hand()
            whole = _whole(timeline)
            if timeline is self._ranks[rank]:  # in memory as it is
                self._whole[rank] = whole
                return whole
            self._cuts[rank] = {each: _cut(whole, each) for each in self._windows(rank)}
        return self._cuts[rank][window]


def in_window(spans: Spans, window: Window) -> Flags:
    """Return which spans ran, or were launched, in [begin, end)."""
    begin, end = window
    runs = (spans.end_ns > begin) & (spans.start_ns < end)
    launched: Flags = (spans.launch_ns != NONE) & (spans.launch_ns >= begin) & (spans.launch_ns < end)
    return runs | launched


def _whole(timeline: RankTimeline) -> SpanWindow:
    named, notes = WaitNames.of(timeline), timeline.annotations
    return SpanWindow(
        spans=timeline.spans,
        row=None,
        to_host=named.to_host,
        begun_ns=notes.start_ns[named.calls],
        ended_ns=notes.end_ns[named.calls],
    )


def _cut(whole: SpanWindow, window: Window) -> SpanWindow:
    row = np.flatnonzero(in_window(whole.spans, window))
    return SpanWindow(
        spans=take(whole.spans, row) if row.size < size(whole.spans) else whole.spans,
        row=row,
        to_host=whole.to_host[row],
        begun_ns=whole.begun_ns,
        ended_ns=whole.ended_ns,
    )

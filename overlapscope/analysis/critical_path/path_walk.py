"""Follow a critical path: backwards from the end of a step to its begin, over spans, launches and ranks.

The result is a `Path`: its segments, each with its part, its rank and its span.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.critical_path.span_dependencies import (
    BY_LAUNCH,
    BY_NOTHING,
    SpanDependencies,
    span_dependencies,
)
from overlapscope.analysis.critical_path.span_windows import SpanWindows, Window
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.exposure.arrivals import Arrivals
from overlapscope.analysis.per_rank.host_waits import LONG_AGO
from overlapscope.timeline.columns import COMPUTE, NONE, Codes, Ints, Small
from overlapscope.timeline.rows import sort_order, unique
from overlapscope.timeline.run import Run

PARTS: Final = ("compute", "transfer", "communication", "copy", "launch", "host", "host_or_wait", "idle")
"""`transfer`: communication after the arrival of its last member; `communication`: transfer and wait, not separated.
`host_or_wait`: the host launched nothing, and it was not recorded whether it waited for its device."""
COMPUTING, TRANSFER, COMMUNICATION, COPYING, LAUNCH, HOST, HOST_OR_WAIT, IDLE = range(len(PARTS))
"""Their positions in `PARTS`."""
_RUNNING: Final = np.array([COMPUTING, COMMUNICATION, COPYING], np.int8)
"""The part of a span of each kind."""
_STRETCH: Final = np.array([HOST, HOST_OR_WAIT], np.int8)
MARGIN_NS: Final = 10_000_000
"""Aligned clocks differ by less than this."""
MOST_SEGMENTS: Final = 100_000


class NoPathError(Exception):
    """The path could not be followed; the message says why."""


class _Place(msgspec.Struct, frozen=True):
    """Position of a walk: in a span that ran until now (`inside`), or just before that span began."""

    rank: int
    position: int
    inside: bool


def _beside(clocks: Clocks, rank: int, of: int, window: Window) -> Window:
    """Return the window of rank `of` on the clock of `rank`, widened by MARGIN_NS on both sides."""
    begin, end = (on_clock_of(clocks, rank, of, each) for each in window)
    return begin - MARGIN_NS, end + MARGIN_NS


class Segments(msgspec.Struct, frozen=True, kw_only=True):
    """The segments of a path, in order of time: each begins where the one before it ends."""

    part: Small
    """Position in `PARTS`."""
    rank: Ints
    row: Ints
    """Row in the rank's `Spans` of the span that ran, or that the host was about to launch; NONE for none."""
    name: Codes
    """Name of the segment, as a code of the rank's names; -1 for none."""
    start_ns: Ints
    end_ns: Ints
    """On the clock of the path's rank."""


class FollowedPath(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path of one step."""

    step: int | None
    rank: int
    """The rank on which the step ended last; window and clock are this rank's."""
    start_ns: int
    end_ns: int
    segments: Segments


class Walker:
    """Follows the critical paths of a run; keeps what several paths need."""

    def __init__(
        self, run: Run, arrivals: Mapping[int, Arrivals], clocks: Clocks, windows: Sequence[tuple[int, Window]]
    ) -> None:
        """Prepare for paths of these (rank, window), each window on the clock of its rank."""
        self.run, self._arrivals, self._clocks = run, arrivals, clocks
        self._around = SpanWindows(run.ranks, lambda rank: [_beside(clocks, rank, *each) for each in windows])
        self._by_call: dict[int, tuple[Ints, Ints]] = {}
        self._last: dict[int, tuple[Ints, Ints]] = {}

    def path(self, rank: int, step: int | None, window: Window, most: int = MOST_SEGMENTS) -> FollowedPath:
        """Return the path of one of the windows. Raises NoPathError, also for more than `most` segments."""
        self._by_call, self._last = {}, {}  # caches of the ranks on one path
        return _Walk(self, rank, step, window, most).path()

    def last_member(self, rank: int, row: int) -> tuple[int, int]:
        """Return (rank, row in its `Collectives`) of the last member to arrive at a call with `is_matched`."""
        number, lasts = self._arrived(rank)
        last = int(lasts[row])
        if last not in self._by_call:
            calls, _ = self._arrived(last)
            order = sort_order(calls)
            self._by_call[last] = calls[order], order
        calls, order = self._by_call[last]
        return last, int(order[np.searchsorted(calls, number[row])])

    def awaited(self, rank: int, of: int, window: Window) -> SpanDependencies:
        """Return the dependencies of a rank's spans around a window of rank `of`."""
        beside = _beside(self._clocks, rank, of, window)
        known = self._arrived(rank)[0] != NONE
        return span_dependencies(
            self._around.of(rank, beside), beside, known, has_device=self.run.ranks[rank].has_device
        )

    def names(self, rank: int, of: int, window: Window, part: Small, row: Ints) -> Codes:
        """Return the names of a rank's segments (each with a row) around a window of rank `of`, as codes of its names.

        A name is the collective's operation, the host operation that was about to be launched, or the span's name.
        """
        around, names = self._around.of(rank, _beside(self._clocks, rank, of, window)), self.run.ranks[rank].names
        spans, at = around.spans, around.positions(row)
        unknown = names.index("unknown") if "unknown" in names else -1
        call = spans.collective[at]
        op = np.append(self.run.ranks[rank].collectives.op, np.int32(-1))[np.where(call == NONE, -1, call)]
        communicates = ((part == TRANSFER) | (part == COMMUNICATION)) & (op >= 0) & (op != unknown)
        host_op = np.where((part == HOST) | (part == HOST_OR_WAIT), spans.host_op[at], np.int32(-1))
        return np.where(communicates, op, np.where(host_op >= 0, host_op, spans.name[at]))

    def _arrived(self, rank: int) -> tuple[Ints, Ints]:
        """Return for each of a rank's calls its number and the rank that arrived last."""
        if rank not in self._last:
            arrivals = self._arrivals[rank]
            self._last[rank] = arrivals.call, arrivals.last
        return self._last[rank]

    def on_clock_of(self, rank: int, other: int, time_ns: int) -> int:
        """Return a time of `other` on the clock of `rank`."""
        return on_clock_of(self._clocks, rank, other, time_ns)

    def all_on_clock_of(self, rank: int, other: int, times_ns: Ints) -> Ints:
        """Return many times of `other` on the clock of `rank`."""
        if rank == other:
            return times_ns
        apart, drift = _apart(self._clocks, rank, other)
        moved: Ints = np.rint(apart + drift * (times_ns - self._clocks.reference_ns)).astype(np.int64)
        return times_ns + moved


def on_clock_of(clocks: Clocks, rank: int, other: int, time_ns: int) -> int:
    """Return a time of `other` on the clock of `rank`."""
    if rank == other:
        return time_ns
    apart, drift = _apart(clocks, rank, other)
    return time_ns + round(apart + drift * (time_ns - clocks.reference_ns))


def _apart(clocks: Clocks, rank: int, other: int) -> tuple[float, float]:
    offset, drift = clocks.offset_ns, clocks.drift
    return offset.get(rank, 0.0) - offset.get(other, 0.0), drift.get(rank, 0.0) - drift.get(other, 0.0)


class _Walk:
    """One walk; `_now` is the time that it has reached going back, on the clock of the window's rank."""

    def __init__(self, walker: Walker, rank: int, step: int | None, window: Window, most: int) -> None:
        self._walker, self._rank, self._step = walker, rank, step
        self._window = self._begin, self._end = window
        self._now, self._left = self._end, most
        self._part: list[int] = []
        self._on: list[int] = []
        self._row: list[int] = []
        self._begins: list[int] = []
        self._ranks: dict[int, SpanDependencies] = {}
        self._been: set[tuple[int, int]] = set()

    def path(self) -> FollowedPath:
        place = self._last()
        while place is not None and self._now > self._begin:
            place = self._through(place) if place.inside else self._before(place)
        self._add(self._gap(self._rank), self._rank, NONE, self._begin)
        begins = np.array(self._begins[::-1], np.int64)
        part, on, row = (np.array(each[::-1], np.int64) for each in (self._part, self._on, self._row))
        return FollowedPath(
            step=self._step,
            rank=self._rank,
            start_ns=self._begin,
            end_ns=self._end,
            segments=Segments(
                part=part.astype(np.int8),
                rank=on,
                row=row,
                name=self._names(part.astype(np.int8), on, row),
                start_ns=begins,
                end_ns=np.append(begins[1:], self._end)[: begins.size],
            ),
        )

    def _names(self, part: Small, on: Ints, row: Ints) -> Codes:
        found = np.full(row.size, -1, np.int32)
        for rank in unique(on[row != NONE]).tolist():
            own = np.flatnonzero((on == rank) & (row != NONE))
            found[own] = self._walker.names(rank, self._rank, self._window, part[own], row[own])
        return found

    def _last(self) -> _Place | None:
        """Return what ended the window: the span that ended with it, or the one that begins there."""
        if not self._walker.run.ranks[self._rank].has_device:
            return self._host(self._rank, self._end)
        found = self._of(self._rank)
        ended = np.flatnonzero(found.end_ns <= self._end)
        follows = np.flatnonzero((found.start_ns == self._end) & (found.kind == COMPUTE))
        last = int(ended[found.end_ns[ended].argmax()]) if ended.size else None
        if follows.size and (last is None or int(found.end_ns[last]) < self._end):
            return _Place(self._rank, int(follows[0]), inside=False)
        if last is None:
            return None
        self._add(IDLE, self._rank, NONE, int(found.end_ns[last]))
        return _Place(self._rank, last, inside=True)

    def _through(self, place: _Place) -> _Place | None:
        """Go back to the begin of a span; for a matched collective, to the begin of its last member's.

        Chains of spans that waited for each other on one device are long, and are followed in one go.
        """
        rank = place.rank
        if (rank, place.position) in self._been:
            raise NoPathError("its dependencies run in a circle: calls may be matched wrongly")
        self._been.add((rank, place.position))
        found = self._of(rank)
        chain = found.chain(place.position)
        position, row = int(chain[-1]), int(found.row[chain[-1]])
        if chain.size > 1:
            self._add_chain(rank, found, chain)
        if found.is_matched[position]:
            other, call = self._walker.last_member(rank, int(found.own_call[position]))
            begun = self._of(other).span_of(call)
            if begun is None:
                return None
            self._add(TRANSFER, rank, row, self._on_path_clock(other, int(self._of(other).start_ns[begun])))
            return _Place(other, begun, inside=False)
        self._add(
            int(_RUNNING[found.kind[position]]), rank, row, self._on_path_clock(rank, int(found.start_ns[position]))
        )
        return _Place(rank, position, inside=False)

    def _before(self, place: _Place) -> _Place | None:
        """Go back to what determined the begin of a span."""
        rank, position = place.rank, place.position
        found = self._of(rank)
        by = found.by[position]
        if by == BY_NOTHING:
            return None
        if by == BY_LAUNCH:
            if self._walker.run.ranks[rank].has_device:
                self._add(IDLE, rank, NONE, self._on_path_clock(rank, int(found.arrived_ns[position])))
            launch = int(found.launch_ns[position])
            self._add(LAUNCH, rank, int(found.row[position]), self._on_path_clock(rank, launch))
            return self._host(rank, launch)
        on = int(found.on[position])
        self._add(self._gap(rank), rank, NONE, self._on_path_clock(rank, int(found.end_ns[on])))
        return _Place(rank, on, inside=True)

    def _host(self, rank: int, moment: int) -> _Place | None:
        """Go back along the host from a moment on its own clock, to the span that it had waited for or ran itself."""
        found = self._of(rank)
        if not self._walker.run.ranks[rank].has_device:
            position = found.on_host_before(moment)
            if position is None:
                return None
            self._add(HOST, rank, NONE, self._on_path_clock(rank, int(found.end_ns[position])))
            return _Place(rank, position, inside=True)
        waited = found.waits.before(moment)
        until = LONG_AGO if waited is None else int(found.end_ns[waited])
        self._add_launches(rank, found, until, moment)
        if waited is None:
            return None
        self._add(HOST, rank, NONE, self._on_path_clock(rank, until))
        return _Place(rank, waited, inside=True)

    def _add_chain(self, rank: int, found: SpanDependencies, chain: Ints) -> None:
        """Go back through a chain of spans, each of which waited for the next, to the end of the last."""
        ran, waited_for = chain[:-1], chain[1:]
        parts = np.stack([_RUNNING[found.kind[ran]], np.full(ran.size, self._gap(rank), np.int8)], axis=1)
        rows = np.stack([found.row[ran], np.full(ran.size, NONE)], axis=1)
        begins = np.stack([found.start_ns[ran], found.end_ns[waited_for]], axis=1)
        self._add_each(rank, parts.ravel(), rows.ravel(), begins.ravel())

    def _add_launches(self, rank: int, found: SpanDependencies, until: int, moment: int) -> None:
        """Go back from launch to launch to the first one after `until`, and then to `until`.

        The time between two launches belongs to the second one, except the time in which the host may have waited.
        """
        last = int(np.searchsorted(found.launched_ns, moment, side="right")) - 1
        first = min(int(np.searchsorted(found.launched_ns, until, side="right")), last)
        if last < 0:
            return
        at = np.arange(last, first - 1, -1)
        prior = np.where(at > 0, np.maximum(found.launched_ns[at - 1], until), until)
        dry = np.where(at > 0, found.waits.dry_ns[at - 1], NONE)
        begins = np.stack([np.maximum(dry, prior), prior], axis=1)
        rows = np.repeat(found.row[found.launched[at]], 2)
        self._add_each(rank, np.tile(_STRETCH, at.size), rows, begins.ravel())

    def _of(self, rank: int) -> SpanDependencies:
        if rank not in self._ranks:
            self._ranks[rank] = self._walker.awaited(rank, self._rank, self._window)
        return self._ranks[rank]

    def _on_path_clock(self, rank: int, time_ns: int) -> int:
        return self._walker.on_clock_of(self._rank, rank, time_ns)

    def _gap(self, rank: int) -> int:
        return IDLE if self._walker.run.ranks[rank].has_device else HOST

    def _add(self, part: int, rank: int, row: int, begin: int) -> None:
        """Add a segment back to `begin`, at most to the window's begin; never forward, since clocks are not exact."""
        begin = max(begin, self._begin)
        if begin < self._now:
            self._grow(rank, [part], [row], [begin])

    def _add_each(self, rank: int, parts: Small, rows: Ints, begins: Ints) -> None:
        """Add segments back to each of several moments of a rank, given on its own clock, one after the other."""
        begins = np.maximum(self._walker.all_on_clock_of(self._rank, rank, begins), self._begin)
        reached = np.minimum.accumulate(np.append(self._now, begins))
        goes = begins < reached[:-1]
        self._grow(rank, parts[goes].tolist(), rows[goes].tolist(), begins[goes].tolist())

    def _grow(self, rank: int, parts: list[int], rows: list[int], begins: list[int]) -> None:
        self._left -= len(begins)
        if self._left < 0:
            raise NoPathError("it has too many segments to be followed")
        self._part += parts
        self._on += [rank] * len(begins)
        self._row += rows
        self._begins += begins
        self._now = begins[-1] if begins else self._now

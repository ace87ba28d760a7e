"""The walk back along what a step waited for: from its end, over spans, launches and ranks, to its beginning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from overlapscope.analysis.arrivals import Arrivals
from overlapscope.analysis.awaited import BY_LAUNCH, BY_NOTHING, Awaited, awaited
from overlapscope.analysis.clocks import Clocks
from overlapscope.analysis.host_waits import LONG_AGO
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Ints
from overlapscope.timeline.run import Run

PARTS: Final = ("compute", "transfer", "communication", "copy", "launch", "host", "host_or_wait", "idle")
"""`transfer`: communication from the arrival of its last member on; `communication`: not told from waiting.
`host_or_wait`: the host launched nothing, and whether it waited for its device was not recorded."""
_RUNNING: Final = ("compute", "communication", "copy")
MARGIN_NS: Final = 10_000_000
"""Aligned clocks agree better than this."""
MOST_SEGMENTS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One piece of a path, on the clock of the path's rank."""

    part: str
    rank: int
    row: int
    """The span in the rank's `Spans` that ran, or that the host was about to launch; NONE where it is none."""
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What decided how long a step took: segments in order of time, each ending where the next one starts."""

    step: int | None
    rank: int
    """The rank on which the step ended last: the window and the clock are its own."""
    start_ns: int
    end_ns: int
    segments: tuple[Segment, ...]


class NoPathError(Exception):
    """The path could not be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk stands: in a span that ran until now (`inside`), or just before it began."""

    rank: int
    position: int
    inside: bool


class Walker:
    """Follows the paths of a run."""

    def __init__(self, run: Run, arrivals: Mapping[int, Arrivals], clocks: Clocks) -> None:
        self.run, self._arrivals, self._clocks = run, arrivals, clocks
        self._by_call: dict[int, tuple[Ints, Ints]] = {}
        self._last: dict[int, tuple[Ints, Ints]] = {}

    def path(self, rank: int, step: int | None, window: tuple[int, int], most: int = MOST_SEGMENTS) -> Path:
        """Follow the path of one window of a rank. Raises NoPathError, also for more than `most` segments."""
        return _Walk(self, rank, step, window, most).path()

    def last_member(self, rank: int, row: int) -> tuple[int, int] | None:
        """Give (rank, row in its `Collectives`) of the last to arrive at a call; None where that is not known."""
        calls, others = self._arrived(rank)
        call = int(calls[row])
        if call == NONE:
            return None
        last = int(others[row])
        if last not in self._by_call:
            calls, _ = self._arrived(last)
            order = np.argsort(calls, kind="stable")
            self._by_call[last] = calls[order], order
        calls, order = self._by_call[last]
        return last, int(order[np.searchsorted(calls, call)])

    def _arrived(self, rank: int) -> tuple[Ints, Ints]:
        """Give the number of each of a rank's calls, and who came last to it."""
        if rank not in self._last:
            arrivals = self._arrivals[rank]
            self._last[rank] = arrivals.call, arrivals.last
        return self._last[rank]

    def told(self, rank: int, other: int, time_ns: int) -> int:
        """Give a time of `other` on the clock of `rank`."""
        if rank == other:
            return time_ns
        offset, drift, at = self._clocks.offset_ns, self._clocks.drift, time_ns - self._clocks.reference_ns
        apart = offset.get(rank, 0.0) - offset.get(other, 0.0)
        return time_ns + round(apart + (drift.get(rank, 0.0) - drift.get(other, 0.0)) * at)


class _Walk:
    """One walk; `_now` is how far back it has come, on the clock of the window's rank."""

    def __init__(self, walker: Walker, rank: int, step: int | None, window: tuple[int, int], most: int) -> None:
        self._walker, self._rank, self._step = walker, rank, step
        self._begin, self._end = window
        self._now, self._left = self._end, most
        self._segments: list[Segment] = []
        self._ranks: dict[int, Awaited] = {}
        self._been: set[tuple[int, int]] = set()

    def path(self) -> Path:
        place = self._last()
        while place is not None and self._now > self._begin:
            place = self._through(place) if place.inside else self._before(place)
        self._add(self._gap(self._rank), self._rank, NONE, self._begin)
        return Path(
            step=self._step,
            rank=self._rank,
            start_ns=self._begin,
            end_ns=self._end,
            segments=tuple(reversed(self._segments)),
        )

    def _last(self) -> _Place | None:
        """Give what ended the window: the span that ended with it, or what the span that begins after it waited for."""
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
        self._add("idle", self._rank, NONE, int(found.end_ns[last]))
        return _Place(self._rank, last, inside=True)

    def _through(self, place: _Place) -> _Place | None:
        """Go back to where a span began, or for a collective, to where its last member did."""
        rank, position = place.rank, place.position
        if (rank, position) in self._been:
            raise NoPathError("its dependencies run in a circle: calls may be matched wrongly")
        self._been.add((rank, position))
        found = self._of(rank)
        row = int(found.row[position])
        if found.kind[position] == COMM:
            call = int(found.own_call[position])
            last = self._walker.last_member(rank, call) if call != NONE else None
            if last is not None:
                other, begun = last[0], self._of(last[0]).span_of(last[1])
                if begun is None:
                    return None
                self._add("transfer", rank, row, self._told(other, int(self._of(other).start_ns[begun])))
                return _Place(other, begun, inside=False)
        self._add(_RUNNING[found.kind[position]], rank, row, self._told(rank, int(found.start_ns[position])))
        return _Place(rank, position, inside=False)

    def _before(self, place: _Place) -> _Place | None:
        """Go back to what a span waited for before it began."""
        rank, position = place.rank, place.position
        found = self._of(rank)
        by = found.by[position]
        if by == BY_NOTHING:
            return None
        if by == BY_LAUNCH:
            if self._walker.run.ranks[rank].has_device:
                self._add("idle", rank, NONE, self._told(rank, int(found.arrived_ns[position])))
            launch = int(found.launch_ns[position])
            self._add("launch", rank, int(found.row[position]), self._told(rank, launch))
            return self._host(rank, launch)
        on = int(found.on[position])
        self._add(self._gap(rank), rank, NONE, self._told(rank, int(found.end_ns[on])))
        return _Place(rank, on, inside=True)

    def _host(self, rank: int, moment: int) -> _Place | None:
        """Go back along the host from a moment on its own clock: to what it had waited for, or ran itself."""
        found = self._of(rank)
        if not self._walker.run.ranks[rank].has_device:
            position = found.on_host_before(moment)
            if position is None:
                return None
            self._add("host", rank, NONE, self._told(rank, int(found.end_ns[position])))
            return _Place(rank, position, inside=True)
        waited = found.waits.before(moment)
        until = LONG_AGO if waited is None else int(found.end_ns[waited])
        for at in range(int(np.searchsorted(found.launched_ns, moment, side="right")) - 1, -1, -1):
            prior = max(until, int(found.launched_ns[at - 1]) if at else LONG_AGO)
            row = int(found.row[found.launched[at]])
            if at and (dry := int(found.waits.dry_ns[at - 1])) != NONE:
                self._add("host", rank, row, self._told(rank, max(dry, prior)))
                self._add("host_or_wait", rank, row, self._told(rank, prior))
            self._add("host", rank, row, self._told(rank, prior))
            if prior == until or self._now <= self._begin:
                break
        if waited is None:
            return None
        self._add("host", rank, NONE, self._told(rank, until))
        return _Place(rank, waited, inside=True)

    def _of(self, rank: int) -> Awaited:
        if rank not in self._ranks:
            begin, end = (self._walker.told(rank, self._rank, each) for each in (self._begin, self._end))
            self._ranks[rank] = awaited(self._walker.run.ranks[rank], begin - MARGIN_NS, end + MARGIN_NS)
        return self._ranks[rank]

    def _told(self, rank: int, time_ns: int) -> int:
        return self._walker.told(self._rank, rank, time_ns)

    def _gap(self, rank: int) -> str:
        return "idle" if self._walker.run.ranks[rank].has_device else "host"

    def _add(self, part: str, rank: int, row: int, begin: int) -> None:
        """Go back to `begin`, or to the window's begin; never forward, as clocks are not exact."""
        begin = max(begin, self._begin)
        if begin >= self._now:
            return
        self._left -= 1
        if self._left < 0:
            raise NoPathError("it has too many segments to be followed")
        self._segments.append(Segment(part=part, rank=rank, row=row, start_ns=begin, end_ns=self._now))
        self._now = begin

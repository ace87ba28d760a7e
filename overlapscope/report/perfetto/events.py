"""Write events of the Chrome JSON trace format, which Perfetto opens, as text, piece by piece.

Times are microseconds with three decimals, so that every nanosecond is kept. Slices of one thread must nest: Perfetto
drops slices that overlap in part, so these are written to separate tracks.
Source of the format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from overlapscope.report.palette import PALETTE
from overlapscope.timeline.columns import Ints

MOST_TRACKS: Final = 32
"""Slices that would need more tracks are written as asynchronous events, each on its own track."""
CHUNK_ROWS: Final = 4096
"""Slices are written as text in chunks of this many."""


class Arrow(NamedTuple):
    """One end of an arrow (a flow), at the start of a slice."""

    number: int
    begins: bool
    """Whether it leaves the slice; else it arrives."""
    category: str
    name: str
    """The number, category and name of both ends are equal."""


class Slices(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of one track; texts are looked up slice by slice, so that a long track takes little memory."""

    track: str
    start_ns: Ints
    end_ns: Ints
    arrows: Callable[[int], Iterable[Arrow]] = lambda row: ()
    category: Callable[[int], str]
    name: Callable[[int], str]
    args: Callable[[int], Mapping[str, Any]] = lambda row: {}
    colour: Callable[[int], str] | None = None
    """Its name in the palette; None where the viewer chooses, as the Perfetto UI always does."""


class EventWriter(msgspec.Struct):
    """Write events as text; their times are relative to `base_ns`."""

    base_ns: int
    events: int = 0
    _names: dict[str, str] = {}
    _tracks: Iterator[int] = msgspec.field(default_factory=lambda: count(1))
    _ids: Iterator[int] = msgspec.field(default_factory=lambda: count(1))

    def process(self, process: int, name: str) -> str:
        """Return the events that name a process; Perfetto sorts processes itself, other viewers sort by the index."""
        return self._meta("process_name", process, None, {"name": name}) + self._meta(
            "process_sort_index", process, None, {"sort_index": process}
        )

    def slices(self, process: int, shown: Slices) -> Iterator[str]:
        """Yield a track of a process, on as many threads as nesting requires; nothing if there is no slice."""
        if not shown.start_ns.size:
            return
        order = np.lexsort((-shown.end_ns, shown.start_ns))
        tracks, rest = nested(shown.start_ns[order], shown.end_ns[order])
        for number, rows in enumerate(tracks):
            thread = next(self._tracks)
            name = shown.track if number == 0 else f"{shown.track} ({number + 1})"
            yield self._meta("thread_name", process, thread, {"name": name})
            yield self._meta("thread_sort_index", process, thread, {"sort_index": thread})
            for begin in range(0, rows.size, CHUNK_ROWS):
                yield "".join(self._nesting(process, thread, shown, order[rows[begin : begin + CHUNK_ROWS]]))
        for begin in range(0, rest.size, CHUNK_ROWS):
            yield "".join(self._overlapping(process, shown, order[rest[begin : begin + CHUNK_ROWS]]))

    def counter(self, process: int, name: str, times_ns: Sequence[int], values: Sequence[float]) -> Iterator[str]:
        """Yield the events of a counter, without values that are not finite."""
        for time_ns, value in zip(times_ns, values, strict=True):
            if math.isfinite(value):
                self.events += 1
                at = microseconds(time_ns - self.base_ns)
                yield (
                    f',\n{{"ph":"C","pid":{process},"name":{self._quoted(name)},"ts":{at},'
                    f'"args":{{"value":{json.dumps(value)}}}}}'
                )

    def _nesting(self, process: int, thread: int, shown: Slices, rows: Ints) -> Iterator[str]:
        for row, (start, length, label, args) in zip(rows.tolist(), self._rows_as_text(shown, rows), strict=True):
            self.events += 1
            yield (
                f',\n{{"ph":"X",{label},"pid":{process},"tid":{thread},"ts":{microseconds(start)},'
                f'"dur":{microseconds(length)}{args}}}'
            )
            for arrow in shown.arrows(row):
                self.events += 1
                phase = '"s"' if arrow.begins else '"f","bp":"e"'
                yield (
                    f',\n{{"ph":{phase},"id":{arrow.number},"cat":"{arrow.category}","name":"{arrow.name}",'
                    f'"pid":{process},"tid":{thread},"ts":{microseconds(start)}}}'
                )

    def _overlapping(self, process: int, shown: Slices, rows: Ints) -> Iterator[str]:
        for start, length, label, args in self._rows_as_text(shown, rows):
            self.events += 2
            same = f'{label},"pid":{process},"tid":0,"id":{next(self._ids)}'
            yield f',\n{{"ph":"b",{same},"ts":{microseconds(start)}{args}}}'
            yield f',\n{{"ph":"e",{same},"ts":{microseconds(start + length)}}}'

    def _rows_as_text(self, shown: Slices, rows: Ints) -> Iterator[tuple[int, int, str, str]]:
        """Yield start and length of each slice, and as text its category and name, and its arguments."""
        starts = (shown.start_ns[rows] - self.base_ns).tolist()
        lengths = np.maximum(shown.end_ns[rows] - shown.start_ns[rows], 0).tolist()
        for row, start, length in zip(rows.tolist(), starts, lengths, strict=True):
            args = shown.args(row)
            label = f'"cat":{self._quoted(shown.category(row))},"name":{self._quoted(shown.name(row))}'
            if shown.colour is not None:
                label += f',"cname":"{PALETTE[shown.colour(row)].viewer}"'
            yield start, length, label, f',"args":{_encoded(args)}' if args else ""

    def _meta(self, what: str, process: int, thread: int | None, args: Mapping[str, Any]) -> str:
        self.events += 1
        of_thread = "" if thread is None else f',"tid":{thread}'
        return f',\n{{"ph":"M","name":"{what}","pid":{process}{of_thread},"args":{json.dumps(args)}}}'

    def _quoted(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = json.dumps(name)
        return self._names[name]


def microseconds(ns: int) -> str:
    """Return nanoseconds (0 or more) as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _encoded(args: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(args).decode()
    except UnicodeEncodeError:  # half a surrogate pair: a name was damaged when it was recorded
        return json.dumps(args)


def nested(start_ns: Ints, end_ns: Ints) -> tuple[list[Ints], Ints]:
    """Distribute slices over tracks so that two slices of a track nest or do not overlap.

    Slices must be sorted by start, longer ones first. Returns the rows of each track, and the rows that fit on none of
    `MOST_TRACKS` tracks.
    """
    if not np.any(start_ns[1:] < end_ns[:-1]):
        return [np.arange(start_ns.size)], np.empty(0, np.int64)
    tracks: list[list[int]] = []
    open_ends: list[list[int]] = []
    rest: list[int] = []
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        track = _fitting_track(open_ends, start, end)
        if track == MOST_TRACKS:
            rest.append(row)
            continue
        if track == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[track].append(row)
        open_ends[track].append(end)
    return [np.array(rows, np.int64) for rows in tracks], np.array(rest, np.int64)


def _fitting_track(open_ends: Sequence[list[int]], start: int, end: int) -> int:
    """Return the first track that has no open slice or whose innermost open slice contains this one; else a new one."""
    for track, ends in enumerate(open_ends):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or ends[-1] >= end:
            return track
    return len(open_ends)


def join_events(pieces: Iterable[str], head: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON document: the keys of `head`, then the events."""
    opening = json.dumps(head)[:-1]
    yield f'{opening}, "traceEvents": ['
    first = True
    for piece in pieces:
        if piece:
            yield piece[1:] if first else piece
            first = False
    yield "\n]}\n"

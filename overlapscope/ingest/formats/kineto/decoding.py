"""Decode the text of Kineto events to typed objects, and only the fields that are used."""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.build.profiler_names import EVENT_SORTS, FRAME, HOST, MODULE_CALL, NUM_SORTS
from overlapscope.ingest.parsing.json_values import DECODE_ERRORS, is_utf8
from overlapscope.ingest.parsing.timestamps import text_to_ns
from overlapscope.timeline.columns import Ints


class _Timed(msgspec.Struct, gc=False):
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class CompleteEvent(_Timed, gc=False, tag_field="ph", tag="X"):
    """An event with a duration. All fields but `args` accept any type, so that a malformed event fails no others."""


INSTANT: Final = object()
"""Category of an event without a duration."""
UNUSED: Final = object()
"""Category of an event that is not read. With these two, the category alone separates all events."""


class InstantEvent(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An event without a duration."""

    cat: ClassVar[object] = INSTANT
    name: Any = None
    ts: Any = None


class _AnyEvent(_Timed, gc=False):
    """An event of any phase, even where the phase is not text."""

    ph: Any = ""


class _Exact(msgspec.Struct, gc=False):
    cat: Any = None
    name: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class _ExactEvent(_Exact, gc=False, tag_field="ph", tag="X"):
    pass


class _AnyExactEvent(_Exact, gc=False):
    ph: Any = ""


_UNUSED: Final = [
    msgspec.defstruct("_Unused", [], gc=False, tag_field="ph", tag=phase, namespace={"cat": UNUSED})
    for phase in "stfMCBEbneI"
]
"""Flow arrows, metadata, counters and the like: often half of a trace; none of their fields is decoded."""
_INSTANT: Final = msgspec.defstruct("_Instant", [], gc=False, tag_field="ph", tag="i")
_by_phase: Final = msgspec.json.Decoder(list[reduce(or_, [CompleteEvent, InstantEvent, *_UNUSED])])  # type: ignore[misc]
_any: Final = msgspec.json.Decoder(list[_AnyEvent])
_exact_by_phase: Final = msgspec.json.Decoder(list[reduce(or_, [_ExactEvent, _INSTANT, *_UNUSED])])  # type: ignore[misc]
_any_exact: Final = msgspec.json.Decoder(list[_AnyExactEvent])


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one piece of text, in order."""

    num_events: int
    events: Sequence[Any]
    """With the fields of `CompleteEvent`. Other events are either absent or have the category INSTANT or UNUSED."""


def decoded(array: bytes) -> Decoded | None:
    """Decode the text of an array of events; None when it is malformed in any way."""
    if not is_utf8(array):
        return None
    try:
        events = _by_phase.decode(array)
    except DECODE_ERRORS:
        pass
    else:
        return Decoded(num_events=len(events), events=events)
    try:
        return decoded_any(array)  # an event without a phase, or with an unknown one
    except DECODE_ERRORS:
        return None


def decoded_any(array: bytes) -> Decoded:
    """Decode a valid array of events of any phases."""
    events = _any.decode(array)
    instants = [InstantEvent(name=event.name, ts=event.ts) for event in events if event.ph == "i"]
    return Decoded(num_events=len(events), events=[*(event for event in events if event.ph == "X"), *instants])


def move_modules(sorts: Sequence[list[Any]]) -> None:
    """Move the calls of modules from the functions of a stack to the end of the host ranges."""
    names = [each.name for each in sorts[FRAME]]
    try:
        different = set(names)
    except TypeError:  # a name that is a list or an object
        names = list(map(str, names))
        different = set(names)
    modules = {name for name in different if isinstance(name, str) and name.startswith(MODULE_CALL)}
    if modules:
        sorts[HOST].extend(each for each, name in zip(sorts[FRAME], names, strict=True) if name in modules)
        sorts[FRAME][:] = [each for each, name in zip(sorts[FRAME], names, strict=True) if name not in modules]


class ExactTimes:
    """Times of the events of one piece, parsed from their text without rounding; decoded at first use."""

    def __init__(self, array: bytes) -> None:
        self._array = array
        self._events: list[list[_ExactEvent | _AnyExactEvent]] | None = None

    def times(self, sort: int) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Return starts and durations (int64 ns) of one sort of event; the mask is False where one is not a number."""
        if self._events is None:
            self._events = self._sorted()
        events = self._events[sort]
        start, start_good = text_to_ns([str(event.ts, "utf-8", "replace") for event in events])
        duration, duration_good = text_to_ns([str(event.dur, "utf-8", "replace") for event in events])
        return start, duration, start_good & duration_good

    def _sorted(self) -> list[list[_ExactEvent | _AnyExactEvent]]:
        events: list[list[_ExactEvent | _AnyExactEvent]] = [[] for _ in range(NUM_SORTS)]
        for event in self._complete():
            if isinstance(event.cat, str) and event.cat in EVENT_SORTS:
                events[EVENT_SORTS[event.cat][0]].append(event)
        move_modules(events)
        return events

    def _complete(self) -> list[_ExactEvent] | list[_AnyExactEvent]:
        """Decode only the events that `decoded` decoded: malformed ones among the rest have failed nothing there."""
        try:
            return [event for event in _exact_by_phase.decode(self._array) if type(event) is _ExactEvent]
        except DECODE_ERRORS:
            return [event for event in _any_exact.decode(self._array) if event.ph == "X"]

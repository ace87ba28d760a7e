"""Streams and events of the device that a dry run pretends to have, as far as their order goes.

Torch's interface for the CPU has streams that do nothing. These take their place and note what each stream has waited
for, so that a framework's own streams (FSDP2's for gathers and reductions) give the dependencies that they would have
on a device. What a stream knows of is a bit mask of collectives, and the last row of each stream.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

COMPUTE_STREAM: Final = "compute"
CALLBACK_STREAM: Final = "callbacks"
"""Where torch runs what is chained to a collective's future, such as a communication hook's decompression."""
NEVER: Final = -1


class Known(msgspec.Struct, frozen=True):
    """What is certain to have ended at a point of a stream."""

    calls: int = 0
    """Bit mask of collectives, by number."""
    orders: Mapping[str, int] = {}
    """Last row of each stream."""
    last_order: int = NEVER
    """Last row of the stream itself."""

    @property
    def compute_order(self) -> int:
        """Last row of the compute stream."""
        return self.orders.get(COMPUTE_STREAM, NEVER)

    def joined(self, other: "Known") -> "Known":
        """Return what is certain where both are."""
        later = {name: order for name, order in other.orders.items() if order > self.orders.get(name, NEVER)}
        if not later and not other.calls & ~self.calls:
            return self
        return Known(self.calls | other.calls, {**self.orders, **later}, self.last_order)


class Streams:
    """The streams of one pass.

    `on_wait(stream, awaited, before)` is called for each wait that teaches a stream something; `before` is what it knew
    until then.
    """

    def __init__(self, on_wait: Callable[["Stream", Known, Known], None]) -> None:
        self.on_wait = on_wait
        self.compute = Stream(self, COMPUTE_STREAM)
        self.current = self.compute
        self.made = 0

    def wait(self, stream: "Stream", awaited: Known) -> None:
        """Let a stream wait until `awaited` is certain."""
        before = stream.known
        if before.joined(awaited) is not before:
            self.on_wait(stream, awaited, before)
            stream.known = stream.known.joined(awaited)

    def advance(self, order: int) -> None:
        """Note that the current stream runs a row."""
        stream = self.current
        stream.known = Known(stream.known.calls, {**stream.known.orders, stream.label: order}, order)

    def interface(self) -> dict[str, Any]:
        """Return what takes the place of the functions and classes of `torch.cpu`."""
        streams = self

        def new_stream(*_: Any, **__: Any) -> Stream:
            streams.made += 1
            return Stream(streams, f"stream {streams.made}")

        def new_event(*_: Any, **__: Any) -> Event:
            return Event(streams)

        return {
            "Stream": new_stream,
            "Event": new_event,
            "current_stream": lambda *_: streams.current,
            "stream": lambda stream: StreamContext(streams, stream),
        }


class Stream:
    """A stream with the methods that frameworks call."""

    def __init__(self, streams: Streams, label: str) -> None:
        self.streams, self.label = streams, label
        self.known = Known()

    def wait_stream(self, stream: Any) -> None:
        """Wait for all that the other stream has been given so far."""
        if isinstance(stream, Stream):
            self.streams.wait(self, stream.known)

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        if isinstance(event, Event):
            self.streams.wait(self, event.known)

    def record_event(self, event: Any = None) -> "Event":
        """Return an event at the stream's end."""
        event = Event(self.streams) if event is None else event
        event.record(self)
        return event  # type: ignore[no-any-return] # whatever the caller gave

    def synchronize(self) -> None:
        """Let the host wait; it runs no device work."""

    def query(self) -> bool:
        """Return whether all is done."""
        return True


class Event:
    """An event with the methods that frameworks call."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.known = Known()

    def record(self, stream: Any = None) -> None:
        """Take the end of a stream, or of the current one."""
        self.known = (stream if isinstance(stream, Stream) else self.streams.current).known

    def wait(self, stream: Any = None) -> None:
        """Let a stream, or the current one, wait."""
        self.streams.wait(stream if isinstance(stream, Stream) else self.streams.current, self.known)

    def synchronize(self) -> None:
        """Let the host wait; it runs no device work."""

    def query(self) -> bool:
        """Return whether it has happened."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return no time: nothing is timed."""
        return 0.0


class StreamContext:
    """Make a stream the current one for a while."""

    def __init__(self, streams: Streams, stream: Any) -> None:
        self._streams, self._stream = streams, stream
        self._before = streams.current

    def __enter__(self) -> None:
        self._before = self._streams.current
        if isinstance(self._stream, Stream):
            self._streams.current = self._stream

    def __exit__(self, *_: object) -> None:
        self._streams.current = self._before

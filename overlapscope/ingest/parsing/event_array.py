"""Decode the array of events of a Chrome trace, plain or gzip, complete, cut short or damaged."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from overlapscope.display import display_path
from overlapscope.ingest.parsing.event_chunks import EventChunks
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.parsing.json_repair import repair_events
from overlapscope.ingest.parsing.json_values import DECODE_ERRORS, is_utf8

E = TypeVar("E")


class EventArray(msgspec.Struct, Generic[E]):
    """Decodes the events of one trace in pieces; afterwards its fields count what was read."""

    stream: ByteStream
    decoder: msgspec.json.Decoder[list[E]]
    events: int = 0
    repaired: int = 0
    dropped: int = 0
    closed: bool = False
    """Whether the end of the array was seen."""
    cut: bool = False
    """Whether the file ends within an event."""

    def read(self, add: Callable[[list[E]], None]) -> None:
        """Call `add` with the events of each piece, in order.

        Raises InputError when the file cannot be read, NotATraceError when it holds no array of events.
        """

        def take(array: bytes) -> bool:
            if not is_utf8(array):
                return False
            try:
                events = self.decoder.decode(array)
            except DECODE_ERRORS:
                return False
            self.events += len(events)
            add(events)
            return True

        def mend(text: bytes, *, last: bool) -> bool:
            mended = repair_events(text, last=last)
            self.repaired += mended.repaired
            self.dropped += mended.dropped
            take(b"[" + mended.events + b"]")
            return mended.closed

        chunks = EventChunks(self.stream.blocks(), display_path(self.stream.path))
        for piece in chunks.pieces(take):
            mend(piece, last=False)
        dropped, tail = self.dropped, chunks.tail.rstrip(b" \t\r\n\x00")
        self.closed = take(b"[" + tail) or mend(tail, last=True)
        self.cut = not self.closed and self.dropped > dropped

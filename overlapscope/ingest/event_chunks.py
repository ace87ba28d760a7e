"""Cut a Chrome trace, of any size, into pieces of whole events.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare array of events, possibly never closed. Pieces are
the text between two commas of that array. A comma is taken for such a boundary only when a complete object with
a phase ("ph") stands right before it and after the previous candidate, so that objects nested in arguments do not
mislead; a wrong guess makes the piece undecodable, which the repair then sees.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from overlapscope.errors import NotATraceError

PIECE_BYTES = 2 << 20
"""Small enough to be decoded in memory that is already there: 16 MiB took half as long again."""
MAX_HEAD_BYTES = 256 << 20
"""A document whose events have not begun by then is no trace."""
_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*(,)\s*\{")
_BETWEEN_KNOWN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|name|cat|pid|tid|ts|id|args)"\s*:')
_SEARCH_BYTES = (64 << 10, 2 << 20)
_BLANKS = b" \t\r\n\x00"
_BOM = b"\xef\xbb\xbf"


class _Phase(msgspec.Struct):
    ph: str


_phase = msgspec.json.Decoder(_Phase)


@dataclass(slots=True)
class EventChunks:
    """The pieces of one trace; `head` is complete before the first piece, `tail` holds the last piece.

    `head` is the text before the first event, up to and with the bracket that opens the array.
    """

    blocks: Iterator[bytes]
    name: str
    piece_bytes: int = PIECE_BYTES
    head: bytes = b""
    tail: bytes = b""
    _buffer: bytearray = field(default_factory=bytearray)

    def pieces(self) -> Iterator[bytes]:
        """Yield pieces of whole events, without brackets; what follows the last of them is left in `tail`.

        Raises NotATraceError when the text holds no array of events.
        """
        self._open()
        wanted = self.piece_bytes
        while self._fill(wanted):
            cut = _last_boundary(self._buffer)
            if cut is None:
                wanted *= 2
                continue
            wanted = self.piece_bytes
            with memoryview(self._buffer) as view:
                piece = bytes(view[:cut])
            del self._buffer[: cut + 1]
            yield piece
        self.tail = bytes(self._buffer)
        self._buffer.clear()

    @property
    def is_array(self) -> bool:
        """Whether the trace is a bare array."""
        return self.head == b"["

    def _fill(self, size: int) -> bool:
        """Read until the buffer holds `size` bytes; False when the file ended before."""
        while len(self._buffer) < size:
            block = next(self.blocks, None)
            if block is None:
                return False
            self._buffer += block
        return True

    def _open(self) -> None:
        searched = 0
        more = True
        while True:
            if searched == 0 and self._buffer.startswith(_BOM):
                del self._buffer[: len(_BOM)]
            start = bytes(self._buffer.lstrip(_BLANKS)[:1])
            if start == b"[":
                skip = self._buffer.index(b"[") + 1
                self.head = b"["
                del self._buffer[:skip]
                return
            if start not in (b"{", b""):
                raise NotATraceError(f"{self.name}: not a trace: it begins with neither {{ nor [")
            found = _EVENTS_KEY.search(self._buffer, max(searched - 64, 0))
            if found:
                self.head = bytes(self._buffer[: found.end()])
                del self._buffer[: found.end()]
                return
            if not more or len(self._buffer) > MAX_HEAD_BYTES:
                kind = "is empty" if not start else 'holds no "traceEvents"'
                raise NotATraceError(f"{self.name}: not a trace: it {kind}")
            searched = len(self._buffer)
            more = self._fill(searched + max(self.piece_bytes // 4, searched))


def _last_boundary(buffer: bytearray) -> int | None:
    """Give the position of the last comma that surely separates two events."""
    for reach in _SEARCH_BYTES:
        begin = max(len(buffer) - reach, 0)
        candidates = list(_BETWEEN.finditer(buffer, begin))
        for before, after in reversed(list(pairwise(candidates[-65:]))):
            try:
                _phase.decode(buffer[before.end() - 1 : after.start() + 1])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            return after.start(1)
    # Broken text: fall back on how events are known to begin.
    known = [found.start(1) for found in _BETWEEN_KNOWN.finditer(buffer, begin)]
    return known[-1] if known else None

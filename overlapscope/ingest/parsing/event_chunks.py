"""Cut a Chrome trace of any size into pieces of whole events.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare array of events, possibly never closed. A piece is the
text between two commas of that array. The place to cut is first guessed, quickly, from how events begin. The guess was
right if the piece decodes, because a cut inside an event or after the array leaves brackets open. A piece that does not
decode is cut again, slowly, by counting brackets, which also works on text that is not valid JSON; text that still does
not decode is damaged.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from overlapscope.errors import NotATraceError

PIECE_BYTES = 1 << 20
"""Small enough that text and events stay in a core's cache: pieces of 4 MiB took a quarter longer."""
MAX_HEAD_BYTES = 256 << 20
"""A document whose events have not begun by here is not a trace."""
MAX_EVENT_BYTES = 128 << 20
"""An event that has not ended by here is damaged; the trace is read up to it."""
DAMAGED_BYTES = 8 << 20
"""If so much text holds no whole event, its quotes are unbalanced: it is cut where an event seems to begin."""
_EVENTS_KEY = re.compile(rb'"traceEvents"(?<!\\"traceEvents")\s*:\s*\[')
"""Not inside a string. The lookbehind follows the name, so that the pattern starts with the fixed name: many times
faster."""
_BETWEEN = re.compile(rb"\}\s*(,)\s*\{")
_BETWEEN_KNOWN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|name|cat|pid|tid|ts|id|args)"\s*:')
_SEARCH_BYTES = 4 << 10, 64 << 10
"""How much of a piece's end is searched for a place to cut: the first size nearly always suffices."""
_BLANKS = b" \t\r\n\x00"
_MANY_BLANKS = 64 << 10
_BOM = b"\xef\xbb\xbf"
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Phase(msgspec.Struct):
    ph: str


_phase = msgspec.json.Decoder(_Phase)
_objects = msgspec.json.Decoder(list[_Phase])
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, a bracket, or the opening quote of a string that does not end in the text."""
EVENT = re.compile(
    rb'"ph"\s*:\s*"\w"[^{}]{0,4096}?"(?:ts|pid|tid)"\s*:|"(?:ts|pid|tid)"\s*:[^{}]{0,4096}?"ph"\s*:\s*"\w"'
)
"""Text that certainly belongs to an event: a phase, and a time, process or thread in the same object."""
_AFTER_ARRAY = re.compile(rb'\s*(?:,\s*(?:"(?:[^"\\]++|\\.)*+(?:"\s*(?::|$)|$)|$)|\}|$)', re.DOTALL)
"""A comma and a key, the end of the object, or a file that was cut somewhere there."""


def _decodes(array: bytes) -> bool:
    """Return whether the text of an array decodes as whole events."""
    try:
        _objects.decode(array)
    except _BROKEN:
        return False
    return True


class EventChunks(msgspec.Struct):
    """Cuts one trace into pieces; `head` is complete before the first piece, `tail` after the last.

    `head` is the text before the first event, up to and including the bracket that opens the array; `tail` begins with
    the last events and holds the end of the array and everything after it.
    """

    blocks: Iterator[bytes]
    name: str
    piece_bytes: int = PIECE_BYTES
    head: bytes = b""
    tail: bytes = b""
    _buffer: bytes = b""

    def pieces(self, take: Callable[[bytes], bool] | None = None) -> Iterator[bytes]:
        """Yield the pieces for which `take` returns False because they do not decode; without `take`, all pieces.

        `take` is called with each piece in brackets, as the text of an array. Raises NotATraceError when the text
        holds no array of events.
        """
        self._open()
        wanted = self.piece_bytes
        while self._fill(wanted):
            piece = self._taken(_guessed_boundary(self._buffer), take)
            cut = None
            if piece is None:
                found = scan(self._buffer)
                if found.end is not None:
                    self._fill(MAX_HEAD_BYTES)
                    for _ in self.blocks:
                        pass  # endless metadata: read on, so that the limit on a file's size is still checked
                    break
                cut = found.objects[-1][1] if found.objects else None
                piece = self._taken(cut, take)
            if piece is not None:
                wanted = self.piece_bytes
                if piece:
                    yield piece
                continue
            # Damaged: unbalanced quotes may hide brackets, so search for text that begins like an event.
            if cut is not None or len(self._buffer) >= DAMAGED_BYTES:
                cut = _seeming_boundary(self._buffer) or cut
            if cut is None:
                if len(self._buffer) > MAX_EVENT_BYTES:
                    self._buffer = b""
                    return
                wanted = max(2 * wanted, len(self._buffer) + 1)
                continue
            piece = self._buffer[:cut]
            self._drop(cut)
            wanted = self.piece_bytes
            yield piece
        self.tail, self._buffer = self._buffer, b""

    @property
    def is_array(self) -> bool:
        """Return whether the trace is a bare array."""
        return self.head == b"["

    def _taken(self, cut: int | None, take: Callable[[bytes], bool] | None) -> bytes | None:
        """Remove the text before a cut from the buffer and return it, or b"" where `take` used it.

        Return None and leave the buffer as it is where there is no cut or the text does not decode.
        """
        if cut is None or not (take or _decodes)(self._array(cut)):
            return None
        piece = b"" if take else self._buffer[:cut]
        self._drop(cut)
        return piece

    def _array(self, size: int) -> bytes:
        return b"".join((b"[", memoryview(self._buffer)[:size], b"]"))

    def _drop(self, size: int) -> None:
        """Remove a piece and the comma after it from the buffer."""
        rest = self._buffer[size:]
        if rest[:64].lstrip(_BLANKS)[:1] == b",":
            rest = rest[rest.index(b",") + 1 :]
        self._buffer = rest

    def _fill(self, size: int) -> bool:
        """Read until the buffer holds `size` bytes; return False when the file ended before."""
        parts, buffered = [self._buffer], len(self._buffer)
        while buffered < size and (block := next(self.blocks, None)) is not None:
            parts.append(b" " if _is_blank(block) else block)  # a file may hold gigabytes of blanks
            buffered += len(parts[-1])
        self._buffer = b"".join(parts)
        return buffered >= size

    def _open(self) -> None:
        """Read up to the bracket that opens the array of events. Raises NotATraceError."""
        more = True
        searched = 0
        while True:
            if searched == 0 and self._buffer.startswith(_BOM):
                self._buffer = self._buffer[len(_BOM) :]
            start = self._buffer.lstrip(_BLANKS)[:1]
            if start == b"[":
                self.head = b"["
                self._buffer = self._buffer[self._buffer.index(b"[") + 1 :]
                return
            if start not in (b"{", b""):
                raise NotATraceError(f"{self.name}: not a trace: it begins with neither {{ nor [")
            found = _EVENTS_KEY.search(self._buffer, searched)
            if found:
                self.head, self._buffer = self._buffer[: found.end()], self._buffer[found.end() :]
                return
            if not more or len(self._buffer) > MAX_HEAD_BYTES:
                nothing = "holds nothing but blanks" if self._buffer else "is empty"
                problem = 'holds no "traceEvents"' if start else nothing
                raise NotATraceError(f"{self.name}: not a trace: it {problem}")
            # The key may cross the end of the buffer: search again from where it may begin.
            searched = max(self._buffer.rfind(b'"', 0, max(self._buffer.rfind(b'"'), 0)), 0)
            more = self._fill(len(self._buffer) + max(self.piece_bytes // 4, len(self._buffer)))


def _is_blank(block: bytes) -> bool:
    """Return whether a block holds only blanks and is too long to be part of a name."""
    return len(block) >= _MANY_BLANKS and not block[:64].strip(_BLANKS) and not block.translate(None, _BLANKS)


def _guessed_boundary(buffer: bytes) -> int | None:
    """Return the place of a comma near the end that follows an event; None if none is found."""
    for searched in _SEARCH_BYTES:
        candidates = list(_BETWEEN.finditer(buffer, max(len(buffer) - searched, 0)))
        for before, after in reversed(list(pairwise(candidates[-65:]))):
            try:
                _phase.decode(buffer[before.end() - 1 : after.start() + 1])
            except _BROKEN:
                continue
            return after.start(1)
    return None


def _seeming_boundary(buffer: bytes) -> int | None:
    """Return the place of the last comma followed by text that begins like an event; None if none is found."""
    last = None
    for found in _BETWEEN_KNOWN.finditer(buffer, max(len(buffer) - DAMAGED_BYTES, 0)):
        last = found.start(1)
    return last


def last_event(text: bytes) -> int:
    """Return the place of the last text that certainly belongs to an event; -1 if there is none."""
    place = -1
    for found in EVENT.finditer(text):
        place = found.start()
    return place


def closes_array(text: bytes, at: int, last: int) -> bool:
    """Return whether the bracket at `at` may close the event array: metadata or nothing follows it, and no event.

    `last` is `last_event(text)`.
    """
    return at > last and _AFTER_ARRAY.match(text, at + 1) is not None


def object_end(text: bytes, start: int, limit: int) -> int | None:
    """Return the end of the object or list that begins at `start`; None when it is not closed within `limit` bytes."""
    depth = 0
    for token in _TOKEN.finditer(text, start, min(start + limit, len(text))):
        byte = text[token.start()]
        if byte == 0x22:
            if len(token[0]) == 1:
                return None
        elif byte in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return token.end()
    return None


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The elements directly inside the array."""

    objects: list[tuple[int, int]]
    """Start and end of each whole object."""
    end: int | None
    """Place of the bracket that closes the array; None if it is not in the text."""


def scan(text: bytes) -> Scan:
    """Return the elements of an array; the text starts after its opening bracket.

    A closing bracket followed by events does not close the array: it is treated as damage.
    """
    objects: list[tuple[int, int]] = []
    depth = start = 0
    opened = b""
    last: int | None = None
    for token in _TOKEN.finditer(text):
        at = token.start()
        byte = text[at]
        if byte == 0x22:
            if token.end() == at + 1:
                break  # what follows may all be inside this string
            continue
        if byte in b"{[":
            if depth == 0:
                start, opened = at, text[at : at + 1]
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0 and opened == b"{" and byte == 0x7D:
                objects.append((start, at + 1))
        elif byte == 0x5D:
            last = last_event(text) if last is None else last
            if not closes_array(text, at, last):
                continue
            return Scan(objects=objects, end=at)
    return Scan(objects=objects, end=None)

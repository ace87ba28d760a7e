"""Cut a Chrome trace, of any size, into pieces of whole events.

A trace is `{..., "traceEvents": [event, ...], ...}` or a bare array of events, possibly never closed. A piece is the
text between two commas of that array. Where to cut is guessed, quickly, from how events begin; that the piece then
decodes is the proof that the guess was right, for a cut inside an event or behind the array leaves brackets open. A
piece that does not decode is cut again, slowly, by counting brackets; what still does not decode is damaged text.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from overlapscope.errors import NotATraceError

PIECE_BYTES = 1 << 20
"""Small enough that its text and events stay in a core's cache: of 4 MiB it took a quarter longer."""
MAX_HEAD_BYTES = 256 << 20
"""A document whose events have not begun by then is no trace."""
MAX_EVENT_BYTES = 128 << 20
"""An event that has not ended by then is none; the trace is read up to it."""
DAMAGED_BYTES = 8 << 20
"""Without a whole event in so much text, strings are out of balance: it is cut where an event seems to begin."""
_EVENTS_KEY = re.compile(rb'"traceEvents"(?<!\\"traceEvents")\s*:\s*\[')
"""Not within a string; looking back after the name leaves the name to begin with, which is found many times faster."""
_BETWEEN = re.compile(rb"\}\s*(,)\s*\{")
_BETWEEN_KNOWN = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|name|cat|pid|tid|ts|id|args)"\s*:')
_SEARCH_BYTES = 4 << 10, 64 << 10
"""How much of a piece's end is searched for a place to cut it: nearly always a little does."""
_BLANKS = b" \t\r\n\x00"
_MANY_BLANKS = 64 << 10
_BOM = b"\xef\xbb\xbf"
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Phase(msgspec.Struct):
    ph: str


_phase = msgspec.json.Decoder(_Phase)
_objects = msgspec.json.Decoder(list[_Phase])
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, a bracket, or a quote whose string the text does not end."""
EVENT = re.compile(
    rb'"ph"\s*:\s*"\w"[^{}]{0,4096}?"(?:ts|pid|tid)"\s*:|"(?:ts|pid|tid)"\s*:[^{}]{0,4096}?"ph"\s*:\s*"\w"'
)
"""What surely is an event's text: a phase, and a time, process or thread in the same object."""
_BEHIND_ARRAY = re.compile(rb'\s*(?:,\s*(?:"(?:[^"\\]++|\\.)*+(?:"\s*(?::|$)|$)|$)|\}|$)', re.DOTALL)
"""A comma and a key, the end of the object, or a file that was cut somewhere there."""


def _decodes(array: bytes) -> bool:
    """Return whether the text of an array is whole events."""
    try:
        _objects.decode(array)
    except _BROKEN:
        return False
    return True


class EventChunks(msgspec.Struct):
    """The pieces of one trace; `head` is complete before the first piece, `tail` holds what follows the last.

    `head` is the text before the first event, up to and with the bracket that opens the array; `tail` begins with the
    last events and holds the array's end and all behind it.
    """

    blocks: Iterator[bytes]
    name: str
    piece_bytes: int = PIECE_BYTES
    head: bytes = b""
    tail: bytes = b""
    _buffer: bytes = b""

    def pieces(self, take: Callable[[bytes], bool] | None = None) -> Iterator[bytes]:
        """Yield the pieces that `take` refuses because they do not decode; without `take`, all pieces.

        `take` is given a piece in brackets, as the text of an array. Raises NotATraceError when the text holds no
        array of events.
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
                        pass  # metadata without end: read on, so that the limits on a file's size hold
                    break
                cut = found.objects[-1][1] if found.objects else None
                piece = self._taken(cut, take)
            if piece is not None:
                wanted = self.piece_bytes
                if piece:
                    yield piece
                continue
            # Damaged: brackets may be hidden by strings out of balance, so look for how events begin.
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
        """Leave the text before a cut; give it, or nothing where `take` has it. None, and all stays, if broken."""
        if cut is None or not (take or _decodes)(self._array(cut)):
            return None
        piece = b"" if take else self._buffer[:cut]
        self._drop(cut)
        return piece

    def _array(self, size: int) -> bytes:
        return b"".join((b"[", memoryview(self._buffer)[:size], b"]"))

    def _drop(self, size: int) -> None:
        """Leave a piece and the comma behind it."""
        rest = self._buffer[size:]
        if rest[:64].lstrip(_BLANKS)[:1] == b",":
            rest = rest[rest.index(b",") + 1 :]
        self._buffer = rest

    def _fill(self, size: int) -> bool:
        """Read until the buffer holds `size` bytes; False when the file ended before."""
        parts, held = [self._buffer], len(self._buffer)
        while held < size and (block := next(self.blocks, None)) is not None:
            parts.append(b" " if _is_blank(block) else block)  # a file may hold gigabytes of them
            held += len(parts[-1])
        self._buffer = b"".join(parts)
        return held >= size

    def _open(self) -> None:
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
                kind = 'holds no "traceEvents"' if start else nothing
                raise NotATraceError(f"{self.name}: not a trace: it {kind}")
            # The key may lie across the end of what is here: look again from its beginning on.
            searched = max(self._buffer.rfind(b'"', 0, max(self._buffer.rfind(b'"'), 0)), 0)
            more = self._fill(len(self._buffer) + max(self.piece_bytes // 4, len(self._buffer)))


def _is_blank(block: bytes) -> bool:
    """Return whether a block is blanks alone, and longer than those inside a name."""
    return len(block) >= _MANY_BLANKS and not block[:64].strip(_BLANKS) and not block.translate(None, _BLANKS)


def _guessed_boundary(buffer: bytes) -> int | None:
    """Return the place of a late comma that an event stands before."""
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
    """Return the place of the last comma behind which something begins like an event."""
    begin = max(len(buffer) - DAMAGED_BYTES, 0)
    last = None
    for found in _BETWEEN_KNOWN.finditer(buffer, begin):
        last = found.start(1)
    return last


def last_event(text: bytes) -> int:
    """Return the place of the last text that surely is an event's; -1 without one."""
    place = -1
    for found in EVENT.finditer(text):
        place = found.start()
    return place


def closes_array(text: bytes, at: int, last: int) -> bool:
    """Return whether the bracket at `at` may close the event array: metadata or nothing follows, and no event does.

    `last` is `last_event(text)`.
    """
    return at > last and _BEHIND_ARRAY.match(text, at + 1) is not None


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
    """What stands directly in the array."""

    objects: list[tuple[int, int]]
    """Start and end of each whole object."""
    end: int | None
    """Place of the bracket that closes the array, if it is there."""
    open_at: int | None
    """Where an element begins that the text does not close."""


def scan(text: bytes) -> Scan:
    """Scan the inside of an array, from behind its opening bracket.

    A closing bracket with events behind it closes nothing: it is taken for damage.
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
            return Scan(objects=objects, end=at, open_at=None)
    return Scan(objects=objects, end=None, open_at=start if depth else None)

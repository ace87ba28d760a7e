"""Mend broken event text where that is sound; count what was mended and what was lost.

Seen in the wild: bare `Infinity`, `NaN`, `N/A` (kineto#105), control characters and invalid UTF-8 (kineto#80,
pytorch#136180), unescaped quotes in kernel names (pytorch#146900), files cut off in mid-event. Whole events are
kept untouched, an event that can be mended is, any other is dropped; nothing happens to text that decodes.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_BAREWORD = re.compile(rb"(?<=[:\[,\s])(?:[-+]?(?:Infinity|inf|nan)|N/A|undefined|None)(?=\s*[,\]}])", re.IGNORECASE)
_NO_CONTROL = bytes(byte if byte >= 0x20 else 0x20 for byte in range(256))
_LONE_SURROGATE = re.compile(
    rb"(?<!\\\\)\\u(?:d[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})", re.IGNORECASE
)
_GROUP = 256
_MAX_NESTED = 64
"""An event that looks like more pieces than this, because its arguments hold objects, is given up."""


class _AnyEvent(msgspec.Struct):
    """The least an event must be: an object whose every part is valid JSON."""

    ph: str = ""
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: object = None
    dur: object = None
    args: object = None


_one = msgspec.json.Decoder(_AnyEvent)
_many = msgspec.json.Decoder(list[_AnyEvent])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """Text of whole events, separated by commas; what it took; and what followed the array's end."""

    events: bytes
    repaired: int
    dropped: int
    closed: bool
    """Whether the end of the array was seen."""
    tail: bytes


def mend(text: bytes, *, last: bool) -> Mended:
    """Give the whole events of a piece of an event array; the last piece may hold the array's end and more."""
    pieces = [piece for piece in _BETWEEN.split(text) if piece.strip()]
    kept: list[bytes] = []
    repaired = dropped = 0
    row = 0
    while row < len(pieces):
        group = pieces[row : row + _GROUP]
        if len(group) == _GROUP and _decodes(_many, b"[" + b",".join(group) + b"]"):
            kept += group
            row += _GROUP
            continue
        stop = min(row + _GROUP, len(pieces))
        while row < stop:
            event, used, changed = _next_event(pieces, row)
            if event is None and last and (end := _array_end(pieces[row])) is not None:
                final, rest = end
                mended, changed = _mended(final) if final.strip() else (b"", False)
                if mended:
                    kept.append(mended)
                tail = b",".join([rest, *pieces[row + 1 :]])
                lost = bool(final.strip()) and not mended
                return Mended(
                    events=b",".join(kept),
                    repaired=repaired + changed,
                    dropped=dropped + lost,
                    closed=True,
                    tail=tail,
                )
            if event is None:
                dropped += 1
            else:
                kept.append(event)
                repaired += changed
            row += used
    return Mended(events=b",".join(kept), repaired=repaired, dropped=dropped, closed=False, tail=b"")


def mend_object(text: bytes) -> bytes:
    """Mend the text of an object that is not an event, such as a trace's metadata; it may still be broken."""
    return _BAREWORD.sub(b"null", text.decode("utf-8", "replace").encode().translate(_NO_CONTROL))


def _decodes(decoder: "msgspec.json.Decoder[Any]", text: bytes) -> bool:
    try:
        decoder.decode(text)
    except _BROKEN:
        return False
    return True


def _next_event(pieces: list[bytes], row: int) -> tuple[bytes | None, int, bool]:
    """Give the event that begins at `row` (None: lost), how many pieces it spans, and whether it was mended."""
    piece = pieces[row]
    if _decodes(_one, piece):
        return piece, 1, False
    mended, changed = _mended(piece)
    if mended:
        return mended, 1, changed
    # The split may have fallen inside an argument that is a list of objects: put pieces together again, as long
    # as the next one does not begin like an event of its own.
    for used in range(2, min(_MAX_NESTED, len(pieces) - row) + 1):
        if b'"ph"' in pieces[row + used - 1].split(b"}", 1)[0] and _decodes(_one, pieces[row + used - 1]):
            break
        whole = b",".join(pieces[row : row + used])
        if _decodes(_one, whole):
            return whole, used, False
        mended, changed = _mended(whole)
        if mended:
            return mended, used, changed
    return None, 1, False


def _mended(text: bytes) -> tuple[bytes, bool]:
    """Try the known repairs, mildest first; b"" when none makes an event of the text."""
    if _decodes(_one, text):
        return text, False
    text = text.decode("utf-8", "replace").encode().translate(_NO_CONTROL)
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    if _decodes(_one, text):
        return text, True
    plain = _outside_strings(text)
    if _decodes(_one, plain):
        return plain, True
    quoted = _escape_inner_quotes(text)
    for candidate in (quoted, _outside_strings(quoted)):
        # Guessing where strings end can swallow text: what comes out must at least have a one-letter phase.
        if _decodes(_one, candidate) and len(_one.decode(candidate).ph) == 1:
            return candidate, True
    return b"", False


_STRING_OR_BAREWORD = re.compile(rb'"(?:[^"\\]|\\.)*"|' + _BAREWORD.pattern, re.IGNORECASE)


def _outside_strings(text: bytes) -> bytes:
    """Replace barewords that are no JSON by null, leaving strings alone."""
    return _STRING_OR_BAREWORD.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", text)


_CLOSES_KEY = re.compile(rb"\s*:")
_CLOSES_VALUE = re.compile(rb'\s*(?:,\s*"[^"]*"\s*:|\}|$)')
_CLOSES_ITEM = re.compile(rb"\s*(?:,|\])")


def _escape_inner_quotes(text: bytes) -> bytes:
    """Escape quotes inside strings, telling a closing quote by what may follow it there.

    A key ends before a colon, a value of an object before `}` or before a comma and the next key, an item of an
    array before a comma or `]`.
    """
    out = bytearray()
    inside: list[int] = []  # opening brackets around the current position
    after_colon = False
    at = 0
    while at < len(text):
        byte = text[at]
        if byte == 0x22:  # a quote opens a string
            in_array = bool(inside) and inside[-1] == 0x5B
            closes = _CLOSES_ITEM if in_array else _CLOSES_VALUE if after_colon else _CLOSES_KEY
            end = at + 1
            out.append(byte)
            while end < len(text):
                if text[end] == 0x5C:
                    out += text[end : end + 2]
                    end += 2
                    continue
                if text[end] == 0x22:
                    if closes.match(text, end + 1):
                        break
                    out += b"\\"
                out.append(text[end])
                end += 1
            out += b'"'
            at = end + 1
            after_colon = False
            continue
        if byte in b"{[":
            inside.append(byte)
            after_colon = False
        elif byte in b"}]" and inside:
            inside.pop()
        elif byte == 0x3A:
            after_colon = True
        elif byte == 0x2C:
            after_colon = False
        out.append(byte)
        at += 1
    return bytes(out)


def _array_end(piece: bytes) -> tuple[bytes, bytes] | None:
    """Split at the bracket that closes the event array: (last event, what follows the bracket)."""
    depth = 0
    for found in re.finditer(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', piece):
        token = found[0]
        if token in b"{[" and len(token) == 1:
            depth += 1
        elif token == b"}":
            depth -= 1
        elif token == b"]":
            if depth == 0:
                return piece[: found.start()], piece[found.end() :]
            depth -= 1
    # Quotes out of balance hide the bracket: take the last one that ends the text or precedes a key.
    ends = list(re.finditer(rb'\}\s*\](?=\s*(?:,\s*"\w+"\s*:|\}?\s*$))', piece))
    if ends:
        return piece[: ends[-1].end() - 1], piece[ends[-1].end() :]
    return None

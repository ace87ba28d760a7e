"""Repair broken event text where that is safe, and count the repaired and the dropped events.

Seen in real traces: bare `Infinity`, `NaN`, `N/A` (kineto#105), control characters and invalid UTF-8 (kineto#80,
pytorch#136180), unescaped quotes in kernel names (pytorch#146900), files cut in the middle of an event. Text that
decodes is kept unchanged; a damaged event is repaired if possible, else dropped.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from overlapscope.ingest.parsing.event_chunks import EVENT, closes_array, last_event, object_end

_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_BAREWORD = rb"[-+]?(?:Infinity|inf|nan)(?:\(\w*\))?|N/A|undefined|None|True|False"
_BARE = re.compile(rb"(?<=[:\[,\s])(?:" + _BAREWORD + rb")(?=\s*[,\]}])", re.IGNORECASE)
_STRING_OR_BARE = re.compile(rb'"(?:[^"\\]++|\\.)*+"|' + _BARE.pattern, re.IGNORECASE | re.DOTALL)
_ARRAY_END = re.compile(rb'\}\s*+\](?=\s*+(?:,\s*+"\w+"\s*:|(?:\}\s*+)?$))')
_BEGIN = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:')
_NEXT = re.compile(rb'\}[\s,\x00]*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"\s*:')
_BLANKS = re.compile(rb"[\s,\x00]*")
_NO_OBJECT = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"|[^"\[\]{},])*', re.DOTALL)
_REACH_BYTES = 64 << 10
"""How far the brackets of a damaged event are followed."""
_NO_CONTROL = bytes(byte if byte >= 0x20 else 0x20 for byte in range(256))
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)\\u(?:d[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})", re.IGNORECASE
)
_BETWEEN_BLANKS = b" \t\r\n\x00,"
_GROUP_EVENTS = 64
"""Events that are decoded together to find the damaged ones."""
_MAX_REPAIRED_BYTES = 1 << 20
"""Longer text is dropped without an attempt to repair it."""


class _AnyEvent(msgspec.Struct):
    """The minimum for an event: an object all of whose parts are valid JSON."""

    ph: str = ""
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: object = None
    dur: object = None
    args: object = None


class _Phased(_AnyEvent):
    """Certainly an event, because it has a phase."""

    ph: str


_one = msgspec.json.Decoder(_AnyEvent)
_many = msgspec.json.Decoder(list[_Phased])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RepairedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a repair."""

    events: bytes
    """Text of whole events, separated by commas."""
    repaired: int
    dropped: int
    closed: bool
    """Whether the end of the array was seen."""
    tail: bytes
    """Text after the end of the array."""


class _Tally(msgspec.Struct):
    kept: list[bytes]
    repaired: int = 0
    dropped: int = 0


def repair_events(text: bytes, *, last: bool) -> RepairedEvents:
    """Return the whole events of a piece of an event array; the last piece may hold the array's end and more."""
    tally = _Tally(kept=[])
    end: int | None = None
    for decodes, start, stop in _regions(text):
        if decodes:
            tally.kept.append(text[start:stop])
            continue
        end = _repair_region(text[start:stop], tally, last=last)
        if end is not None:
            end += start
            break
    return RepairedEvents(
        events=b",".join(tally.kept),
        repaired=tally.repaired,
        dropped=tally.dropped,
        closed=end is not None,
        tail=text[end + 1 :] if end is not None else b"",
    )


def repair_object(text: bytes) -> bytes:
    """Return the repaired text of an object that is not an event, such as a trace's metadata; it may not decode yet."""
    return _outside_strings(text.decode("utf-8", "replace").encode().translate(_NO_CONTROL))


def _regions(text: bytes) -> Iterator[tuple[bool, int, int]]:
    """Yield (decodes, start, stop) of text that decodes as it is, and of the text between that needs a repair.

    Fast for a long text with a few damaged events.
    """
    starts = [0, *(found.end() for found in _BETWEEN.finditer(text)), len(text)]
    ends = [*(found.start() for found in _BETWEEN.finditer(text)), len(text)]
    total = len(ends)
    bad_from: int | None = None
    for row in range(0, total, _GROUP_EVENTS):
        start, stop = starts[row], ends[min(row + _GROUP_EVENTS, total) - 1]
        # The last group may hold the end of the array, so it is always examined.
        if row + _GROUP_EVENTS < total and _decodes(_many, b"[" + text[start:stop] + b"]"):
            if bad_from is not None:
                yield False, bad_from, start
                bad_from = None
            yield True, start, stop
        elif bad_from is None:
            bad_from = start
    if bad_from is not None:
        yield False, bad_from, len(text)


def _repair_region(text: bytes, tally: _Tally, *, last: bool) -> int | None:
    """Add the events of damaged text to the tally; return the place where the array ends, None if it does not."""
    at = 0
    last_at = last_event(text) if last else -1
    while True:
        at = _matched_end(_BLANKS, text, at)
        if at == len(text):
            return None
        byte = text[at]
        if byte == 0x7B:
            at, end = _take_object(text, at, tally, last=last)
            if end is not None:
                return end
        elif byte == 0x5D and last and closes_array(text, at, last_at):
            return at
        elif byte == 0x5B:
            tally.dropped += 1
            end = object_end(text, at, _REACH_BYTES)
            next_event = _BEGIN.search(text, at) if end is None else None
            at = end if end is not None else next_event.start() if next_event else len(text)
        else:
            tally.dropped += byte != 0x5D
            at = max(_matched_end(_NO_OBJECT, text, at), at + 1)


def _matched_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _take_object(text: bytes, start: int, tally: _Tally, *, last: bool) -> tuple[int, int | None]:
    """Add the event that begins at `start` to the tally; return where to go on, and the array's end if it is reached.

    The event ends where its brackets close or, if its quotes are unbalanced, where the next event seems to begin.
    """
    following = _NEXT.search(text, start)
    stop = following.start() + 1 if following else len(text)
    closed = object_end(text, start, max(_REACH_BYTES, 2 * (stop - start)))
    ends = [closed, stop] if closed is not None else [stop]
    for end in dict.fromkeys(ends):
        if _decodes(_one, text[start:end]):
            tally.kept.append(text[start:end])
            return end, None
    array_end = _array_end(text[start:]) if last and following is None else None
    if array_end is not None:
        ends = [end for end in ends if end <= start + array_end] + [start + array_end]
    for end in sorted(set(ends)):
        # Brackets that close far after the start of the next event include that event.
        if end <= stop and (repaired := _repair_event(text[start:end].rstrip(_BETWEEN_BLANKS))):
            tally.kept.append(repaired)
            tally.repaired += 1
            return end, None
    # The apparent next event may be part of this one's arguments.
    encloses = closed is not None and closed > stop and not EVENT.search(text, stop, closed)
    if encloses and (repaired := _repair_event(text[start:closed])):
        tally.kept.append(repaired)
        tally.repaired += 1
        return closed or stop, None
    tally.dropped += 1
    return (stop, None) if array_end is None else (stop, start + array_end)


def _decodes(decoder: "msgspec.json.Decoder[Any]", text: bytes) -> bool:
    try:
        decoder.decode(text)
    except _BROKEN:
        return False
    return True


def _repair_event(text: bytes) -> bytes:
    """Return the text after the mildest repair that makes it an event; b"" if none does."""
    if len(text) > _MAX_REPAIRED_BYTES:
        return b""
    text = text.decode("utf-8", "replace").encode().translate(_NO_CONTROL)
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    for candidate in (text, _outside_strings(text)):
        if _decodes(_one, candidate):
            return candidate
    quoted = _escape_inner_quotes(text)
    for candidate in (quoted, _outside_strings(quoted)):
        # A wrong guess where a string ends can lose text: the result must at least have a one-letter phase.
        if _decodes(_one, candidate) and len(_one.decode(candidate).ph) == 1:
            return candidate
    return b""


def _outside_strings(text: bytes) -> bytes:
    """Replace bare words that are not JSON by null (true and false in any case by JSON's), outside strings only."""
    return _STRING_OR_BARE.sub(lambda found: found[0] if found[0][:1] == b'"' else _json_word(found[0]), text)


def _json_word(word: bytes) -> bytes:
    return {b"true": b"true", b"false": b"false"}.get(word.lower(), b"null")


_CLOSES_KEY = re.compile(rb"\s*:")
_CLOSES_VALUE = re.compile(rb'\s*(?:,\s*"[^"]*"\s*:|\}|$)')
_CLOSES_ITEM = re.compile(rb"\s*(?:,|\])")


def _escape_inner_quotes(text: bytes) -> bytes:
    """Escape quotes inside strings; a closing quote is recognised by the text that may follow it.

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


def _array_end(text: bytes) -> int | None:
    """Return the place of the bracket that closes the event array in text with unbalanced quotes; None if absent."""
    last = None
    for found in _ARRAY_END.finditer(text):
        last = found.end() - 1
    return last if last is not None and closes_array(text, last, last_event(text)) else None

"""Where the objects of a JSON array lie, told by brackets and strings alone; works on text that is no valid JSON."""

import re

import msgspec

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, a bracket, or a quote whose string the text does not end."""
EVENT = re.compile(
    rb'"ph"\s*:\s*"\w"[^{}]{0,4096}?"(?:ts|pid|tid)"\s*:|"(?:ts|pid|tid)"\s*:[^{}]{0,4096}?"ph"\s*:\s*"\w"'
)
"""What surely is an event's text: a phase, and a time, process or thread in the same object."""
_BEHIND_ARRAY = re.compile(rb'\s*(?:,\s*(?:"(?:[^"\\]++|\\.)*+(?:"\s*(?::|$)|$)|$)|\}|$)', re.DOTALL)
"""A comma and a key, the end of the object, or a file that was cut somewhere there."""


def last_event(text: bytes) -> int:
    """Give the place of the last text that surely is an event's; -1 without one."""
    place = -1
    for found in EVENT.finditer(text):
        place = found.start()
    return place


def closes_array(text: bytes, at: int, last: int) -> bool:
    """Whether the bracket at `at` may close the event array: metadata or nothing follows, and no event does.

    `last` is `last_event(text)`.
    """
    return at > last and _BEHIND_ARRAY.match(text, at + 1) is not None


def object_end(text: bytes, start: int, limit: int) -> int | None:
    """Give the end of the object or list that begins at `start`; None when it is not closed within `limit` bytes."""
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

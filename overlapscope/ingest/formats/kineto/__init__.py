"""Recognise a Kineto trace (torch.profiler)."""

import re
from typing import Final

import msgspec

from overlapscope.ingest.parsing.json_values import DECODE_ERRORS
from overlapscope.ingest.reader import HEAD_BYTES, Head, Reader, lazy_read

_KEYS: Final = (
    rb'"(?:traceEvents|ph|schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|traceName'
    rb'|stackFrames|systemTraceEvents)"\s*:'
)
"""At least one of these keys stands in the first 64 KiB of a trace, in whatever order its writer puts them."""


def recognises(head: Head) -> bool:
    """Return whether the file begins like a JSON trace, or is too damaged or too short to decide.

    Log lines may begin with `[` too. A complete JSON document without any of the trace's keys, or a long one that has
    none of them in its beginning, is some other JSON.
    """
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n\x00")
    first = text[1:].lstrip()[:1] if text[:1] == b"[" else b""
    if text[:1] == b"{" or first == b"{":
        return re.search(_KEYS, text) is not None or not (len(head.content) >= HEAD_BYTES or _begins_whole(text))
    return text[:1] == b"" or (text[:1] == b"[" and first in (b"]", b",", b""))


def _begins_whole(text: bytes) -> bool:
    """Return whether the text, or its first line, is a complete JSON document."""
    for document in (text.rstrip(b"\x00"), text.split(b"\n", 1)[0]):
        try:
            msgspec.json.decode(document, type=msgspec.Raw)
        except DECODE_ERRORS:
            continue
        return True
    return False


READER = Reader(
    format="kineto", recognises=recognises, read=lazy_read("overlapscope.ingest.formats.kineto.reader:read_kineto")
)

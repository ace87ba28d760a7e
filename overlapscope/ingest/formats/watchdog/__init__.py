"""Recognise a log with messages of torch's c10d watchdog about collectives that hang."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

FORMAT: Final = "c10d_watchdog"
_JSON: Final = rb'\s*(?:\{|\[\s*[\[{\]"])'


def recognises(head: Head) -> bool:
    """Return whether the beginning or the end of a text holds a watchdog message."""
    if b"\x00" in head.content or re.match(_JSON, head.content):
        return False
    from overlapscope.ingest.formats.watchdog.lines import HINT, watchdog_lines  # noqa: PLC0415 - only needed for text

    parts = [part for part in (head.content, head.tail) if HINT in part]
    return any(next(watchdog_lines(line), None) is not None for part in parts for line in part.split(b"\n"))


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.watchdog.reader:read_watchdog"),
    anywhere=True,
)

"""Know a log in which torch's c10d watchdog tells of collectives that hung."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "c10d_watchdog"
HINT: Final = b"ProcessGroup"
"""A line without it holds no watchdog message."""
_JSON: Final = rb'\s*(?:\{|\[\s*[\[{\]"])'


def recognises(head: Head) -> bool:
    """Whether the beginning or the end of a text holds a watchdog message."""
    if b"\x00" in head.content or re.match(_JSON, head.content):
        return False
    parts = [part for part in (head.content, head.tail) if HINT in part]
    if not parts:
        return False
    from overlapscope.ingest.watchdog_lines import watchdog_lines  # noqa: PLC0415 - loaded for what may be such a log

    return any(next(watchdog_lines(line), None) is not None for part in parts for line in part.split(b"\n"))


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.c10d_watchdog`."""
    from overlapscope.ingest.c10d_watchdog import read_watchdog  # noqa: PLC0415 - loaded for such a file

    return read_watchdog(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read, anywhere=True)

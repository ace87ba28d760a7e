"""Read logs in which torch's c10d watchdog tells of collectives that hung: who waited where, and what came before.

Such a log has no times that can be placed (no year stands in them), so it gives no timeline.
"""

import re
from pathlib import Path
from typing import Final

from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.lines import lines
from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading
from overlapscope.ingest.shown import shown
from overlapscope.ingest.watchdog_facts import MAX_KEPT, Watchdog
from overlapscope.ingest.watchdog_lines import HINT, watchdog_lines
from overlapscope.timeline.run import Source

FORMAT: Final = "c10d_watchdog"
_JSON: Final = re.compile(rb'\s*(?:\{|\[\s*[\[{\]"])')


def recognises(head: Head) -> bool:
    """Whether the beginning or the end of a text holds a watchdog message."""
    if b"\x00" in head.content or _JSON.match(head.content):
        return False
    return any(
        next(watchdog_lines(line), None) is not None
        for part in (head.content, head.tail)
        if HINT in part
        for line in part.split(b"\n")
    )


def read_watchdog(path: Path, context: ReadContext) -> Reading:
    """Read a log. Raises InputError when it cannot be read, or holds no watchdog message."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    watchdog = Watchdog()
    for number, line in enumerate(lines(stream), 1):
        watchdog.take(number, line)
    if not watchdog.lines:
        raise InputError(f"{shown(path)}: holds no message of torch's c10d watchdog")
    warnings = list(stream.warnings)
    if watchdog.not_kept:
        warnings.append(f"{watchdog.not_kept} messages beyond the first {MAX_KEPT} are counted, not listed")
    return Reading(
        source=Source(
            path=shown(path),
            format=FORMAT,
            ranks=watchdog.ranks,
            events=watchdog.lines,
            truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
        groups=watchdog.groups,
        facts=watchdog.facts(shown(path)),
    )


READER = Reader(format=FORMAT, recognises=recognises, read=read_watchdog, anywhere=True)

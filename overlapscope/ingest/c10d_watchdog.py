"""Read logs in which torch's c10d watchdog tells of collectives that hung: who waited where, and what came before.

Such a log has no times that can be placed (no year stands in them), so it gives no timeline.
"""

from pathlib import Path

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.lines import lines
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.watchdog_facts import MAX_KEPT, Watchdog
from overlapscope.timeline.run import Source


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
            ranks=watchdog.ranks,
            events=watchdog.lines,
            truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
        groups=watchdog.groups,
        facts=watchdog.facts(shown(path)),
    )

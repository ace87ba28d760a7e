"""Recognise the output of nccl-tests and rccl-tests."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

FORMAT: Final = "nccl-tests"
_LINE: Final = r"(?m)^[^\n]{0,200}?\b\d+\s+\d+\s+[a-z]\w+\s+[^\n]{20}"
"""Pattern of a line that may be a row of the table."""


def recognises(head: Head) -> bool:
    """Return whether at least half of a text is output of the tests.

    An NCCL log that contains such a table is not recognised here: the log's reader calls `BandwidthLines` itself.
    """
    text = head.text
    if text.lstrip()[:1] in ("{", "<", "") or not re.search(_LINE, text):
        return False
    from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines  # noqa: PLC0415 - loaded only for tables

    collector = BandwidthLines()
    recognised = [collector.take(line) for line in text.splitlines() if line.strip()]
    return bool(collector.finish()) and 2 * sum(recognised) >= len(recognised)


def holds_some(head: Head) -> bool:
    """Return whether a text holds a row or a header of such a table, whatever else it holds."""
    from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines  # noqa: PLC0415 - loaded for a text

    collector = BandwidthLines()
    for line in head.text.splitlines():
        collector.take(line)
    return bool(collector.finish()) or collector.headers > 0


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.nccl_tests.reader:read_nccl_tests"),
    holds_some=holds_some,
)

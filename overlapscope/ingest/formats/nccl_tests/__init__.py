"""Know the table that nccl-tests and rccl-tests print."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy

FORMAT: Final = "nccl-tests"
_LINE: Final = r"(?m)^[^\n]{0,200}?\b\d+\s+\d+\s+[a-z]\w+\s+[^\n]{20}"
"""What looks like a line of the table."""


def recognises(head: Head) -> bool:
    """Return whether the file is a text that is the tests' table more than anything else.

    A log of NCCL with a table in it is not: its reader calls `BandwidthLines` itself.
    """
    text = head.text
    if text.lstrip()[:1] in ("{", "<", "") or not re.search(_LINE, text):
        return False
    from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines  # noqa: PLC0415 - loaded for what may be a table

    collector = BandwidthLines()
    told = [collector.take(line) for line in text.splitlines() if line.strip()]
    return bool(collector.finish()) and 2 * sum(told) >= len(told)


def holds_some(head: Head) -> bool:
    """Return whether a text holds a line of a table, or a table's header, among whatever else."""
    from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines  # noqa: PLC0415 - loaded for a text

    collector = BandwidthLines()
    for line in head.text.splitlines():
        collector.take(line)
    return bool(collector.finish()) or collector.headers > 0


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy("overlapscope.ingest.formats.nccl_tests.reader:read_nccl_tests"),
    holds_some=holds_some,
)

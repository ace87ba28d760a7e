"""Know what nccl-tests and rccl-tests print and write."""

import re
from typing import Final

from overlapscope.ingest.reading import Head, Reader, lazy

FORMAT: Final = "nccl-tests"
REPORT: Final = rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:\s*"[^"]{0,64}"\s*,\s*"args"\s*:'
"""What a report of nccl-tests begins with; the next two are rccl-tests'."""
_RCCL: Final = rb'\s*+(?:\[\s*+)?\{\s*"numCycle"\s*:\s*\d+\s*,\s*"name"\s*:\s*"'
CSV_HEADER: Final = (
    r"(?i:numCycle,collective,(?:(?:nodes,)?ranks,ranksPerNode,gpusPerRank,|gpus,)size,type,redop,inplace,time,algbw,"
    r"busbw,)"
)
_LINE: Final = r"(?m)^[^\n]{0,200}?\b\d+\s+\d+\s+[a-z]\w+\s+[^\n]{20}"
"""What looks like a line of the table."""


def recognises(head: Head) -> bool:
    """Whether the file is a report of the tests, or a text that is their table more than anything else.

    A log of NCCL with a table in it is not: its reader calls `BandwidthLines` itself.
    """
    if is_report(head.content):
        return True
    text = head.text
    if text.lstrip()[:1] in ("{", "<", "") or not re.search(_LINE, text):
        return False
    from overlapscope.ingest.bandwidth_lines import BandwidthLines  # noqa: PLC0415 - loaded for what may be a table

    collector = BandwidthLines()
    told = [collector.take(line) for line in text.splitlines() if line.strip()]
    return bool(collector.finish()) and 2 * sum(told) >= len(told)


def holds_some(head: Head) -> bool:
    """Whether a text holds a line of a table, or a table's header, among whatever else."""
    from overlapscope.ingest.bandwidth_lines import BandwidthLines  # noqa: PLC0415 - loaded for a text

    collector = BandwidthLines()
    for line in head.text.splitlines():
        collector.take(line)
    return bool(collector.finish()) or collector.headers > 0


def is_report(content: bytes) -> bool:
    """Whether it begins like one of the files that the tests write, rather than print."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    csv_head = content[:200].decode("utf-8", "replace").lstrip()
    return bool(re.match(REPORT, content) or re.match(_RCCL, content) or re.match(CSV_HEADER, csv_head))


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy("overlapscope.ingest.nccl_tests:read_nccl_tests"),
    holds_some=holds_some,
)

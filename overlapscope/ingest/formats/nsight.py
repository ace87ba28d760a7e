"""Know a report of Nsight Systems and its SQLite export."""

from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "nsight"
REPORT_MAGIC: Final = b"NVIDIA Tegra Profiler Report "
"""What .nsys-rep and .qdrep files begin with."""
SQLITE_MAGIC: Final = b"SQLite format 3\x00"


def recognises(head: Head) -> bool:
    """Whether the file is a report of Nsight Systems or its SQLite export; other SQLite files are not ours."""
    if head.content.startswith(REPORT_MAGIC):
        return True
    if not head.content.startswith(SQLITE_MAGIC):
        return False
    from overlapscope.ingest.nsight import is_export  # noqa: PLC0415 - loaded for a database

    return is_export(head)


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.nsight`."""
    from overlapscope.ingest.nsight import read_nsight  # noqa: PLC0415 - loaded for such a file

    return read_nsight(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)

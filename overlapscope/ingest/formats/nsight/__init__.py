"""Recognise an Nsight Systems report and its SQLite export."""

import re
from contextlib import suppress
from typing import Final

from overlapscope.errors import InputError
from overlapscope.ingest.reader import SQLITE_MAGIC, Head, Reader, lazy_read

REPORT_MAGIC: Final = b"NVIDIA Tegra Profiler Report "
"""First bytes of .nsys-rep and .qdrep files."""
_ITS_TABLES: Final = re.compile(
    rb"CREATE TABLE (?:\"|)(?:StringIds|TARGET_INFO_|NVTX_EVENTS|META_DATA_EXPORT|CUPTI_ACTIVITY_KIND_KERNEL)"
)


def recognises(head: Head) -> bool:
    """Return whether the file is an Nsight Systems report or its SQLite export; other SQLite files are not."""
    if head.content.startswith(REPORT_MAGIC):
        return True
    return head.content.startswith(SQLITE_MAGIC) and _is_export(head)


def _is_export(head: Head) -> bool:
    """Return whether a SQLite file was written by Nsight Systems."""
    from overlapscope.ingest.formats.nsight.nvtx import RANGES  # noqa: PLC0415 - loaded for databases only
    from overlapscope.ingest.formats.nsight.strings import STRINGS  # noqa: PLC0415
    from overlapscope.ingest.parsing.sqlite import SqliteFile  # noqa: PLC0415

    tables: frozenset[str] = frozenset()
    with suppress(InputError, OSError), open(head.path, "rb") as content:
        if content.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:  # not compressed
            with SqliteFile(head.path) as file:
                tables = file.tables
    if tables:
        return STRINGS in tables and any(
            name == RANGES or name.startswith(("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "META_DATA_")) for name in tables
        )
    return len(set(_ITS_TABLES.findall(head.content))) > 1  # compressed or damaged: the first page lists the tables


READER = Reader(
    format="nsight", recognises=recognises, read=lazy_read("overlapscope.ingest.formats.nsight.reader:read_nsight")
)

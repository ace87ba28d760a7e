"""Know the SQLite form of an Ascend profile, which is not read, and say which file to give instead."""

from pathlib import Path

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.formats.nsight import SQLITE_MAGIC
from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading
from overlapscope.timeline.run import Source

FORMAT = "ascend_database"
_TABLES = (b"RANK_DEVICE_MAP", b"COMPUTE_TASK_INFO", b"COMMUNICATION_TASK_INFO", b"CommAnalyzerTime", b"StepTraceTime")


def recognises(head: Head) -> bool:
    """Whether the file is a database with one of the tables that only msprof and torch_npu create."""
    return head.content.startswith(SQLITE_MAGIC) and any(
        b"CREATE TABLE " + quote + table in head.content for table in _TABLES for quote in (b"", b'"', b"'", b"`", b"[")
    )


def read(path: Path, context: ReadContext) -> Reading:
    """Give nothing where `trace_view.json` stands beside it; else raise InputError that names the file to give."""
    from overlapscope.ingest.ascend_folder import trace_stands_beside  # noqa: PLC0415 - loaded for such a file

    del context
    if trace_stands_beside(path):
        return Reading(source=Source(path=shown(path)))
    raise InputError(
        f"{shown(path)}: the database form of an Ascend profile is not read; export it as text "
        "(export_type=torch_npu.profiler.ExportType.Text) and give its trace_view.json"
    )


READER = Reader(format=FORMAT, recognises=recognises, read=read)

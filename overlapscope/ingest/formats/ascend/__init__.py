"""Recognise the files of an Ascend profiler's folder: `trace_view.json`, the tables beside it, and its database form.

The database form is not read; its refusal names the file to use instead.
"""

import re
from pathlib import Path
from typing import Final

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.reader import SQLITE_MAGIC, Head, ReadContext, Reader, Reading, lazy_read
from overlapscope.timeline.run import Source

_MARKS: Final = (
    rb'"ts"\s*:\s*"\d+(?:\.\d+)?(?:\\t)?"'
    rb'|"name"\s*:\s*"(?:Ascend Hardware|Overlap Analysis|CANN)"'
    rb'|"labels"\s*:\s*"NPU'
    rb'|"cat"\s*:\s*"(?:async_npu|async_task_queue|HostToDevice|enqueue|dequeue)"'
    rb'|"Input (?:Dims|type)"\s*:\s*"'
)
"""Written by this profiler only: times as text, its processes, its flows, shapes as text."""


def is_trace(head: Head) -> bool:
    """Return whether the file is a bare array of events with marks that only this profiler writes."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n\x00")
    return text[:1] == b"[" and b'"ph"' in text and re.search(_MARKS, text) is not None


TRACE = Reader(
    format="ascend", recognises=is_trace, read=lazy_read("overlapscope.ingest.formats.ascend.reader:read_ascend")
)


def is_communication(head: Head) -> bool:
    """Return whether the file is `communication.json` or `communication_matrix.json`: HCCL's times or links."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text:
        return False
    return b'"Communication Time Info"' in text or (b'"Transport Type"' in text and b'"Transit Size(MB)"' in text)


COMMUNICATION = Reader(
    format="ascend_communication",
    recognises=is_communication,
    read=lazy_read("overlapscope.ingest.formats.ascend.side_files:read_communication"),
)
_DATABASE_TABLES = (
    b"RANK_DEVICE_MAP",
    b"COMPUTE_TASK_INFO",
    b"COMMUNICATION_TASK_INFO",
    b"CommAnalyzerTime",
    b"StepTraceTime",
)


def is_database(head: Head) -> bool:
    """Return whether the file is a database with one of the tables that only msprof and torch_npu create."""
    return head.content.startswith(SQLITE_MAGIC) and any(
        b"CREATE TABLE " + quote + table in head.content
        for table in _DATABASE_TABLES
        for quote in (b"", b'"', b"'", b"`", b"[")
    )


def refuse_database(path: Path, context: ReadContext) -> Reading:
    """Raise InputError that names the file to use; return an empty Reading where `trace_view.json` is beside it."""
    from overlapscope.ingest.formats.ascend.folder import trace_stands_beside  # noqa: PLC0415 - loaded only for a database

    del context
    if trace_stands_beside(path):
        return Reading(source=Source(path=display_path(path)))
    raise InputError(
        f"{display_path(path)}: the database form of an Ascend profile is not read; export it as text "
        "(export_type=torch_npu.profiler.ExportType.Text) and use its trace_view.json"
    )


DATABASE = Reader(format="ascend_database", recognises=is_database, read=refuse_database)


def is_info(head: Head) -> bool:
    """Return whether the file is `profiler_info_N.json` or `profiler_metadata.json`: settings, environment, groups."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text:
        return False
    noted = b'"start_info"' in text and (b'"rank_id"' in text or b'"experimental_config"' in text)
    return noted or b'"parallel_group_info"' in text or (b'"ENV_VARIABLES"' in text and b'"HCCL_' in text)


INFO = Reader(
    format="ascend_info", recognises=is_info, read=lazy_read("overlapscope.ingest.formats.ascend.side_files:read_info")
)


def _has_titles(head: Head, *titles: str) -> bool:
    """Return whether the first line is a plain list of column titles, these among them."""
    first = head.content.split(b"\n", 1)[0]
    if b"\x00" in first or len(first) > 4096:
        return False
    return {each.strip().strip('"') for each in first.decode("utf-8-sig", "replace").split(",")} >= set(titles)


def is_kernel_table(head: Head) -> bool:
    """Return whether the column titles are those of `kernel_details.csv`."""
    return _has_titles(head, "Name", "Accelerator Core", "Start Time(us)", "Duration(us)")


KERNELS = Reader(
    format="ascend_kernels",
    recognises=is_kernel_table,
    read=lazy_read("overlapscope.ingest.formats.ascend.side_files:read_kernels"),
)


def is_step_table(head: Head) -> bool:
    """Return whether the column titles are those of `step_trace_time.csv`."""
    return _has_titles(head, "Step", "Computing", "Communication(Not Overlapped)", "Overlapped")


STEP_TIMES = Reader(
    format="ascend_step_times",
    recognises=is_step_table,
    read=lazy_read("overlapscope.ingest.formats.ascend.side_files:read_step_times"),
)

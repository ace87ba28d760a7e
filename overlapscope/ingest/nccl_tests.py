"""Read what nccl-tests and rccl-tests measured: the table they print, and the files they write on request."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from overlapscope.errors import InputError
from overlapscope.ingest.bandwidth_files import BandwidthFile, read_rccl, read_report
from overlapscope.ingest.bandwidth_lines import BandwidthLines, BandwidthTable
from overlapscope.ingest.bandwidth_rows import Row, Timing
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.fact_tables import fact_table
from overlapscope.ingest.formats.nccl_tests import FORMAT, REPORT, is_report
from overlapscope.ingest.lines import lines
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.ingest.shown import shown
from overlapscope.timeline.facts import NO, YES, Facts, Measurements
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source

MAX_BYTES: Final = 256 << 20
"""A report of every size and type is smaller by orders."""


def read_nccl_tests(path: Path, context: ReadContext) -> Reading:
    """Read one file. Raises InputError when it cannot be read or holds no measurement."""
    first = next(ByteStream(path, context.max_bytes).blocks(), b"")
    stream = ByteStream(path, context.max_bytes, context.progress)
    found = _read_file(stream) if is_report(first) else _read_text(stream)
    rows = sum(len(table.rows) for table in found.tables)
    if not rows:
        broken = f" but {found.dropped} that cannot be read" if found.dropped else ""
        raise InputError(
            f"{shown(path)}: holds no line of a bandwidth table{broken}; did the test end before its first result?"
        )
    facts = bandwidth_facts(found.tables, shown(path))
    return Reading(
        source=Source(
            path=shown(path),
            format=FORMAT,
            events=rows,
            dropped=found.dropped,
            truncated=found.truncated or stream.truncated,
            warnings=(*stream.warnings, *found.warnings, *notes(found.tables)),
        ),
        fingerprint=dict(found.fingerprint or {}),
        facts=facts,
    )


def _read_file(stream: ByteStream) -> BandwidthFile:
    stream.max_bytes = min(stream.max_bytes, MAX_BYTES)
    content = b"".join(stream.blocks()).removeprefix(b"\xef\xbb\xbf")
    found = read_report(content) if re.match(REPORT, content) else read_rccl(content)
    return found or BandwidthFile(tables=())


def _read_text(stream: ByteStream) -> BandwidthFile:
    collector = BandwidthLines()
    for line in lines(stream):
        collector.take(line.decode("utf-8", "replace"))
    tables = collector.finish()
    device = next(iter(collector.devices)) if len(collector.devices) == 1 else None
    return BandwidthFile(
        tables=tuple(tables),
        warnings=tuple(collector.warnings),
        dropped=collector.broken,
        fingerprint={"device": device} if device else {},
    )


def notes(tables: Sequence[BandwidthTable]) -> list[str]:
    """Give what a reader of the figures must know of these tables besides contradictions."""
    found = []
    if any(table.identity.op is None for table in tables):
        found.append("neither the program nor the figures tell which operation was measured; its name is left out")
    if any(table.cpu_time for table in tables):
        found.append("the time column holds host time; the operations' own times are left out")
    wrong = [row for table in tables for row in table.rows if any(each.wrong for each in row.timings)]
    if wrong:
        found.append(f"wrong results in {len(wrong)} lines, first at {wrong[0].size_bytes} bytes: data was corrupted")
    return found


def bandwidth_facts(tables: Sequence[BandwidthTable], source: str) -> Facts:
    """Give the measurements of the tables, one row for each size and place."""
    names = NameTable()
    rows = [
        _measurement(table, row, timing, in_place, source)
        for table in tables
        for row in table.rows
        for timing, in_place in ((row.out_of_place, NO), (row.in_place, YES))
        if timing is not None and (timing.time_us or timing.algbw_gbs)
    ]
    measurements = fact_table(Measurements, rows, names)
    return Facts(names=tuple(names.to_list()), measurements=measurements)


def _measurement(table: BandwidthTable, row: Row, timing: Timing, in_place: int, source: str) -> dict[str, Any]:
    timed = timing.time_us is not None and timing.time_us.value > 0 and not table.cpu_time
    return {
        "source": source,
        "op": table.identity.op,
        "dtype": row.dtype,
        "bytes": row.size_bytes,
        "ranks": table.identity.ranks,
        "in_place": in_place,
        "algorithm": row.algorithm,
        "protocol": row.protocol,
        "time_ns": timing.time_us.value * 1000 if timed and timing.time_us else None,
        "algbw_gbs": timing.algbw_gbs.value if timing.algbw_gbs else None,
        "busbw_gbs": timing.busbw_gbs.value if timing.busbw_gbs else None,
        "wrong": timing.wrong,
    }

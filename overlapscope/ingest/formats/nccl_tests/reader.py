"""Read the output of nccl-tests and rccl-tests: the bandwidth table they print."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines, BandwidthTable
from overlapscope.ingest.formats.nccl_tests.table_row import TableRow, Timing
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import NO, YES, Facts, Measurements
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Source


def read_nccl_tests(path: Path, context: ReadContext) -> Reading:
    """Read one file. Raises InputError when it cannot be read or holds no measurement."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    collector = BandwidthLines(file_name=path.name)
    for line in iter_lines(stream):
        collector.take(line.decode("utf-8", "replace"))
    tables = collector.finish()
    rows = sum(len(table.rows) for table in tables)
    if not rows:
        broken = f" ({collector.broken} lines are damaged)" if collector.broken else ""
        raise InputError(
            f"{display_path(path)}: holds no row of a bandwidth table{broken}; "
            "did the test end before its first result?"
        )
    return Reading(
        source=Source(
            path=display_path(path),
            events=rows,
            dropped=collector.broken,
            truncated=stream.truncated,
            warnings=(*stream.warnings, *collector.warnings, *notes(tables)),
        ),
        fingerprint={"device": next(iter(collector.devices))} if len(collector.devices) == 1 else {},
        facts=bandwidth_facts(tables, display_path(path)),
    )


def notes(tables: Sequence[BandwidthTable]) -> list[str]:
    """Return limitations of the figures of these tables that a user must know, besides contradictions."""
    found = []
    if any(table.op is None for table in tables):
        found.append(
            "no test program (all_reduce_perf, ...) that agrees with the figures is named: the operation is unknown; "
            "name the file after it, such as all_reduce.txt"
        )
    if any(table.cpu_time for table in tables):
        found.append("the time column holds host time; the operations' own times are left out")
    wrong = [row for table in tables for row in table.rows if any(each.wrong for each in row.timings)]
    if wrong:
        found.append(f"wrong results in {len(wrong)} lines, first at {wrong[0].size_bytes} bytes: data was corrupted")
    return found


def bandwidth_facts(tables: Sequence[BandwidthTable], source: str) -> Facts:
    """Return the measurements of the tables, one row per size and per in-place or out-of-place half."""
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


def _measurement(table: BandwidthTable, row: TableRow, timing: Timing, in_place: int, source: str) -> dict[str, Any]:
    timed = timing.time_us is not None and timing.time_us.value > 0 and not table.cpu_time
    return {
        "source": source,
        "op": table.op,
        "dtype": row.dtype,
        "bytes": row.size_bytes,
        "ranks": table.ranks,
        "in_place": in_place,
        "algorithm": row.algorithm,
        "protocol": row.protocol,
        "time_ns": timing.time_us.value * 1000 if timed and timing.time_us else None,
        "algbw_gbs": timing.algbw_gbs.value if timing.algbw_gbs else None,
        "busbw_gbs": timing.busbw_gbs.value if timing.busbw_gbs else None,
        "wrong": timing.wrong,
    }

"""Parse the table that DeepSpeed's `log_summary()` prints, and the table of stragglers below it.

    Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     ...
    all_reduce
                        32.0 KB             3472                1281.64             0.34                ...

Averages are without the slowest and the fastest tenth. Tables are sums since the start of the job, or since a reset: a
table that a later one continues is left out. Sizes are printed as `0B`, `128.0 B`, `678.86 MB`, in powers of 1024, to
two decimals. Straggler times are too small in versions before August 2026
(deepspeed#8199), which sorted the times of each rank before comparing them.
"""

import re
from collections import Counter
from typing import Final

import msgspec

from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.operations import MAX_COUNT

HEADING: Final = b"Comm. Op"
_HEADING: Final = re.compile(r"Comm\. Op +Message Size +Count +(\S.*)")
_COLUMNS: Final = {
    "Total Latency(ms)": "total_latency_ms",
    "Avg Latency(ms)": "avg_latency_ms",
    "tput_avg (Gbps)": "algbw_avg_gbit_s",
    "busbw_avg (Gbps)": "busbw_avg_gbit_s",
    "Total comm lat(ms)": "total_transfer_ms",
    "Total straggler(ms)": "total_straggler_ms",
    "Avg comm lat(ms)": "avg_transfer_ms",
    "Avg straggler(ms)": "avg_straggler_ms",
}
_OP: Final = re.compile(r"\s*([A-Za-z_]\w{0,99}(?: \| \[Caller Func: [^\]]{0,200}\])?)\s*")
PATTERN: Final = r"0B|[0-9]{1,4}(?:\.[0-9]{1,2})? [KMGTPEZY]?B"
_ROW: Final = re.compile(rf"\s+({PATTERN}) +([0-9]{{1,15}})((?: +-?(?:[0-9]{{1,15}}\.[0-9]{{1,4}}|nan|inf)){{1,8}})\s*")
_GAP_LINES: Final = 30
"""Lines of other processes may stand inside a table; after this many of them the table has ended."""
MAX_TABLES: Final = 1000
MAX_ROWS: Final = 100_000
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
_HALF: Final = 0.005


class _Table(msgspec.Struct):
    columns: list[str]
    rows: dict[str, tuple[int, list[float]]] = {}
    """Calls and figures by operation and size."""
    sizes: Counter[str] = msgspec.field(default_factory=Counter)

    def continues(self, earlier: "_Table") -> bool:
        """Return whether this table is a later state of the earlier one."""
        return all(
            subject in self.rows and self.rows[subject][0] >= calls for subject, (calls, _) in earlier.rows.items()
        )


class SummaryLines:
    """Collects the lines of summaries."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._table: _Table | None = None
        self._op: str | None = None
        self._others = 0
        self._replaced = 0
        self.lines = self.dropped = 0

    @property
    def open(self) -> bool:
        """Return whether a table has begun and may continue."""
        return self._table is not None

    def take(self, line: str) -> None:
        """Parse a line while a table is open, or one that holds a heading."""
        if heading := _HEADING.search(line):
            self._begin(heading[1])
        elif self._table is not None:
            if row := _ROW.fullmatch(line):
                self._take_row(row[1], int(row[2]), row[3])
            elif op := _OP.fullmatch(line):
                self._op = op[1]
            else:
                self._others += 1
                if self._others > _GAP_LINES:
                    self._end()

    def figures(self, source: str) -> tuple[Facts, list[str]]:
        """Return the last state of each table as figures, named by operation and size."""
        self._end()
        rows = FigureRows()
        for table in self._tables:
            for subject, (calls, values) in table.rows.items():
                rows.add(subject, "calls", calls)
                for column, value in zip(table.columns, values, strict=True):
                    rows.add(subject, column, value)
        warnings = []
        if self._replaced:
            warnings.append(f"{self._replaced} summaries are contained in a later one and were left out")
        if len(self._tables) >= MAX_TABLES:
            warnings.append("further summaries were left out")
        return (rows.facts(source) if any(table.rows for table in self._tables) else Facts()), warnings

    def _begin(self, columns: str) -> None:
        self._end()
        known = [_COLUMNS.get(column.strip()) for column in re.split(r" {2,}|(?<=\(ms\)) ", columns.strip())]
        if all(known) and len(self._tables) < MAX_TABLES:
            self._table = _Table([column for column in known if column])
            self._op, self._others = None, 0
            self.lines += 1
        else:
            self.dropped += 1

    def _take_row(self, size: str, calls: int, figures: str) -> None:
        table = self._table
        values = [float(value) for value in figures.split()]
        if table is None or self._op is None or len(values) != len(table.columns) or len(table.rows) >= MAX_ROWS:
            self.dropped += 1
            return
        self.lines += 1
        self._others = 0
        subject = f"{self._op} {size}"
        table.sizes[subject] += 1
        same = table.sizes[subject]  # several sizes may be rounded to the same text
        table.rows[subject if same == 1 else f"{subject} ({same})"] = (calls, values)

    def _end(self) -> None:
        table, self._table = self._table, None
        if table is None or not table.rows:
            return
        alike = (place for place in reversed(range(len(self._tables))) if self._tables[place].columns == table.columns)
        latest = next(alike, None)
        if latest is not None and table.continues(self._tables[latest]):
            self._tables[latest] = table
            self._replaced += 1
        else:
            self._tables.append(table)


class PrintedSize(msgspec.Struct, frozen=True, kw_only=True):
    """A printed size in bytes, to the nearest whole number, and its rounding error."""

    bytes: int
    off_by: float


def parse_size(text: str) -> PrintedSize | None:
    """Return the size of a text that matches PATTERN; None for a size that is impossible."""
    if text == "0B":
        return PrintedSize(bytes=0, off_by=0.0)
    number, unit = re.split(" ", text)
    scale = 1024 ** _UNITS.index(unit)
    value = round(float(number) * scale)
    return PrintedSize(bytes=value, off_by=_HALF * scale if scale > 1 else 0.0) if value < MAX_COUNT else None

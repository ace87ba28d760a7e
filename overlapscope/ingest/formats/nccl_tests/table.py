"""Find the bandwidth tables of nccl-tests and rccl-tests in any text, line by line.

The tests print to the same terminal as NCCL's log and mpirun, and users add notes. A line belongs to a table when its
columns fit, and either a table's header stands above it or its algbw equals its size over its time.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.ingest.formats.nccl_tests.table_row import DTYPES, TableRow, Timing, agrees, read_row
from overlapscope.timeline.operations import bus_factor

MAX_LINE: Final = 4096
MAX_TOKENS: Final = 64
MAX_RANKS: Final = 1 << 20
_SLACK: Final = 1e-6
_ANSI: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
_PREFIX: Final = re.compile(
    r"\s*(?:\[\d{1,9}(?:,\d{1,9})?\](?:<std(?:out|err)>)?:|\d{1,9}:|\[\w[\w.-]{0,99}:\d{1,9}\]:?|\[rank\d{1,9}\]:"
    r"|\(\w{1,40} pid=\d{1,9}[^()]{0,80}\)|<std(?:out|err)>:)(?=\s|#|\d)"
)
"""Prefixes that mpirun, srun -l, torchrun and Ray put before each line."""
_LOG: Final = re.compile(
    r"[A-Za-z][\w.-]{0,99}:\d{1,9}:\d{1,9} (?:\[-?\d{1,9}\] )?(?:\d+\.\d+ \w+:\d+ )?NCCL (?:[A-Z]{4,5})"
)
_HEADER: Final = re.compile(r"\bsize\s+count\s+type\b.{0,200}?\b(time|cputime)\s+algbw\s+busbw\b")
_DEVICE: Final = re.compile(
    r"#\s*Rank\s+(\d{1,9})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+\s+on\s+\S+\s+device\s+\d+\s+\[[^\]]{1,40}\]\s*(.*)"
)
_SETUP: Final = re.compile(r"#\s*nThreads?:?\s+(\d{1,6})\s+nGpus:?\s+(\d{1,6})\b")
_PROGRAM: Final = re.compile(
    r"(?<![A-Za-z0-9])(all_reduce(?:_bias)?|all_gather|reduce_scatter|broadcast|reduce|alltoallv?|gather|scatter|sendrecv"
    r"|hypercube)_perf(?![A-Za-z0-9])"
)
_IN_NAME: Final = re.compile(
    r"(?<![a-z])(?:all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|send[_-]?recv|broadcast|reduce"
    r"|gather|scatter)(?![a-z])"
)
_GAP: Final = re.compile(r"\S\s{25,}\S")
_STAMP: Final = re.compile(r"\d{4}-\d{2}-\d{2}\s+\d{2}:\d{2}:\d{2}\s*$")


class BandwidthTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one run of one test program, with its operation and ranks."""

    rows: tuple[TableRow, ...]
    op: str | None
    """Operation; None where neither text nor file name states it, or where the figures contradict it."""
    ranks: int | None
    cpu_time: bool = False
    """Whether the time column holds host time instead of the operation's time."""


class BandwidthLines(msgspec.Struct):
    """Collects the lines of a text in order; `finish` returns the tables in it."""

    file_name: str = ""
    """States the operation of a table where the text does not."""
    tables: list[BandwidthTable] = []
    warnings: list[str] = []
    broken: int = 0
    """Lines of a table that cannot be read."""
    headers: int = 0
    devices: Counter[str] = msgspec.field(default_factory=Counter)
    """Names of the devices the tests ran on."""
    _rows: list[TableRow] = []
    _header: bool = False
    _width: int = 4
    _cpu_time: bool = False
    _sides: str = ""
    _halves: int = 2
    _named: set[str] = set()
    _started: str | None = None
    _groups: Counter[str] = msgspec.field(default_factory=Counter)
    _last_rank: int = -1
    _per_process: int = 1
    _pending: str = ""

    def take(self, line: str) -> bool:
        """Parse one line and return whether it is part of a test's output. Other lines change nothing."""
        text = _ANSI.sub("", line[:MAX_LINE])
        for _ in range(3):
            text = _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text
        logged = _LOG.search(text) if "NCCL" in text else None
        if logged:
            # The program prints a line in pieces; a message of NCCL may fall between two of them.
            return self._take_piece(text[: logged.start()], whole=False)
        if "#" in text or "_perf" in text or "size" in text:
            known = self._take_note(text)
            if known or text.lstrip().startswith("#"):
                return known
        return self._take_piece(text, whole=True)

    def finish(self) -> list[BandwidthTable]:
        """Return all tables in order; to be called once, after the last line."""
        self._end()
        return self.tables

    def _take_note(self, text: str) -> bool:
        setup = _SETUP.search(text) if "nThread" in text else None
        header = _HEADER.search(text) if "algbw" in text else None
        device = _DEVICE.search(text) if "Rank" in text else None
        program = _PROGRAM.findall(text)
        if "Collective test concluded" in text or "Avg bus bandwidth" in text or "Out of bounds values" in text:
            if "Avg" in text:
                self._end()
            return True
        if setup or "Collective test starting" in text:
            self._end(keep_program=setup is not None)
            self._per_process = max(1, int(setup[1]) * int(setup[2])) if setup else 1
            self._started = _named_operation(program[0]) if program else self._started
            return True
        if device:
            self._groups[device[2] or "0"] += 1
            self._last_rank = max(self._last_rank, int(device[1]))
            self.devices[device[3].strip()] += 1
            return True
        if header:
            self._read_header(text, header)
            return True
        self._named.update(op for each in program if (op := _named_operation(each)))
        if "out-of-place" in text or "in-place" in text:
            self._sides = text
            return True
        return "(elements)" in text or text.strip() == "#" or "Using devices" in text

    def _read_header(self, text: str, header: re.Match[str]) -> None:
        if self._rows:
            self._end()
        self._header = True
        self.headers += 1
        self._cpu_time = header[1] == "cputime"
        self._width = 8 if "i_min" in text else 4
        self._halves = text.count("algbw")

    def _take_piece(self, text: str, *, whole: bool) -> bool:
        joined = f"{self._pending} {text}" if self._pending else text
        tokens = joined.split(None, MAX_TOKENS)
        at = next((at for at in range(len(tokens) - 2) if _begins_row(tokens, at)), None)
        if at is None:
            self._pending = ""
            return False
        if not whole:
            self._pending = joined if len(joined) < MAX_LINE else ""
            return True
        continued, self._pending = bool(self._pending), ""
        tokens = tokens[at:]
        if _STAMP.search(joined):
            tokens = tokens[:-2]
        alone_in_place = "out-of-place" not in self._sides and "in-place" in self._sides and self._halves == 1
        alone_in_place |= self._halves == 2 and not continued and len(tokens) < 10 and bool(_GAP.search(text.strip()))
        row = read_row(tokens, width=self._width, only_in_place=alone_in_place)
        if row is None or not (self._header or _sure(row)):
            self.broken += self._header
            return self._header
        self._rows.append(row)
        return True

    def _end(self, *, keep_program: bool = False) -> None:
        """Close the open table, if any, and reset what the text stated about it."""
        if self._rows:
            self.tables.append(self._table())
            self._named = set()
        if self._rows or not keep_program:
            self._started = None
        self._rows, self._header, self._width, self._cpu_time, self._sides, self._halves = [], False, 4, False, "", 2
        self._groups, self._last_rank, self._per_process, self._pending = Counter(), -1, 1, ""

    def _table(self) -> BandwidthTable:
        """Return the rows with their operation and ranks, unless the figures contradict these.

        The tests print algbw and busbw, whose quotient is determined by operation and ranks. Where most lines
        contradict the stated operation and ranks, neither is returned.
        """
        rows, by_cpu = self._rows, self._cpu_time
        op = self._started or _the_one(
            self._named or {canonical_operation(each) for each in _IN_NAME.findall(self.file_name.lower())}
        )
        ranks = self._ranks() or _shares(rows)
        unequal = 0 if by_cpu else sum(agrees(row, timing) is False for row in rows for timing in row.timings)
        if unequal:
            self.warnings.append(f"algbw is not size / time in {unequal} figures")
        quotients = [each for row in rows for timing in row.timings if (each := _quotient(row, timing, by_cpu))]
        if ranks is None and op == "all_reduce":
            ranks = _ranks_of_all_reduce(quotients)
        if op is not None and ranks is not None and quotients:
            factor = bus_factor(op, ranks)
            bad = sum(not _holds(factor, each) for each in quotients)
            if bad:
                self.warnings.append(
                    f"busbw contradicts {op} on {ranks} ranks (algbw x {factor:g}) in {bad} of {len(quotients)} figures"
                )
            if 2 * bad > len(quotients):
                op = ranks = None
        return BandwidthTable(rows=tuple(rows), op=op, ranks=ranks, cpu_time=by_cpu)

    def _ranks(self) -> int | None:
        """Count the ranks of each parallel group in the list of devices; None when it is cut or groups differ.

        The tests reserve 2048 characters per process for its devices; further devices are not listed.
        """
        listed, sizes = self._groups.total(), set(self._groups.values())
        whole = listed == self._last_rank + 1 and listed % self._per_process == 0
        return sizes.pop() if len(sizes) == 1 and whole else None


def _begins_row(tokens: list[str], at: int) -> bool:
    return tokens[at + 2] in DTYPES and tokens[at].isdecimal() and tokens[at + 1].isdecimal()


def _sure(row: TableRow) -> bool:
    """Return whether the figures alone prove that this is a bandwidth row: every algbw equals size over time."""
    agreements = [agrees(row, timing) for timing in row.timings]
    return bool(agreements) and all(agreements)


def _named_operation(program: str) -> str | None:
    return canonical_operation(program.removesuffix("_bias"))


def _the_one(operations: Collection[str | None]) -> str | None:
    return next(iter(operations)) if len(operations) == 1 else None


def _quotient(row: TableRow, timing: Timing, cpu_time: bool) -> tuple[float, float] | None:
    """Return the smallest and the largest possible busbw / algbw; None where one of them is unknown."""
    algbw, busbw = timing.algbw_gbs, timing.busbw_gbs
    if algbw is None or busbw is None or not algbw.value:
        return None
    low, high = algbw.low, algbw.high
    if not cpu_time and agrees(row, timing) and timing.time_us is not None and timing.time_us.low:
        # Size over time is often more exact than the two decimals of algbw.
        low = max(low, row.size_bytes / timing.time_us.high / 1000)
        high = min(high, row.size_bytes / timing.time_us.low / 1000)
    return busbw.low / high, busbw.high / low if low else math.inf


def _holds(factor: float, quotient: tuple[float, float]) -> bool:
    return quotient[0] * (1 - _SLACK) <= factor <= quotient[1] * (1 + _SLACK)


def _shares(rows: Sequence[TableRow]) -> int | None:
    """Return into how many shares of `count` elements each buffer is divided, one per rank.

    None where the buffer is a single share, and where lines differ or do not state it.
    """
    shares = set()
    for row in rows:
        share = row.count * row.item_bytes if row.count and row.item_bytes else 0
        if row.size_bytes and share:
            shares.add(row.size_bytes // share if row.size_bytes % share == 0 else 0)
    return shares.pop() if len(shares) == 1 and shares.isdisjoint((0, 1)) else None


def _ranks_of_all_reduce(quotients: Sequence[tuple[float, float]]) -> int | None:
    """Solve 2 (n - 1) / n for n; None unless exactly one n fits all quotients."""
    if not quotients:
        return None
    low = max(each[0] for each in quotients)
    high = min(each[1] for each in quotients)
    if not 0 < low <= high < 2:
        return None
    first = max(2, math.floor(2 / (2 - low)) - 1)
    fitting = [n for n in range(first, first + 4) if all(_holds(bus_factor("all_reduce", n), q) for q in quotients)]
    return fitting[0] if len(fitting) == 1 and fitting[0] <= MAX_RANKS else None

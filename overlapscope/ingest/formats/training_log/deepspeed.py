"""DeepSpeed's communication logger in a training log: each call (`verbose`), and the summary of `log_summary()`.

Written by deepspeed/utils/comms_logging.py since 0.7:

    [2022-06-26 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: all_gather_base | time (ms):
    0.11 | msg size: 6.0 MB | algbw (Gbps): 954.41  | busbw (Gbps): 894.76

with ` | [Caller Func: allgather_fn]` behind the operation under `debug`, without `rank=0 |` since 2023. The logger
waits for the end of every call, so the times are those of calls that overlap with nothing.

DeepSpeed (calc_bw_log of deepspeed/utils/comms_logging.py) prints Gbit/s, and an "algbw" with a factor of its own.
These figures are converted to those that nccl-tests would print for the same call:

| operation | size it logs | algbw it prints, times time over size |
|---|---|---|
| all_reduce | the buffer | 2 |
| all_gather | one rank's part | n |
| reduce_scatter | the whole buffer | n; 1 since 2026 |
| all_to_all and all others | the buffer | 1 |

where n is the size of the world, whatever the group. Its busbw is that algbw times (n - 1) / n for these four. The
first version of 2022 used 2 throughout; what it logged of all-gathers and reduce-scatters is not known. The log does
not state the version, but the printed figures determine the factor and n, within their rounding.
"""

import math
import re
from array import array
from typing import Final

import msgspec
import numpy as np

from overlapscope.ingest.formats.training_log.deepspeed_summary import HEADING, PATTERN, SummaryLines, parse_size
from overlapscope.ingest.formats.training_log.line_format import FoundLines, LogFormat
from overlapscope.timeline.columns import NONE, Codes, Floats, Ints, make
from overlapscope.timeline.facts import Facts, Measurements, join_facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import MAX_COUNT
from overlapscope.timeline.run import MAX_RANKS

MAX_CALLS: Final = 2_000_000
"""A long run may print millions of lines, one per call; calls beyond this number are counted, not kept."""
_NUMBER: Final = r"-?(?:[0-9]{1,15}(?:\.[0-9]{1,4})?(?:[eE][+-]?[0-9]{1,3})?|nan|inf)"
_CALL: Final = re.compile(
    r"comm op: (?P<op>[^|\s]{1,100}) \| (?:\[Caller Func: (?P<caller>[^\]|]{0,200})\] \| )?"
    rf"time \(ms\): (?P<time>{_NUMBER}) \| msg size: (?P<size>{PATTERN}) \| "
    rf"algbw \(Gbps\): (?P<algbw>{_NUMBER}) {{1,3}}\| busbw \(Gbps\): (?P<busbw>{_NUMBER})(?![0-9.])"
)
_RANK: Final = re.compile(r"(?:\[Rank |\brank=)([0-9]{1,7})(?![0-9])")
_OPS: Final = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "inference_all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_object_list": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "log_summary_barrier": "barrier",
}
_SIZED: Final = frozenset(_OPS.values()) - {"gather", "scatter"}
"""Operations whose whole size can be computed. For a gather DeepSpeed logs one rank's part, whatever the group."""
_FEW: Final = 16
_HALF_MS: Final = 0.005
_CALL_BYTES: Final = re.compile(
    rb"comm op: [^|\s]{1,100} \| (?:\[Caller Func: [^\]|\n]{0,200}\] \| )?time \(ms\): [0-9.]{1,20} \| msg size: [0-9]"
)
_TABLE_BYTES: Final = re.compile(rb"Comm\. Op +Message Size +Count +Total ")


class CommLines:
    """Collects the lines of DeepSpeed's communication logger."""

    def __init__(self) -> None:
        self._summary = SummaryLines()
        self._ops = NameTable()
        self._convention = BandwidthFactors()
        self._records: dict[tuple[str, int], _CallTimes] = {}
        self._op, self._record = array("i"), array("i")
        self._rank, self._size = array("q"), array("q")
        self._time_ms, self._algbw, self._busbw = array("d"), array("d"), array("d")
        self._rounded = False
        self._lines = self._dropped = self._left_out = 0

    def wants(self, line: bytes) -> bool:
        """Return whether the line may be of the logger."""
        return self._summary.open or b"comm op: " in line or HEADING in line

    def take(self, line: str) -> None:
        """Parse a wanted line. Several processes may have written on one line."""
        before = 0
        for found in _CALL.finditer(line):
            self._take_call(found, line[before : found.start()])
            before = found.end()
        self._dropped += line.count("comm op: ", before)
        if not before:
            self._summary.take(line)

    def _take_call(self, found: re.Match[str], before: str) -> None:
        self._lines += 1
        if len(self._size) >= MAX_CALLS:
            self._left_out += 1
            return
        size = parse_size(found["size"])
        time_ms = float(found["time"])
        algbw, busbw = (_bandwidth(float(found[name])) for name in ("algbw", "busbw"))
        if size is None or not math.isfinite(time_ms) or time_ms < 0:
            self._dropped += 1
            return
        ranks = _RANK.findall(before)
        rank = int(ranks[-1]) if ranks and int(ranks[-1]) <= MAX_RANKS else NONE
        op = _OPS.get(found["op"], found["op"])
        self._convention.add(op, size.bytes, size.off_by, time_ms, algbw, busbw)
        self._rounded = self._rounded or size.off_by > 0
        key = (f"{found['op']} {found['caller'] or ''}", rank)
        record = self._records.setdefault(key, _CallTimes(len(self._records)))
        record.add(time_ms)
        self._record.append(record.number)
        self._op.append(self._ops.code(op))
        self._rank.append(rank)
        self._size.append(size.bytes)
        self._time_ms.append(time_ms)
        self._algbw.append(algbw)
        self._busbw.append(busbw)

    def found(self, source: str) -> FoundLines:
        """Return the calls as measurements and the summaries as figures."""
        calls, warnings = self._measurements(source)
        figures, notes = self._summary.figures(source)
        if self._left_out:
            warnings.append(f"{self._left_out} further calls were left out")
        return FoundLines(
            facts=join_facts([calls, figures]),
            lines=self._lines + self._summary.lines,
            dropped=self._dropped + self._summary.dropped,
            warnings=(*warnings, *notes),
        )

    def _measurements(self, source: str) -> tuple[Facts, list[str]]:
        rows = len(self._size)
        if not rows:
            return Facts(), []
        ops = self._ops.to_list()
        op = np.array(self._op, np.int32)
        logged = np.array(self._size, np.int64)
        growing = np.array([record.growing for record in self._records.values()], np.bool_)
        summed_up = growing[np.array(self._record, np.int64)]
        time_ms = np.where(summed_up, np.nan, np.array(self._time_ms))
        size, algbw, unknown = self._corrected(ops, op, logged)
        printed = np.where(np.array(self._algbw) > 0, np.array(self._algbw), np.nan)
        algbw = np.where(summed_up, np.nan, algbw)
        spread = np.where(op == np.int32(ops.index("all_reduce") if "all_reduce" in ops else -1), 2.0, 1.0)
        names = NameTable(ops)
        table = make(
            Measurements,
            rows,
            source=names.code(source),
            rank=np.array(self._rank, np.int64),
            op=op,
            bytes=size,
            ranks=self._convention.ranks() or NONE,
            time_ns=np.where(time_ms > _HALF_MS, time_ms, np.nan) * 1e6,
            algbw_gbs=algbw,
            busbw_gbs=algbw * spread * np.array(self._busbw) / printed,
        )
        warnings = self._warnings(ops, int(summed_up.sum()), unknown)
        return Facts(names=tuple(names.to_list()), measurements=table), warnings

    def _corrected(self, ops: list[str], op: Codes, logged: Ints) -> tuple[Ints, Floats, list[str]]:
        """Return bytes (int64) and algbw in GB/s as nccl-tests counts them, and the operations for which they are
        unknown.
        """
        size = np.full(logged.size, NONE, np.int64)
        algbw = np.full(logged.size, np.nan)
        printed = np.array(self._algbw)
        unknown = []
        for code, name in enumerate(ops):
            known = (op == code) & ((logged > 0) | (name == "barrier"))  # objects are logged as 0 bytes
            parts, factor = self._convention.parts_and_factor(name) if name in _SIZED else (None, None)
            if parts is not None:
                known &= logged < MAX_COUNT // parts
                size[known] = logged[known] * parts
                if factor is not None:
                    algbw[known] = printed[known] / 8 / factor * parts
            if name != "barrier" and (parts is None or factor is None):
                unknown.append(name)
        return size, np.where(algbw > 0, algbw, np.nan), unknown

    def _warnings(self, ops: list[str], summed_up: int, unknown: list[str]) -> list[str]:
        warnings = []
        if self._rounded:
            warnings.append("DeepSpeed rounds sizes to hundredths of their unit: bytes may be off by half a percent")
        ranks = self._convention.ranks()
        if ranks is not None and {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"} & set(ops):
            warnings.append(
                f"DeepSpeed assumes {ranks} ranks in every group: in smaller groups the true busbw, and the true size "
                "of an all-gather, are smaller than reported"
            )
        if summed_up:
            warnings.append(
                f"the times of {summed_up} calls never fall, because this DeepSpeed adds up the times of calls: "
                "left out with their bandwidths"
            )
        if unknown:
            warnings.append(
                f"sizes or bandwidths of {', '.join(sorted(unknown)[:8])} cannot be computed from the printed figures"
            )
        return warnings


def in_text(text: bytes) -> bool:
    """Return whether a part of a log holds a call or the heading of a summary."""
    return (b"comm op: " in text and _CALL_BYTES.search(text) is not None) or (
        HEADING in text and _TABLE_BYTES.search(text) is not None
    )


LINES = LogFormat(name="deepspeed_comms", in_text=in_text, lines=CommLines)
_HALF: Final = 0.005
"""Largest rounding error: every figure is rounded to two decimals."""
_SPREAD: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Operations whose busbw depends on the number of ranks."""


def _bandwidth(printed: float) -> float:
    return printed if math.isfinite(printed) and printed >= 0 else math.nan


class _CallTimes:
    """Times of one kind of call, to detect whether DeepSpeed sums them up.

    Where its timers are not reset between calls (deepspeed/utils/timer.py without the `clear` in `_get_elapsed_msec`),
    each printed time is the sum of all previous ones.
    """

    __slots__ = ("_calls", "_first_ms", "_last_ms", "_rises", "_sorted", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._calls = self._rises = 0
        self._first_ms = self._last_ms = 0.0
        self._sorted = True

    def add(self, time_ms: float) -> None:
        """Add the time of the next call."""
        if self._calls:
            self._sorted = self._sorted and time_ms >= self._last_ms
            self._rises += time_ms > self._last_ms
        else:
            self._first_ms = time_ms
        self._calls += 1
        self._last_ms = time_ms

    @property
    def growing(self) -> bool:
        """Return whether the times of many calls never fall; those of independent calls would."""
        return self._sorted and self._rises >= _FEW and self._last_ms > 2 * self._first_ms


class FigureRange(msgspec.Struct):
    """Range of a number that several rounded figures depend on."""

    low: float = 0.0
    high: float = math.inf

    def narrow(self, low: float, high: float) -> None:
        """Intersect the range with the range that one more figure allows."""
        self.low, self.high = max(self.low, low), min(self.high, high)

    def whole(self, *likely: int) -> int | None:
        """Return the only whole number >= 1 in the range; of several, the only likely one; otherwise None."""
        first = max(math.ceil(self.low), 1)
        if not math.isfinite(self.high) or first > self.high:
            return None
        last = math.floor(self.high)
        inside = [number for number in {*likely, first} if first <= number <= last] if last > first else [first]
        chosen = inside if last == first else [number for number in inside if number in likely]
        return chosen[0] if len(chosen) == 1 else None


class BandwidthFactors(msgspec.Struct):
    """Derives the factors of DeepSpeed's bandwidths from the printed figures of all calls."""

    world: FigureRange = msgspec.field(default_factory=FigureRange)
    factor: dict[str, FigureRange] = {}

    def add(self, op: str, size_bytes: int, off_by: float, time_ms: float, algbw: float, busbw: float) -> None:
        """Add the figures of one call; bandwidths in Gbit/s as printed."""
        if not (algbw > _HALF and time_ms > _HALF and size_bytes > 0):
            return
        size_gbit_ms = 8 / 1e6
        low = (algbw - _HALF) * (time_ms - _HALF) / ((size_bytes + off_by) * size_gbit_ms)
        high = (algbw + _HALF) * (time_ms + _HALF) / ((size_bytes - off_by) * size_gbit_ms)
        self.factor.setdefault(op, FigureRange()).narrow(low, high)
        if op in _SPREAD and 0 <= busbw < algbw + _HALF:
            least = max(busbw - _HALF, 0.0) / (algbw + _HALF)
            most = (busbw + _HALF) / (algbw - _HALF)
            self.world.narrow(1 / (1 - least), 1 / (1 - most) if most < 1 else math.inf)

    def ranks(self) -> int | None:
        """Return the size of the world; None where the figures allow several sizes or none."""
        ranks = self.world.whole()
        return ranks if ranks is not None and ranks <= MAX_RANKS else None

    def parts_and_factor(self, op: str) -> tuple[int | None, int | None]:
        """Return (whole size / logged size, printed algbw * time / logged size), each None where unknown."""
        ranks = self.ranks()
        found = self.factor.get(op)
        factor = found.whole(*{1, 2, ranks or 1}) if found is not None else None
        if op == "all_gather":
            return (ranks, factor) if factor is not None and factor == ranks else (None, None)
        if op == "reduce_scatter" and factor not in (None, 1, ranks):
            return None, None
        return 1, factor

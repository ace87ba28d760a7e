"""Parse one line of a bandwidth table of nccl-tests or rccl-tests: sizes, types, times, with their rounding."""

import math
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from overlapscope.timeline.operations import ITEM_BYTES, MAX_COUNT

DTYPES: Final = {
    "int8": "int8",
    "char": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
"""The tests' names (`test_typenames`) to torch's. The fp8 names of rccl-tests may mean either encoding, so they are
kept.
"""
REDUCTIONS: Final = frozenset({"sum", "prod", "max", "min", "avg", "mulsum"})
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.([0-9]{1,20}))?(?:e([+-][0-9]{1,3}))?", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class PrintedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A printed number and half a unit of its last digit: the exact value lies in `value` ± `half`."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """Smallest possible value."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """Largest possible value."""
        return self.value + self.half


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The out-of-place or the in-place half of a line; None where no number is printed."""

    time_us: PrintedNumber | None
    algbw_gbs: PrintedNumber | None
    busbw_gbs: PrintedNumber | None
    wrong: int | None = None
    checked: bool | None = None
    """Whether results were compared (otherwise `N/A` is printed); None when the column is missing."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a collective of one size."""

    size_bytes: int
    count: int | None
    dtype: str | None
    redop: str | None = None
    root: int | None = None
    out_of_place: Timing | None = None
    in_place: Timing | None = None
    algorithm: str | None = None
    protocol: str | None = None

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The halves that are present."""
        return tuple(each for each in (self.out_of_place, self.in_place) if each is not None)

    @property
    def item_bytes(self) -> int | None:
        """Bytes of one element; None for an unknown type."""
        dtype = self.dtype or ""
        return 1 if dtype.startswith("fp8_") else ITEM_BYTES.get(dtype)


def figure(text: str) -> PrintedNumber | None:
    """Parse a printed number with its rounding; None for `N/A`, `nan` and the like."""
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    value = float(text)
    if not math.isfinite(value) or value >= MAX_COUNT:
        return None
    return PrintedNumber(value=value, half=0.5 * 10.0 ** (int(found[2] or 0) - len(found[1] or "")))


def whole(text: str) -> int | None:
    """Parse a whole number; None for anything else, and for counts that are impossible."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    return value if value is not None and abs(value) < MAX_COUNT else None


def agrees(row: TableRow, timing: Timing) -> bool | None:
    """Return whether algbw equals size over time within the printed precision; None where one is missing."""
    if timing.time_us is None or timing.algbw_gbs is None or not timing.time_us.high:
        return None
    least = row.size_bytes / timing.time_us.high / 1000
    most = row.size_bytes / timing.time_us.low / 1000 if timing.time_us.low else math.inf
    slack = 1e-6 * timing.algbw_gbs.high
    return least <= timing.algbw_gbs.high + slack and most >= timing.algbw_gbs.low - slack


def read_row(tokens: Sequence[str], *, width: int = 4, only_in_place: bool = False) -> TableRow | None:
    """Parse the tokens of a line, beginning with its size; None when it is not a row of such a table.

    Each half has `width` columns: 4, or 8 with per-iteration times. The columns of reduction and root may be missing,
    as may the first half or the second. rccl-tests appends algorithm, protocol and channels on request.
    """
    size, count, dtype = whole(tokens[0]), whole(tokens[1]), DTYPES.get(tokens[2])
    if size is None or count is None or dtype is None or min(size, count) < 0:
        return None
    rest = list(tokens[3:])
    redop = rest.pop(0) if rest and (rest[0] in REDUCTIONS or rest[0] == "none") else None
    for has_root, extra in ((1, 0), (0, 0), (1, 3), (0, 3)):
        root = whole(rest[0]) if has_root and rest else None
        tail = rest[has_root : len(rest) - extra]
        if (has_root and root is None) or len(tail) not in (width, 2 * width):
            continue
        halves = [_timing(tail[start : start + 4]) for start in range(0, len(tail), width)]
        if None in halves:
            continue
        named = [None if each == "N/A" else each for each in rest[len(rest) - extra :]] if extra else [None, None]
        if only_in_place and len(halves) == 1:
            halves.insert(0, None)
        return TableRow(
            size_bytes=size,
            count=count,
            dtype=dtype,
            redop=redop,
            root=root,
            out_of_place=halves[0],
            in_place=halves[1] if len(halves) == 2 else None,
            algorithm=named[0],
            protocol=named[1],
        )
    return None


_NO_FIGURES: Final = frozenset({"N/A", "nan", "-nan", "inf"})


def _timing(tokens: Sequence[str]) -> Timing | None:
    """Parse time, algbw, busbw and the check; None when a token is anything else."""
    if any(figure(token) is None and token not in _NO_FIGURES for token in tokens):
        return None
    time_us, algbw, busbw, check = map(figure, tokens)
    # Before 2.11 the column held the largest deviation, `2e-07` or `0e+00`; since then it counts wrong elements.
    deviation = re.search(r"e(?:-|\+0[0-4])", tokens[3]) is not None
    return Timing(
        time_us=time_us,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
        wrong=int(check.value) if check and not deviation and check.value == int(check.value) else None,
        checked=tokens[3] != "N/A",
    )

"""DeepSpeed's own way of writing sizes: `0B`, `128.0 B`, `678.86 MB`, in powers of 1024, to two decimals."""

import re
from typing import Final

import msgspec

from overlapscope.timeline.volume import MAX_COUNT

PATTERN: Final = r"0B|[0-9]{1,4}(?:\.[0-9]{1,2})? [KMGTPEZY]?B"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
_HALF: Final = 0.005


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A size as it is written: the nearest whole number of bytes, and how far the true one may be off."""

    bytes: int
    off_by: float


def parse_size(text: str) -> Size | None:
    """Give the size that a text matching PATTERN stands for; None for one that nothing has."""
    if text == "0B":
        return Size(bytes=0, off_by=0.0)
    number, unit = re.split(" ", text)
    scale = 1024 ** _UNITS.index(unit)
    value = round(float(number) * scale)
    return Size(bytes=value, off_by=_HALF * scale if scale > 1 else 0.0) if value < MAX_COUNT else None

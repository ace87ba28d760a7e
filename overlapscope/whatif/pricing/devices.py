"""Devices that a dry run can be priced for: peak rates and memory bandwidth, as data sheets state them."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pkgutil import get_data
from typing import Final

import msgspec

from overlapscope.errors import UsageError

ATTENTION: Final = (0.35, 0.30)
"""Share of the 16-bit peak that attention reaches where a device does not say: FlashAttention-2 reaches 35 % on an H100
(Shah et al., arXiv 2407.08608); backward less than forward (Dao, arXiv 2307.08691)."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device."""

    key: str
    name: str
    peak_tflops: Mapping[str, float]
    """By dtype, dense, in 1e12 floating-point operations a second; without a dtype it has no such units."""
    memory_gbs: float
    memory_gb: float
    power_w: float
    attention: tuple[float, float] = ATTENTION
    """Share of the 16-bit peak that attention reaches: forward, backward."""
    source: str
    host_computes: bool = False
    """Whether the host does the work itself: a CPU."""

    def peak_flops_per_ns(self, dtype: str) -> float:
        """Return the peak rate of a dtype in operations a nanosecond. Raises UsageError without one."""
        try:
            return self.peak_tflops[dtype] * 1e3
        except KeyError:
            known = ", ".join(self.peak_tflops)
            raise UsageError(
                f"{self.key} has no rate for {dtype} in its data sheet, only for {known}: choose another of them"
            ) from None


@cache
def devices() -> Mapping[str, Device]:
    """Return the known devices by key."""
    document = tomllib.loads((get_data(__package__, "devices.toml") or b"").decode())
    return {key: msgspec.convert({"key": key, **entry}, Device) for key, entry in document.items()}


def device(key: str) -> Device:
    """Return a device. Raises UsageError for an unknown key."""
    known = devices()
    if key not in known:
        near = get_close_matches(key, known, 1)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise UsageError(f"--device {key}: not in the table; known are {', '.join(known)}{hint}")
    return known[key]

"""Telemetry for display: power, clocks, bandwidths and pauses of chosen ranks, on the common clock.

Counters become rates between two readings; where a counter decreases it was reset, and that interval is left out. A
reading that was not recorded has no series.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.timeline.columns import Floats
from overlapscope.timeline.readings import reading_series
from overlapscope.timeline.run import RankTimeline, Run

GB: Final = 1e9
KIB: Final = 1024
NS: Final = 1e9


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of reading: the names that belong to it, and the factor that converts them to its unit."""

    name: str
    unit: str
    pattern: re.Pattern[str]
    """Its groups capture the source: device, port, direction."""
    kind: Literal["level", "counter"] = "level"
    factor: float = 1.0


class Readings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One measure of one source of one rank, in order of time."""

    rank: int
    measure: Measure
    source: str
    """`gpu0`, `mlx5_0.1 out`, or empty for readings of the host or process."""
    time_ns: Floats
    """On the common clock, in nanoseconds after its reference."""
    value: Floats


def _measure(name: str, unit: str, pattern: str, *, counter: bool = False, factor: float = 1.0) -> Measure:
    return Measure(
        name=name, unit=unit, pattern=re.compile(pattern), kind="counter" if counter else "level", factor=factor
    )


MEASURES: Final = (
    _measure("power", "W", r"(gpu\d+)\.power_w"),
    _measure("clock", "MHz", r"(gpu\d+)\.sm_clock_mhz"),
    _measure("utilisation", "%", r"(gpu\d+)\.utilization_percent"),
    _measure("temperature", "°C", r"(gpu\d+)\.temperature_c"),
    _measure("memory used", "GiB", r"(gpu\d+)\.memory_used_bytes", factor=1 / (1 << 30)),
    _measure("NVLink", "GB/s", r"(gpu\d+)\.nvlink_(tx|rx)_kib", counter=True, factor=KIB / GB),
    _measure("PCIe", "GB/s", r"(gpu\d+)\.pcie_(tx|rx)_kib_s", factor=KIB / GB),
    _measure("network", "GB/s", r"(.+)\.(xmit|rcv)_bytes", counter=True, factor=1 / GB),
    _measure("host load", "processes", r"loadavg_1m"),
    _measure("between steps", "ms", r"between_steps_ns", factor=1e-6),
    _measure("garbage collection", "ms", r"gc_pause_ns", factor=1e-6),
    _measure("CPU throttled", "ms a step", r"cpu_throttled_us", factor=1e-3),
)
"""All measures, in the order in which they are displayed."""
_DIRECTIONS: Final = {"tx": "out", "xmit": "out", "rx": "in", "rcv": "in"}


def readings(run: Run, clocks: Clocks, ranks: Sequence[int]) -> list[Readings]:
    """Return all readings of the ranks, by measure; readings without values are left out."""
    return [
        found
        for measure in MEASURES
        for rank in ranks
        for found in _of(run.ranks[rank], rank, measure, clocks)
        if found.value.size
    ]


def _of(timeline: RankTimeline, rank: int, measure: Measure, clocks: Clocks) -> Iterator[Readings]:
    for name in timeline.names:
        found = measure.pattern.fullmatch(name)
        if found is None:
            continue
        times, value = reading_series(timeline, name)
        at, value = clocks.aligned(rank, times), value * measure.factor
        if measure.kind == "counter":
            at, value = _rates(at, value)
        source = " ".join(_DIRECTIONS.get(each, each) for each in found.groups())
        yield Readings(rank=rank, measure=measure, source=source, time_ns=at, value=value)


def _rates(time_ns: Floats, value: Floats) -> tuple[Floats, Floats]:
    """Return the increase of a counter per second, at the end of each interval."""
    lasted, rose = np.diff(time_ns), np.diff(value)
    good = (lasted > 0) & (rose >= 0)
    return time_ns[1:][good], rose[good] / lasted[good] * NS


def thinned(found: Readings, most: int) -> tuple[Floats, Floats]:
    """Return at most `most` points, which keep the minimum and the maximum of every part of the series."""
    count = found.value.size
    if count <= most:
        return found.time_ns, found.value
    begins = np.linspace(0, count, most // 2, endpoint=False).astype(np.int64)
    ends = np.append(begins[1:], count) - 1
    times = np.stack((found.time_ns[begins], found.time_ns[ends]), axis=1).ravel()
    values = np.stack(
        (np.minimum.reduceat(found.value, begins), np.maximum.reduceat(found.value, begins)), axis=1
    ).ravel()
    return times, values

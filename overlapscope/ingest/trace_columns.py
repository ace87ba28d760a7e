"""What is kept of one recorded trace, whatever wrote it: device work, the calls that enqueued it, host ranges."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlapscope.ingest.collective_args import CollectiveArgs
from overlapscope.ingest.ranges import Ranges
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.names import Codes, NameTable

KERNEL, MEMCPY, MEMSET = range(3)
"""What a device event is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """What a communication library's own range around a call tells of it; None where it does not."""

    op: str | None = None
    group: str | None = None
    bytes: int | None = None
    """The whole buffer, as DESIGN counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """All that is kept of one trace, or of one rank in it. Times are nanoseconds in the trace's own base."""

    lanes: list[tuple[str, str]]
    """(process, thread) of each lane code."""
    names: NameTable
    device_lane: Ints
    device_sort: Any
    """KERNEL, MEMCPY or MEMSET."""
    device_name: Codes
    device_start_ns: Ints
    device_end_ns: Ints
    device_correlation: Ints
    device_blocks: Ints
    """Thread blocks of each kernel's grid."""
    device_collectives: Mapping[int, CollectiveArgs]
    """Collective arguments by row of the device columns, where there are any."""
    launch_lane: Ints
    launch_name: Codes
    launch_start_ns: Ints
    launch_end_ns: Ints
    launch_correlation: Ints
    host: Ranges
    host_args: Mapping[int, CollectiveArgs]
    """Arguments of host ranges whose name speaks of communication, by row."""
    api_calls: Mapping[int, ApiCall] = field(default_factory=dict)
    """What the host ranges of a communication library itself tell, by row."""
    device_notes: Ranges
    window: tuple[int, int] | None
    """When the profiler was on, where the trace says so."""
    events: int
    repaired: int
    dropped: int
    unknown: Counter[str]
    """Timed events of categories that are not read."""

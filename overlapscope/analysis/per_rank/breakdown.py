"""Break down any window of a rank into overlapped, exposed, compute, copy and idle time (docs/definitions.md).

The parts add up to the window exactly. A window takes O(log n) once the intervals are summed.
"""

from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from overlapscope.analysis.common.cause_table import CAUSES, IDLE_CAUSES
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, Ints, Spans
from overlapscope.timeline.intervals import Activity, BusyTime, Intervals, WindowSets, union
from overlapscope.timeline.rows import Column


class Breakdown(msgspec.Struct, kw_only=True, frozen=True):
    """One window's time in nanoseconds, and its ratios; all None where there is no window.

    ``overlapped + exposed_comm + compute_only + copy_only + idle == window`` holds exactly. A ratio is None where its
    denominator is 0: no communication is "n/a", not 0 %.
    """

    window_ns: int | None = None
    comm_ns: int | None = None
    compute_ns: int | None = None
    copy_ns: int | None = None
    overlapped_ns: int | None = None
    exposed_comm_ns: int | None = None
    compute_only_ns: int | None = None
    copy_only_ns: int | None = None
    idle_ns: int | None = None
    overlap_efficiency: float | None = None
    """overlapped / comm"""
    exposed_fraction: float | None = None
    """exposed_comm / window"""
    comm_comp_ratio: float | None = None
    """comm / compute"""
    overlap_potential: float | None = None
    """min(comm, compute) / (comm + compute): the share of a serial step that perfect overlap would save"""
    hidden_transfer_ns: int | None = None
    hidden_wait_ns: int | None = None
    exposed_wait_ns: int | None = None
    """exposed waiting for a late rank; None where the wait time of an exposed call is not known"""
    comm_overhead_ns: int | None = None
    interference_ns: int | None = None
    """Time by which communication beside it makes compute longer; None where that cannot be estimated."""
    interference_low_ns: int | None = None
    """Ends of its interval of 90 %."""
    interference_high_ns: int | None = None
    causes: Annotated[dict[str, int], Meta(extra_json_schema={"propertyNames": {"enum": list(CAUSES)}})] = {}
    """`exposed_comm_ns` by cause: they add up to it."""
    idle_causes: Annotated[dict[str, int], Meta(extra_json_schema={"propertyNames": {"enum": list(IDLE_CAUSES)}})] = {}
    """`idle_ns` by cause: they add up to it; empty in documents of version 0.1."""


class Coverage:
    """The time of one rank covered by each kind of span (communication, compute, copy), as unions of intervals.

    `first_ns` is when the first span of any kind began; the largest int64 without spans. `before_recorded` is when the
    device worked off what had been launched before the recording, once it was asked for while the spans were in memory.
    """

    __slots__ = ("_sums", "before_recorded", "comm", "compute", "copy", "first_ns")

    def __init__(self, comm: Intervals, compute: Intervals, copy: Intervals, first_ns: int) -> None:
        self.comm, self.compute, self.copy, self.first_ns = comm, compute, copy, first_ns
        self._sums: tuple[BusyTime, ...] = ()
        self.before_recorded: Activity | None = None

    @classmethod
    def of(cls, spans: Spans) -> Self:
        """Build from a rank's spans."""
        return cls.of_times(spans.kind, spans.start_ns, spans.end_ns)

    @classmethod
    def of_times(cls, kinds: Column, start_ns: Ints, end_ns: Ints) -> Self:
        """Build from the kinds of spans and when they begin and end."""

        def cover(kind: int) -> Intervals:
            chosen = kinds == kind
            return union((start_ns[chosen], end_ns[chosen]))

        return cls(cover(COMM), cover(COMPUTE), cover(COPY), int(start_ns.min(initial=np.iinfo(np.int64).max)))

    def breakdown(self, *windows: tuple[int, int]) -> Breakdown:
        """Return the breakdown of a window [start, end), or the sum over several disjoint windows."""
        return self.breakdowns(WindowSets.of([windows]))[0]

    def breakdowns(self, sets: WindowSets) -> list[Breakdown]:
        """Return the breakdown of each of several sets of windows."""
        if not self._sums:
            self._sums = self._busy()
        columns = [sets.lengths, *(sets.within(each) for each in self._sums)]
        return [_of_sums(*sums) for sums in zip(*columns, strict=True)]

    def _busy(self) -> tuple[BusyTime, ...]:
        both = union(self.comm, self.compute)
        kinds = (self.comm, self.compute, self.copy, both, union(both, self.copy))
        return tuple(BusyTime(each) for each in kinds)


def _of_sums(window: int, comm: int, compute: int, copy: int, both: int, everything: int) -> Breakdown:
    overlapped = comm + compute - both
    return Breakdown(
        window_ns=window,
        comm_ns=comm,
        compute_ns=compute,
        copy_ns=copy,
        overlapped_ns=overlapped,
        exposed_comm_ns=comm - overlapped,
        compute_only_ns=compute - overlapped,
        copy_only_ns=everything - both,
        idle_ns=window - everything,
        overlap_efficiency=_ratio(overlapped, comm),
        exposed_fraction=_ratio(comm - overlapped, window),
        comm_comp_ratio=_ratio(comm, compute),
        overlap_potential=_ratio(min(comm, compute), comm + compute),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

"""Records of a running step: small mutable structs, turned into columns later.

Their marks are resolved to times in batches: CUDA events are a limited resource, and a long run would use them all up.
"""

from collections import deque
from typing import Any, Final

import msgspec

from overlapscope.capture.timestamps import Clock

COMM_REGION: Final = "comm:"
"""Prefix of the name of a region that communicates."""
BATCH_STEPS = 16
KEPT_STEPS = 4
"""The latest steps are not resolved yet: the device may still work on them."""


class CollectiveCall(msgspec.Struct):
    """One call of a collective, from the time its data are ready to its completion."""

    op: str
    group: str
    group_size: int
    dtype: str | None
    elements: int | None
    entered_ns: int
    """Host time of the call, on the monotonic clock."""
    ready: Any
    """Mark before the call."""
    done: Any = None
    """Mark at its completion."""
    module: str | None = None
    returned_ns: int | None = None
    """Host time at which the call returned, where the training thread itself made it."""
    seq: int | None = None
    """Sequence number of the call in its group, as the backend counts."""


class MarkedRange(msgspec.Struct):
    """A named range between two marks: a phase, a wait, a region."""

    name: str
    begin: Any
    begin_ns: int
    """Host time on the monotonic clock."""
    end: Any = None


class StepRecord(msgspec.Struct):
    """What was recorded of one step."""

    number: int
    begin_ns: int
    """Host time on the monotonic clock."""
    thread: int
    """The thread that trains."""
    observed: bool
    """False for a step that was not captured, to measure the cost of capture."""
    end_ns: int = 0
    cut: bool = False
    """Whether the step raised, or something in it could not be recorded."""
    phases: list[MarkedRange] = []
    waits: list[MarkedRange] = []
    regions: list[MarkedRange] = []
    calls: list[CollectiveCall] = []
    gradients: list[tuple[int, int]] = []
    """(index of the parameter, monotonic time at which its gradient was ready)."""
    readings: list[tuple[str, int, float]] = []
    """(name, monotonic time, value)."""


class MarkResolver:
    """Resolves the marks of observed steps, BATCH_STEPS at a time, on the training thread between steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        """Add a step that has ended; resolve the older ones when enough are waiting."""
        self._waiting.append(record)
        if len(self._waiting) >= BATCH_STEPS + KEPT_STEPS:
            while len(self._waiting) > KEPT_STEPS:
                self._resolve(self._waiting.popleft())

    def _resolve(self, record: StepRecord) -> None:
        for ranges in (record.phases, record.waits, record.regions):
            for each in ranges:
                each.begin, each.end = self._clock.resolve(each.begin), self._clock.resolve(each.end)
        for call in record.calls:
            call.ready, call.done = self._clock.resolve(call.ready), self._clock.resolve(call.done)

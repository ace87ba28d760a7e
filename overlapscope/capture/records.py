"""What is noted while a step runs: small mutable records, turned into columns later."""

from collections import deque
from typing import Any, Final

import msgspec

from overlapscope.capture.timestamps import Points

COMM_REGION: Final = "comm:"
"""Begins the name of a region that communicates."""
BATCH_STEPS = 16
KEPT_STEPS = 4
"""The latest steps are left: the device may still work on them."""


class Call(msgspec.Struct):
    """One collective, from its data being ready to its being done."""

    op: str
    group: str
    group_size: int
    dtype: str | None
    elements: int | None
    entered_ns: int
    """Host time of the call, monotonic."""
    ready: Any
    """Mark before the call."""
    done: Any = None
    """Mark at its completion."""
    module: str | None = None
    returned_ns: int | None = None
    """Host time at which the call was handed over, where the training thread itself made it."""
    seq: int | None = None
    """Number of the call in its group, as the backend counts."""


class Stretch(msgspec.Struct):
    """A named stretch between two marks: a phase, a wait, a region."""

    name: str
    begin: Any
    begin_ns: int
    """Host time, monotonic."""
    end: Any = None


class StepRecord(msgspec.Struct):
    """One step."""

    number: int
    begin_ns: int
    """Host time, monotonic."""
    thread: int
    """The thread that trains."""
    observed: bool
    """False for a step that was left alone to measure our own cost."""
    end_ns: int = 0
    cut: bool = False
    """Whether it raised, or something in it could not be recorded."""
    phases: list[Stretch] = []
    waits: list[Stretch] = []
    regions: list[Stretch] = []
    calls: list[Call] = []
    gradients: list[tuple[int, int]] = []
    """(parameter, monotonic time of its gradient)."""
    readings: list[tuple[str, int, float]] = []
    """(name, monotonic time, value)."""


class Resolver:
    """Takes each observed step, and resolves them BATCH_STEPS at a time, from the training thread, between steps."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._waiting: deque[StepRecord] = deque()

    def add(self, record: StepRecord) -> None:
        """Take a step that has ended; resolves older ones when enough wait."""
        self._waiting.append(record)
        if len(self._waiting) >= BATCH_STEPS + KEPT_STEPS:
            while len(self._waiting) > KEPT_STEPS:
                self._resolve(self._waiting.popleft())

    def _resolve(self, record: StepRecord) -> None:
        for stretches in (record.phases, record.waits, record.regions):
            for stretch in stretches:
                stretch.begin, stretch.end = self._points.resolve(stretch.begin), self._points.resolve(stretch.end)
        for call in record.calls:
            call.ready, call.done = self._points.resolve(call.ready), self._points.resolve(call.done)

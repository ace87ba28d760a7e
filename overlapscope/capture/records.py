"""What is noted while a step runs: small mutable records, turned into columns later."""

from typing import Any, Final

import msgspec

COMM_REGION: Final = "comm:"
"""Begins the name of a region that communicates."""


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

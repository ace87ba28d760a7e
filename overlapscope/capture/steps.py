"""The steps of a recording: which are recorded, which are left uncaptured, and how long each took."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from typing import Any

from overlapscope.capture.hooks.hook_set import HookSet
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import MarkedRange, StepRecord
from overlapscope.capture.settings import Settings

STEP_MARK = "overlapscope.step"
_CHOICE = random.Random(0)
UNCAPTURED_STEPS = frozenset(2 + 4 * quarter + _CHOICE.choice((1, 2)) for quarter in range(16))
"""Steps after warm-up that are not captured, to measure the cost of capture: one in four of the first 64, each between
two captured ones. Chosen at random (with a fixed seed, so the same on all ranks), because a regular choice could
coincide with gradient accumulation."""
MAX_STEPS = 20_000
"""Most steps that are kept; later ones are not recorded, and the run states that."""
MAX_NOTES = 500_000
"""Most collectives, waits, phases, regions and gradients: about 150 MB, and about ten seconds at the end."""


class Steps:
    """Counts steps, and lets `hooks` record the chosen ones."""

    def __init__(self, settings: Settings, hooks: HookSet, guard: Guard) -> None:
        self._settings, self._hooks, self._guard = settings, hooks, guard
        self.records: list[StepRecord] = []
        self.lasted: list[tuple[int, bool]] = []
        """(nanoseconds, whether it was captured) of each step after warm-up."""
        self.begun: list[tuple[Any, bool]] = []
        """(mark of the device where it begins, whether it was captured) of each step after warm-up."""
        self.count = 0
        """Steps that have ended."""
        self.after_step: Callable[[int, int, StepRecord | None], None] | None = None
        """Called after each step past warm-up with the next step's number, nanoseconds, and what was recorded of it."""
        self._lost = self._notes = 0
        self._stopped = False

    @property
    def observed(self) -> list[StepRecord]:
        """Steps that were recorded."""
        return [record for record in self.records if record.observed]

    def begin(self) -> int:
        """Begin a step, captured or not; return the time from which it counts (our own work is part of it)."""
        hooks = self._hooks
        begun_ns = time.monotonic_ns()
        after = self.count - self._settings.warmup
        kept = after >= 0 and len(self.records) < MAX_STEPS and self._notes < MAX_NOTES
        self._lost += after >= 0 and not kept
        if after == 0:
            self._guard("looking for a device", hooks.look_for_device)
        left_alone = self._settings.measure_overhead and after in UNCAPTURED_STEPS and hooks.traces is None
        if left_alone and hooks.step_aside():
            begun_ns = time.monotonic_ns()
        if after >= 0 and len(self.begun) < MAX_STEPS:
            self.begun.append((self._guard("marking a step", hooks.anchor), kept and not left_alone))
        if hooks.ranges is not None and not left_alone:
            hooks.ranges.begin_step(self.count)
        if hooks.traces.recording if hooks.traces is not None else kept and not left_alone:
            hooks.step_begins(
                StepRecord(number=self.count, begin_ns=time.monotonic_ns(), thread=threading.get_ident(), observed=True)
            )
        return begun_ns

    def mark(self) -> AbstractContextManager[Any]:
        """Return a context manager that marks the step in a trace."""
        return self._hooks.mark(f"{STEP_MARK}#{self.count}")

    def note_amount(self, name: str, amount: object) -> None:
        """Record how much of `name` this rank processes in the current step, if the step is recorded.

        Raises ValueError for anything but a finite number of 0 or more; a tensor is not read: that would wait for its
        device.
        """
        if not isinstance(amount, Real) or isinstance(amount, bool) or not 0 <= float(amount) < math.inf:
            raise ValueError(f"{name}=... needs a finite number of 0 or more, not this {type(amount).__name__}")
        record = self._hooks.record
        if record is not None:
            record.readings.append((name, record.begin_ns, float(amount)))

    def cut(self) -> None:
        """Mark the current step as incomplete."""
        if self._hooks.record is not None:
            self._hooks.record.cut = "the step raised an exception"

    def end(self, begun_ns: int | None) -> None:
        """End the step that began at `begun_ns`."""
        hooks = self._hooks
        if hooks.ranges is not None:
            hooks.ranges.end_step(self.count)
        if self._stopped:
            return  # the profile was closed in the middle of the step
        record = hooks.record
        if record is not None:
            hooks.step_ends(record)
            self._keep(record)
        hooks.after_step(record)
        ended_ns = time.monotonic_ns()
        warming = hooks.traces is not None and hooks.traces.warming
        counts = self.count >= self._settings.warmup and not warming
        if begun_ns is not None and counts and len(self.lasted) < MAX_STEPS:
            self.lasted.append((ended_ns - begun_ns, record is not None))
        self.count += 1
        hooks.come_back()
        if hooks.traces is not None:
            hooks.traces.step()
        if self.after_step is not None and begun_ns is not None and counts:
            self._guard("watching a step", self.after_step, self.count, ended_ns - begun_ns, record)

    def _keep(self, record: StepRecord) -> None:
        self.records.append(record)
        self._notes += len(record.calls) + len(record.waits) + len(record.phases) + len(record.regions)
        self._notes += len(record.gradients)

    def stop(self) -> None:
        """Stop recording; the current step is lost."""
        self._stopped = True
        self._hooks.record = None

    @contextmanager
    def part(self, name: str, mark: str) -> Iterator[None]:
        """Record a part of a step under `name`; its name in a trace is `mark`."""
        hooks, record = self._hooks, self._hooks.record
        begun = self._guard("beginning a region", hooks.clock.mark) if record is not None else None
        region = MarkedRange(name, begun, time.monotonic_ns()) if record is not None else None
        if hooks.ranges is not None:
            self._guard("beginning a region", hooks.ranges.begin, name)
        try:
            with hooks.mark(mark):
                yield
        finally:
            if hooks.ranges is not None:
                self._guard("ending a region", hooks.ranges.end, name)
            if record is not None and region is not None:
                region.end = self._guard("ending a region", hooks.clock.mark)
                record.regions.append(region)

    def durations(self) -> list[tuple[int, bool]]:
        """Return (nanoseconds, whether it was captured) of each step after warm-up.

        On a device, from the begin of a step to that of the next one, by the device's own clock: the host runs ahead,
        and what capture costs the device arrives in a later step of the host, or never.
        """
        if not self._hooks.clock.on_device:
            return self.lasted
        begins = self._hooks.clock.times([mark for mark, _ in self.begun])
        pairs = zip(begins, begins[1:], self.begun, strict=False)
        return [(after - before, captured) for before, after, (_, captured) in pairs
                if before is not None and after is not None]  # fmt: skip

    def note_missing(self) -> None:
        """Note which steps are missing from the recording."""
        if self.count == 0:
            self._guard.note("no step was recorded: wrap each training step in `with scope.step():`")
        elif not self.observed and not (self._hooks.traces is not None and self._hooks.traces.lost):
            first = self._settings.warmup
            self._guard.note(f"only {self.count} steps ran and the first {first} are warm-up; use profile(warmup=...)")
        if self._lost:
            self._guard.note(f"{self._lost} steps after the first {len(self.records)} were not kept")

"""The steps of a recording: which are noted, which are left alone, and what each came to."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from overlapscope.capture.hooks.hook_set import Watches
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import StepRecord, Stretch
from overlapscope.capture.settings import Settings

STEP_MARK = "overlapscope.step"
_CHOICE = random.Random(0)
LEFT_ALONE = frozenset(2 + 4 * quarter + _CHOICE.choice((1, 2)) for quarter in range(16))
"""Steps after warm-up that are left alone, to measure what capture costs: one in four of the first 64, each between two
that are not; at random, as a regular choice could fall in with gradient accumulation; the same on all ranks."""
MAX_STEPS = 20_000
"""Steps kept; later ones are not recorded, and the run says so."""
MAX_NOTES = 500_000
"""The same for what is noted in them (collectives, waits, phases): some 150 MB, and some ten seconds at the end."""


class Steps:
    """Counts steps, and has `watches` note those that are recorded."""

    def __init__(self, settings: Settings, watches: Watches, guard: Guard) -> None:
        self._settings, self._watches, self._guard = settings, watches, guard
        self.records: list[StepRecord] = []
        self.lasted: list[tuple[int, bool]] = []
        """(time, whether it was captured) of each step after warm-up."""
        self.count = 0
        """Steps that have ended."""
        self._lost = self._notes = 0
        self._stopped = False

    @property
    def observed(self) -> list[StepRecord]:
        """Steps that were recorded."""
        return [record for record in self.records if record.observed]

    def begin(self) -> int:
        """Begin to observe, or to leave alone; give the time from which the step counts: our own work belongs to it."""
        watches = self._watches
        begun_ns = time.monotonic_ns()
        after = self.count - self._settings.warmup
        kept = after >= 0 and len(self.records) < MAX_STEPS and self._notes < MAX_NOTES
        self._lost += after >= 0 and not kept
        if after == 0:
            self._guard("looking for a device", watches.warn_of_late_device)
        left_alone = self._settings.measure_overhead and after in LEFT_ALONE and watches.traces is None
        if left_alone and watches.step_aside():
            begun_ns = time.monotonic_ns()
        if watches.ranges is not None and not left_alone:
            watches.ranges.begin_step(self.count)
        if watches.traces.recording if watches.traces is not None else kept and not left_alone:
            watches.step_begins(
                StepRecord(number=self.count, begin_ns=time.monotonic_ns(), thread=threading.get_ident(), observed=True)
            )
        return begun_ns

    def mark(self) -> AbstractContextManager[Any]:
        """Return the range of the step that begins, for a trace."""
        return self._watches.mark(f"{STEP_MARK}#{self.count}")

    def cut(self) -> None:
        """Say of the step under way that it is not whole."""
        if self._watches.record is not None:
            self._watches.record.cut = True

    def end(self, begun_ns: int | None) -> None:
        """End the step that began to count at this time."""
        watches = self._watches
        if watches.ranges is not None:
            watches.ranges.end_step(self.count)
        if self._stopped:
            return  # the profile was closed in the middle of the step
        record = watches.record
        if record is not None:
            watches.step_ends(record)
            self._keep(record)
        watches.after_step(record)
        ended_ns = time.monotonic_ns()
        warming = watches.traces is not None and watches.traces.warming
        counts = self.count >= self._settings.warmup and not warming
        if begun_ns is not None and counts and len(self.lasted) < MAX_STEPS:
            self.lasted.append((ended_ns - begun_ns, record is not None))
        self.count += 1
        watches.come_back()
        if watches.traces is not None:
            watches.traces.step()

    def _keep(self, record: StepRecord) -> None:
        self.records.append(record)
        self._notes += len(record.calls) + len(record.waits) + len(record.phases) + len(record.regions)
        self._notes += len(record.gradients)

    def stop(self) -> None:
        """Record no more: what is under way is lost."""
        self._stopped = True
        self._watches.record = None

    @contextmanager
    def part(self, name: str, mark: str) -> Iterator[None]:
        """Note a part of a step under a name; a trace holds it as `mark`."""
        watches, record = self._watches, self._watches.record
        begun = self._guard("beginning a region", watches.points.mark) if record is not None else None
        stretch = Stretch(name, begun, time.monotonic_ns()) if record is not None else None
        if watches.ranges is not None:
            self._guard("beginning a region", watches.ranges.begin, name)
        try:
            with watches.mark(mark):
                yield
        finally:
            if watches.ranges is not None:
                self._guard("ending a region", watches.ranges.end, name)
            if record is not None and stretch is not None:
                stretch.end = self._guard("ending a region", watches.points.mark)
                record.regions.append(stretch)

    def note_missing(self) -> None:
        """Say what of the steps is not in the recording."""
        if self.count == 0:
            self._guard.note("no step was recorded: wrap each training step in `with scope.step():`")
        elif not self.observed:
            first = self._settings.warmup
            self._guard.note(f"only {self.count} steps ran and the first {first} are warm-up; use profile(warmup=...)")
        if self._lost:
            self._guard.note(f"{self._lost} steps after the first {len(self.records)} were not kept")

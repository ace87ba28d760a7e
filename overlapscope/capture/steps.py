"""The steps of a recording: which are recorded, which are left uncaptured, and how long each took."""

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import zip_longest
from numbers import Real
from typing import Any

from overlapscope.capture.hooks.hook_set import HookSet
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.parts import Batch
from overlapscope.capture.records import MarkedRange, StepRecord
from overlapscope.capture.sampling import Sampling
from overlapscope.capture.settings import Settings

STEP_MARK = "overlapscope.step"
_CHOICE = random.Random(0)
MEASURED_STEPS = 66
"""After so many steps the cost is known; it is asked for again after four times as many, and so on."""
_DENSE_STEPS, _DENSE_PAIRS = 18, 4
_SINGLED_OUT = [2 + 4 * quarter + _CHOICE.choice((1, 2)) for quarter in range(16)]
UNCAPTURED_STEPS = frozenset(_SINGLED_OUT[:_DENSE_PAIRS]) | (
    frozenset(range(_DENSE_STEPS, MEASURED_STEPS)) - frozenset(_SINGLED_OUT[_DENSE_PAIRS:])
)
"""Steps after warm-up that are not captured, to measure the cost of capture: one in four of the first 18, so that short
runs have figures, then all but one in four. Each that is singled out stands between two of the other kind. Chosen at
random (with a fixed seed, so the same on all ranks), because a regular choice could coincide with gradient
accumulation."""
EVERY_UNTIL_AGREED = 16
"""Of so many steps one is recorded from then on until all ranks have agreed, which takes them some seconds."""
MAX_NOTES = 500_000
"""Most collectives, waits, phases, regions and gradients that wait to be written: about 150 MB."""
FLUSH_NOTES = 10_000
"""As many are written before it is time."""
MAX_TIMES = 10_000
"""Most times of steps that wait to be written; as many later ones serve to estimate the cost."""
SETTLED_NS = 5_000_000_000
"""A step that ended so long ago is written, whether or not all of its transfers have an end."""
Listener = Callable[[int, int, StepRecord | None], None]
"""Called after each step with its number, the nanoseconds that it took on the host, and its record if it has one."""


class Steps:
    """Counts steps, and lets `hooks` record the chosen ones."""

    def __init__(self, settings: Settings, hooks: HookSet, guard: Guard) -> None:
        self._settings, self._hooks, self._guard = settings, hooks, guard
        self.records: list[StepRecord] = []
        """Recorded steps that are not written yet."""
        self.lasted: deque[tuple[int, bool]] = deque(maxlen=MAX_TIMES)
        """(nanoseconds, whether it was captured) of the last steps after warm-up."""
        self.begun: deque[tuple[int, int, Any, bool]] = deque(maxlen=MAX_TIMES)
        """(number, host time, mark of the device where it begins, whether it was captured) of the same steps."""
        self.count = 0
        """Steps that have ended."""
        self.sampled: list[Sampling] = [Sampling(since_step=settings.warmup, every=settings.events_every or 1)]
        """What was recorded from which step on, and what will be."""
        if self.measures:
            self.sampled.append(Sampling(since_step=settings.warmup + MEASURED_STEPS, every=EVERY_UNTIL_AGREED))
        self.listeners: list[Listener] = []
        self.traced: Callable[[], bool] = lambda: False
        """Returns whether the calls of the step that begins now are needed, for a trace that is recorded beside."""
        self.toggles: deque[int] = deque(maxlen=64)
        """How long removing hooks took, or opening them again, in nanoseconds."""
        self._quiet_until = 0
        """Before the step of this number there is nothing to do but to take the time (`_next_busy`)."""
        self._times: list[tuple[int, int, int]] = []
        """(number, host time of its begin, nanoseconds) of steps that are not written yet."""
        self._times_until = -1
        """Number of the last step whose time was taken."""
        self._lost = self._notes = self._recorded = 0
        self._stopped = False

    @property
    def reached(self) -> list[Sampling]:
        """What was recorded so far: `sampled` without what lies ahead."""
        return [self.sampled[0], *(each for each in self.sampled[1:] if each.since_step < self.count)]

    @property
    def observed(self) -> list[StepRecord]:
        """Steps that were recorded and are not written yet."""
        return [record for record in self.records if record.observed]

    @property
    def measures(self) -> bool:
        """Whether the cost is measured, and decides which steps are recorded."""
        chosen = self._settings.mode == "events" and self._settings.events_every is None
        return chosen and self._settings.measure_overhead

    def begin(self) -> int:
        """Begin a step, captured or not; return the time from which it counts (our own work is part of it)."""
        begun_ns = time.monotonic_ns()
        if self.count < self._quiet_until:
            return begun_ns
        hooks = self._hooks
        after = self.count - self._settings.warmup
        if after == 0:
            self._guard("looking for a device", hooks.look_for_device)
        wanted = after >= 0 and (hooks.traces is not None or self._is_chosen(after))
        kept = wanted and self._notes < MAX_NOTES
        self._lost += wanted and not kept
        captured = kept or self.traced()
        if after >= 0 and hooks.traces is None and (hooks.come_back() if captured else hooks.step_aside()):
            toggled_ns = time.monotonic_ns()
            self.toggles.append(toggled_ns - begun_ns)
            hooks.excuse(toggled_ns - begun_ns)
            begun_ns = toggled_ns
        if after >= 0:
            self.begun.append((self.count, begun_ns, self._guard("marking a step", hooks.anchor), kept))
        if hooks.ranges is not None and (kept or after < 0):
            hooks.ranges.begin_step(self.count)
        if hooks.traces.recording if hooks.traces is not None else captured:
            begin_ns, thread = time.monotonic_ns(), threading.get_ident()
            hooks.step_begins(StepRecord(number=self.count, begin_ns=begin_ns, thread=thread, observed=kept))
        return begun_ns

    def _is_chosen(self, after: int) -> bool:
        if self._settings.events_every is None and self._settings.measure_overhead and after in UNCAPTURED_STEPS:
            return False
        current = next(each for each in reversed(self.sampled) if each.since_step <= self.count)
        return current.records(self.count)

    def choose(self, sampling: Sampling) -> None:
        """Record so from a step on that lies ahead; may be called on another thread than that which trains."""
        self.sampled.append(sampling)
        self._quiet_until = 0

    def _next_busy(self) -> int:
        """Return the next step in which there is something to do, once hooks are removed and nothing else listens.

        All that is done in a step that is not recorded runs after a millisecond or a minute of other work, from cold
        caches, where a line of Python costs ten times as much as in a loop.
        """
        measuring = self.measures and self.count < self._settings.warmup + MEASURED_STEPS
        if measuring or self.listeners or not self._hooks.aside:
            return 0
        for each, following in zip_longest(self.sampled, self.sampled[1:]):
            found = each.next_recorded(max(self.count, each.since_step))
            if following is None or found < following.since_step:
                return found
        return 0

    def mark(self) -> AbstractContextManager[Any] | None:
        """Return a context manager that marks the step in a trace; None without one."""
        return self._hooks.mark(f"{STEP_MARK}#{self.count}") if self._hooks.marks_traces else None

    def note_amount(self, name: str, amount: object) -> None:
        """Add to how much of `name` this rank processes in the current step, if the step is recorded.

        Raises ValueError for anything but a finite number of 0 or more; a tensor is not read: that would wait for its
        device.
        """
        if not isinstance(amount, Real) or isinstance(amount, bool) or not 0 <= float(amount) < math.inf:
            raise ValueError(f"{name}=... needs a finite number of 0 or more, not this {type(amount).__name__}")
        record = self._hooks.record
        if record is not None:
            record.amounts[name] = record.amounts.get(name, 0.0) + float(amount)

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
        if self.count < self._quiet_until:
            ended_ns = time.monotonic_ns()
            if begun_ns is not None:
                self._take_time(begun_ns, ended_ns, captured=False)
            hooks.after_quiet_step(ended_ns)
            self.count += 1
            return
        record = hooks.record
        if record is not None:
            hooks.step_ends(record)
            record.readings += [(name, record.begin_ns, amount) for name, amount in record.amounts.items()]
            if record.observed:
                self._keep(record)
        hooks.after_step(record)
        ended_ns = time.monotonic_ns()
        warming = hooks.traces is not None and hooks.traces.warming
        number, counts = self.count, self.count >= self._settings.warmup and not warming
        if begun_ns is not None and counts:
            self._take_time(begun_ns, ended_ns, captured=record is not None)
        self.count += 1
        known = len(self.sampled)
        self._quiet_until = self._next_busy()
        if len(self.sampled) != known:
            self._quiet_until = 0  # chosen meanwhile, on another thread
        if hooks.traces is not None:
            hooks.traces.step()
        if begun_ns is not None:
            for listener in self.listeners:
                self._guard("calling a listener of steps", listener, number, ended_ns - begun_ns, record)

    def _take_time(self, begun_ns: int, ended_ns: int, *, captured: bool) -> None:
        self.lasted.append((ended_ns - begun_ns, captured))
        if self._hooks.traces is None and not self._hooks.clock.on_device and len(self._times) < 2 * MAX_TIMES:
            self._times.append((self.count, begun_ns, ended_ns - begun_ns))

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that it should be, before it is time."""
        waiting = len(self._times) if not self._hooks.clock.on_device else self.count - self._times_until
        return self._notes > FLUSH_NOTES or waiting > MAX_TIMES

    def take(self, *, ending: bool) -> Batch:
        """Return what is not written yet of steps that are settled, of all steps if `ending`.

        Steps stay in `records` until `forget`.
        """
        records = list(self.records)
        ready = len(records)
        while ready > 0 and not ending and not self._is_ready(records[ready - 1], last=ready == len(records)):
            ready -= 1
        readings = list(self._hooks.sampler.readings)
        return Batch(
            records=[each for each in records[:ready] if each.observed],
            following=records[ready] if ready < len(records) else None,
            step_times=self._step_times(),
            readings=readings,
        )

    def _is_ready(self, record: StepRecord, *, last: bool) -> bool:
        """Return whether a step may become columns; on a device its last transfers may run under the next step."""
        if time.monotonic_ns() - record.end_ns > SETTLED_NS:
            return True
        return self._hooks.settled(record) and not (last and self._hooks.clock.on_device)

    def _step_times(self) -> list[tuple[int, int, int]]:
        """Return (number, host time of its begin, nanoseconds) of steps since the last call of `forget`."""
        if not self._hooks.clock.on_device:
            return list(self._times)
        begun = list(self.begun)
        begins = self._hooks.clock.times([mark for _, _, mark, _ in begun])
        return [
            (number, begun_ns, after - before)
            for (number, begun_ns, _, _), before, after in zip(begun, begins, begins[1:], strict=False)
            if number > self._times_until and before is not None and after is not None
        ]

    def forget(self, batch: Batch) -> None:
        """Forget what of a batch became columns."""
        if batch.records:
            last = batch.records[-1].number
            gone = [each for each in list(self.records) if each.number <= last]
            del self.records[: len(gone)]  # the training thread may add one meanwhile
            self._recorded += len(gone)
            self._notes = sum(map(_notes, list(self.records)))  # counted anew: readings come after a step's end, too
        if batch.step_times:
            self._times_until = batch.step_times[-1][0]
            del self._times[: len(batch.step_times)]
        del self._hooks.sampler.readings[: len(batch.readings)]

    def _keep(self, record: StepRecord) -> None:
        self.records.append(record)
        self._notes += _notes(record)

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
            return list(self.lasted)
        begun = list(self.begun)
        begins = self._hooks.clock.times([mark for _, _, mark, _ in begun])
        pairs = zip(begins, begins[1:], begun, strict=False)
        return [(after - before, captured) for before, after, (_, _, _, captured) in pairs
                if before is not None and after is not None]  # fmt: skip

    def note_missing(self) -> None:
        """Note which steps are missing from the recording."""
        if self.count == 0:
            self._guard.note("no step was recorded: wrap each training step in `with scope.step():`")
        elif (
            not self._recorded
            and not self.observed
            and not (self._hooks.traces is not None and self._hooks.traces.lost)
        ):
            first = self._settings.warmup
            self._guard.note(f"only {self.count} steps ran and the first {first} are warm-up; use profile(warmup=...)")
        if self._lost:
            first = self._recorded + len(self.records)
            self._guard.note(f"{self._lost} steps after the first {first} were not kept")


def _notes(record: StepRecord) -> int:
    """Return how much was noted in a step; a step without anything counts as well."""
    ranges = len(record.phases) + len(record.waits) + len(record.regions)
    return 1 + ranges + len(record.calls) + len(record.gradients) + len(record.readings)

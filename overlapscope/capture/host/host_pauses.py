"""Record host pauses that can make a rank late: garbage collection, CPU throttling, load, allocator retries."""

import gc
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overlapscope.capture.records import StepRecord

CGROUP_CPU = Path("/sys/fs/cgroup/cpu.stat")
ALLOCATOR_EVERY = 16
"""Steps from one reading of the CUDA allocator's counters to the next: it takes the allocator's lock."""
MAX_BETWEEN = 1000
"""Most garbage collections between two steps that are kept."""


class HostPauseWatch:
    """While open, adds readings to the step record that `current()` returns.

    `gc_pause_ns` for each garbage collection in the step or since the last step; `between_steps_ns`, the time before
    the step (data loading and whatever else is outside steps); at each step's end `loadavg_1m` and the increase
    during the step of `cpu_throttled_us` (this process's control group); every 16th step the increase since then of
    `allocator_retries` (CUDA).
    """

    def __init__(self, current: Callable[[], StepRecord | None]) -> None:
        self._current = current
        self._gc_began = 0
        self._since_last_step: deque[tuple[str, int, float]] = deque(maxlen=MAX_BETWEEN)
        self._last_end_ns: int | None = None
        self._counters: dict[str, float] = {}
        self._retries: float | None = None
        self._ask_retries_at = 0

    def open(self) -> None:
        """Add a callback to the garbage collector."""
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Remove the callback."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._gc_began = time.monotonic_ns()
        elif self._gc_began:
            record = self._current()
            now = time.monotonic_ns()
            readings = self._since_last_step if record is None else record.readings
            readings.append(("gc_pause_ns", now, float(now - self._gc_began)))
            self._gc_began = 0

    def excuse(self, nanoseconds: int) -> None:
        """Leave so much time out of the time between the last step and the next."""
        if self._last_end_ns is not None:
            self._last_end_ns += nanoseconds

    def step_begins(self, record: StepRecord) -> None:
        """Record the time since the last step, and read the counters."""
        if self._last_end_ns is not None:
            pause = float(record.begin_ns - self._last_end_ns)
            record.readings.append(("between_steps_ns", record.begin_ns, pause))
            record.readings += self._since_last_step
        self._since_last_step.clear()
        self._counters = _counters()

    def step_passed(self, ended_ns: int) -> None:
        """Note where a step ended; what was collected before that is not between steps."""
        self._last_end_ns = ended_ns
        self._since_last_step.clear()

    def step_ends(self, record: StepRecord | None) -> None:
        """Record the counters' increases and the load; None for a step that is not recorded."""
        self.step_passed(time.monotonic_ns() if record is None else record.end_ns)
        if record is None:
            return
        for name, value in _counters().items():
            rise = value - self._counters.get(name, value)
            record.readings.append((name, record.end_ns, rise))
        if record.number >= self._ask_retries_at:
            self._ask_retries_at = record.number + ALLOCATOR_EVERY
            retries = _allocator_retries()
            if retries is not None:
                before = retries if self._retries is None else self._retries
                record.readings.append(("allocator_retries", record.end_ns, retries - before))
                self._retries = retries
        record.readings.append(("loadavg_1m", record.end_ns, os.getloadavg()[0]))


def _counters() -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        for line in CGROUP_CPU.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                found["cpu_throttled_us"] = float(value)
    except (OSError, ValueError):
        pass  # no control group, or one without a CPU limit: the reading is missing
    return found


def _allocator_retries() -> float | None:
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    # Not `memory_stats`, which flattens and sorts some hundred entries at each call.
    statistics: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict()
    return float(statistics.get("num_alloc_retries", 0))

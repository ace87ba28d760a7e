"""All hooks of one recording, chosen by its mode and by whether the process uses a CUDA device.

In `trace` mode the profiler records what ran, and our hooks add only what it does not record. In `events` mode our
hooks record everything.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

from overlapscope.capture.hooks import nvtx
from overlapscope.capture.hooks.collectives import CollectiveWatch
from overlapscope.capture.hooks.compiled import GraphWatch
from overlapscope.capture.hooks.ddp import DDPWrapperFinder, GradientWatch
from overlapscope.capture.hooks.phases import PhaseWatch
from overlapscope.capture.hooks.profiler import TraceRecorder
from overlapscope.capture.host import device_links as links
from overlapscope.capture.host import environment
from overlapscope.capture.host.host_pauses import HostPauseWatch
from overlapscope.capture.host.tcp_counters import SocketWatch
from overlapscope.capture.host.telemetry import Sampler
from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import MarkResolver, StepRecord
from overlapscope.capture.settings import Settings
from overlapscope.capture.timestamps import Clock, DeviceClock, HostClock

SETTLE_SECONDS = 1.0
"""How long the end of a recording waits for collectives that are still running."""


class HookSet:
    """The hooks, and the step record that they write to; a hook that the recording does not need is None."""

    def __init__(self, model: Any, guard: Guard) -> None:
        self._model, self._guard = model, guard
        self.record: StepRecord | None = None
        """The step being recorded; with None the hooks record nothing."""
        self.clock: Clock = HostClock()
        self.resolver: MarkResolver | None = None
        self.ranges: nvtx.NvtxRanges | None = None
        self.traces: TraceRecorder | None = None
        self.times: ThreadTimes | None = None
        """Only without a device, where the training thread itself computes."""
        self.gradients: GradientWatch | None = None
        self.sampler = Sampler(None)
        self.sockets = SocketWatch()
        self.ddp_wrapper = DDPWrapperFinder(model)
        self.links: list[dict[str, Any]] = []
        self._collectives: CollectiveWatch | None = None
        self._phases: PhaseWatch | None = None
        self._host_pauses = HostPauseWatch(self._current)
        self._opened: list[Any] = []
        self._stepped_aside = False

    # -- opening and closing ---------------------------------------------------------------------------------------

    def choose_clock(self) -> None:
        """Choose the clock: the device's if this process has used a device by now, else the host's."""
        self.clock = _clock()
        self.resolver = MarkResolver(self.clock) if self.clock.on_device else None

    def create(self, settings: Settings, path: Path, rank: Callable[[], int]) -> None:
        """Create the hooks that the mode needs; in `trace` mode the profiler starts its schedule first."""
        clock, guard, on_device = self.clock, self._guard, self.clock.on_device
        self.ranges = nvtx.ranges(guard)
        self.times = None if on_device else ThreadTimes()
        if settings.mode == "trace":
            self.traces = TraceRecorder(path, rank, settings, on_device, guard)
            self.traces.open()
        else:
            self._collectives = CollectiveWatch(clock, guard, self._current, self.ranges, self.times)
            self._phases = PhaseWatch(clock, guard, self._current, self._model, self.ranges, self.times)
        if self.traces is not None or not on_device:  # else host times say nothing: the host runs ahead of the device
            self.gradients = GradientWatch(self._current, self._model, self.times)

    def open(self) -> None:
        """Open every hook; one that fails is a warning."""
        device = environment.device()
        self.sampler = Sampler(*device)
        self.sampler.add(self.sockets.sample)
        self.links = self._guard("reading links", links.of_device, *device) or []
        graphs = GraphWatch(self._current) if self.clock.on_device and self.traces is None else None
        hooks = (
            self.ddp_wrapper,
            self.times,
            self._collectives,
            self._phases,
            self.gradients,
            graphs,
            self._host_pauses,
            self.sockets,
            self.sampler,
        )
        for watch in hooks:
            if watch is not None:
                self._guard("opening", watch.open)
                self._opened.append(watch)

    def close(self) -> None:
        """Close every hook but the profiler, the last opened first."""
        for watch in reversed(self._opened):
            self._guard("closing", watch.close)

    def settle(self, records: Sequence[StepRecord]) -> None:
        """Wait up to SETTLE_SECONDS for the last collectives to end: threads of the backend mark their ends."""
        end = monotonic() + SETTLE_SECONDS
        calls = [call for record in records[-2:] for call in record.calls]
        while monotonic() < end and not all(call.done is not None and self.clock.done(call.done) for call in calls):
            sleep(0.005)

    def _current(self) -> StepRecord | None:
        return self.record

    # -- steps -----------------------------------------------------------------------------------------------------

    def warn_of_late_device(self) -> None:
        """Warn where the device was first used after the clock was chosen."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        if not self.clock.on_device and torch.cuda.is_initialized():
            self._guard.note(
                "CUDA was first used after the profile was entered, so times are the host's: "
                "enter it once the model is on its device"
            )

    def step_begins(self, record: StepRecord) -> None:
        """Record into this step record from now on."""
        if self.traces is None:
            self.clock.anchor()
        self._host_pauses.step_begins(record)
        self.record = record
        if self.times is not None:
            self.times.note(record)
        if self._collectives is not None:
            self._collectives.step_begins()
        if self._phases is not None:
            self._phases.step_begins()

    def step_ends(self, record: StepRecord) -> None:
        """Stop recording into the step record, and set its end."""
        if self._phases is not None:
            self._phases.step_ends()
        if self.times is not None:
            self.times.note(record)
        self.record = None
        record.end_ns = monotonic_ns()

    def after_step(self, record: StepRecord | None) -> None:
        """Record what delayed the step on the host, and resolve its marks; None for a step that was not recorded."""
        self._guard("recording host pauses", self._host_pauses.step_ends, record)
        if record is not None and self.resolver is not None:
            self._guard("resolving marks", self.resolver.add, record)

    def step_aside(self) -> bool:
        """Remove the dispatcher hook for an uncaptured step; return whether there was one. Passing calls on costs."""
        if self._collectives is None:
            return False
        self._collectives.close()
        self._stepped_aside = True
        return True

    def come_back(self) -> None:
        """Open the dispatcher hook again after an uncaptured step."""
        if self._stepped_aside and self._collectives is not None:
            self._stepped_aside = False
            self._collectives.open()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager whose range appears in the trace; it does nothing in `events` mode."""
        return self.traces.mark(name) if self.traces is not None else nullcontext()


def _clock() -> Clock:
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return DeviceClock(torch.cuda)
    return HostClock()

"""All that looks on while a recording is open, put together by its mode and by whether the process is on a device.

In `trace` mode the profiler sees what ran, and we note only what it does not know; in `events` mode we see all of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

from overlapscope.capture.hooks import nvtx
from overlapscope.capture.hooks.collectives import CollectiveWatch
from overlapscope.capture.hooks.compiled import GraphWatch
from overlapscope.capture.hooks.ddp import AroundModel, GradientWatch
from overlapscope.capture.hooks.phases import PhaseWatch
from overlapscope.capture.hooks.profiler import TraceRecorder
from overlapscope.capture.host import device_links as links
from overlapscope.capture.host import environment
from overlapscope.capture.host.host_pauses import LatenessWatch
from overlapscope.capture.host.tcp_counters import SocketWatch
from overlapscope.capture.host.telemetry import Sampler
from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import Resolver, StepRecord
from overlapscope.capture.settings import Settings
from overlapscope.capture.timestamps import DevicePoints, HostPoints, Points

SETTLE_SECONDS = 1.0
"""How long the end of a recording waits for collectives that are still under way."""


class Watches:
    """What looks on, and the record of the step that it notes into; what a recording does not need is None."""

    def __init__(self, model: Any, guard: Guard) -> None:
        self._model, self._guard = model, guard
        self.record: StepRecord | None = None
        """The step that is noted; None lets everything pass."""
        self.points: Points = HostPoints()
        self.resolver: Resolver | None = None
        self.ranges: nvtx.Ranges | None = None
        self.traces: TraceRecorder | None = None
        self.times: ThreadTimes | None = None
        """Where the training thread itself computes: without a device."""
        self.gradients: GradientWatch | None = None
        self.sampler = Sampler(None)
        self.sockets = SocketWatch()
        self.around = AroundModel(model)
        self.links: list[dict[str, Any]] = []
        self._collectives: CollectiveWatch | None = None
        self._phases: PhaseWatch | None = None
        self._lateness = LatenessWatch(self._current)
        self._opened: list[Any] = []
        self._stepped_aside = False

    # -- opening and closing ---------------------------------------------------------------------------------------

    def look_for_device(self) -> None:
        """Find out whose clock tells times: the device's, where this process is on one by now."""
        self.points = _points()
        self.resolver = Resolver(self.points) if self.points.on_device else None

    def choose(self, settings: Settings, path: Path, rank: Callable[[], int]) -> None:
        """Make what the mode needs; the profiler begins its schedule, as the first of all."""
        points, guard, on_device = self.points, self._guard, self.points.on_device
        self.ranges = nvtx.ranges(guard)
        self.times = None if on_device else ThreadTimes()
        if settings.mode == "trace":
            self.traces = TraceRecorder(path, rank, settings, on_device, guard)
            self.traces.open()
        else:
            self._collectives = CollectiveWatch(points, guard, self._current, self.ranges, self.times)
            self._phases = PhaseWatch(points, guard, self._current, self._model, self.ranges, self.times)
        if self.traces is not None or not on_device:  # else the host runs ahead of what it notes
            self.gradients = GradientWatch(self._current, self._model, self.times)

    def open(self) -> None:
        """Have everything look on; what fails to is a warning."""
        device = environment.device()
        self.sampler = Sampler(*device)
        self.sampler.add(self.sockets.sample)
        self.links = self._guard("reading links", links.of_device, *device) or []
        graphs = GraphWatch(self._current) if self.points.on_device and self.traces is None else None
        watches = (
            self.around,
            self.times,
            self._collectives,
            self._phases,
            self.gradients,
            graphs,
            self._lateness,
            self.sockets,
            self.sampler,
        )
        for watch in watches:
            if watch is not None:
                self._guard("opening", watch.open)
                self._opened.append(watch)

    def close(self) -> None:
        """Have all but the profiler stop, the last one first."""
        for watch in reversed(self._opened):
            self._guard("closing", watch.close)

    def settle(self, records: Sequence[StepRecord]) -> None:
        """Return the last collectives' ends a moment to be seen: their marks are taken on threads of the backend."""
        end = monotonic() + SETTLE_SECONDS
        calls = [call for record in records[-2:] for call in record.calls]
        while monotonic() < end and not all(call.done is not None and self.points.done(call.done) for call in calls):
            sleep(0.005)

    def _current(self) -> StepRecord | None:
        return self.record

    # -- steps -----------------------------------------------------------------------------------------------------

    def warn_of_late_device(self) -> None:
        """Warn where the device was first used after the clock was chosen."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        if not self.points.on_device and torch.cuda.is_initialized():
            self._guard.note(
                "CUDA was first used after the profile was entered, so times are the host's: "
                "enter it once the model is on its device"
            )

    def step_begins(self, record: StepRecord) -> None:
        """Note into this record from now on."""
        if self.traces is None:
            self.points.anchor()
        self._lateness.step_begins(record)
        self.record = record
        if self.times is not None:
            self.times.note(record)
        if self._collectives is not None:
            self._collectives.step_begins()
        if self._phases is not None:
            self._phases.step_begins()

    def step_ends(self, record: StepRecord) -> None:
        """Note into no record any more."""
        if self._phases is not None:
            self._phases.step_ends()
        if self.times is not None:
            self.times.note(record)
        self.record = None
        record.end_ns = monotonic_ns()

    def after_step(self, record: StepRecord | None) -> None:
        """Note what made a step late, and read its marks; None for a step that was not noted."""
        self._guard("noting what made a step late", self._lateness.step_ends, record)
        if record is not None and self.resolver is not None:
            self._guard("resolving marks", self.resolver.add, record)

    def step_aside(self) -> bool:
        """Leave the step that begins alone, where that takes more than not to note: passing collectives on costs."""
        if self._collectives is None:
            return False
        self._collectives.close()
        self._stepped_aside = True
        return True

    def come_back(self) -> None:
        """Look on again after a step that was left alone."""
        if self._stepped_aside and self._collectives is not None:
            self._stepped_aside = False
            self._collectives.open()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a range that a trace holds; nothing where none is made."""
        return self.traces.mark(name) if self.traces is not None else nullcontext()


def _points() -> Points:
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return DevicePoints(torch.cuda)
    return HostPoints()

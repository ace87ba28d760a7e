"""All hooks of one recording, chosen by its mode and by whether the process uses a CUDA device.

In `trace` mode the profiler records what ran, and our hooks add only what it does not record. In `events` mode our
hooks record everything.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

from overlapscope.capture.device_clock import DeviceClock
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
from overlapscope.capture.records import CollectiveCall, StepRecord
from overlapscope.capture.settings import Settings
from overlapscope.capture.timestamps import Clock, HostClock
from overlapscope.capture.transfer_times import share_queues

SETTLE_SECONDS = 1.0
"""How long the end of a recording waits at least for collectives that are still running."""
MARKS_READ = 64
"""Most marks of the device's clock that are read at the end of a step."""

ANCHORS_READ = 2
"""The same after a step that is not recorded, which has one."""


class HookSet:
    """The hooks, and the step record that they write to; a hook that the recording does not need is None."""

    def __init__(self, model: Any, guard: Guard) -> None:
        self._model, self._guard = model, guard
        self.record: StepRecord | None = None
        """The step being recorded; with None the hooks record nothing."""
        self.device: int | None = None
        """The CUDA index of the device that the job computes on; None without one."""
        self.clock: Clock = HostClock()
        self.ranges: nvtx.NvtxRanges | None = None
        self.traces: TraceRecorder | None = None
        self.times: ThreadTimes | None = None
        """Only without a device, where the training thread itself computes."""
        self.gradients: GradientWatch | None = None
        self.sampler = Sampler(None)
        self.sockets = SocketWatch()
        self.ddp_wrapper = DDPWrapperFinder(model)
        self.range_beside: Callable[[str], AbstractContextManager[Any]] | None = None
        """In `events` mode, marks a range in a trace that is recorded beside it."""
        self.links: list[dict[str, Any]] = []
        self.unsupported: list[str] = []
        """What this host does not offer to read, and why."""
        self._collectives: CollectiveWatch | None = None
        self._phases: PhaseWatch | None = None
        self._host_pauses = HostPauseWatch(self._current)
        self._opened: list[Any] = []
        self._aside = False
        self.beside: Callable[[], Iterator[tuple[str, float]]] = lambda: iter(())
        """Called every half second on the telemetry thread."""
        self._graphs: GraphWatch | None = None

    # -- opening and closing ---------------------------------------------------------------------------------------

    def choose_clock(self, settings: Settings) -> None:
        """Choose the clock: in `events` mode the device's if this process has used a device by now, else the host's."""
        self.device, fixed = environment.device_of(self._model)
        if self.device is not None and settings.mode == "events":
            self.clock = _device_clock(self.device if fixed else None)

    def create(self, settings: Settings, path: Path, rank: Callable[[], int]) -> None:
        """Create the hooks that the mode needs; in `trace` mode the profiler begins its schedule."""
        self._settings = settings
        clock, guard, on_device = self.clock, self._guard, self.device is not None
        self.ranges = nvtx.ranges(guard)
        self.times = None if on_device else ThreadTimes()
        if settings.mode == "trace":
            if self.traces is None:
                self.traces = TraceRecorder(path, rank, settings, guard)
                guard("starting the profiler", self.traces.open)
        else:
            self._graphs = GraphWatch(self._current, clock, self._listening) if on_device else None
            self._collectives = CollectiveWatch(
                clock,
                guard,
                self._current,
                self.ranges,
                self.times,
                captured=self._graphs.communicates if self._graphs is not None else None,
                bucket_group=self.ddp_wrapper.bucket_group,
                shared_queues=on_device and share_queues(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")),
            )
            self._phases = PhaseWatch(clock, guard, self._current, self._model, self.ranges, self.times)
        if self.traces is not None or not on_device:  # else host times say nothing: the host runs ahead of the device
            self.gradients = GradientWatch(self._current, self._model, self.times)

    def open(self) -> None:
        """Open every hook; one that fails is a warning."""
        device = environment.device(self.device)
        self.sampler = Sampler(*device)
        self.sampler.add(self.sockets.sample)
        self.sampler.add(self.beside)
        self.links, self.unsupported = self._guard("reading links", links.of_device, *device) or ([], [])
        hooks = (
            self.ddp_wrapper,
            self.times,
            self._collectives,
            self._phases,
            self.gradients,
            self._graphs,
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
        self._opened.clear()

    def settle(self, records: Sequence[StepRecord], seconds: float, hurried: Callable[[], bool]) -> None:
        """Wait for the ends of the last steps, outside of any step, for at most so many seconds, or a little longer.

        Without a device only threads of a backend may still mark an end; a device may be steps behind the host.
        """
        end = monotonic() + (max(seconds, SETTLE_SECONDS) if self.clock.on_device else SETTLE_SECONDS)
        calls = [call for record in records[-2:] for call in record.calls]
        while monotonic() < end and not hurried() and not self._settled(calls):
            sleep(0.005)
        if self._collectives is not None:
            self._collectives.works.clear()

    def _settled(self, calls: Sequence[CollectiveCall]) -> bool:
        if self._collectives is not None and not self._collectives.read(MARKS_READ):
            return False
        return all(call.transfer.done is not None for call in calls if call.transfer.on_host)

    def _current(self) -> StepRecord | None:
        return self.record

    def _listening(self) -> bool:
        return self._collectives is not None and self._collectives.listening

    def watch_transfers(self) -> None:
        """In `trace` mode, record calls from now on beside the trace."""
        assert self.traces is not None
        self._collectives = CollectiveWatch(self.clock, self._guard, self._current, self.ranges)
        self._guard("opening", self._collectives.open)
        self._opened.append(self._collectives)
        self.traces.transfer_clock = self.clock

    @property
    def watches_calls(self) -> bool:
        """Return whether calls are recorded."""
        return self._collectives is not None

    # -- steps -----------------------------------------------------------------------------------------------------

    def look_for_device(self) -> None:
        """Look again, before the first step is recorded: a job may make its model inside the profile."""
        if self.device is not None or environment.device_of(self._model)[0] is None:
            return
        self.close()
        self._host_pauses, self.sockets = HostPauseWatch(self._current), SocketWatch()
        self.gradients = None
        self.choose_clock(self._settings)
        self.create(self._settings, Path(), lambda: 0)
        self.open()

    def anchor(self) -> Any:
        """Mark where a step begins, recorded or not; None in `trace` mode and where the host's clock is used."""
        return self.clock.anchor() if self.clock.on_device else None

    def step_begins(self, record: StepRecord) -> None:
        """Record into this step record from now on."""
        self._host_pauses.step_begins(record)
        self.record = record
        if self.times is not None:
            self.times.note_border(record)
        if self._collectives is not None:
            self._collectives.step_begins()
        if self._phases is not None:
            self._phases.step_begins()

    def step_ends(self, record: StepRecord) -> None:
        """Stop recording into the step record, and set its end."""
        if self._phases is not None:
            self._phases.step_ends()
        if self.times is not None:
            self.times.note_border(record)
        self.record = None
        record.end_ns = monotonic_ns()
        if self.traces is not None:
            self.traces.sent += record.calls

    def after_step(self, record: StepRecord | None) -> None:
        """Record what delayed the step on the host, and read some marks; None for a step that was not recorded."""
        self._guard("recording host pauses", self._host_pauses.step_ends, record)
        if self._collectives is not None:
            self._guard("reading marks", self._collectives.read, MARKS_READ if record is not None else ANCHORS_READ)

    def after_quiet_step(self, ended_ns: int) -> None:
        """Note where a step ended in which nothing was recorded or read."""
        self._host_pauses.step_passed(ended_ns)

    @property
    def aside(self) -> bool:
        """Whether no hook is in the path of training, and none wants to know of a step that is not recorded."""
        return self._aside and self.traces is None and self.ranges is None and not self.clock.on_device

    def step_aside(self) -> bool:
        """Remove the hooks in the path of training for steps that are not recorded; return whether there were any.

        A hook that only passes calls on costs, too.
        """
        if self._collectives is None or self._aside:
            return False
        self._aside = True
        for watch in self._in_the_path():
            self._guard("closing", watch.close)
        return True

    def come_back(self) -> bool:
        """Open these hooks again for a step that is recorded; return whether they had been removed."""
        if not self._aside:
            return False
        self._aside = False
        for watch in self._in_the_path():
            self._guard("opening", watch.open)
        return True

    def _in_the_path(self) -> list[Any]:
        return [each for each in (self._collectives, self._phases, self.gradients) if each is not None]

    def excuse(self, nanoseconds: int) -> None:
        """Leave so much time of our own, spent since the last step, out of the time between steps."""
        self._host_pauses.excuse(nanoseconds)

    def settled(self, record: StepRecord) -> bool:
        """Return whether all is known of a step that has ended: nothing of it is under way, on no stream."""
        if record.end_ns >= self.clock.read_until_ns():
            return False
        works = self._collectives.works if self._collectives is not None else None
        return works is None or all(
            call.transfer.done is not None if call.transfer.on_host else not works.holds(call.transfer)
            for call in record.calls
        )

    @property
    def marks_traces(self) -> bool:
        """Whether a trace is recorded, or may be."""
        return self.traces is not None or self.range_beside is not None

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager whose range appears in the trace, if one is recorded."""
        if self.traces is not None:
            return self.traces.mark(name)
        return self.range_beside(name) if self.range_beside is not None else nullcontext()


def _device_clock(device: int | None) -> Clock:
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    return DeviceClock(torch.cuda, device)

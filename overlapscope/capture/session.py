"""One recording of a training loop: what `overlapscope.profile` gives."""

import atexit
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from overlapscope.capture import environment, links, nvtx
from overlapscope.capture.around import AroundModel
from overlapscope.capture.collectives import CollectiveWatch
from overlapscope.capture.events import BucketCopies, timeline_of
from overlapscope.capture.farewell import Farewell
from overlapscope.capture.forks import in_each_child
from overlapscope.capture.gradients import GradientWatch
from overlapscope.capture.graphs import GraphWatch
from overlapscope.capture.guard import Guard
from overlapscope.capture.lateness import LatenessWatch
from overlapscope.capture.overhead import overhead
from overlapscope.capture.phases import PhaseWatch
from overlapscope.capture.place import Place
from overlapscope.capture.points import DevicePoints, HostPoints, Points
from overlapscope.capture.profiler import TraceRecorder
from overlapscope.capture.records import StepRecord, Stretch
from overlapscope.capture.resolve import Resolver
from overlapscope.capture.settings import Settings
from overlapscope.capture.sockets import SocketWatch
from overlapscope.capture.telemetry import Sampler
from overlapscope.capture.termination import Termination
from overlapscope.capture.thread_times import ThreadTimes
from overlapscope.capture.untraced import leave_untraced
from overlapscope.errors import UsageError
from overlapscope.timeline.run import RankTimeline

P = ParamSpec("P")
R = TypeVar("R")
STEP_MARK = "overlapscope.step"
_CHOICE = random.Random(0)
LEFT_ALONE = frozenset(2 + 4 * quarter + _CHOICE.choice((1, 2)) for quarter in range(16))
"""Steps after warm-up that are left alone, to measure what capture costs: one in four of the first 64, each between two
that are not; at random, as a regular choice could fall in with gradient accumulation; the same on all ranks."""
COMM_MARK = "overlapscope.comm:"
"""Begins the name under which a trace holds a region that communicates; reading it counts as communication."""
MAX_STEPS = 20_000
"""Steps kept; later ones are not recorded, and the run says so."""
MAX_NOTES = 500_000
"""The same for what is noted in them (collectives, waits, phases): some 150 MB, and some ten seconds at the end."""
SETTLE_SECONDS = 1.0
"""How long the end of a recording waits for collectives that are still under way."""
_session_numbers = iter(range(1_000_000))
_open_sessions: list["Session"] = []


Finish = Callable[["Session"], None]


class Session:
    """Records steps; a context manager, and a decorator for a function that does one step.

    Everything of ours runs behind a guard: what fails is a warning, and the run says that it is incomplete. Only a
    misuse raises, at once: UsageError.
    """

    def __init__(self, path: Path, model: Any, settings: Settings, finish: Finish) -> None:
        settings.check()
        if model is not None and not hasattr(model, "named_parameters"):
            raise UsageError(f"profile(model=...): {type(model).__name__} is no torch module")
        self.path, self.model, self.settings, self._finish = path, model, settings, finish
        self.guard = Guard()
        self.place = Place(path, self.guard)
        self.number = next(_session_numbers)
        self.rank, self.world_size = 0, 1
        self.records: list[StepRecord] = []
        self.points: Points = HostPoints()
        self.traces: TraceRecorder | None = None
        self._resolver: Resolver | None = None
        self.sampler = Sampler(None)
        self.begin_ns = self.end_ns = 0
        self._state = "new"
        self._left = False
        """Whether the user has left the `with` block; what else closes a profile does so before its time."""
        self._count = 0
        self._lost = self._notes = 0
        self._record: StepRecord | None = None
        self._in_step = self._stepped_aside = False
        self._watches: list[Any] = []
        self._phases: PhaseWatch | None = None
        self._collectives: CollectiveWatch | None = None
        self._lateness = LatenessWatch(self._current)
        self.gradients: GradientWatch | None = None
        self._times: ThreadTimes | None = None
        """Where the training thread itself computes: without a device."""
        self._sockets = SocketWatch()
        self.lasted: list[tuple[int, bool]] = []
        """(time, whether it was captured) of each step after warm-up."""
        self._around = AroundModel(model)
        self._ranges: nvtx.Ranges | None = None
        self._links: list[dict[str, Any]] = []
        self._farewell = Farewell(self.close)
        self._termination = Termination(self.guard, lambda: self.close(wait=False))
        self._childless: Callable[[], None] = lambda: None

    # -- entering and leaving --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._state != "new":
            raise UsageError(
                "this profile was entered before; make a new one with overlapscope.profile(...)"
                if self._state == "closed"
                else "this profile is open already; did you mean `with scope.step():`?"
            )
        if _open_sessions:
            raise UsageError("another overlapscope.profile is open in this process; leave it first")
        self.place.refuse_foreign()
        self._state = "open"
        _open_sessions.append(self)
        self.guard("opening", self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if error is not None:
            self.guard.failures.append(f"training ended with {type(error).__name__}")
        self.close()

    def _open(self) -> None:
        self.points = _points()
        self._resolver = Resolver(self.points) if self.points.on_device else None
        self.begin_ns = time.monotonic_ns()
        self._ranges = nvtx.ranges(self.guard)
        self._times = None if self.points.on_device else ThreadTimes()
        if self.settings.mode == "trace":
            self.traces = TraceRecorder(self.path, lambda: self.rank, self.settings, self.points.on_device, self.guard)
            self.traces.open()
        else:
            self._collectives = CollectiveWatch(self.points, self.guard, self._current, self._ranges, self._times)
            self._phases = PhaseWatch(self.points, self.guard, self._current, self.model, self._ranges, self._times)
        if self.traces is not None or not self.points.on_device:  # else the host runs ahead of what it notes
            self.gradients = GradientWatch(self._current, self.model, self._times)
        self._join_the_others()
        device = environment.device()
        self.sampler = Sampler(*device)
        self.sampler.add(self._sockets.sample)
        self._links = self.guard("reading links", links.of_device, *device) or []
        graphs = GraphWatch(self._current) if self.points.on_device and self.traces is None else None
        watches = (
            self._farewell,
            self._around,
            self._times,
            self._collectives,
            self._phases,
            self.gradients,
            graphs,
            self._lateness,
            self._sockets,
            self.sampler,
        )
        for watch in watches:
            if watch is not None and self.guard("opening", watch.open) is None:
                self._watches.append(watch)
        leave_untraced()
        atexit.register(self.close)
        self._childless = in_each_child(self)
        self._termination.open()

    def _join_the_others(self) -> None:
        """Find this process's rank among those that train together, and what it shares with them."""
        self.rank, self.world_size = environment.rank_and_world()
        if self.rank == 0:
            self.place.warn_of_replacing()
        self.place.agree(self.number, self.rank, self.world_size, self.settings.wait_seconds)

    def close(self, *, wait: bool = True) -> None:
        """Stop recording, write the run, and on rank 0 print the summary; does nothing the second time."""
        if self._state != "open":
            return
        self._state = "closed"
        self.end_ns = time.monotonic_ns()
        if self in _open_sessions:
            _open_sessions.remove(self)
        atexit.unregister(self.close)
        self._childless()
        self._record = None
        for watch in reversed(self._watches):
            self.guard("closing", watch.close)
        self.guard("waiting for collectives", self._settle)
        if self.traces is not None:
            self.guard("closing the profiler", self.traces.close)
        self.guard("restoring signals", self._termination.close)
        if self._count == 0:
            self.guard.note("no step was recorded: wrap each training step in `with scope.step():`")
        elif not self.observed:
            first = self.settings.warmup
            self.guard.note(f"only {self._count} steps ran and the first {first} are warm-up; use profile(warmup=...)")
        if self._lost:
            self.guard.note(f"{self._lost} steps after the first {len(self.records)} were not kept")
        self.wait_seconds = self.settings.wait_seconds if wait else 0.0
        self.guard("writing the run", self._finish, self)
        self.place.leave()

    def forked(self) -> None:
        """In a forked child: the recording, its files and its end are the parent's."""
        self._state = "closed"
        self._record = None
        if self in _open_sessions:
            _open_sessions.remove(self)
        atexit.unregister(self.close)
        self.guard("standing down", self._termination.forked)

    def _settle(self) -> None:
        """Give the last collectives' ends a moment to be seen: their marks are taken on threads of the backend."""
        end = time.monotonic() + SETTLE_SECONDS
        calls = [call for record in self.records[-2:] for call in record.calls]
        while time.monotonic() < end and not all(
            call.done is not None and self.points.done(call.done) for call in calls
        ):
            time.sleep(0.005)

    # -- steps -----------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record what runs inside as one training step; nothing once the profile was closed before its time."""
        if self._state == "closed" and not self._left:
            yield  # SIGTERM, or the end of the process groups, closed the profile, and the job goes on to its own end
            return
        if self._state != "open":
            raise UsageError("scope.step() outside of its profile: did you leave out `with overlapscope.profile(...)`?")
        if self._in_step:
            raise UsageError(
                "a step inside a step: close the first one; for parts of a step there is scope.region(name)"
            )
        self._in_step = True
        begun = self.guard("beginning a step", self._step_begins)
        try:
            with self.traces.mark(f"{STEP_MARK}#{self._count}") if self.traces is not None else nullcontext():
                yield
        except BaseException:
            if self._record is not None:
                self._record.cut = True
            raise
        finally:
            self._in_step = False
            self.guard("ending a step", self._step_ends, begun)

    def _look_for_device(self) -> None:
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        if not self.points.on_device and torch.cuda.is_initialized():
            self.guard.note(
                "CUDA was first used after the profile was entered, so times are the host's: "
                "enter it once the model is on its device"
            )

    def _current(self) -> StepRecord | None:
        return self._record

    def _step_begins(self) -> int:
        """Begin to observe, or to leave alone; give the time from which the step counts: our own work belongs to it."""
        if self._count == 0 and environment.rank_and_world() != (self.rank, self.world_size):
            self.guard("joining the other ranks", self._join_the_others)  # the job made its groups only now
        begun_ns = time.monotonic_ns()
        after = self._count - self.settings.warmup
        recorded = after >= 0 and len(self.records) < MAX_STEPS and self._notes < MAX_NOTES
        self._lost += after >= 0 and not recorded
        if after == 0:
            self.guard("looking for a device", self._look_for_device)
        left_alone = self.settings.measure_overhead and after in LEFT_ALONE and self.traces is None
        if left_alone and self._collectives is not None:
            self._collectives.close()  # else the step would still pay for passing collectives on
            self._stepped_aside = True
            begun_ns = time.monotonic_ns()
        if self._ranges is not None and not left_alone:
            self._ranges.begin_step(self._count)
        if self.traces is None and recorded and not left_alone:
            record = StepRecord(
                number=self._count, begin_ns=time.monotonic_ns(), thread=threading.get_ident(), observed=True
            )
            self.points.anchor()
            self._lateness.step_begins(record)
            self._record = record
            if self._times is not None:
                self._times.note(record)
            if self._collectives is not None:
                self._collectives.step_begins()
            if self._phases is not None:
                self._phases.step_begins()
        elif self.traces is not None and self.traces.recording:
            record = StepRecord(
                number=self._count, begin_ns=time.monotonic_ns(), thread=threading.get_ident(), observed=True
            )
            self._lateness.step_begins(record)
            self._record = record
            if self._times is not None:
                self._times.note(record)
        return begun_ns

    def _step_ends(self, begun_ns: int | None) -> None:
        if self._ranges is not None:
            self._ranges.end_step(self._count)
        if self._state != "open":
            return  # the profile was closed in the middle of the step
        record = self._record
        if record is not None:
            if self._phases is not None:
                self._phases.step_ends()
            if self._times is not None:
                self._times.note(record)
            self._record = None
            record.end_ns = time.monotonic_ns()
            self.records.append(record)
            self._notes += len(record.calls) + len(record.waits) + len(record.phases) + len(record.regions)
            self._notes += len(record.gradients)
        self.guard("noting what made a step late", self._lateness.step_ends, record)
        if record is not None and self._resolver is not None:
            self.guard("resolving marks", self._resolver.add, record)
        ended_ns = time.monotonic_ns()
        warming = self.traces is not None and self.traces.warming
        counts = self._count >= self.settings.warmup and not warming
        if begun_ns is not None and counts and len(self.lasted) < MAX_STEPS:
            self.lasted.append((ended_ns - begun_ns, record is not None))
        self._count += 1
        if self._stepped_aside and self._collectives is not None:
            self._stepped_aside = False
            self._collectives.open()
        if self.traces is not None:
            self.traces.step()

    def region(self, name: str) -> AbstractContextManager[None]:
        """Name a part of a step, such as `data`."""
        return self._region(name, name)

    def comm(self, name: str) -> AbstractContextManager[None]:
        """Name a part of a step that communicates by means torch does not know, and waits for it."""
        return self._region(f"comm:{name}", f"{COMM_MARK}{name}")

    @contextmanager
    def _region(self, name: str, mark: str) -> Iterator[None]:
        record = self._record
        begun = self.guard("beginning a region", self.points.mark) if record is not None else None
        stretch = Stretch(name, begun, time.monotonic_ns()) if record is not None else None
        if self._ranges is not None:
            self.guard("beginning a region", self._ranges.begin, name)
        try:
            with self.traces.mark(mark) if self.traces is not None else nullcontext():
                yield
        finally:
            if self._ranges is not None:
                self.guard("ending a region", self._ranges.end, name)
            if record is not None and stretch is not None:
                stretch.end = self.guard("ending a region", self.points.mark)
                record.regions.append(stretch)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function that does one training step; the profile opens with the first call, closes at exit."""

        @wraps(function)
        def one_step(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._state == "new":
                self.__enter__()
            if self._state == "closed":
                return function(*args, **kwargs)
            with self.step():
                return function(*args, **kwargs)

        return one_step

    # -- what came of it -------------------------------------------------------------------------------------------

    @property
    def observed(self) -> list[StepRecord]:
        """Steps that were recorded."""
        return [record for record in self.records if record.observed]

    def timeline(self) -> RankTimeline:
        """Give the columns of `events` mode."""
        recorded = self.recorded()
        ddp = recorded["ddp"]
        buckets: BucketCopies | None = None
        if ddp:
            buckets = "viewed" if ddp["gradient_as_bucket_view"] else "copied"
        return timeline_of(self.rank, self.records, self.points, self.sampler.readings, recorded, buckets=buckets)

    def recorded(self) -> dict[str, Any]:
        """Give how this was recorded, as plain values for `rank.json`."""
        cost = overhead(*zip(*self.lasted, strict=True)) if self.lasted else None
        return {
            "mode": self.settings.mode,
            "complete": not self.guard.failures,
            "failures": list(self.guard.failures),
            "overhead": cost.as_json() if cost else None,
            "ddp": self.guard("reading DDP's buckets", environment.ddp_buckets, self._around.found) or {},
            "settings": self.guard("reading the settings", environment.settings) or {},
            "peak_memory_bytes": self.guard("reading memory", environment.peak_memory_bytes),
            "telemetry_unsupported": list(self.sampler.unsupported),
            "links": self._links,
            "sockets": self._sockets.told(),
        }


def _points() -> Points:
    import torch  # noqa: PLC0415 - capture is the one room that uses torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return DevicePoints(torch.cuda)
    return HostPoints()

"""A training job in virtual time, recorded by our own hooks or not at all, with the truth of what it did."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.capture.device_clock import DeviceClock
from overlapscope.capture.hooks.collectives import CollectiveWatch
from overlapscope.capture.hooks.compiled import GraphWatch
from overlapscope.capture.hooks.dispatch_hook import OPERATIONS, Operation
from overlapscope.capture.hooks.phases import PhaseWatch
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import StepRecord
from overlapscope.capture.timeline import BucketCopies, timeline_of
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import Intervals, clip, difference, intersection, length, union
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.virtual.device import Event, Graph, NcclGroup, Stream, Tensor, VirtualCuda, Work

MS = 1_000_000
ARGUMENTS = {op: (sent, received) for op, sent, received in OPERATIONS.values()}


class VirtualJob:
    """Runs steps on a virtual device; `recorded` false leaves all of our code out."""

    def __init__(
        self,
        cuda: VirtualCuda,
        patch: pytest.MonkeyPatch,
        *,
        recorded: bool = True,
        device: int | None = 0,
        buckets: BucketCopies | None = None,
        bucket_group: str | None = None,
        connections: int | None = None,
    ) -> None:
        patch.setattr(time, "monotonic_ns", cuda.monotonic_ns)
        self.cuda, self.recorded, self.number = cuda, recorded, 0
        self.record: StepRecord | None = None
        self.records: list[StepRecord] = []
        self.step_starts: list[int] = []
        """Index of the first kernel of each step."""
        self.guard = Guard()
        self.buckets, self.connections = buckets, connections
        self.computes_on = 0
        """Number of the stream of the job's computation."""
        if recorded:
            self.clock = DeviceClock(cuda, device)
            graphs = GraphWatch(lambda: self.record, self.clock)
            self.watch = CollectiveWatch(
                self.clock,
                self.guard,
                lambda: self.record,
                captured=graphs.communicates,
                bucket_group=lambda: bucket_group,
                shared_queues=connections != 32,
            )
            self.watch._torch = SimpleNamespace(Tensor=Tensor, device=lambda name: name, cuda=cuda)
            self.watch._distributed = SimpleNamespace(
                ProcessGroup=SimpleNamespace(unbox=lambda group: group), Work=SimpleNamespace(unbox=lambda work: work)
            )
            self.phases = PhaseWatch(self.clock, self.guard, lambda: self.record, None)
            for owner, name, around in (
                (Work, "wait", self.watch._waiting),
                (Stream, "wait_event", self.watch._stream_waiting),
                (Event, "wait", self.watch._event_waiting),
                (NcclGroup, "start_coalescing", self.watch._starting),
                (NcclGroup, "end_coalescing", self.watch._ending),
                (Graph, "replay", graphs._replaying),
                (Graph, "capture_begin", graphs._beginning),
                (Graph, "capture_end", graphs._ending),
            ):
                patch.setattr(owner, name, around(getattr(owner, name)))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step, as `scope.step()` does."""
        self.step_starts.append(len(self.cuda.kernels))
        if self.recorded:
            self.guard("marking a step", self.clock.anchor)
            self.record = StepRecord(number=self.number, begin_ns=self.cuda.now_ns, thread=_thread(), observed=True)
            self.watch.step_begins()
        self.number += 1
        try:
            yield
        finally:
            if self.record is not None:
                self.record.end_ns = self.cuda.now_ns
                self.records.append(self.record)
                self.record = None
                self.guard("reading marks", self.watch.read, 64)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Run a phase of a step."""
        return self._phase(name) if self.recorded else nullcontext()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        if name == "forward":
            self.phases._forward_begins()
        else:
            self.phases._begin(name)
        try:
            yield
        finally:
            self.phases._end(name)

    def call(self, group: NcclGroup, op: str, duration_ns: int, tensor: Tensor | None = None, **options: Any) -> Any:
        """Call a collective; return what the backend returns."""
        tensor = tensor if tensor is not None else Tensor(index=group.device)
        sent, received = ARGUMENTS[op]
        peer = options.pop("peer", None)
        pair = peer if peer is not None else None

        def run(*_: Any) -> Any:
            return group.run(op, duration_ns, pair=pair, outputs=[tensor], **options)

        if not self.recorded:
            return run()
        operation = Operation(op=op, sent=sent, received=received, group=2, peer=None if peer is None else 3)
        return self.watch._see(operation, run, None, ([tensor], [tensor], group, peer))

    def wait_tensor(self, work: Work, tensor: Tensor) -> None:
        """Wait for a functional collective by its output, as C++ does."""

        def wait(*_: Any) -> None:
            assert work.end is not None
            work.end.hold_back(self.cuda.current_stream(work.group.device))

        if self.recorded:
            self.watch._see_wait(wait, None, tensor)
        else:
            wait()

    def settle(self, seconds: float = 30.0) -> None:
        """Read all marks that the device reaches in time."""
        end = self.cuda.now_ns + round(seconds * 1e9)
        while not self.watch.read(64) and self.cuda.now_ns < end:
            self.cuda.host(5 * MS)

    def timeline(self) -> RankTimeline:
        """Return what was recorded."""
        environment = {} if self.connections is None else {"CUDA_DEVICE_MAX_CONNECTIONS": str(self.connections)}
        recorded = {"settings": {"environment": environment}, "complete": not self.guard.failures}
        return timeline_of(0, self.records, self.clock, [], recorded, buckets=self.buckets)

    # -- the truth -------------------------------------------------------------------------------------------------

    def truth(self, step: int, groups: list[NcclGroup]) -> tuple[int, int, int]:
        """Return a step's length, exposed and overlapped communication: from its first kernel to the next step's."""
        kernels = [each for each in self.cuda.kernels if each[1] == self.computes_on]
        first = [self.cuda.kernels[at] for at in self.step_starts if at < len(self.cuda.kernels)]
        transfers = [each[1:] for group in groups for each in group.transfers]
        begin = first[step][2]
        ends = [each[3] for each in kernels] + [end for _, end in transfers]
        end = first[step + 1][2] if step + 1 < len(first) else max(ends)
        compute, comm = _set([each[2:] for each in kernels]), _set(transfers)
        compute, comm = clip(compute, begin, end), clip(comm, begin, end)
        return end - begin, length(difference(comm, compute)), length(intersection(comm, compute))


def _set(pairs: list[Any]) -> Intervals:
    array = np.array([tuple(each) for each in pairs], np.int64).reshape(-1, 2)
    return union((array[:, 0], array[:, 1]))


def _thread() -> int:
    import threading  # noqa: PLC0415

    return threading.get_ident()


def steps_of(timeline: RankTimeline) -> dict[int, Any]:
    """Return the complete steps of a timeline by number."""
    run = Run(world_size=1, ranks={0: timeline})
    return {step.step: step for step in analyze(run).ranks[0].steps if step.complete}


def agree(job: VirtualJob, groups: list[NcclGroup], *, within_ns: int = 10_000) -> dict[int, str]:
    """Assert that each complete step's figures are the truth or lie in the interval that is stated; return which.

    Nothing may begin before its launch.

    The first step begins on an idle device: there the model is called before its first kernel can run.
    """
    timeline = job.timeline()
    launched = timeline.spans.launch_ns != NONE
    assert np.all(timeline.spans.start_ns[launched] >= timeline.spans.launch_ns[launched])
    stated = timeline.recorded["exposed_between_ns"]
    found = {}
    for number, step in list(steps_of(timeline).items())[1:]:
        window, exposed, overlapped = job.truth(number, groups)
        assert step.window_ns == pytest.approx(window, abs=within_ns), number
        if str(number) in stated:
            low, high = stated[str(number)]
            assert low - within_ns <= exposed <= high + within_ns, (number, low, exposed, high)
            found[number] = "interval"
        else:
            assert step.exposed_comm_ns == pytest.approx(exposed, abs=within_ns), number
            assert step.overlapped_ns == pytest.approx(overlapped, abs=within_ns), number
            found[number] = "exact"
    return found


Program = Callable[[VirtualJob, dict[str, Any]], None]

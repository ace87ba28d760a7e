"""Watch the steps of a running job, and record a trace of a few of them where the ranks have agreed to."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from overlapscope.capture.hooks.profiler import TraceRecorder
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import MarkedRange, StepRecord
from overlapscope.capture.settings import Settings, Trigger
from overlapscope.capture.timestamps import Clock
from overlapscope.capture.trigger.agreement import Agreement, Claim, describe
from overlapscope.capture.trigger.requests import HttpRequests, SignalRequests
from overlapscope.capture.trigger.usual_range import UsualRange

FOLDER = "triggered"
"""Folder of the run directory that holds the traces, one folder a recording."""
POLL_SECONDS = 5.0
"""How often a rank asks the job's store, and how long claims are collected."""
RECENT_SHARE = 0.1
"""Weight of the newest step in the running mean of a step's seconds."""


def waited_ns(record: StepRecord) -> int | None:
    """Return how long the training thread waited for communication in a step; None where a device computes.

    Waits that torch makes for the job, and the end of backward after the last gradient, where DDP waits for its buckets
    (and copies them, which counts as waiting here).
    """
    waits = _host_ranges(record.waits)
    backward = _host_ranges([each for each in record.phases if each.name == "backward"])
    if not record.calls or waits is None or backward is None:
        return None
    last_gradient = max((ready for _, ready in record.gradients), default=None)
    tails = [end - max(last_gradient, begin) for begin, end in backward] if last_gradient is not None else []
    return sum(end - begin for begin, end in waits) + sum(max(0, tail) for tail in tails)


def _host_ranges(ranges: Sequence[MarkedRange]) -> list[tuple[int, int]] | None:
    """Return the ranges by the host's clock; None where one of them is not marked by it."""
    found = [(each.begin, each.end) for each in ranges]
    return found if all(isinstance(begin, int) and isinstance(end, int) for begin, end in found) else None


class TriggerWatch:
    """What `profile(trigger=...)` adds to a recording by `events`: reasons, the agreement, and the recorder."""

    def __init__(
        self, trigger: Trigger, path: Path, store: Any, rank: int, world_size: int, guard: Guard,
        transfer_clock: Callable[[], Clock | None],
    ) -> None:  # fmt: skip
        self._trigger, self._path, self._rank, self._guard = trigger, path, rank, guard
        self._usual = UsualRange(trigger.slower, trigger.for_seconds)
        self._count, self._step_seconds = 0, 0.0
        self._quiet_until = 0.0
        self._recorder: TraceRecorder | None = None
        self._transfer_clock = transfer_clock
        """Returns what `TraceRecorder.transfer_clock` is."""
        self._agreement = Agreement(
            store,
            rank,
            world_size,
            most_ranks=trigger.ranks,
            poll_seconds=min(POLL_SECONDS, trigger.for_seconds / 2),
            progress=lambda: (self._count, self._step_seconds),
            folder=lambda step: f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime())}.step{step}",
        )
        self._requests: list[SignalRequests | HttpRequests] = []
        if trigger.signal is not None:
            self._requests.append(SignalRequests(trigger.signal, self._asked))
        if trigger.http is not None and rank == 0:
            self._requests.append(HttpRequests(trigger.http, self._asked))
        self.written: list[Path] = []
        """Traces of this rank."""
        self.recorded: list[dict[str, str]] = []
        """Folder in the run directory, and reason, of each of them."""

    def open(self) -> None:
        """Begin to listen; what cannot be opened is a warning."""
        self._agreement.open()
        for each in self._requests:
            self._guard("opening the trigger", each.open)

    def close(self) -> None:
        """Stop; a recording under way is written as far as it got."""
        for each in self._requests:
            self._guard("closing the trigger", each.close)
        if self._recorder is None and self._agreement.asked:
            self._guard.note("a trace that was asked for was not recorded: the job ended before the ranks agreed on it")
        self._agreement.close()
        self._end_recording()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager whose range stands in the trace under `name`, while one is recorded."""
        return self._recorder.mark(name) if self._recorder is not None else nullcontext()

    def needs_calls(self) -> bool:
        """Return whether the step that begins now is recorded by a trace that lacks transfers: its calls have them."""
        recorder = self._recorder
        return recorder is not None and recorder.transfer_clock is not None and recorder.recording

    def step_ended(self, number: int, step_ns: int, record: StepRecord | None) -> None:
        """Look at a step that has ended, on the training thread."""
        self._count = number + 1
        if self._recorder is not None:
            if record is not None and self._recorder.recording:
                self._recorder.sent += record.calls
            self._recorder.step()
            if self._recorder.files or self._recorder.lost:
                self._end_recording()
            return
        plan = self._agreement.plan
        if plan is not None:
            self._follow(plan.step - self._count, self._rank in plan.ranks)
            return
        self._step_seconds += (RECENT_SHARE if self._step_seconds else 1.0) * (step_ns / 1e9 - self._step_seconds)
        found = self._usual.observe(step_ns, waited_ns(record) if record is not None else None)
        if found is not None and time.monotonic() >= self._quiet_until:
            grown_ns = found.observed_ns - found.usual_ns
            claim = Claim(rank=self._rank, kind=found.kind, grown_ns=grown_ns, reason=found.sentence())
            self._agreement.claim(claim)

    def _asked(self, by: str) -> None:
        """Ask for a trace; called by a signal handler, or by a thread of the server."""
        self._agreement.claim(Claim(rank=self._rank, kind="asked", grown_ns=0, reason=f"{by} asked for it"))

    def _follow(self, steps_left: int, records: bool) -> None:
        """Begin to record where the plan's step comes next; a rank that does not record passes it."""
        if steps_left > 0:
            return
        if records and steps_left == 0:
            self._guard("starting a triggered trace", self._begin_recording)
        elif records:
            self._guard.note("a triggered trace was not recorded: this rank learned of it too late")
        if self._recorder is None:
            self._finish_plan()

    def _begin_recording(self) -> None:
        settings = Settings(mode="trace", warmup=1, steps=self._trigger.steps)
        recorder = TraceRecorder(self._path, lambda: self._rank, settings, self._guard)
        recorder.metadata = {"overlapscope_trigger": describe(plan)} if (plan := self._agreement.plan) else {}
        recorder.transfer_clock = self._transfer_clock()
        recorder.open()
        self._recorder = recorder

    def _end_recording(self) -> None:
        recorder, plan = self._recorder, self._agreement.plan
        if recorder is None:
            return
        self._recorder = None
        self._guard("closing a triggered trace", recorder.close)
        if plan is not None:
            folder = self._path / FOLDER / plan.folder
            for file in recorder.files:
                self._guard("keeping a triggered trace", self._keep, file, folder, plan.reason)
        self._finish_plan()

    def _keep(self, file: Path, folder: Path, reason: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.written.append(file.rename(folder / f"rank{self._rank}.pt.trace.json.gz"))
        self.recorded.append({"trace": folder.relative_to(self._path).as_posix(), "reason": reason})

    def _finish_plan(self) -> None:
        self._quiet_until = time.monotonic() + self._trigger.every_seconds
        self._usual.restart()
        self._agreement.done()

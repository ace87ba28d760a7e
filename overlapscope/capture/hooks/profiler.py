"""`trace` mode: run torch.profiler on a short schedule and keep its traces.

Two profilers at once crash torch, or the second silently ends the first. Ours gives way: it does not start while
another one runs, and stops before another one starts (`ForeignProfilers` notices). The recording is then lost, the job
and the other profiler's are not.
"""

import gc
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlapscope.capture.host.thread_times import let_other_threads_rest
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.lifecycle.output import unfinished
from overlapscope.capture.records import CollectiveCall
from overlapscope.capture.timestamps import Clock

if TYPE_CHECKING:
    from overlapscope.capture.settings import Settings

REST_SECONDS: Final = 0.5
"""How long at most a recording waits for the ends of ranges of other threads, once, before it is written."""
TRANSFERS: Final = "overlapscope_transfers"
"""Key of what a trace over gloo has of the transfers of a communication hook: `CollectiveWatch` records them."""
ARMED: Final = ("WARMUP", "RECORD", "RECORD_AND_SAVE")
"""Actions in which a profiler has prepared or begun to record."""


class TraceRecorder:
    """Runs the profiler: not for the first `warmup` steps, then for `steps` steps, again every `repeat` steps.

    The profiler itself warms up for one step before each recording. A trace is written between two steps.
    """

    def __init__(self, path: Path, rank: Callable[[], int], schedule: "Settings", guard: Guard) -> None:
        self._path, self._rank, self._schedule, self._guard = path, rank, schedule, guard
        self._profiler: Any = None
        self._thread = 0
        """The thread that started the profiler: it crashes when another thread stops it."""
        self._steps = 0
        self._foreign = ForeignProfilers(self._give_way)
        self._busy = False
        """Whether our own profiler is the one that starts or stops now."""
        self.lost = False
        """Whether the recording ended because of another profiler."""
        self.files: list[Path] = []
        self.metadata: dict[str, str] = {}
        """What is written into each trace beside its events: JSON values by key."""
        self.sent: list[CollectiveCall] = []
        """Calls of recorded steps since the last trace was written, where they are recorded beside it."""
        self.transfer_clock: Clock | None = None
        """The clock of `sent`, whose transfers are written into the trace; None where the trace has them.

        A range `gloo:*` of a trace ends behind its future's callbacks, which have no ranges: they run in it, but
        outside of the profiler's state (finishWorkGloo in ProcessGroupGloo.cpp). So a trace does not say when the
        transfers of a communication hook end, and lacks what its callbacks send.
        """

    @property
    def recording(self) -> bool:
        """Return whether the profiler records the step that begins now."""
        return self._action in ("RECORD", "RECORD_AND_SAVE")

    @property
    def warming(self) -> bool:
        """Return whether the profiler runs in the current step without recording it."""
        return self._action == "WARMUP"

    @property
    def _action(self) -> str | None:
        return _action_of(self._profiler)

    def open(self) -> None:
        """Begin the schedule. The profiler itself starts as late as it can: by then the job uses its device."""
        self._foreign.open()
        self._start_when_due()

    def _start_when_due(self) -> None:
        offset = max(self._schedule.warmup - 1, 0)
        if self._profiler is None and not self.lost and self._steps == offset:
            self._advance(self._start, offset)

    def _start(self, offset: int) -> None:
        import torch  # noqa: PLC0415 - capture is the one room that uses torch
        from torch import profiler  # noqa: PLC0415

        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        planned = plan(self._schedule.warmup, self._schedule.steps, self._schedule.repeat)
        self._profiler = profiler.profile(
            activities=activities,
            schedule=lambda step: planned(step + offset),
            on_trace_ready=self._save,
            record_shapes=True,
            experimental_config=_with_wait_events(profiler),
        )
        for key, value in self.metadata.items():
            self._guard("describing a trace", self._profiler.preset_metadata_json, key, value)
        self._thread = threading.get_ident()
        self._profiler.start()

    def _advance(self, function: Callable[..., None], *args: Any) -> None:
        """Let our own profiler act, unless another one runs."""
        if self._foreign.running(self._profiler):
            self._lose(stop=False)
            return
        self._busy = True
        try:
            function(*args)
        finally:
            self._busy = False

    def _give_way(self) -> None:
        """Stop before another profiler starts."""
        if not self._busy and self._action in ARMED and self._thread == threading.get_ident():
            self._lose(stop=True)

    def _lose(self, *, stop: bool) -> None:
        profiler = self._profiler
        self._profiler, self.lost = None, True
        self._guard.note("another profiler runs in this process, so this recording ended; run one of them at a time")
        if stop:
            self._busy = True
            try:
                profiler.on_trace_ready = None  # half a recording
                self._guard("closing the profiler", profiler.stop)
            finally:
                self._busy = False

    def _save(self, profiler: Any) -> None:
        self._guard("writing a trace", self._export, profiler)

    def _export(self, profiler: Any) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        file = self._path / f"{unfinished(self._rank(), os.getpid())}.recording{len(self.files)}.pt.trace.json.gz"
        profiler.export_chrome_trace(str(file))
        self.files.append(file)

    def step(self) -> None:
        """Advance the profiler's schedule after a step."""
        self._steps += 1
        if self._profiler is not None:
            if self._action == "RECORD_AND_SAVE":
                self._guard("ending a recording", self._wait_for_transfers)
            self._advance(self._profiler.step)
        else:
            self._start_when_due()

    def _wait_for_transfers(self) -> None:
        let_other_threads_rest(REST_SECONDS)
        if self.transfer_clock is not None:
            self._profiler.add_metadata_json(TRANSFERS, _transfers(self.sent, self.transfer_clock))
        self.sent.clear()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager whose range the profiler records under `name`."""
        from torch import profiler  # noqa: PLC0415 - as above

        context: AbstractContextManager[Any] = profiler.record_function(name)
        return context

    def close(self) -> None:
        """Stop the profiler; an unfinished recording is written as far as it got."""
        self._foreign.close()
        if self._profiler is None:
            return
        if self._thread == threading.get_ident():
            if self.recording:
                self._guard("ending a recording", self._wait_for_transfers)
            self._profiler.stop()
        elif self.recording:
            self._guard.note("the profiler runs in a thread that is stuck: the unfinished recording is lost")


def _transfers(calls: Sequence[CollectiveCall], clock: Clock) -> str:
    """Return the transfers of calls that have ended, as JSON."""
    sent = [
        {"op": call.op, "elements": call.elements, "dtype": call.dtype, "group_size": call.group_size}
        | {"called_ns": clock.epoch_ns(transfer.ready), "ended_ns": clock.epoch_ns(transfer.done)}
        for call in calls
        if (transfer := call.transfer).done is not None
    ]
    return json.dumps(sent)


class ForeignProfilers:
    """While open, calls `before` where any profiler of torch is about to prepare or to begin a recording."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._undo = ExitStack()

    def open(self) -> None:
        """Patch the two functions through which every profiler of torch starts."""
        from torch.autograd import profiler  # noqa: PLC0415 - as above

        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(profiler, name)
            setattr(profiler, name, self._noticing(original))
            self._undo.callback(setattr, profiler, name, original)

    def close(self) -> None:
        """Remove the patches."""
        self._undo.close()

    def _noticing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def starts(*args: Any, **kwargs: Any) -> Any:
            self._before()
            return original(*args, **kwargs)

        return starts

    @staticmethod
    def running(ours: Any) -> bool:
        """Return whether a profiler other than `ours` has prepared or begun a recording.

        torch says whether one records, but not that one only warms up; such a one is an object somewhere. (Its type is
        asked, as `isinstance` runs code of strangers' objects.)
        """
        from torch import autograd  # noqa: PLC0415 - as above

        if _action_of(ours) in ("RECORD", "RECORD_AND_SAVE"):
            return False
        if autograd._profiler_enabled():
            return True
        if _action_of(ours) == "WARMUP":
            return False
        return any(issubclass(type(each), autograd.profiler.profile) and _unfinished(each) for each in gc.get_objects())


def _unfinished(profiler: Any) -> bool:
    """Return whether a profiler was entered and has no result; a disabled one has neither attribute."""
    return bool(getattr(profiler, "entered", False)) and getattr(profiler, "kineto_results", None) is None


def _action_of(profiler: Any) -> str | None:
    action = getattr(profiler, "current_action", None)
    return None if action is None else str(action.name)


def plan(warmup: int, steps: int, repeat: int | None) -> Callable[[int], Any]:
    """Return what the profiler does in each step, counted from 0: one ProfilerAction a step.

    The first `warmup` steps pass, the profiler warming up in the last of them; `steps` steps are recorded. With
    `repeat` that begins again every `repeat` steps, with a step of warming up each time. `torch.profiler.schedule` says
    the same, but in torch 2.4 it has no `skip_first_wait`, and the first recording comes a whole interval too late.
    """
    from torch.profiler import ProfilerAction  # noqa: PLC0415 - capture is the one room that uses torch

    before = min(warmup, 1) if repeat is None else 1

    def action(step: int) -> Any:
        at = step - max(warmup - 1, 0)
        if repeat is not None and at >= 0:
            at %= repeat
        if not 0 <= at < before + steps:
            return ProfilerAction.NONE
        if at < before:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if at == before + steps - 1 else ProfilerAction.RECORD

    return action


def _with_wait_events(profiler: Any) -> Any:
    config = getattr(profiler, "_ExperimentalConfig", None)
    try:
        return config(enable_cuda_sync_events=True) if config is not None else None
    except TypeError:  # this torch version cannot record wait events
        return None

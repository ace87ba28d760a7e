"""`trace` mode: run torch.profiler on a short schedule and keep its traces."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.capture.lifecycle.guard import Guard

if TYPE_CHECKING:
    from overlapscope.capture.settings import Settings


class TraceRecorder:
    """Runs the profiler: not for the first `warmup` steps, then for `steps` steps, again every `repeat` steps.

    The profiler itself warms up for one step before each recording. A trace is written between two steps.
    """

    def __init__(
        self, path: Path, rank: Callable[[], int], schedule: "Settings", on_device: bool, guard: Guard
    ) -> None:
        self._path, self._rank, self._schedule = path, rank, schedule
        self._on_device, self._guard = on_device, guard
        self._profiler: Any = None
        self._thread = 0
        """The thread that started the profiler: it crashes when another thread stops it."""
        self.files: list[Path] = []

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
        action = getattr(self._profiler, "current_action", None)
        return None if action is None else str(action.name)

    def open(self) -> None:
        """Start the profiler's schedule."""
        from torch import profiler  # noqa: PLC0415 - capture is the one room that uses torch

        activities = [profiler.ProfilerActivity.CPU]
        if self._on_device:
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(
            activities=activities,
            schedule=plan(self._schedule.warmup, self._schedule.steps, self._schedule.repeat),
            on_trace_ready=self._save,
            record_shapes=True,
            experimental_config=_with_wait_events(profiler),
        )
        self._profiler.start()
        self._thread = threading.get_ident()

    def _save(self, profiler: Any) -> None:
        self._guard("writing a trace", self._export, profiler)

    def _export(self, profiler: Any) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        file = self._path / f".rank_{self._rank():05d}.recording{len(self.files)}.pt.trace.json.gz"
        profiler.export_chrome_trace(str(file))
        self.files.append(file)

    def step(self) -> None:
        """Advance the profiler's schedule after a step."""
        if self._profiler is not None:
            self._profiler.step()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager whose range the profiler records under `name`."""
        from torch import profiler  # noqa: PLC0415

        context: AbstractContextManager[Any] = profiler.record_function(name)
        return context

    def close(self) -> None:
        """Stop the profiler; an unfinished recording is written as far as it got."""
        if self._profiler is None:
            return
        if self._thread == threading.get_ident():
            self._profiler.stop()
        elif self.recording:
            self._guard.note("the profiler runs in a thread that is stuck: the unfinished recording is lost")


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

"""`trace` mode: torch.profiler over a short schedule, its traces kept."""

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.capture.lifecycle.guard import Guard

if TYPE_CHECKING:
    from overlapscope.capture.settings import Settings


class TraceRecorder:
    """Runs the profiler: `warmup` steps without, then `steps` with it, again every `repeat` steps.

    The profiler itself warms up for one step before each recording. Writing a trace takes its time between two steps.
    """

    def __init__(
        self, path: Path, rank: Callable[[], int], schedule: "Settings", on_device: bool, guard: Guard
    ) -> None:
        self._path, self._rank, self._schedule = path, rank, schedule
        self._on_device, self._guard = on_device, guard
        self._profiler: Any = None
        self._thread = 0
        """The thread that started the profiler: stopped by another one, it crashes."""
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
        warmup, steps, repeat = self._schedule.warmup, self._schedule.steps, self._schedule.repeat
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a schedule without warm-up, which is the user's own wish
            plan = profiler.schedule(
                skip_first=max(warmup - 1, 0),
                wait=0 if repeat is None else repeat - steps - 1,
                warmup=min(warmup, 1) if repeat is None else 1,
                active=steps,
                repeat=1 if repeat is None else 0,
                skip_first_wait=1,
            )
        self._profiler = profiler.profile(
            activities=activities,
            schedule=plan,
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
        """Tell the profiler that a step has ended."""
        if self._profiler is not None:
            self._profiler.step()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Return a range that the profiler records."""
        from torch import profiler  # noqa: PLC0415

        context: AbstractContextManager[Any] = profiler.record_function(name)
        return context

    def close(self) -> None:
        """Stop the profiler; a recording that it is in the middle of is written as far as it is."""
        if self._profiler is None:
            return
        if self._thread == threading.get_ident():
            self._profiler.stop()
        elif self.recording:
            self._guard.note("the profiler runs in a thread that is stuck: a recording under way is lost")


def _with_wait_events(profiler: Any) -> Any:
    config = getattr(profiler, "_ExperimentalConfig", None)
    try:
        return config(enable_cuda_sync_events=True) if config is not None else None
    except TypeError:  # a torch that does not know wait events
        return None

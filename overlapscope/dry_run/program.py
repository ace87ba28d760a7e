"""Call the user's program until one of its steps is recorded.

The program is a function that is one step; or a training, as a framework owns its loop, in which an
`overlapscope.profile` marks the steps. Inside a dry run that profile records nothing itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from overlapscope.capture.session import Session
from overlapscope.dry_run.fake_world import FakeWorld
from overlapscope.dry_run.memory import GRADIENT, OPTIMIZER_STATE, PARAMETER
from overlapscope.errors import InputError

_USUAL_WARM_UP: Final = 1
_LONG_WARM_UP: Final = 2


class StepRecorded(BaseException):
    """Leaves a training whose step has been recorded; no Exception, which a framework would handle as a failure."""


class Program:
    """The steps of one pass, inside an open FakeWorld."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._warmed_up = 0
        self._marked = False
        """Whether a profile says where steps begin and end, and not the function's own begin and end."""
        self._left = False
        self._recorded = False
        self.begun_seconds = self.ended_seconds = 0.0
        """When the recorded step began and ended, by `time.perf_counter()`."""

    def run(self, function: Callable[[], Any]) -> None:
        """Call a function until a step has been recorded. Raises InputError where its training ends before."""
        self._hear_profiles()
        try:
            while not self._recorded:
                self._call(function)
        except (StepRecorded, Exception):  # a framework may fail as it is left
            if not self._recorded:
                raise

    def _call(self, function: Callable[[], Any]) -> None:
        before = self._warmed_up
        if not self._marked:
            self._begin()
        function()
        if not self._marked:
            self._end()
        elif not self._recorded and (self._left or self._warmed_up == before):
            raise InputError(
                f"the training that build returned ended after {self._warmed_up} steps of its profile: let it run for "
                f"{self._needed + 1} or more, of which the last is recorded"
            )

    @property
    def _needed(self) -> int:
        """Steps until the next one is like those of a long job."""
        return _LONG_WARM_UP if self._world.more_warm_up else _USUAL_WARM_UP

    def _begin(self) -> None:
        if self._warmed_up < self._needed:
            return
        classify(self._world)
        self._world.recorder.on_backward_end = lambda: classify(self._world)
        self.begun_seconds = time.perf_counter()
        self._world.recorder.begin()

    def _end(self) -> None:
        recorder = self._world.recorder
        if recorder.recording:
            recorder.recording, self._recorded = False, True
            self._note_loop()
            self.ended_seconds = time.perf_counter()
            raise StepRecorded
        self._warmed_up += 1
        self._world.end_warm_up_step()

    def _note_loop(self) -> None:
        """Warn where the function is a whole loop of steps."""
        recorder = self._world.recorder
        stepped = recorder.places.optimizer_steps
        most = max(stepped, key=stepped.count, default=None)
        if stepped.count(most) > 1:
            recorder.assumptions[
                f"the function ran {stepped.count(most)} steps of {type(most).__name__}, which count as one: return a "
                "function of one step, or mark the steps by overlapscope.profile"
            ] = None

    def _hear_profiles(self) -> None:
        """Let the profiles that the program opens mark its steps."""
        program = self

        def enter(scope: Session) -> Session:
            scope._state, program._marked = "open", True
            return scope

        def close(scope: Session, **_: Any) -> None:
            scope._state, program._left = "closed", True

        @contextmanager
        def step(_: Session, **__: Any) -> Iterator[None]:
            program._begin()
            yield
            program._end()

        for name, instead in (("__enter__", enter), ("close", close), ("step", step)):
            self._world.replace(Session, name, instead)


def classify(world: FakeWorld) -> None:
    """Note which storages are parameters, gradients and optimizer state."""
    memory = world.recorder.memory
    for optimizer in world.optimizers:
        for each in optimizer.state.values():
            for value in each.values() if isinstance(each, dict) else ():
                _classify_tensor(memory, value, OPTIMIZER_STATE)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _classify_tensor(memory, parameter, PARAMETER)
                _classify_tensor(memory, parameter.grad, GRADIENT)
    for parameter in world.recorder.places.parameters.values():
        _classify_tensor(memory, parameter, PARAMETER)
        _classify_tensor(memory, parameter.grad, GRADIENT)


def _classify_tensor(memory: Any, value: Any, kind: str) -> None:
    import torch  # noqa: PLC0415 - loaded only where a step runs

    if isinstance(value, torch.Tensor):
        memory.classify(_local(value), kind)


def _local(tensor: Any) -> Any:
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local

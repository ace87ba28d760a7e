"""Steps of a profile whose begin and end are calls of a host's own, not a `with` block."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import Any, TypeVar

import overlapscope
from overlapscope.capture.session import Session
from overlapscope.errors import UsageError

R = TypeVar("R")


class HostedSteps:
    """One step at a time on a profile that is open; without a profile nothing happens."""

    def __init__(self, scope: Session | None) -> None:
        self._scope = scope
        self._step: AbstractContextManager[None] | None = None
        self._spoiled = False

    @property
    def open(self) -> bool:
        """Return whether a step is open."""
        return self._step is not None

    def begin(self) -> None:
        """Begin a step, unless one is open or the rest of a spoiled one runs."""
        if self._scope is not None and self._step is None and not self._spoiled:
            self._step = self._scope.step()
            self._step.__enter__()

    def count(self, amounts: Callable[..., Mapping[str, float]], *args: Any) -> None:
        """Add `amounts(*args)` to what this rank processes in the open step: tokens, samples, flops; guarded."""
        scope = self._scope
        if scope is not None and self._step is not None:
            scope.guard("counting what a step processes", lambda: scope.count(**amounts(*args)))

    def end(self, error: BaseException | None = None) -> None:
        """End the step that is open, as not whole where an exception ended it."""
        self._spoiled = False
        step, self._step = self._step, None
        if step is not None:
            _leave(step, error)

    def spoil(self) -> None:
        """End the step that is open as not whole, and begin none before its own end would have come."""
        if self._step is not None:
            self.end(_Spoiled())
            self._spoiled = True


class HostedProfile:
    """A profile that a host opens with its training and closes after it, with its steps."""

    def __init__(self, path: str | PathLike[str], options: Mapping[str, Any]) -> None:
        self._path, self._options = path, dict(options)
        self._scope: Session | None = None
        self.steps = HostedSteps(None)
        """Steps of the open profile."""

    def open(self, model: Any) -> None:
        """Begin a recording of the model's training; one that is still open is closed first."""
        self.close()
        scope = overlapscope.profile(self._path, model=model, **self._options)
        scope.__enter__()
        self._scope, self.steps = scope, HostedSteps(scope)

    def attempt(self, what: str, function: Callable[[], R]) -> R | None:
        """Call a function that belongs to the open profile; its failure is a warning, and None."""
        return None if self._scope is None else self._scope.guard(what, function)

    def close(self, error: BaseException | None = None) -> None:
        """Write the run; does nothing where none is open."""
        scope, steps = self._scope, self.steps
        self._scope, self.steps = None, HostedSteps(None)
        if scope is None:
            return
        # A step that is open now never came to its end.
        steps.end(error or _Spoiled())
        _leave(scope, error)


def _leave(block: AbstractContextManager[Any], error: BaseException | None) -> None:
    """Leave a block that was entered before, by an exception if there is one."""
    block.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)


class _Spoiled(Exception):  # noqa: N818 - no error: it never leaves this file
    """What ends a step that is not whole."""


def batches(scope: Session, ends: Callable[[], bool]) -> Callable[..., AbstractContextManager[None]]:
    """Return what goes around each batch of a loop in which a step takes several.

    A step begins with the first batch and ends with the one after which `ends()` says so. `tokens`, `samples` and
    `flops` are those of this rank's batch, and are summed over the batches of a step.
    """
    steps = HostedSteps(scope)

    @contextmanager
    def batch(**amounts: float) -> Iterator[None]:
        steps.begin()
        steps.count(lambda: amounts)
        try:
            yield
        except BaseException as error:  # also KeyboardInterrupt: whatever ends the batch, its step is not whole
            steps.end(error)
            raise
        if ends():
            steps.end()

    return batch


def imported(names: Sequence[str], install: str) -> list[Any]:
    """Return those of the modules that the process has imported already, else the first that is installed.

    Raises UsageError, naming the package to install, when there is none.
    """
    loaded = [sys.modules[name] for name in names if name in sys.modules]
    if loaded:
        return loaded
    for name in names:
        try:
            there = find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package is missing
            there = False
        if there:
            return [import_module(name)]
    raise UsageError(f"{' or '.join(names)} is not installed: pip install {install}")

"""The boundary between our code and the user's training: a failure of ours is a warning, never an exception there."""

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CaptureWarning(UserWarning):
    """Something could not be recorded; training goes on."""


class Guard:
    """Runs our own code inside training; keeps each failure, and warns once about each."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.ending = False
        """Whether the run is written, after which there may be no training."""

    def __call__(self, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function` and return its result; None when it fails. `what` names the activity in the warning."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary to the job: a failure of ours must not end training
            self.note(f"{what}: {type(error).__name__}: {error}")
            return None

    def note(self, failure: str) -> None:
        """Keep a failure and warn about it, unless it was noted before."""
        one_line = " ".join(failure.split())[:500]
        if one_line not in self.failures:
            self.failures.append(one_line)
            warn(one_line if self.ending else f"{one_line}; training goes on", stacklevel=4)


def warn(what: str, *, stacklevel: int) -> None:
    """Warn, also where the user has turned warnings into errors: those must not reach the training loop either."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", CaptureWarning)
        warnings.warn(f"overlapscope: {what}", CaptureWarning, stacklevel=stacklevel)

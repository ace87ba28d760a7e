"""The boundary between our code and the user's training: what fails in ours is a warning, no exception of theirs."""

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CaptureWarning(UserWarning):
    """Something could not be recorded; training goes on."""


class Guard:
    """Runs our own code inside training; keeps what failed, and warns once for each place."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def __call__(self, what: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function`; give None when it fails."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the one that goes on: ours must not end training
            self.note(f"{what}: {type(error).__name__}: {error}")
            return None

    def note(self, failure: str) -> None:
        """Keep a failure and warn of it, unless it was there before."""
        one_line = " ".join(failure.split())[:500]
        if one_line not in self.failures:
            self.failures.append(one_line)
            warn(f"{one_line}; training goes on", stacklevel=4)


def warn(what: str, *, stacklevel: int) -> None:
    """Warn; a warning that the user has turned into an error must not reach the training loop either."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", CaptureWarning)
        warnings.warn(f"overlapscope: {what}", CaptureWarning, stacklevel=stacklevel)

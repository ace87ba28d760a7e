"""SIGTERM as batch systems send it at the end of a job's time: what is under way is tidied up, as after Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

EXIT_CODE: Final = 128 + signal.SIGTERM


class Ended(KeyboardInterrupt):
    """The process was asked to end."""


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Raise Ended in the block when the process is asked to end, unless somebody else sees to that."""
    try:
        mine = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if mine:
            signal.signal(signal.SIGTERM, _end)
    except ValueError:  # only the main thread may say what signals do
        mine = False
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> NoReturn:
    raise Ended

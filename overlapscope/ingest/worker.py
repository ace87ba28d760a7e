"""What runs in a process of `processes`: tasks from a pipe, their results into it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

from overlapscope.cycles import search_seldom
from overlapscope.values import dataclass

GONE: Final = (EOFError, OSError)
"""What a pipe says whose other end has gone."""
_heard: ContextVar[Callable[[Any], None] | None] = ContextVar("heard", default=None)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task."""

    value: Any = None
    failed: str | None = None
    """What it raised."""


def tell(value: Any) -> None:
    """Give a word of a task that is under way to whoever listens; where it runs elsewhere, to nobody."""
    heard = _heard.get()
    if heard is not None:
        heard(value)


@contextmanager
def listening(heard: Callable[[Any], None] | None) -> Iterator[None]:
    """Let `heard` get what tasks tell that run here in the block."""
    before = _heard.set(heard)
    try:
        yield
    finally:
        _heard.reset(before)


def work(number: int, module: str = "") -> None:
    """Do the tasks of the pipe with this file number until its other end closes; load a module before the first one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends this process
    search_seldom()
    pipe = Connection(number)
    if module:
        import_module(module)
    with listening(pipe.send):
        try:
            while True:
                function, args = pipe.recv()
                pipe.send(answer(function, args))
        except GONE:
            return


def answer(function: Any, args: tuple[Any, ...]) -> Answer:
    """Do a task; what it raises costs it alone."""
    try:
        return Answer(function(*args))
    except (BrokenPipeError, ConnectionResetError):  # of the pipe to a parent that is gone
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer: it must cost this task alone
        return Answer(failed=" ".join(f"{type(error).__name__}: {error}".split()))

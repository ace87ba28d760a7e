"""SIGTERM writes the run first, then does what it would have done without us."""

import signal
import threading
from collections.abc import Callable
from typing import Any

from overlapscope.capture.guard import Guard
from overlapscope.capture.last_words import LastWords


class Termination:
    """While open, calls `write` when SIGTERM comes, then what handled the signal before."""

    def __init__(self, guard: Guard, write: Callable[[], None]) -> None:
        self._guard, self._write = guard, write
        self._last_words = LastWords(guard, self._cut_off)
        self._handlers: tuple[Any, Any] | None = None
        self._stuck = False
        self.came = False
        """Whether the signal has come."""

    def open(self) -> None:
        """Listen; does nothing on another thread than the main one, which Python does not let handle signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)

        def terminated(number: int, frame: Any) -> None:
            # First of all: a second signal must find things as they were without us.
            signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
            self._last_words.cancel()
            self.came = True
            self._guard.failures.append("the process was terminated")
            self._write()
            if callable(previous):
                previous(number, frame)
            elif previous != signal.SIG_IGN:
                signal.raise_signal(number)

        self._handlers = (previous, terminated)
        signal.signal(signal.SIGTERM, terminated)
        if previous == signal.SIG_DFL:
            self._last_words.open()

    def close(self) -> None:
        """Leave the signal as it was found; does nothing where the main thread, which alone may, is stuck."""
        if self._stuck:
            return
        self._last_words.close()
        if self._handlers is not None:
            previous, ours = self._handlers
            self._handlers = None
            if signal.getsignal(signal.SIGTERM) is ours:
                signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)

    def forked(self) -> None:
        """In a forked child: leave the signal to what handled it before."""
        self._stuck = False
        self.close()

    def _cut_off(self) -> None:
        """Write what there is from another thread, the main one being stuck outside Python."""
        self._guard.failures.append("the process was terminated while it waited outside Python")
        self._stuck = True
        self._write()

"""Writing the run when SIGTERM finds the main thread outside Python, where its handler cannot run.

A rank that hangs in a collective sits in C++: Python notes the signal and would handle it when that call returns, which
is never. A thread is woken by the signal itself, gives the handler a moment, then writes what there is and ends the
process as the signal would have.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable

from overlapscope.capture.guard import Guard

PATIENCE_SECONDS = 2.0


class LastWords:
    """Calls `write` and ends the process when SIGTERM comes and the Python handler does not within two seconds."""

    def __init__(self, guard: Guard, write: Callable[[], None]) -> None:
        self._guard, self._write = guard, write
        self._handled = threading.Event()
        self._read = self._wake = self._previous = -1

    def open(self) -> None:
        """Listen; from the main thread. Does nothing where somebody else, such as asyncio, listens already."""
        self._read, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._previous = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        if self._previous != -1:
            signal.set_wakeup_fd(self._previous)
            self._shut()
            return
        threading.Thread(target=self._listen, name="overlapscope-last-words", daemon=True).start()

    def cancel(self) -> None:
        """The Python handler has come."""
        self._handled.set()

    def close(self) -> None:
        """Stop listening; from the main thread."""
        self._handled.set()
        if self._wake != -1:
            ours, found = self._wake, signal.set_wakeup_fd(-1)
            if found not in (-1, ours):  # somebody else, such as asyncio, listens by now
                signal.set_wakeup_fd(found)
            self._shut()

    def forked(self) -> None:
        """In a forked child: signals of the child must not wake the parent's thread, which reads the same pipe."""
        self.close()

    def _shut(self) -> None:
        for end in (self._wake, self._read):
            os.close(end)
        self._read = self._wake = -1

    def _listen(self) -> None:
        while not self._handled.is_set():
            try:
                numbers = os.read(self._read, 16)
            except OSError:
                return
            if not numbers:
                return
            if signal.SIGTERM in numbers and not self._handled.wait(PATIENCE_SECONDS):
                self._guard("writing last words", self._write)
                # Only the main thread may set handlers in Python; C knows no such rule.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
                os.kill(os.getpid(), signal.SIGTERM)

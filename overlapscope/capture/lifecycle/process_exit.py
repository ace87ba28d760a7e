"""SIGTERM writes the run first, then does what it would have done without us."""

import ctypes
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from overlapscope.capture.lifecycle.guard import Guard

PATIENCE_SECONDS = 2.0
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_registered = False


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


class Farewell:
    """While open, calls `leave` before `torch.distributed.destroy_process_group` takes down the whole job."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._undo: Callable[[], None] | None = None

    def open(self) -> None:
        """Stand before the function, wherever it is called by its module's name."""
        from torch import distributed  # noqa: PLC0415 - capture is the one room that uses torch

        if not distributed.is_available():
            return
        original = distributed.destroy_process_group
        places = (distributed, distributed.distributed_c10d)

        def destroy_process_group(group: Any = None) -> None:
            if group in (None, distributed.GroupMember.WORLD):
                self._leave()
            original(group)

        def undo() -> None:
            for place in places:
                if place.destroy_process_group is destroy_process_group:
                    place.destroy_process_group = original

        for place in places:
            place.destroy_process_group = destroy_process_group
        self._undo = undo

    def close(self) -> None:
        """Step aside."""
        if self._undo is not None:
            self._undo()
            self._undo = None


def in_each_child(of: Any) -> Callable[[], None]:
    """Call `of.forked()` in every child that is forked from now on; give what ends that."""
    global _registered  # noqa: PLW0603 - Python has no way to take such a function back
    if not _registered:
        os.register_at_fork(after_in_child=_stand_down)
        _registered = True
    _open.add(of)
    return lambda: _open.discard(of)


def _stand_down() -> None:
    for each in list(_open):
        each.forked()
    _open.clear()

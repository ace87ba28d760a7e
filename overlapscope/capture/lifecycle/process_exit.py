"""Write the run before the process ends: on SIGTERM, on SIGTERM while stuck in C++, and before process groups go.

SIGTERM writes the run first, then does what it would have done without us (`Termination`). One that arrives while the
run is written, as torchrun sends it to all ranks a moment after one has died, waits until it is written.

A rank that hangs in a collective is inside C++: Python notes the signal and would run its handler when that call
returns, which is never. A thread is woken by the signal itself, gives the handler a moment, then writes the run and
ends the process as the signal would have done (`StuckProcessWriter`).

A profile that is still open when the job destroys its process groups ends before that: jobs destroy their groups last;
after that, ranks could not send messages to rank 0 and the groups could not be listed (`GroupDestructionHook`).

A forked child (a worker of a pool or of a data loader) inherits handlers, exit functions and the pipe by which signals
wake a thread. It must not write the parent's run nor end it by a signal of its own, so all of these are switched off
when it starts (`stop_in_forked_children`).
"""

import ctypes
import inspect
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from overlapscope.capture.lifecycle.guard import Guard

HANDLER_SECONDS = 2.0
WRITING_SECONDS = 60.0
"""Longer than launchers let a process live after SIGTERM."""
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()
_registered = False
_held = threading.local()
"""`mask`: the signals that a thread blocked before it forked; None where nothing is held."""


class Termination:
    """While open, calls `write` when SIGTERM arrives, then the handler that was there before."""

    def __init__(self, guard: Guard, write: Callable[[], None]) -> None:
        self._guard, self._write = guard, write
        self._stuck_writer = StuckProcessWriter(guard, self._write_while_stuck)
        self._handlers: tuple[Any, Any] | None = None
        self._writing = self._terminating = False
        self._written = threading.Event()
        self._stuck_until = 0.0
        self.pending = False
        """Whether a signal arrived that `close` will deliver."""
        self.stuck = False
        """Whether the main thread does not come back to Python, while another writes the run."""
        self.ends_process = False
        """Whether SIGTERM ends the process after the run is written, as no other handler is there."""

    def open(self) -> None:
        """Install the handler; do nothing on a thread other than the main one, where Python does not allow it."""
        if not _on_main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)

        def terminated(number: int, frame: Any) -> None:
            if self.stuck:  # it came free meanwhile; the thread ends the process once the run is written
                self.wait_for_stuck_writer()
            elif self._handlers is None:
                _pass_on(previous, terminated, frame)
                return
            elif self._writing:
                self.pending = True
                return
            else:
                self._writing = self._terminating = True
                try:
                    self._stuck_writer.cancel()
                    self._guard.failures.append("the process was terminated")
                    self._write()
                finally:
                    self._restore()
            signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
            _deliver(previous, frame)
            if self.pending:
                _deliver(previous, frame)

        self._handlers = (previous, terminated)
        signal.signal(signal.SIGTERM, terminated)
        self.ends_process = previous == signal.SIG_DFL
        if self.ends_process:
            self._stuck_writer.open()

    def hold(self) -> None:
        """From now on the run is written: keep a signal that arrives until `close`."""
        self._writing = True
        self._stuck_writer.cancel()

    def close(self) -> None:
        """Restore the handler, and deliver a signal that was held.

        Does nothing while the main thread is stuck: only that thread may set handlers. Does nothing inside our own
        handler, which restores and delivers when it has ended. On another thread the handler stays, and passes signals
        on to the one that was there before.
        """
        if self.stuck or self._terminating or self._handlers is None:
            return
        previous, ours = self._handlers
        self._restore()
        if not self.pending:
            return
        if _on_main_thread():
            _deliver(previous, inspect.currentframe())
        elif signal.getsignal(signal.SIGTERM) is ours:
            signal.raise_signal(signal.SIGTERM)  # Python calls handlers on the main thread

    def forked(self) -> None:
        """Restore the handler in a forked child, and close the pipe, which would wake the parent's thread."""
        self.stuck = self.pending = self._terminating = False
        self.close()

    def wait_for_stuck_writer(self) -> None:
        """Wait, on the main thread, until the thread that writes in its place has written, or its time is over."""
        if self.stuck and _on_main_thread():
            self._written.wait(max(0.0, self._stuck_until - time.monotonic()))

    def _restore(self) -> None:
        """Restore what was there before, as far as Python allows it on this thread."""
        handlers, self._handlers = self._handlers, None
        self._writing = self._terminating = False
        self._guard("restoring signals", self._stuck_writer.close)
        if handlers is not None and _on_main_thread():
            previous, ours = handlers
            if signal.getsignal(signal.SIGTERM) is ours:
                signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)

    def _write_while_stuck(self) -> None:
        """Write the run from another thread, while the main one is stuck outside Python."""
        self._guard.failures.append("the process was terminated while it waited outside Python")
        self._stuck_until = time.monotonic() + WRITING_SECONDS
        self.stuck = True
        try:
            self._write()
        finally:
            self._written.set()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_waiting: dict[int, Callable[[], None]] = {}
"""Functions that the main thread is to call."""


def _call_waiting(number: int) -> int:
    with suppress(OSError, ValueError):  # nothing may be raised into what the main thread runs
        _waiting.pop(number)()
    return 0


_CALL_WAITING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_call_waiting)


def _on_the_main_thread(function: Callable[[], None]) -> None:
    """Call a function on the main thread as soon as that runs Python; only there handlers may be set."""
    number = id(function)
    _waiting[number] = function
    if ctypes.pythonapi.Py_AddPendingCall(_CALL_WAITING, ctypes.c_void_p(number)):
        del _waiting[number]  # too many wait: what is open stays open


def _deliver(previous: Any, frame: Any) -> None:
    """Do with SIGTERM what the handler that was there before would have done."""
    if callable(previous):
        previous(int(signal.SIGTERM), frame)
    elif previous != signal.SIG_IGN:
        signal.raise_signal(signal.SIGTERM)


def _pass_on(previous: Any, ours: Any, frame: Any) -> None:
    """Do with SIGTERM what was done without us, where our handler outlived its profile."""
    if signal.getsignal(signal.SIGTERM) is ours:
        signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
        _deliver(previous, frame)
    elif callable(previous):  # a later handler called ours as the one it found
        previous(int(signal.SIGTERM), frame)


class StuckProcessWriter:
    """Calls `write` and ends the process if SIGTERM arrives and its Python handler does not run within two seconds."""

    def __init__(self, guard: Guard, write: Callable[[], None]) -> None:
        self._guard, self._write = guard, write
        self._handled = threading.Event()
        self._read = self._wake = self._previous = -1

    def open(self) -> None:
        """Start the thread; call it from the main thread. Do nothing if the wakeup fd is in use, as by asyncio."""
        self._read, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._previous = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        if self._previous != -1:
            signal.set_wakeup_fd(self._previous)
            self._shut()
            return
        threading.Thread(target=self._listen, name="overlapscope-stuck-writer", daemon=True).start()

    def cancel(self) -> None:
        """Do nothing more: the Python handler has run."""
        self._handled.set()

    def close(self) -> None:
        """Stop the thread, and close the pipe, once the main thread runs: until then signals still write to it."""
        self._handled.set()
        if self._wake != -1 and not _on_main_thread():
            _on_the_main_thread(self.close)
        elif self._wake != -1:
            ours, found = self._wake, signal.set_wakeup_fd(-1)
            if found not in (-1, ours):  # something else, such as asyncio, has taken it over
                signal.set_wakeup_fd(found)
            self._shut()

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
            if signal.SIGTERM in numbers and not self._handled.wait(HANDLER_SECONDS):
                self._guard("writing the run", self._write)
                # In Python only the main thread may set handlers; C has no such rule.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
                os.kill(os.getpid(), signal.SIGTERM)


class GroupDestructionHook:
    """While open, calls `leave` before `torch.distributed.destroy_process_group` destroys all groups."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._undo = ExitStack()

    def open(self) -> None:
        """Patch the function in both modules that export it."""
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
        self._undo.callback(undo)

    def close(self) -> None:
        """Remove the patch."""
        self._undo.close()


def stop_in_forked_children(of: Any) -> Callable[[], None]:
    """Call `of.forked()` in every child that is forked from now on; return a function that ends that."""
    global _registered  # noqa: PLW0603 - Python cannot unregister such a function
    if not _registered:
        os.register_at_fork(
            before=_hold_termination, after_in_parent=_deliver_termination, after_in_child=_stop_recorders
        )
        _registered = True
    _open.add(of)
    return lambda: _open.discard(of)


def _hold_termination() -> None:
    """Hold SIGTERM while the process forks: a child that got it before our handler is gone there would outlive it, and
    wake the parent's thread."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if _open else None


def _deliver_termination() -> None:
    if _held.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _stop_recorders() -> None:
    try:
        for each in list(_open):
            each.forked()
        _open.clear()
    finally:
        _deliver_termination()

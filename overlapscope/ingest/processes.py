"""Processes that work for this one: a killed one costs its own task, and no more.

The standard pool gives up all tasks when one process dies, as the system's out-of-memory killer makes them, and runs
the user's script anew in each. Here a thread waits for each process, and starts another in place of a dead one.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, Final

from overlapscope.ingest.worker import GONE, Answer, listening

_COMMAND: Final = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
_, number, *sys.path = sys.argv
from overlapscope.ingest.worker import work
work(int(number))
"""
"""Modules are found where this process finds them; its script is not run again."""


class TaskFailedError(Exception):
    """A task raised something; the message says what."""


class ProcessDiedError(Exception):
    """The process that worked on a task ended before it answered."""

    def __init__(self, code: int) -> None:
        super().__init__(_words(code))


def said_of(error: BaseException) -> str:
    """Give in one line what became of a task."""
    said = str(error) if isinstance(error, ProcessDiedError | TaskFailedError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())[:300]


def _words(code: int) -> str:
    """Say how a process ended: its exit code, or the negative number of the signal that killed it."""
    if code >= 0:
        return f"the process that read it ended with exit code {code}"
    named = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = "; so do systems whose memory runs out: try fewer --workers" if code == -signal.SIGKILL else ""
    return f"the process that read it was killed ({named}{why})"


class _Process:
    """One process; it works on one task at a time."""

    def __init__(self) -> None:
        self._pipe, its_end = Pipe()
        with its_end:
            number = its_end.fileno()
            command = [sys.executable, "-c", _COMMAND, str(number), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], heard: Callable[[Any], None] | None) -> Any:
        """Give what the function returns there; `heard` gets what it tells before that.

        Raises ProcessDiedError, after which the process is none any more, TaskFailedError.
        """
        try:
            self._pipe.send((function, args))
            while not isinstance(told := self._pipe.recv(), Answer):
                if heard is not None:
                    heard(told)
        except GONE as error:
            raise ProcessDiedError(self.end()) from error
        if told.failed is not None:
            raise TaskFailedError(told.failed)
        return told.value

    def has_ended(self) -> bool:
        """Whether it ended between two tasks."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Have whoever waits for its answer get none."""
        self._process.kill()

    def end(self) -> int:
        """Let it end, and give its exit code."""
        self._pipe.close()
        return self._process.wait()


def executor_of(count: int, heard: Callable[[Any], None] | None = None) -> Executor:
    """Give so many processes; one is this process itself. `heard` gets what their tasks tell."""
    return Processes(count, heard) if count > 1 and can_start() else InThisProcess(heard)


def can_start() -> bool:
    """Whether processes can be started: a frozen program is no Python, and would do anew what it does."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class InThisProcess(Executor):
    """Does each task when it is given, here; what it raises comes out of `submit`."""

    def __init__(self, heard: Callable[[Any], None] | None = None) -> None:
        self._heard = heard

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function; give its result."""
        future: Future[Any] = Future()
        with listening(self._heard):
            future.set_result(function(*args, **kwargs))
        return future


class Processes(Executor):
    """At most `count` processes, each started when there is work for it; `heard` gets what their tasks tell."""

    def __init__(self, count: int, heard: Callable[[Any], None] | None = None) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="overlapscope-process")
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._running: set[_Process] = set()
        self._stopped = False
        self._heard = heard

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of a function that is importable by name; what it returns should be small."""
        if kwargs:
            raise TypeError("tasks of other processes take no keyword arguments")
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        process = self._mine()
        try:
            return process.call(function, args, self._heard)
        except ProcessDiedError:
            self._of_thread.process = None
            with self._lock:
                self._running.discard(process)
            raise

    def _mine(self) -> _Process:
        """Give the process of this thread."""
        process: _Process | None = getattr(self._of_thread, "process", None)
        if process is None or process.has_ended():
            with self._lock:
                if process is not None:
                    self._running.discard(process)
                if self._stopped:
                    raise ProcessDiedError(-signal.SIGTERM)
                process = self._of_thread.process = _Process()
                self._running.add(process)
        return process

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after all tasks, or with `cancel_futures` at once, in the middle of a task."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            with self._lock:
                self._stopped = True
                for process in self._running:
                    process.kill()
        self._threads.shutdown(wait=wait)
        for process in self._running if wait else ():
            process.end()
        self._running.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(cancel_futures=kind is not None)

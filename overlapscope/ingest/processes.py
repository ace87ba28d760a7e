"""Processes that work for this one: a killed one costs its own task, and no more.

The standard pool gives up all tasks when one process dies, as the system's out-of-memory killer makes them, and runs
the user's script anew in each. Here a thread waits for each process, and starts another in place of a dead one.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, Final

from overlapscope.ingest.worker import GONE, Answer, answer, listening
from overlapscope.timeline.held_folder import remove_left_by_readers

_COMMAND: Final = """
import sys
_, number, module, *sys.path = sys.argv
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from overlapscope.ingest.worker import work
work(int(number), module)
os._exit(0)
"""
"""Modules are found where this process finds them, and not in the folder it stands in; its script is not run again.
Nothing is left to tidy up at the end: to take Python down piece by piece takes as long as reading a small file."""
_ALONE: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}
"""Threads that numpy's library starts in each process, for what reading has no use of, take a third of its start. To
give the system back what is asked for again at once takes glibc a fifteenth of reading; it comes to the same thresholds
by itself, but late in files of some megabytes."""


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


class Process:
    """One process; it works on one task at a time, and loads a module while there is none."""

    def __init__(self, module: str = "") -> None:
        self._pipe, its_end = Pipe()
        with its_end:
            number = its_end.fileno()
            command = [sys.executable, "-c", _COMMAND, str(number), module, *sys.path]
            # Ctrl-C goes to all processes; until this one ignores it, it waits.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[number], stdin=subprocess.DEVNULL, env=_ALONE | os.environ
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

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
        return result_of(told)

    def has_ended(self) -> bool:
        """Whether it ended between two tasks."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Have whoever waits for its answer get none."""
        self._process.kill()

    def close(self) -> None:
        """Let it end."""
        self._pipe.close()

    def end(self) -> int:
        """Let it end, and give its exit code."""
        self.close()
        return self._process.wait()


def result_of(told: Answer) -> Any:
    """Give what a task returned. Raises TaskFailedError."""
    if told.failed is not None:
        raise TaskFailedError(told.failed)
    return told.value


@contextmanager
def started(count: int, module: str) -> Iterator[list[Process]]:
    """Start processes that load a module, for an executor to take them; those that are left go with the block.

    Where the system starts no more of them, there are fewer.
    """
    processes: list[Process] = []
    try:
        with suppress(OSError):
            while len(processes) < count:
                processes.append(Process(module))
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.end()


def executor_of(
    count: int, heard: Callable[[Any], None] | None = None, processes: list[Process] | None = None
) -> Executor:
    """Give so many processes, of those that are `started` first; one is this process itself.

    `heard` gets what their tasks tell.
    """
    return Processes(count, heard, processes) if count > 1 and can_start() else InThisProcess(heard)


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
    """At most `count` processes, taken of those that are `started`, or started when there is work for one.

    What the system starts no process for is done in this one. `heard` gets what the tasks tell.
    """

    def __init__(
        self, count: int, heard: Callable[[Any], None] | None = None, processes: list[Process] | None = None
    ) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="overlapscope-process")
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._running: set[Process] = set()
        self._stopped = False
        self._heard = heard
        self._ready = processes if processes is not None else []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule a call of a function that is importable by name; what it returns should be small."""
        if kwargs:
            raise TypeError("tasks of other processes take no keyword arguments")
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            process = self._mine()
        except OSError:
            with listening(self._heard):
                return result_of(answer(function, args))
        try:
            return process.call(function, args, self._heard)
        except ProcessDiedError:
            self._of_thread.process = None
            with self._lock:
                self._running.discard(process)
            raise

    def _mine(self) -> Process:
        """Give the process of this thread."""
        process: Process | None = getattr(self._of_thread, "process", None)
        if process is None or process.has_ended():
            with self._lock:
                if process is not None:
                    self._running.discard(process)
                if self._stopped:
                    raise ProcessDiedError(-signal.SIGTERM)
                process = self._of_thread.process = self._one_more()
                self._running.add(process)
        return process

    def _one_more(self) -> Process:
        while self._ready:
            process = self._ready.pop()
            if not process.has_ended():
                return process
            process.end()
        return Process()

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
            process.close()  # each ends while the others do
        for process in self._running if wait else ():
            process.end()
        self._running.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(cancel_futures=kind is not None)
        if kind is not None:
            remove_left_by_readers()  # those that were ended in the middle of a task

"""Worker processes: the standard library's pool, so set up that it is safe to use from any program.

Workers never run the user's script, nor a module that lies in the current folder. Ctrl-C reaches this process alone,
and workers end as soon as it has gone. Leaving the block ends them at once.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import current_process, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType, TracebackType
from typing import Any, Final

from overlapscope.files.temporary_folder import remove_abandoned_reader_folders
from overlapscope.garbage_collection import collect_rarely

CANNOT_START: Final = (OSError, RuntimeError)
"""What a pool raises where the system starts no more processes or threads, or has no semaphores; or after a death."""
_MALLOC: Final = {-1: 64 << 20, -2: 16 << 20, -3: 32 << 20}
"""M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD: glibc comes to such values by itself, but late in files of some
megabytes. To return memory to the system that is needed again at once takes a fifteenth of reading."""
_STARTING: Final = threading.Lock()


class _Worker(SpawnProcess):
    def start(self) -> None:
        with _STARTING, _as_a_worker_starts():
            super().start()


@contextmanager
def _as_a_worker_starts() -> Iterator[None]:
    """Have a process that starts now run no script of the user, look for no modules where it stands, ignore Ctrl-C."""
    script, safe_path = sys.modules["__main__"], os.environ.get("PYTHONSAFEPATH")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")  # without a file there is nothing to run again
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        if safe_path is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe_path
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class WorkerPool(ProcessPoolExecutor):
    """At most `count` worker processes. Raises CANNOT_START, as `submit` does."""

    def __init__(self, count: int) -> None:
        _require_threads()
        self.count = count
        self._workers: list[_Worker] = []
        context = SpawnContext()
        context.Process = self._new_worker  # type: ignore[assignment, misc]
        super().__init__(count, context, initializer=_prepare_worker)

    def _new_worker(self, *args: Any, **kwargs: Any) -> _Worker:
        self._workers.append(_Worker(*args, **kwargs))
        return self._workers[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.pid:
                worker.terminate()  # nobody waits for a result any more; to end tidily takes as long as a small file
        self.shutdown(cancel_futures=True)
        if kind is not None:
            remove_abandoned_reader_folders()  # of those that were ended in the middle of a task

    def cause_of_death(self) -> str:
        """Return how a worker ended that was to go on. Only for a pool that is shut down."""
        codes = [code for worker in self._workers if (code := worker.exitcode)]
        # When one has died, the others are terminated.
        code = next((code for code in codes if code != -signal.SIGTERM), -signal.SIGTERM)
        if code >= 0:
            return f"the process that read it ended with exit code {code}"
        named = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = "; so do systems whose memory runs out: try fewer --workers" if code == -signal.SIGKILL else ""
        return f"the process that read it was killed ({named}{why})"


def _require_threads() -> None:
    """Raise RuntimeError unless a pool's two threads can be started: without the second it would hang."""
    ready = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(2):
            thread = threading.Thread(target=ready.wait)
            thread.start()
            started.append(thread)
    finally:
        ready.set()
        for thread in started:
            thread.join()


@contextmanager
def started_ahead(count: int, module: str) -> Iterator[WorkerPool | None]:
    """Start workers that load a module while this process loads its own; None for 0, or where none can be started."""
    with ExitStack() as held:
        started = None
        if count and can_start():
            with suppress(*CANNOT_START), ExitStack() as starting:  # a pool of which some cannot start ends at once
                pool = starting.enter_context(WorkerPool(count))
                for _ in range(count):
                    pool.submit(exec, f"import {module}")
                held.push(starting.pop_all())
                started = pool
        yield started


def can_start() -> bool:
    """Return whether this process may start workers: a frozen program is no Python, a daemon may have no children."""
    return bool(sys.executable) and not getattr(sys, "frozen", False) and not current_process().daemon


def describe_failure(error: BaseException) -> str:
    """Return in one line what a task raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _prepare_worker() -> None:
    with suppress(RuntimeError):  # the system starts no more threads
        threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # reading has no use of threads that take a third of a start
    collect_rarely()
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Return less of the freed memory to the system, in a process that is entirely ours."""
    with suppress(OSError, AttributeError):  # where there is no glibc
        library = ctypes.CDLL(None)
        for parameter, value in _MALLOC.items():
            library.mallopt(parameter, value)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""Many files read by many processes: each worker leaves what a file gave in the task's folder, only words travel."""

import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import NamedTemporaryFile
from typing import Any, Final, Literal

import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.files.temporary_folder import READER_PREFIX, locked_folder
from overlapscope.ingest import column_handoff
from overlapscope.ingest.parallel.process_pool import (
    CANNOT_START,
    WorkerPool,
    can_start,
    describe_failure,
)
from overlapscope.ingest.parallel.task import Read, Task, read_task, report_for
from overlapscope.ingest.parallel.worker_count import bytes_in
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.ingest.reader import Sharing

ReadHere = Callable[[Task, Callable[[int], None] | None], Read]
_REPORT_SECONDS: Final = 0.1


def read_task_in_shares(task: Task, progress: Callable[[int], None] | None, started: WorkerPool | None = None) -> Read:
    """Read the file of a task by as many processes as the task says, this one included."""
    if task.shares == 1 or not can_start():
        return read_task(task, progress)
    with ExitStack() as held:
        try:
            folder = held.enter_context(locked_folder(Path(tempfile.gettempdir()), READER_PREFIX))
            pool = held.enter_context(started or WorkerPool(task.shares - 1))
        except CANNOT_START:
            return read_task(task, progress)
        read = read_task(task, progress, Sharing(executor=pool, shares=task.shares, folder=folder))
    return read_task(task, progress) if read.refused == NO_MEMORY else read


def spool_task(task: Task, progress: Callable[[int], None] | None = None) -> Read:
    """Read the file of a task and leave its readings in the task's folder.

    Raises InputError for what no file is to blame for: code other than the task's, a disk that is full.
    """
    if task.code:
        from overlapscope.ingest.parallel.spool import spool  # noqa: PLC0415 - columns in memory need no Arrow
        from overlapscope.ingest.registry import reader_code_digest  # noqa: PLC0415

        if task.code != reader_code_digest():
            raise InputError(
                f"{display_path(task.named)}: the worker that was to read it has "
                "another version of overlapscope, or of a "
                "reader, than this command: install the same everywhere; what was read until then is kept"
            )
        read = read_task_in_shares(task, progress)
        return read if read.refused else spool(task, read)
    read = read_task_in_shares(task, progress)
    if read.refused:
        return read
    try:
        column_handoff.save(read, task.folder)
    except OSError:
        return read  # through the pipe
    return Read()


def read_into_memory(
    tasks: Sequence[Task],
    workers: int,
    progress: Callable[[Path, int], None] | None,
    started: WorkerPool | None = None,
) -> list[Read]:
    """Read the files by so many processes, this one and those that are `started` included; return what came of each."""
    if len(tasks) == 1:
        return [read_task_in_shares(tasks[0], report_for(progress, tasks[0]), started)]
    with ExitStack() as held:
        try:
            folder = held.enter_context(locked_folder(Path(tempfile.gettempdir()), READER_PREFIX))
        except OSError:  # nothing can be handed over where nothing can be written
            return [read_task_in_shares(task, report_for(progress, task)) for task in tasks]
        tasks = [replace(task, folder=folder / str(number)) for number, task in enumerate(tasks)]
        outcomes = read_files(tasks, range(len(tasks)), workers, progress, read_task_in_shares, started)
        held.enter_context(closing(outcomes))
        read = {
            number: each if each.refused or each.readings else column_handoff.load(tasks[number].folder)
            for number, each in outcomes
        }
    return [read[number] for number in range(len(tasks))]


def read_files(
    tasks: Sequence[Task],
    numbers: Sequence[int],
    workers: int,
    progress: Callable[[Path, int], None] | None,
    read_here: ReadHere | None = None,
    started: WorkerPool | None = None,
) -> Generator[tuple[int, Read], None, None]:
    """Have the files of the tasks with these numbers read by workers of this machine; yield each when it is done.

    The largest are begun first, so that none is read alone at the end. This process reads too if there is `read_here`,
    and where the system starts no workers. A task whose worker died is tried once more, alone, when all others are
    done: memory may have been short for several at once. Raises InputError as `spool_task` does.
    """
    order = sorted(numbers, key=lambda number: -bytes_in(tasks[number].path))
    if workers == 1 or not can_start():
        for number in order:
            yield number, (read_here or spool_task)(tasks[number], report_for(progress, tasks[number]))
        return
    died = []
    with _counters(tasks[0].folder.parent, len(tasks)) as counters:
        each_worker = _Workers(tasks, progress, counters)
        for number, read in each_worker.read(order, workers, read_here, started):
            if isinstance(read, Read):
                yield number, read
            else:
                died.append(number)
        for number in sorted(died):
            for _, read in each_worker.read([number], 1):
                yield number, Read(refused=f"could not be read: {read}", lost=True) if isinstance(read, str) else read


@contextmanager
def _counters(folder: Path, count: int) -> Iterator[Path | None]:
    """Make a file in which workers count the bytes that they read of each task; None where there is no room."""
    with ExitStack() as held:
        counters = None
        with suppress(OSError):
            file = held.enter_context(NamedTemporaryFile(dir=folder, prefix="."))
            file.write(bytes(8 * count))
            file.flush()
            counters = Path(file.name)
        yield counters


class _Workers:
    """Has tasks done by the workers of a pool, and by those of a new pool after one of them died."""

    def __init__(
        self, tasks: Sequence[Task], progress: Callable[[Path, int], None] | None, counters: Path | None
    ) -> None:
        self._tasks, self._progress, self._counters = tasks, progress, counters
        self._waiting: deque[int] = deque()
        self._begun: set[int] = set()
        self._finished: SimpleQueue[tuple[int, Future[Read]]] = SimpleQueue()
        self._bytes = _mapped(counters, "r") if counters and progress else None
        self._reported = [0] * len(tasks)

    def read(
        self,
        order: Sequence[int],
        count: int,
        read_here: ReadHere | None = None,
        started: WorkerPool | None = None,
    ) -> Iterator[tuple[int, Read | str]]:
        """Yield what came of each task, or how a worker ended that died while the task was being done."""
        self._waiting.extend(order)
        while self._waiting:
            died: list[int] = []
            with ExitStack() as held:
                with suppress(*CANNOT_START):
                    pool = held.enter_context(started or WorkerPool(count if read_here is None else count - 1))
                    started = None
                    for _ in range(min(pool.count, len(self._waiting))):
                        if not self._submit_next(pool):
                            break
                yield from self._read_here(read_here)
                while self._begun:
                    number, future = self._next_finished()
                    if isinstance(future.exception(), BrokenExecutor):  # a worker died, its own or another one
                        died.append(number)
                    else:
                        yield number, result_of(future)
            yield from ((number, pool.cause_of_death()) for number in died)

    def _submit_next(self, pool: WorkerPool) -> bool:
        """Submit one task more: never more than there are workers, so that those that are begun are being done.

        Return whether one was submitted. Where no further process can be started, `submit` fails after it has queued
        the task, which a running worker may then read as well as whoever gets it now. That costs time alone: both
        find the same, and what they write takes its place whole.
        """
        try:
            number = self._waiting.popleft()
        except IndexError:
            return False
        try:
            future = pool.submit(_spool_in_worker, self._tasks[number], number, self._counters)
        except CANNOT_START:
            self._waiting.appendleft(number)
            return False
        self._begun.add(number)
        future.add_done_callback(partial(self._finish, pool, number))
        return True

    def _finish(self, pool: WorkerPool, number: int, future: Future[Read]) -> None:
        # A broken pool may hold the lock that `submit` waits for.
        if not isinstance(future.exception(), BrokenExecutor):
            self._submit_next(pool)
        self._finished.put((number, future))

    def _read_here(self, read_here: ReadHere | None) -> Iterator[tuple[int, Read]]:
        """Read the tasks that are left from the end, also where no worker could be started."""
        while self._waiting and (read_here is not None or not self._begun):
            try:
                number = self._waiting.pop()
            except IndexError:  # a worker took it
                return
            task = self._tasks[number]
            yield number, (read_here or spool_task)(task, report_for(self._progress, task))
            self._report()

    def _next_finished(self) -> tuple[int, Future[Read]]:
        while True:
            try:
                number, future = self._finished.get(timeout=_REPORT_SECONDS)
            except Empty:
                self._report()
                continue
            self._report()
            self._begun.discard(number)
            return number, future

    def _report(self) -> None:
        if self._progress is not None and self._bytes is not None:
            for number in list(self._begun):
                now, before = int(self._bytes[number]), self._reported[number]
                self._reported[number] = now
                if now != before:
                    self._progress(self._tasks[number].named, now - before)


def _spool_in_worker(task: Task, number: int, counters: Path | None) -> Read:
    if counters is None:
        return spool_task(task)
    counted = _mapped(counters, "r+")

    def progress(done: int) -> None:
        counted[number] += done

    return spool_task(task, progress)


def _mapped(counters: Path, how: Literal["r", "r+"]) -> "np.memmap[Any, np.dtype[np.int64]]":
    return np.memmap(counters, np.int64, how)


def result_of(future: Future[Read], *, lost: bool = False) -> Read:
    """Return what came of a task; `lost` is whether what it raised tells nothing of its file. Raises InputError."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InputError):
        raise error
    return Read(refused=f"could not be read: {describe_failure(error)}", lost=lost)

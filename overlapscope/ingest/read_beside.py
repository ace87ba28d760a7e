"""The files of a job read side by side on this machine: by this process, and by others of its own.

This process reads too: few files are done with sooner than a second process has started.
"""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from overlapscope.ingest.handed_over import load, save
from overlapscope.ingest.processes import Process, ProcessDiedError, Processes, said_of
from overlapscope.ingest.read_shared import read_shared
from overlapscope.ingest.task import Read, Task, telling, told_to
from overlapscope.timeline.held_folder import WHILE_READING, held_folder


def read_beside(
    tasks: Sequence[Task],
    others: int,
    progress: Callable[[Path, int], None] | None,
    started: Sequence[Process] = (),
) -> list[Read]:
    """Read the files, in this process and in so many others, those first that are `started`; give what came of each.

    A process that dies costs its file: it is tried once more, alone, when all others are done, since memory may have
    been short for several at once.
    """

    def heard(word: tuple[int, int]) -> None:
        if progress is not None:
            progress(tasks[word[0]].named, word[1])

    with ExitStack() as held:
        try:
            work = held.enter_context(held_folder(Path(tempfile.gettempdir()), WHILE_READING))
        except OSError:  # nothing can be handed over where nothing can be written
            return [read_shared(task, told_to(progress, task)) for task in tasks]
        processes = held.enter_context(Processes(others, heard, list(started)))
        placed = [replace(task, folder=work / str(number)) for number, task in enumerate(tasks)]
        futures = [processes.submit(read_into, task, number) for number, task in enumerate(placed)]
        read: dict[int, Read] = {}
        for number in reversed(range(len(tasks))):
            if futures[number].cancel():
                read[number] = read_shared(tasks[number], told_to(progress, tasks[number]))
        there = [number for number in range(len(tasks)) if number not in read]
        for number in [each for each in there if isinstance(futures[each].exception(), ProcessDiedError)]:
            futures[number] = processes.submit(read_into, placed[number], number)
            futures[number].exception()
        read |= {number: _handed_over(placed[number], futures[number], progress) for number in there}
    return [read[number] for number in range(len(tasks))]


def read_into(task: Task, number: int) -> bool:
    """Read the file of a task and leave what came of it in the task's folder; False when it cannot be written there.

    Words on its progress are `(number, bytes read)`.
    """
    read = read_shared(task, telling(number))
    try:
        save(read, task.folder)
    except OSError:
        return False
    return True


def _handed_over(task: Task, future: "Future[bool]", progress: Callable[[Path, int], None] | None) -> Read:
    error = future.exception()
    if error is not None:
        return Read(refused=f"could not be read: {said_of(error)}")
    if not future.result():
        return read_shared(task, told_to(progress, task))
    read: Read = load(task.folder)
    return read

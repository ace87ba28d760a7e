"""The files of a job read side by side on this machine: by this process, and by others of its own.

The others hand over what they read as files that nobody else sees: columns as they are in memory, mapped here instead
of being read. This process reads too: few files are done with sooner than a second process has started.
"""

import mmap
import pickle
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final

from overlapscope.ingest.processes import ProcessDiedError, Processes, said_of
from overlapscope.ingest.task import Read, Task, read_task, telling, told_to
from overlapscope.timeline.held_folder import held_folder

_WORDS, _COLUMNS = "words", "columns"
_ALIGNED: Final = 64


def read_beside(tasks: Sequence[Task], others: int, progress: Callable[[Path, int], None] | None) -> list[Read]:
    """Read the files, in this process and in so many others; give what came of each.

    A process that dies costs its file: it is tried once more, alone, when all others are done, since memory may have
    been short for several at once.
    """

    def heard(word: tuple[int, int]) -> None:
        if progress is not None:
            progress(tasks[word[0]].named, word[1])

    place = Path(tempfile.gettempdir())
    with held_folder(place, "overlapscope-read-") as work, Processes(others, heard) as processes:
        placed = [replace(task, folder=work / str(number)) for number, task in enumerate(tasks)]
        futures = [processes.submit(read_into, task, number) for number, task in enumerate(placed)]
        read: dict[int, Read] = {}
        for number in reversed(range(len(tasks))):
            if futures[number].cancel():
                read[number] = read_task(tasks[number], told_to(progress, tasks[number]))
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
    read = read_task(task, telling(number))
    try:
        _save(read, task.folder)
    except OSError:
        return False
    return True


def _handed_over(task: Task, future: "Future[bool]", progress: Callable[[Path, int], None] | None) -> Read:
    error = future.exception()
    if error is not None:
        return Read(refused=f"could not be read: {said_of(error)}")
    return _load(task.folder) if future.result() else read_task(task, told_to(progress, task))


def _save(read: Read, folder: Path) -> None:
    """Raises OSError."""
    folder.mkdir(exist_ok=True)
    buffers: list[pickle.PickleBuffer] = []
    words = pickle.dumps(read, protocol=5, buffer_callback=buffers.append)
    sizes = []
    with open(folder / _COLUMNS, "wb") as file:
        for buffer in buffers:
            with buffer.raw() as raw:
                sizes.append(raw.nbytes)
                file.write(raw)
                file.write(bytes(-raw.nbytes % _ALIGNED))
    (folder / _WORDS).write_bytes(pickle.dumps((sizes, words), protocol=5))


def _load(folder: Path) -> Read:
    """Give what was saved; its columns are mapped, so that the folder may go."""
    sizes, words = pickle.loads((folder / _WORDS).read_bytes())
    mapped = memoryview(b"")
    if sum(sizes):
        with open(folder / _COLUMNS, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers, at = [], 0
    for size in sizes:
        buffers.append(mapped[at : at + size])
        at += size + -size % _ALIGNED
    read: Read = pickle.loads(words, buffers=buffers)
    return read

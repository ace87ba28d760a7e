"""One file read by as many processes of a machine as its task says, each a part of it, where its reader knows how."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from overlapscope.ingest.processes import Process, Processes
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.ingest.reading import Sharing
from overlapscope.ingest.task import Read, Task, read_task
from overlapscope.timeline.held_folder import WHILE_READING, held_folder


@contextmanager
def in_shares(tasks: Sequence[Task], shares: Sequence[int]) -> Iterator[list[Task]]:
    """Give the tasks with so many processes each, which hand over what they find in a folder that goes with the block.

    Where nothing can be written there, each file is read by one.
    """
    with ExitStack() as held:
        try:
            folder = held.enter_context(held_folder(Path(tempfile.gettempdir()), WHILE_READING))
        except OSError:
            yield list(tasks)
        else:
            yield [
                replace(task, shares=count, handed_over=folder / str(number))
                for number, (task, count) in enumerate(zip(tasks, shares, strict=True))
            ]


def read_shared(task: Task, progress: Callable[[int], None] | None, started: Sequence[Process] = ()) -> Read:
    """Read the file of a task by this process and others, of which those come first that are `started`."""
    if task.shares == 1:
        return read_task(task, progress)
    try:
        task.handed_over.mkdir(exist_ok=True)  # a process before this one may have been killed
    except OSError:
        return read_task(task, progress)
    try:
        with Processes(task.shares - 1, processes=list(started)) as executor:
            sharing = Sharing(executor=executor, shares=task.shares, folder=task.handed_over)
            read = read_task(task, progress, sharing)
        return read_task(task, progress) if read.refused == NO_MEMORY else read
    finally:  # what is mapped needs no name any more, and other files need the room
        shutil.rmtree(task.handed_over, ignore_errors=True)

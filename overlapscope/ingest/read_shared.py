"""One file read by as many processes of a machine as its task says, each a part of it, where its reader knows how."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from overlapscope.ingest.processes import Process, Processes
from overlapscope.ingest.reading import Sharing
from overlapscope.ingest.task import Read, Task, read_task
from overlapscope.timeline.held_folder import held_folder


def read_shared(task: Task, progress: Callable[[int], None] | None, started: Sequence[Process] = ()) -> Read:
    """Read the file of a task by this process and others, of which those come first that are `started`."""
    if task.shares == 1:
        return read_task(task, progress)
    with ExitStack() as held:
        try:
            folder = held.enter_context(held_folder(Path(tempfile.gettempdir()), "overlapscope-read-"))
        except OSError:  # nothing can be handed over where nothing can be written
            return read_task(task, progress)
        executor = held.enter_context(Processes(task.shares - 1, processes=list(started)))
        return read_task(task, progress, Sharing(executor=executor, shares=task.shares, folder=folder))

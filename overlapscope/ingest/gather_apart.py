"""The files of a job read apart, and what they gave brought together."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.cores import processes_for, shares_among
from overlapscope.ingest.inputs import Unpacked
from overlapscope.ingest.inputs.remote import Version
from overlapscope.ingest.processes import Process, can_start, executor_of
from overlapscope.ingest.read import Gathered, refused
from overlapscope.ingest.read_apart import (
    Unread,
    Watch,
    is_read,
    read_all,
    reading_folders,
    task_folder,
    told,
)
from overlapscope.ingest.read_by import read_by
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.read_shared import in_shares
from overlapscope.ingest.reading import Reading
from overlapscope.ingest.task import Task, idle_everywhere, task_of
from overlapscope.timeline.file_state import file_state

DAMAGED = (OSError, ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError)


def tasks_of(found: Unpacked, options: ReadOptions, work: Path) -> list[Task]:
    """Give what there is to read, each into a folder of its own in `work`."""
    code = read_by()
    how = [options.comm, options.compute, options.max_bytes, code]
    tasks = []
    for path in found.inputs.files:
        origin, _ = found.origin(path)
        there = found.inputs.remote.get(path)
        version = there if there is not None else _version(origin)
        file = (ascii(origin.absolute()), ascii(found.shown_path(path)), *version)
        tasks.append(replace(task_of(found, path, options, task_folder(work, file, how)), code=code))
    return tasks


def _version(path: Path) -> Version:
    """Give a file's state; reading one that is not there will tell."""
    try:
        return file_state(path.stat())
    except OSError:
        return ()


def shared_here(tasks: list[Task], workers: int | None) -> AbstractContextManager[list[Task]]:
    """Give the tasks, in which several processes of this machine read each large file where there are cores for it."""
    todo = [at for at, task in enumerate(tasks) if not is_read(task)]
    shares = [1] * len(tasks)
    for at, count in zip(todo, shares_among(workers, [tasks[at].path for at in todo]), strict=True):
        shares[at] = count
    return in_shares(tasks, shares) if max(shares, default=1) > 1 and can_start() else nullcontext(tasks)


def own_executor(tasks: Sequence[Task], workers: int | None, watch: Watch, processes: list[Process] | None) -> Executor:
    """Give the processes of this machine that read what was not read before, of those that are started first."""
    todo = [task.path for task in tasks if not is_read(task)]
    return executor_of(processes_for(workers, todo), lambda word: watch(tasks[word[0]].named, word[1]), processes)


def gather_apart(tasks: Sequence[Task], executor: Executor, watch: Watch, load: Callable[[Path], Reading]) -> Gathered:
    """Have the files read, and `load` the readings of each from their folders while others are read.

    They come in the order of the files. Raises InputError as `read_all` does, and where a folder is damaged.
    """
    unread: dict[int, Unread] = {}
    loaded: dict[int, tuple[list[Reading], Sequence[str]]] = {}
    for at, why in read_all(tasks, executor, watch):
        if why is not None:
            unread[at] = why
        else:
            loaded[at] = _loaded(tasks[at], load)
    failed = {at: refused(tasks[at].named, unread[at].why) for at in sorted(unread)}
    return Gathered(
        readings=[(tasks[at].named, reading) for at in sorted(loaded) for reading in loaded[at][0]],
        failed=list(failed.values()),
        idle_patterns=idle_everywhere([tuple(loaded[at][1]) for at in sorted(loaded)]),
        lost=tuple(failed[at] for at in failed if unread[at].lost),
    )


def _loaded(task: Task, load: Callable[[Path], Reading]) -> tuple[list[Reading], Sequence[str]]:
    """Give a file's readings, and the user's patterns that no kernel of it matched."""
    try:
        words = told(task)
        return [load(folder) for folder in reading_folders(task, words)], words.idle_patterns
    except DAMAGED as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{shown(task.folder)}: damaged ({said}); delete {shown(task.folder.parent)}") from error

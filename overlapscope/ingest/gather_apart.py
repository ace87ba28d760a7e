"""The files of a job read apart, and what they gave brought together."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa

from overlapscope.errors import InputError
from overlapscope.ingest.archives import Unpacked
from overlapscope.ingest.cores import processes_for
from overlapscope.ingest.processes import executor_of
from overlapscope.ingest.read import Gathered, refused
from overlapscope.ingest.read_apart import (
    Watch,
    is_read,
    read_all,
    reading_folders,
    task_folder,
    told,
)
from overlapscope.ingest.read_by import read_by
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.reading import Reading
from overlapscope.ingest.remote import Version
from overlapscope.ingest.shown import shown
from overlapscope.ingest.task import Task, idle_everywhere, task_of
from overlapscope.timeline.file_state import file_state
from overlapscope.timeline.run import Source

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


def own_executor(tasks: Sequence[Task], workers: int | None, watch: Watch) -> Executor:
    """Give the processes of this machine that read what was not read before."""
    todo = [task.path for task in tasks if not is_read(task)]
    return executor_of(processes_for(workers, todo), lambda word: watch(tasks[word[0]].named, word[1]))


def gather_apart(tasks: Sequence[Task], executor: Executor, watch: Watch, load: Callable[[Path], Reading]) -> Gathered:
    """Have the files read, then `load` the readings from their folders, in the order of the files.

    Raises InputError as `read_all` does, and where a folder is damaged.
    """
    readings: list[tuple[Path, Reading]] = []
    failed: list[Source] = []
    idle: list[tuple[str, ...]] = []
    for task, why in zip(tasks, read_all(tasks, executor, watch), strict=True):
        if why is not None:
            failed.append(refused(task.named, why))
            continue
        try:
            readings += [(task.named, load(folder)) for folder in reading_folders(task)]
            idle.append(told(task).idle_patterns)
        except DAMAGED as error:
            words = " ".join(str(error).split())[:200]
            raise InputError(f"{shown(task.folder)}: damaged ({words}); delete {shown(task.folder.parent)}") from error
    return Gathered(readings=readings, failed=failed, idle_patterns=idle_everywhere(idle))

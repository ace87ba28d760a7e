"""The files of a job read apart, and what they gave brought together."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from overlapscope.errors import InputError
from overlapscope.ingest.archives import Unpacked
from overlapscope.ingest.cores import processes_for
from overlapscope.ingest.processes import executor_of
from overlapscope.ingest.read import Gathered, ReadOptions, refused
from overlapscope.ingest.read_apart import (
    Task,
    Unwatched,
    Watch,
    is_read,
    read_all,
    reading_folders,
    task_folder,
    told,
)
from overlapscope.ingest.read_by import read_by
from overlapscope.ingest.reading import Reading
from overlapscope.ingest.reading_folder import load_reading
from overlapscope.ingest.remote import Version
from overlapscope.ingest.shown import shown
from overlapscope.timeline.file_state import file_state
from overlapscope.timeline.held_folder import held_folder
from overlapscope.timeline.run import Source

DAMAGED = (OSError, ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError)


def tasks_of(found: Unpacked, options: ReadOptions, work: Path) -> list[Task]:
    """Give what there is to read, each into a folder of its own in `work`."""
    code = read_by()
    how = [options.comm, options.compute, options.max_bytes, code]
    tasks = []
    for path in found.inputs.files:
        origin, member = found.origin(path)
        there = found.inputs.remote.get(path)
        version = there if there is not None else _version(origin)
        named, absolute = found.shown_path(path), path if there is not None else path.absolute()
        as_given = ((shown(absolute), shown(named)),) if member is None else ()
        tasks.append(
            Task(
                path=absolute,
                named=named,
                renamings=(*found.renamings, *as_given),
                folder=task_folder(work, (ascii(origin.absolute()), ascii(named), *version), how),
                comm=options.comm,
                compute=options.compute,
                max_bytes=options.max_bytes,
                code=code,
            )
        )
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
    idle: list[Any] = []
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
    nowhere = [each for each in idle[0] if all(each in others for others in idle)] if idle else []
    return Gathered(readings=readings, failed=failed, idle_patterns=nowhere)


def gather_whole(
    found: Unpacked, options: ReadOptions, count: int, progress: Callable[[Path, int], None] | None
) -> Gathered:
    """Read all of the files in so many processes of this machine."""
    watch = _Bytes(progress)
    with held_folder(Path(tempfile.gettempdir()), "overlapscope-read-") as work:
        tasks = tasks_of(found, options, work)
        with own_executor(tasks, count, watch) as executor:
            return gather_apart(tasks, executor, watch, load_reading)


class _Bytes(Unwatched):
    """Watches for somebody who wants to know no more than what is read."""

    def __init__(self, progress: Callable[[Path, int], None] | None) -> None:
        self._progress = progress

    def __call__(self, path: Path, read_bytes: int) -> None:
        if self._progress is not None:
            self._progress(path, read_bytes)

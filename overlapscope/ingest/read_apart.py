"""Files read by whoever has time: other processes, other machines. Columns go to disk; only words travel.

A file's readings lie in a folder of their own that is named after the file, its state, how it is read, and by which
code. The folder is whole or not there, so what an interrupted reading left behind is gone on with.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.cores import bytes_in
from overlapscope.ingest.processes import ProcessDiedError, TaskFailedError, said_of
from overlapscope.ingest.read_by import read_by
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.ingest.read_shared import read_shared
from overlapscope.ingest.reading_folder import save_reading
from overlapscope.ingest.task import Task, telling
from overlapscope.ingest.whole_folder import content_digest
from overlapscope.ingest.workplace import MAKE_ROOM
from overlapscope.timeline.plain_file import plain_content
from overlapscope.timeline.read_ahead import in_threads
from overlapscope.values import dataclass

_TOLD: Final = "file.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a task besides what lies in its folder."""

    kind: Literal["read", "refused", "no_memory", "unwritable", "other_code"] = "read"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why a file gave nothing."""

    why: str
    lost: bool
    """The file may be as good as any: a process was killed, memory was short, a disk was another one."""


class Watch(Protocol):
    """Who wants to know how far reading has come."""

    def begin(self, files: int, done: int) -> None:
        """Learn how many files there are, and how many need not be read again."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Learn that so many more bytes of a file were read."""

    def done(self, path: Path) -> None:
        """Learn that a file is done with."""


class Unwatched:
    """Nobody."""

    def begin(self, files: int, done: int) -> None:
        """Ignore it."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Ignore it."""

    def done(self, path: Path) -> None:
        """Ignore it."""


class Told(msgspec.Struct, kw_only=True):
    """What reading a file told besides its readings."""

    readings: int
    idle_patterns: tuple[str, ...]
    """The user's patterns that no kernel of it matched."""
    content: str
    """What tells whether the folder is as it was written."""


def task_folder(within: Path, file: Sequence[str | int], how: Sequence[object]) -> Path:
    """Give the folder for a file's readings: another one as soon as the file, or how it is read, is another."""
    words = [*file, *how]
    return within / hashlib.sha256(msgspec.json.encode(words)).hexdigest()[:32]


def is_read(task: Task) -> bool:
    """Whether the file was read before."""
    return (task.folder / _TOLD).is_file()


def go_on_with(tasks: Sequence[Task]) -> int:
    """Remove the folders that a power cut damaged, and give the number of files that were read before."""
    return sum(in_threads(_is_whole, [task.folder for task in tasks if os.path.lexists(task.folder)]))


def _is_whole(folder: Path) -> bool:
    try:
        content = msgspec.json.decode(plain_content(folder / _TOLD), type=Told).content
        whole = content == content_digest(folder, but=_TOLD)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        whole = False
    if not whole:  # what stays would be in the way of what is read anew
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
    return whole


def told(task: Task) -> Told:
    """Give what reading the file told. Raises OSError, msgspec.DecodeError for a damaged folder."""
    return msgspec.json.decode((task.folder / _TOLD).read_bytes(), type=Told)


def reading_folders(task: Task, words: Told) -> list[Path]:
    """Give the folders of a file's readings, in order."""
    return [task.folder / str(number) for number in range(words.readings)]


def read_apart(task: Task, number: int = -1) -> Outcome:
    """Read the file of a task, in whatever process; words on its progress are `(number, bytes read)`."""
    if task.code != read_by():
        return Outcome(kind="other_code")
    read = read_shared(task, telling(number))
    if read.refused:
        return Outcome(kind="no_memory" if read.refused == NO_MEMORY else "refused", why=read.refused)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{task.folder.name}.", dir=task.folder.parent) as made:
            temporary = Path(made) / "whole"
            temporary.mkdir()
            for at, reading in enumerate(read.readings):
                place = temporary / str(at)
                place.mkdir()
                save_reading(reading, task.named, place)
            content = content_digest(temporary, but=_TOLD)
            words = Told(readings=len(read.readings), idle_patterns=read.idle_patterns, content=content)
            (temporary / _TOLD).write_bytes(msgspec.json.encode(words))
            os.rename(temporary, task.folder)
    except MemoryError:
        return Outcome(kind="no_memory", why=NO_MEMORY)
    except OSError as error:
        if not is_read(task):  # another process may have read the same file
            return Outcome(kind="unwritable", why=f"{shown(task.folder.parent)}: {error.strerror or error}")
    return Outcome()


def read_all(tasks: Sequence[Task], executor: Executor, watch: Watch) -> Iterator[tuple[int, Unread | None]]:
    """Read the files that were not read before; of each, as it is done, give its number and why it gave nothing.

    The largest are begun first, so that none is read alone at the end. A task whose process died is tried once more,
    alone, when all others are done: memory may have been short for several at once. Raises InputError when nothing can
    be written, or the executor itself broke down.
    """
    todo = {at: bytes_in(task.path) for at, task in enumerate(tasks) if not is_read(task)}
    watch.begin(len(tasks), len(tasks) - len(todo))
    pending: dict[Future[Outcome], int] = {}
    for at in sorted(todo, key=lambda each: -todo[each]):
        future = executor.submit(read_apart, tasks[at], at)
        future.add_done_callback(partial(_done, watch, tasks[at].named))
        pending[future] = at
    for at in range(len(tasks)):
        if at not in todo:
            yield at, None
    died = []
    for future in as_completed(pending):
        at = pending[future]
        if isinstance(future.exception(), ProcessDiedError):
            died.append(at)
        else:
            yield at, _came_of(future, tasks[at])
    for at in sorted(died):
        yield at, _came_of(executor.submit(read_apart, tasks[at], at), tasks[at])


def _done(watch: Watch, path: Path, _: object) -> None:
    watch.done(path)


def _came_of(future: Future[Outcome], task: Task) -> Unread | None:
    error = future.exception()
    if isinstance(error, BrokenExecutor):
        raise InputError(
            f"{shown(task.named)}: the executor that was to read it broke down ({said_of(error)}); "
            "what was read until then is kept, and the same call goes on from there"
        )
    if error is not None:
        return Unread(why=f"could not be read: {said_of(error)}", lost=not isinstance(error, TaskFailedError))
    outcome = future.result()
    if outcome.kind == "unwritable":
        raise InputError(f"{outcome.why}: what files hold cannot be written there; {MAKE_ROOM}")
    if outcome.kind == "other_code":
        raise InputError(
            f"{shown(task.named)}: the worker that was to read it has another version of overlapscope, or of a reader, "
            "than this command: install the same everywhere; what was read until then is kept"
        )
    if outcome.kind == "read" and not _is_seen(task):
        where = shown(task.folder.parent)
        why = f"was read where {where} is another disk than here: choose a place for the run that all workers share"
        return Unread(why=why, lost=True)
    return Unread(why=outcome.why, lost=outcome.kind == "no_memory") if outcome.why else None


def _is_seen(task: Task) -> bool:
    os.listdir(task.folder.parent)  # network file systems look again at what they knew not to be there
    return is_read(task)

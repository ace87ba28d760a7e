"""What a file gave, in a folder of its own: named after the file, its state, how it is read, and by which code.

The folder is whole or not there, so what an interrupted command left behind is gone on with. After a power cut a file
may be empty, or half: a digest tells, and costs less than to wait for the disk with each file of each folder.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.files.safe_open import file_state, read_regular
from overlapscope.ingest.inputs import Unpacked
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.spool_format import save_reading
from overlapscope.ingest.parallel.task import Read, Task, task_of
from overlapscope.ingest.parallel.work_dir import MAKE_ROOM
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.ingest.registry import reader_code_digest
from overlapscope.timeline.store.read_ahead import in_threads

_SUMMARY: Final = "file.json"
_DIGEST: Final = partial(hashlib.blake2b, digest_size=16)


class _Summary(msgspec.Struct, kw_only=True):
    readings: int
    idle_patterns: tuple[str, ...]
    content: str
    """Digest of all other files."""


def spool_tasks(found: Unpacked, options: ReadOptions, within: Path) -> list[Task]:
    """Return what there is to read, each into a folder that is another one as soon as anything about it changes."""
    code = reader_code_digest()
    tasks = []
    for path in found.inputs.files:
        origin, _ = found.origin(path)
        there = found.inputs.remote.get(path)
        state = there if there is not None else _state(origin)
        words = [ascii(origin.absolute()), ascii(found.shown_path(path)), *state]
        words += [options.comm, options.compute, options.max_bytes, options.stacks, code]
        folder = within / hashlib.sha256(msgspec.json.encode(words)).hexdigest()[:32]
        tasks.append(replace(task_of(found, path, options), folder=folder, code=code))
    return tasks


def _state(path: Path) -> tuple[object, ...]:
    try:
        return file_state(path.stat())
    except OSError:
        return ()  # reading it will say why


def is_spooled(task: Task) -> bool:
    """Return whether the file was read before."""
    return (task.folder / _SUMMARY).is_file()


def remove_damaged(tasks: Sequence[Task]) -> int:
    """Remove the folders that a power cut damaged, and return how many files need not be read again."""
    return sum(in_threads(_is_whole, [task.folder for task in tasks if os.path.lexists(task.folder)]))


def _is_whole(folder: Path) -> bool:
    try:
        content = msgspec.json.decode(read_regular(folder / _SUMMARY), type=_Summary).content
        whole = content == _content_digest(folder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        whole = False
    if not whole:  # what stays would be in the way of what is read anew
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
    return whole


def _content_digest(folder: Path) -> str:
    digest = _DIGEST()
    for name in sorted(os.path.relpath(each, folder) for each in folder.rglob("*") if each.is_file()):
        if name != _SUMMARY:
            with open(folder / name, "rb") as file:
                digest.update(os.fsencode(name) + b"\0" + hashlib.file_digest(file, _DIGEST).digest())
    return digest.hexdigest()


def spool(task: Task, read: Read) -> Read:
    """Write what a file gave into the task's folder, and return the rest. Raises InputError where it cannot."""
    try:
        with tempfile.TemporaryDirectory(prefix=f".{task.folder.name}.", dir=task.folder.parent) as made:
            temporary = Path(made) / "whole"
            temporary.mkdir()
            for number, reading in enumerate(read.readings):
                place = temporary / str(number)
                place.mkdir()
                save_reading(reading, task.named, place)
            summary = _Summary(
                readings=len(read.readings), idle_patterns=read.idle_patterns, content=_content_digest(temporary)
            )
            (temporary / _SUMMARY).write_bytes(msgspec.json.encode(summary))
            os.rename(temporary, task.folder)
    except MemoryError:
        return Read(refused=NO_MEMORY, lost=True)
    except OSError as error:
        if not is_spooled(task):  # another process may have read the same file
            where, why = display_path(task.folder.parent), error.strerror or error
            raise InputError(f"{where}: {why}: what files hold cannot be written there; {MAKE_ROOM}") from error
    return Read()


def spooled(task: Task) -> tuple[list[Path], tuple[str, ...]]:
    """Return the folders of a file's readings, and the user's patterns that no kernel of it matched.

    Raises OSError, msgspec.DecodeError for a damaged folder.
    """
    summary = msgspec.json.decode((task.folder / _SUMMARY).read_bytes(), type=_Summary)
    return [task.folder / str(number) for number in range(summary.readings)], summary.idle_patterns

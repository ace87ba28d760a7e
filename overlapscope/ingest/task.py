"""One file to read, by whoever has time, and what came of it: what all ways of reading many files have in common."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.classify import Classifier
from overlapscope.ingest.inputs import Unpacked
from overlapscope.ingest.read_file import NO_MEMORY, read_file, reason
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.reading import ReadContext, Reading, Sharing, relabel_text
from overlapscope.values import dataclass

_TELL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One file to read."""

    path: Path
    """Absolute: workers may be elsewhere."""
    named: Path
    """What it is called: as the user writes it; a member of an archive by the archive's name."""
    renamings: tuple[tuple[str, str], ...] = ()
    """What to say in place of which beginnings of paths."""
    folder: Path
    """Where its readings go, if they go to disk."""
    comm: tuple[str, ...]
    compute: tuple[str, ...]
    max_bytes: int
    shares: int = 1
    """How many processes of one machine read it, each a part of it, where its reader knows how ..."""
    handed_over: Path = Path()
    """... and where they leave what they found for the one that puts it together."""
    code: str = ""
    """By which code, as `read_by` tells, and by no other; empty where that goes without saying."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one file gave, or why it gave nothing."""

    readings: tuple[Reading, ...] = ()
    refused: str = ""
    idle_patterns: tuple[str, ...] = ()
    """The user's patterns that no kernel of it matched."""


def task_of(found: Unpacked, path: Path, options: ReadOptions, folder: Path) -> Task:
    """Give the task of reading one of the files that were found."""
    _, member = found.origin(path)
    named = found.shown_path(path)
    absolute = path if path in found.inputs.remote else path.absolute()
    as_given = ((shown(absolute), shown(named)),) if member is None else ()
    return Task(
        path=absolute,
        named=named,
        renamings=(*found.renamings, *as_given),
        folder=folder,
        comm=options.comm,
        compute=options.compute,
        max_bytes=options.max_bytes,
    )


def read_task(task: Task, progress: Callable[[int], None] | None, sharing: Sharing | None = None) -> Read:
    """Read the file of a task, in whatever process; `progress` gets the number of bytes read from time to time."""
    classifier = Classifier(task.comm, task.compute)
    context = ReadContext(classifier=classifier, max_bytes=task.max_bytes, progress=progress, sharing=sharing)
    try:
        readings = tuple(reading.relabel_paths(task.renamings) for reading in read_file(task.path, context))
    except InputError as error:
        return Read(refused=relabel_text(reason(error, task.path), task.renamings))
    except MemoryError:
        return Read(refused=NO_MEMORY)
    return Read(readings=readings, idle_patterns=tuple(classifier.idle_patterns))


def told_to(progress: Callable[[Path, int], None] | None, task: Task) -> Callable[[int], None] | None:
    """Give what tells the bytes read of a task's file, by what the file is called."""
    return None if progress is None else lambda done: progress(task.named, done)


def telling(number: int) -> Callable[[int], None]:
    """Give what tells the bytes read of the task with this number, as `(number, bytes)`, from time to time."""
    from overlapscope.ingest.worker import tell  # noqa: PLC0415 - one process that reads needs no pipes

    unsaid, last = 0, 0.0

    def read(done: int) -> None:
        nonlocal unsaid, last
        unsaid += done
        now = time.monotonic()
        if now - last >= _TELL_SECONDS:
            tell((number, unsaid))
            unsaid, last = 0, now

    return read


def idle_everywhere(idle: list[tuple[str, ...]]) -> list[str]:
    """Give the patterns that matched in no file."""
    return [each for each in idle[0] if all(each in others for others in idle)] if idle else []

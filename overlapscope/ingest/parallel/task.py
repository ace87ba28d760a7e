"""One file to read, in whatever process, and what came of it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.inputs import Unpacked
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_file import NO_MEMORY, message_without_path, read_file
from overlapscope.ingest.reader import ReadContext, Reading, Sharing, rank_from_path, relabel_text
from overlapscope.timeline.run import Source

UNREAD = "unknown"
"""Format of a source that gave nothing."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One file to read."""

    path: Path
    """Absolute: workers may be elsewhere."""
    named: Path
    """What it is called: as the user writes it; a member of an archive by the archive's name."""
    renamings: tuple[tuple[str, str], ...] = ()
    """What to say in place of which beginnings of paths."""
    comm: tuple[str, ...]
    compute: tuple[str, ...]
    max_bytes: int
    stacks: bool = False
    shares: int = 1
    """How many processes of one machine read it, each a part of it, where its reader knows how."""
    folder: Path = Path()
    """Where a worker leaves its readings ..."""
    code: str = ""
    """... as tables of a run directory, written by the code that `read_by` names; as columns in memory if empty."""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What one file gave, or why it gave nothing."""

    readings: tuple[Reading, ...] = ()
    """None where they are in the task's folder."""
    idle_patterns: tuple[str, ...] = ()
    """The user's patterns that no kernel of it matched."""
    refused: str = ""
    lost: bool = False
    """It was refused though the file may be good: a process was killed, memory was short, a disk was another one."""


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What the files gave, one after another."""

    readings: list[tuple[Path, Reading]]
    """Each with what its file is called."""
    failed: list[Source]
    """Files that gave nothing, and why."""
    lost: list[Source]
    """Those of the failed that may be good files."""
    idle_patterns: list[str]
    """The user's patterns that no kernel of any file matched."""


def task_of(found: Unpacked, path: Path, options: ReadOptions) -> Task:
    """Return the task of reading one of the files that were found."""
    _, member = found.origin(path)
    named = found.shown_path(path)
    absolute = path if path in found.inputs.remote else path.absolute()
    as_given = ((display_path(absolute), display_path(named)),) if member is None else ()
    return Task(
        path=absolute,
        named=named,
        renamings=(*found.renamings, *as_given),
        comm=options.comm,
        compute=options.compute,
        max_bytes=options.max_bytes,
        stacks=options.stacks,
    )


def read_task(task: Task, progress: Callable[[int], None] | None, sharing: Sharing | None = None) -> Read:
    """Read the file of a task; `progress` gets the number of bytes read from time to time."""
    classifier = Classifier(task.comm, task.compute)
    context = ReadContext(
        classifier=classifier, max_bytes=task.max_bytes, stacks=task.stacks, progress=progress, sharing=sharing
    )
    try:
        readings = tuple(reading.relabel_paths(task.renamings) for reading in read_file(task.path, context))
    except InputError as error:
        return Read(refused=relabel_text(message_without_path(error, task.path), task.renamings))
    except MemoryError:
        return Read(refused=NO_MEMORY, lost=True)
    return Read(readings=readings, idle_patterns=tuple(classifier.idle_patterns))


def report_for(progress: Callable[[Path, int], None] | None, task: Task) -> Callable[[int], None] | None:
    """Return a callback that reports bytes read of a task's file, by what the file is called."""
    return None if progress is None else lambda done: progress(task.named, done)


def gathered(tasks: list[Task], read: list[Read]) -> Gathered:
    """Put together what came of the files, in their order."""
    failed = [(refused(task.named, each.refused), each) for task, each in zip(tasks, read, strict=True) if each.refused]
    idle = [each.idle_patterns for each in read if not each.refused]
    return Gathered(
        readings=[(task.named, reading) for task, each in zip(tasks, read, strict=True) for reading in each.readings],
        failed=[source for source, _ in failed],
        lost=[source for source, each in failed if each.lost],
        idle_patterns=[each for each in idle[0] if all(each in others for others in idle)] if idle else [],
    )


def refused(named: Path, why: str) -> Source:
    """Return what stands in the sources for a file that gave nothing."""
    rank = rank_from_path(named)
    unread = () if rank is None else (rank,)
    return Source(path=display_path(named), format=UNREAD, warnings=(why,), unread_ranks=unread)

"""Any inputs to one run: find the files, read each, put what they give together."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.display_path import shown, shown_name
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.assemble import assemble
from overlapscope.ingest.cores import MOST_SHARES, processes_for, shares_among
from overlapscope.ingest.inputs import Unpacked, unpacked
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.reading import Reading, rank_from_path
from overlapscope.ingest.task import Task, idle_everywhere, read_task, task_of, told_to
from overlapscope.timeline.run import Run, Source
from overlapscope.values import dataclass

UNREAD: Final = "unknown"
"""Format of a source that gave nothing."""

if TYPE_CHECKING:
    from overlapscope.ingest.processes import Process


def read_inputs(
    paths: Sequence[Path],
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    workers: int | None = 1,
    processes: "Sequence[Process]" = (),
) -> Run:
    """Read traces, logs and other sources of one job, folders of them, or one run directory.

    A file that cannot be used costs only itself: it stands in the run's sources with the reason. More than one worker,
    or None where there are cores for it and the files are large, reads them in processes side by side, those first
    that were started already. Raises InputError when nothing is usable, UsageError when runs and traces are mixed.
    """
    options = options or ReadOptions()
    with unpacked(list(paths), options.max_bytes) as found:
        run = stored_run(found, options)
        if run is not None:
            return run
        require_files(found, paths)
        gathered = _gathered(_tasks(found, options), workers, progress, processes)
        return joined(gathered, found, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the files gave, one after another."""

    readings: list[tuple[Path, Reading]]
    """Each with what its file is called."""
    failed: list[Source]
    """Files that gave nothing, and why."""
    idle_patterns: list[str]
    """The user's patterns that no kernel of any file matched."""
    lost: tuple[Source, ...] = ()
    """Those of the failed that may be as good as any: what was to read them was killed, or short of memory."""


def stored_run(found: Unpacked, options: ReadOptions) -> Run | None:
    """Give the run if the inputs are one run directory, None without any. Raises UsageError for more than that."""
    inputs = found.inputs
    if not inputs.runs:
        return None
    if len(inputs.runs) > 1 or inputs.files:
        listed = ", ".join(shown(path) for path in [*inputs.runs, *inputs.files][:4])
        raise UsageError(f"a run directory stands alone, but these were found together: {listed}; name one of them")
    if options.comm or options.compute or options.ranks:
        said, how = (
            f"{shown(inputs.runs[0])} is a run that was read before",
            "say how to read traces; give those instead",
        )
        raise UsageError(
            f"{said}: comm, compute and ranks {how}", in_shell=f"{said}: --comm, --compute and --rank {how}"
        )
    from overlapscope.timeline.store import load_run  # noqa: PLC0415 - traces need no Arrow

    return load_run(inputs.runs[0])


def require_files(found: Unpacked, paths: Sequence[Path]) -> None:
    """Raise InputError where no file may be a source."""
    if not found.inputs.files:
        others = found.inputs.passed_over
        why = [f"none of the {len(others)} files is a trace ({_some(others)})"] if others else []
        why += [each.warnings[0] for each in found.notes[:1]]
        raise InputError(f"{', '.join(map(shown, paths))}: {': '.join(why)}")


def _tasks(found: Unpacked, options: ReadOptions) -> list[Task]:
    nowhere = Path()
    return [task_of(found, path, options, nowhere) for path in found.inputs.files]


def _gathered(
    tasks: list[Task],
    workers: int | None,
    progress: Callable[[Path, int], None] | None,
    processes: "Sequence[Process]",
) -> Gathered:
    """Read the files, where it is worth it in other processes besides this one."""
    count, shares = _processes(tasks, workers, len(processes))
    with _in_shares(tasks, shares) as shared:
        if count > 1:
            from overlapscope.ingest.read_beside import read_beside  # noqa: PLC0415 - few runs need it, or what follows

            read = read_beside(shared, count - 1, progress, processes)
        elif shared[0].shares > 1:
            from overlapscope.ingest.read_shared import read_shared  # noqa: PLC0415

            read = [read_shared(shared[0], told_to(progress, shared[0]), processes)]
        else:
            read = [read_task(task, told_to(progress, task)) for task in shared]
    return Gathered(
        readings=[(task.named, reading) for task, each in zip(tasks, read, strict=True) for reading in each.readings],
        failed=[refused(task.named, each.refused) for task, each in zip(tasks, read, strict=True) if each.refused],
        idle_patterns=idle_everywhere([each.idle_patterns for each in read if not each.refused]),
    )


def _processes(tasks: list[Task], workers: int | None, started: int) -> tuple[int, list[int]]:
    """Give how many processes read files side by side, this one included, and how many read each file together."""
    files = [task.path for task in tasks]
    alone = 1, [1] * len(files)
    if workers == 1:
        return alone
    count = min(max(processes_for(workers, files), 1 + started), len(files))
    shares = shares_among(workers, files)
    if len(files) == 1:
        shares = [min(max(shares[0], 1 + started), MOST_SHARES)]
    if count == 1 and shares == [1]:
        return alone
    from overlapscope.ingest.processes import can_start  # noqa: PLC0415 - few runs need it

    return (count, shares) if can_start() else alone


def _in_shares(tasks: list[Task], shares: list[int]) -> AbstractContextManager[list[Task]]:
    if max(shares) == 1:
        return nullcontext(tasks)
    from overlapscope.ingest.read_shared import in_shares  # noqa: PLC0415

    return in_shares(tasks, shares)


def refused(named: Path, why: str) -> Source:
    """Give what stands in the sources for a file that gave nothing."""
    rank = rank_from_path(named)
    unread = () if rank is None else (rank,)
    return Source(path=shown(named), format=UNREAD, warnings=(why,), unread_ranks=unread)


def joined(gathered: Gathered, found: Unpacked, options: ReadOptions) -> Run:
    """Put together what the files gave, and say what was left. Raises InputError when none of them gave anything."""
    failed = [*found.notes, *gathered.failed, *starmap(refused, found.inputs.unreadable.items())]
    if not gathered.readings:
        first = failed[0]
        more = f" (and {len(failed) - 1} more like it)" if len(failed) > 1 else ""
        raise InputError(f"{first.path}: {first.warnings[0]}{more}")
    run = assemble(gathered.readings, options.ranks)
    notes = []
    if found.inputs.passed_over:
        others = found.inputs.passed_over
        notes.append(f"files passed over that look like no trace and no known log: {len(others)} ({_some(others)})")
    idle = gathered.idle_patterns
    if idle:
        notes.append(f"no kernel matches {', '.join(repr(each) for each in idle)} (--comm, --compute)")
    first, *rest = run.sources
    return replace(run, sources=(replace(first, warnings=(*first.warnings, *notes)), *rest, *failed))


def _some(paths: Sequence[Path]) -> str:
    """Give the names of the first files of many."""
    return ", ".join([*(shown_name(path) for path in paths[:3]), *(["..."] if len(paths) > 3 else [])])

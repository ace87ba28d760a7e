"""Any inputs to one run: find the files, read each, put what they give together."""

from collections.abc import Callable, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_name, display_path, list_some
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.inputs import Unpacked, unpacked
from overlapscope.ingest.merge.assemble import assemble_jobs
from overlapscope.ingest.merge.by_name import numbered_by_name
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.task import Gathered, Read, Task, gathered, read_task, refused, report_for, task_of
from overlapscope.ingest.parallel.worker_count import (
    BYTES_WORTH_A_PROCESS,
    BYTES_WORTH_STARTING_AHEAD,
    processes_for,
    shares_among,
)
from overlapscope.timeline.run import Run

if TYPE_CHECKING:
    from overlapscope.ingest.parallel.process_pool import WorkerPool


MOST_JOBS: Final = 4
MOST_LISTED: Final = 4


class ReadJob(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one job; where there are several, what tells it apart, and why it is not one of those before."""

    run: Run
    title: str = ""
    why: str = ""


def read_inputs(
    paths: Sequence[Path],
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    workers: int | None = 1,
    started: "WorkerPool | None" = None,
) -> Run:
    """Read traces, logs and other sources of one job, folders of them, or one run directory.

    Raises as `read_jobs` does, and InputError for several jobs.
    """
    return only_one(read_jobs(paths, options, progress=progress, workers=workers, started=started), paths)


def read_jobs(
    paths: Sequence[Path],
    options: ReadOptions | None = None,
    *,
    progress: Callable[[Path, int], None] | None = None,
    workers: int | None = 1,
    started: "WorkerPool | None" = None,
) -> list[ReadJob]:
    """Read what `read_inputs` does, of one job or several; of each job that the inputs are of, return its run.

    A file that cannot be used costs only itself: it stands in the run's sources with the reason. More than one worker,
    or None where there are cores for it and the files are large, reads them in processes side by side, those that
    are `started` already first. Raises InputError when nothing is usable, UsageError when runs and traces are mixed.
    """
    options = options or ReadOptions()
    with unpacked(list(paths), options.max_bytes) as found:
        run = stored_run(found, options)
        if run is not None:
            return [ReadJob(run=run)]
        require_files(found, paths)
        tasks = [task_of(found, path, options) for path in found.inputs.files]
        return joined(gathered(tasks, _read(tasks, workers, progress, started)), found, options)


def only_one(jobs: Sequence[ReadJob], paths: Sequence[Path]) -> Run:
    """Return the run of the only job. Raises InputError where there are several."""
    if len(jobs) == 1:
        return jobs[0].run
    listed = "; ".join(f"{number}. {each.title}" for number, each in enumerate(jobs[:MOST_JOBS], 1))
    more = f"; {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
    raise InputError(
        f"{', '.join(map(display_path, paths))}: recordings of {len(jobs)} jobs: {listed}{more}; name the files of one "
        "(analyze shows all)"
    )


def stored_run(found: Unpacked, options: ReadOptions) -> Run | None:
    """Return the run if the inputs are one run directory, None without any. Raises UsageError for more than that."""
    inputs = found.inputs
    if not inputs.runs:
        return None
    if len(inputs.runs) > 1 or inputs.files:
        every = [*inputs.runs, *inputs.files]
        listed = list_some([display_path(path) for path in every], MOST_LISTED)
        raise UsageError(
            f"a run directory stands alone, but these {len(every)} were found together: {listed}; name one of them"
        )
    if options.comm or options.compute or options.ranks:
        said, how = (
            f"{display_path(inputs.runs[0])} is a run that was read before",
            "say how to read traces; give those instead",
        )
        raise UsageError(
            f"{said}: comm, compute and ranks {how}", in_shell=f"{said}: --comm, --compute and --rank {how}"
        )
    from overlapscope.timeline.store.load_save import load_run  # noqa: PLC0415 - traces need no Arrow

    return load_run(inputs.runs[0])


def require_files(found: Unpacked, paths: Sequence[Path]) -> None:
    """Raise InputError where no file may be a source."""
    if not found.inputs.files:
        others = found.inputs.passed_over
        why = [f"none of the {len(others)} files is a trace ({_some(others)})"] if others else []
        why += [each.warnings[0] for each in found.notes[:1]]
        raise InputError(f"{', '.join(map(display_path, paths))}: {': '.join(why)}")


def _read(
    tasks: list[Task],
    workers: int | None,
    progress: Callable[[Path, int], None] | None,
    started: "WorkerPool | None",
) -> list[Read]:
    """Read the files, where it is worth it by other processes besides this one."""
    paths = [task.path for task in tasks]
    worth = BYTES_WORTH_STARTING_AHEAD if started else BYTES_WORTH_A_PROCESS
    count, shares = processes_for(workers, paths, worth), shares_among(workers, paths, worth)
    if count == 1 and max(shares) == 1:
        return [read_task(task, report_for(progress, task)) for task in tasks]
    from overlapscope.ingest.parallel.read_parallel import read_into_memory  # noqa: PLC0415 - few inputs need it

    tasks = [replace(task, shares=each) for task, each in zip(tasks, shares, strict=True)]
    return read_into_memory(tasks, count, progress, started)


def joined(gathered: Gathered, found: Unpacked, options: ReadOptions) -> list[ReadJob]:
    """Put together what the files gave, job by job, and say in the first what was left.

    Raises InputError when none of them gave anything.
    """
    failed = [*found.notes, *gathered.failed, *starmap(refused, found.inputs.unreadable.items())]
    if not gathered.readings:
        first = failed[0]
        more = f" (and {len(failed) - 1} more like it)" if len(failed) > 1 else ""
        raise InputError(f"{first.path}: {first.warnings[0]}{more}")
    readings, given = gathered.readings, options.ranks
    if isinstance(given, str):
        readings, given, failed = numbered_by_name(readings, failed)
    (job, run), *others = assemble_jobs(readings, given)
    notes = []
    if found.inputs.passed_over:
        passed = found.inputs.passed_over
        notes.append(f"files passed over that look like no trace and no known log: {len(passed)} ({_some(passed)})")
    idle = gathered.idle_patterns
    if idle:
        notes.append(f"no kernel matches {', '.join(repr(each) for each in idle)} (--comm, --compute)")
    first, *rest = run.sources
    run = replace(run, sources=(replace(first, warnings=(*first.warnings, *notes)), *rest, *failed))
    return [ReadJob(run=each, title=one.title if others else "", why=one.why) for one, each in ((job, run), *others)]


def _some(paths: Sequence[Path]) -> str:
    """Return the names of the first files of many."""
    return ", ".join([*(display_name(path) for path in paths[:3]), *(["..."] if len(paths) > 3 else [])])

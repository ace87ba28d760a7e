"""Any inputs to one run directory, in memory for one rank's tables a worker, and going on where it was interrupted.

Each file's columns are spooled to disk by who reads it. Then all that is small about all files is put together in this
process, as if they had been read here, and every rank's large tables are put where they belong: most often they stay
the files they are.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from overlapscope.display import display_path, url_of
from overlapscope.errors import InputError, NewerSchemaError, UsageError
from overlapscope.ingest.inputs import Unpacked, unpacked
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.dask import read_by_executor
from overlapscope.ingest.parallel.process_pool import CANNOT_START, WorkerPool, can_start
from overlapscope.ingest.parallel.read_parallel import read_files
from overlapscope.ingest.parallel.spool import is_spooled, remove_damaged, spool_tasks, spooled
from overlapscope.ingest.parallel.spool_format import Part, load_outline
from overlapscope.ingest.parallel.task import UNREAD, Read, Task, gathered
from overlapscope.ingest.parallel.work_dir import READ, work_dir
from overlapscope.ingest.parallel.worker_count import processes_for, shares_among
from overlapscope.ingest.progress import NoProgress, ProgressWatcher
from overlapscope.ingest.read_run import joined, only_one, require_files, stored_run
from overlapscope.ingest.write_run_tables import Joining, join_all, write_ranks
from overlapscope.timeline.run import Run, Source
from overlapscope.timeline.store.load_save import save_run, write_job
from overlapscope.timeline.store.manifest import read_manifest
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.timeline.store.run_folder import move_into_place, require_apart, require_replaceable
from overlapscope.version import __version__


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory that was written."""

    path: Path
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    unread_ranks: tuple[int, ...]
    """Those that are missing, though a file of theirs is there."""
    spans: int
    sources: tuple[Source, ...]
    resumed_files: int
    """Files that an earlier call had read before it was interrupted."""


def write_run(
    paths: Sequence[Path],
    out: Path,
    options: ReadOptions | None = None,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    force: bool = False,
    watch: ProgressWatcher | None = None,
    started: WorkerPool | None = None,
) -> Written:
    """Read traces, logs and other sources of one job and write the run directory `out`.

    Files are read by `workers` processes of this machine (as many as are worth it if None), those that are `started`
    already first, or by `executor`, whose workers must see inputs and `out` under the same paths. The executor stays
    open. A file that cannot be used costs only itself.

    Raises UsageError when `out` exists and may not be replaced (`require_replaceable`), or would replace an input
    (`require_apart`); InputError when nothing is usable, `out` cannot be written, or it holds what was lost now for
    want of memory or processes; what was read until then need not be read again by the next call for the same `out`.
    """
    require_output_free(out, force=force)  # before anything is read
    require_apart([each for each in paths if url_of(each) is None], out)
    options = options or ReadOptions()
    out = out.absolute()
    with (
        work_dir(out) as work,
        unpacked(list(paths), options.max_bytes, within=work) as found,
    ):
        require_output_free(out, force=force)  # another process may have written it meanwhile
        found = _without(found, out)  # noqa: PLW2901 - the same inputs
        run = stored_run(found, options)
        if run is not None:
            save_run(run, out, version=__version__, force=force)
            return _written(out, run, sum(each.num_spans for each in run.ranks.values()), 0)
        require_files(found, paths)
        tasks = spool_tasks(found, options, work / READ)
        resumed = remove_damaged(tasks)
        parts: list[Part] = []
        read = _read(tasks, workers, executor, watch or NoProgress(), parts, started)
        result = gathered(tasks, read)
        refuse_lossy_overwrite(out, result.lost)
        run = only_one(joined(result, found, options), paths)
        prepared = work / "run"
        prepared.mkdir()
        entries, joinings = write_ranks(run, parts, prepared)
        if joinings:
            _join(joinings, processes_for(workers, [task.path for task in tasks]), executor)
        write_job(run, entries, prepared, version=__version__)
        move_into_place(prepared, out)
        return _written(out, run, sum(entry.spans for entry in entries), resumed)


def require_output_free(out: Path, *, force: bool) -> None:
    """Raise UsageError where something stands that may not be replaced, or nothing can."""
    if url_of(out) is not None:
        raise UsageError(
            f"{display_path(out)}: a run is written to a disk of this machine; name a path, and copy it then"
        )
    require_replaceable(out, force=force)


def refuse_lossy_overwrite(out: Path, lost: Sequence[Source]) -> None:
    """Raise InputError where a run stands that may hold files that were lost now though they may be as good as any.

    One whose own `run.json` is damaged, or that could not read the same files, is no loss.
    """
    if not lost or not is_run_directory(out):
        return
    try:
        without = {source.path for source in read_manifest(out).sources if source.format == UNREAD}
    except NewerSchemaError:
        without = set()
    except InputError:
        return
    missing = [source for source in lost if source.path not in without]
    if missing:
        more = f" (and {len(missing) - 1} more like it)" if len(missing) > 1 else ""
        raise InputError(
            f"{display_path(out)} is left as it was, since it may hold what the new run would lack: {missing[0].path}: "
            f"{missing[0].warnings[0]}{more}; the same command goes on from there, and -o with another place "
            "writes a run without them"
        )


def _without(found: Unpacked, out: Path) -> Unpacked:
    """Return the inputs without the older run at `out`, where that stands among the traces that it was made of."""
    if not found.inputs.files:
        return found
    runs = tuple(each for each in found.inputs.runs if not (out.exists() and each.samefile(out)))
    return replace(found, inputs=replace(found.inputs, runs=runs))


def _read(
    tasks: Sequence[Task],
    workers: int | None,
    executor: Executor | None,
    watch: ProgressWatcher,
    parts: list[Part],
    started: WorkerPool | None,
) -> list[Read]:
    """Have what was not read before read; return all readings without their large tables, which are put in `parts`."""
    todo = [number for number, task in enumerate(tasks) if not is_spooled(task)]
    watch.begin(len(tasks), len(tasks) - len(todo))
    read = {number: _outline(tasks[number], parts) for number in sorted({*range(len(tasks))} - {*todo})}
    paths = [tasks[number].path for number in todo]
    if executor is not None:
        outcomes = read_by_executor(tasks, todo, executor)
    else:
        shares = dict(zip(todo, shares_among(workers, paths), strict=True))
        shared = [replace(task, shares=shares.get(number, 1)) for number, task in enumerate(tasks)]
        outcomes = read_files(shared, todo, processes_for(workers, paths), watch, started=started)
    with closing(outcomes):  # an interruption ends the workers
        for number, outcome in outcomes:
            watch.done(tasks[number].named)
            read[number] = outcome if outcome.refused else _outline(tasks[number], parts)
    return [read[number] for number in range(len(tasks))]


def _outline(task: Task, parts: list[Part]) -> Read:
    """Return what a file gave, adding its parts. Raises InputError."""
    try:
        folders, idle_patterns = spooled(task)
        readings = tuple(load_outline(folder, parts) for folder in folders)
    except (OSError, ValueError, KeyError, pa.ArrowException, msgspec.MsgspecError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(
            f"{display_path(task.folder)}: damaged ({why}); delete {display_path(task.folder.parent)}"
        ) from error
    return Read(readings=readings, idle_patterns=idle_patterns)


def _join(joinings: Sequence[Joining], workers: int, executor: Executor | None) -> None:
    if executor is not None:
        join_all(joinings, executor)
        return
    if workers > 1 and can_start():
        with suppress(*CANNOT_START), WorkerPool(min(workers, len(joinings))) as pool:
            join_all(joinings, pool)
            return
    with ThreadPoolExecutor(1) as here:
        join_all(joinings, here)


def _written(out: Path, run: Run, spans: int, resumed: int) -> Written:
    return Written(
        path=out,
        ranks=tuple(run.ranks),
        missing_ranks=run.missing_ranks,
        unread_ranks=run.unread_ranks,
        spans=spans,
        sources=run.sources,
        resumed_files=resumed,
    )

"""Any inputs to one run directory, in memory for one rank's tables a worker, and going on where it was interrupted.

Each file is read apart and leaves its columns on disk. Then all that is small about all files is put together in this
process, as if they had been read here, and every rank's large tables are put where they belong: most often they stay
the files they are.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from overlapscope.ingest.gather_apart import gather_apart, own_executor, shared_here, tasks_of
from overlapscope.ingest.inputs import Unpacked, unpacked
from overlapscope.ingest.older_run import require_free, require_no_less
from overlapscope.ingest.processes import Process
from overlapscope.ingest.read import joined, require_files, stored_run
from overlapscope.ingest.read_apart import Unwatched, Watch, go_on_with
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.reading import Reading
from overlapscope.ingest.reading_folder import Part, load_outline
from overlapscope.ingest.workplace import READ, workplace
from overlapscope.ingest.write_ranks import write_ranks
from overlapscope.timeline.flushed import Flushing
from overlapscope.timeline.rank_files import table_file
from overlapscope.timeline.run import Run, Source
from overlapscope.timeline.run_folder import take_place
from overlapscope.timeline.store import save_run, write_job
from overlapscope.timeline.stored import TABLES
from overlapscope.values import dataclass
from overlapscope.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
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
    watch: Watch | None = None,
    processes: list[Process] | None = None,
) -> Written:
    """Read traces, logs and other sources of one job and write the run directory `out`.

    Files are read by `workers` processes of this machine (as many as are worth it if None), or by `executor`, whose
    workers must see inputs and `out` under the same paths. The executor stays open. Of this machine's processes those
    are taken first that are `started` already. A file that cannot be used costs only itself.

    Raises UsageError when `out` exists and `force` is not given, InputError when nothing is usable, `out` cannot be
    written, or it holds what was lost now for want of memory or processes; what was read until then need not be read
    again by the next call for the same `out`.
    """
    require_free(out, force=force)  # before anything is read
    options = options or ReadOptions()
    out = out.absolute()
    with workplace(out) as work, unpacked(list(paths), options.max_bytes, within=work) as found, Flushing() as flushing:
        require_free(out, force=force)  # another process may have written it meanwhile
        found = _without(found, out)  # noqa: PLW2901 - the same inputs
        run = stored_run(found, options)
        if run is not None:
            save_run(run, out, version=__version__, force=force)
            return _written(out, run, sum(each.num_spans for each in run.ranks.values()), 0)
        require_files(found, paths)
        watch = watch or Unwatched()
        tasks = tasks_of(found, options, work / READ)
        resumed = go_on_with(tasks)
        parts: list[Part] = []
        load = partial(_loaded, parts=parts, flushing=flushing)
        with ExitStack() as held:
            if executor is None:
                tasks = held.enter_context(shared_here(tasks, workers))
                executor = held.enter_context(own_executor(tasks, workers, watch, processes))
            gathered = gather_apart(tasks, executor, watch, load)
            require_no_less(out, gathered.lost)
            run = joined(gathered, found, options)
            prepared = work / "run"
            prepared.mkdir()
            entries = write_ranks(run, parts, prepared, executor)
        write_job(run, entries, prepared, version=__version__)
        take_place(prepared, out, on_disk=flushing.done())
        return _written(out, run, sum(entry.spans for entry in entries), resumed)


def _without(found: Unpacked, out: Path) -> Unpacked:
    """Give the inputs without the older run at `out`, where that stands among the traces that it was made of."""
    if not found.inputs.files:
        return found
    runs = tuple(each for each in found.inputs.runs if not (out.exists() and each.samefile(out)))
    return replace(found, inputs=replace(found.inputs, runs=runs))


def _loaded(folder: Path, parts: list[Part], flushing: Flushing) -> Reading:
    """Give what a file gave, adding its parts; their tables are brought to disk meanwhile."""
    begin = len(parts)
    reading = load_outline(folder, parts)
    for part in parts[begin:]:  # most tables stay the files that they are
        flushing.begin(table_file(part.folder, name) for name in TABLES)
    return reading


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

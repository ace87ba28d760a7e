"""Any inputs to one run directory, in memory for one rank's tables a worker, and going on where it was interrupted.

Each file is read apart and leaves its columns on disk. Then all that is small about all files is put together in this
process, as if they had been read here, and every rank's large tables are put where they belong: most often they stay
the files they are.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.archives import unpacked
from overlapscope.ingest.gather_apart import gather_apart, own_executor, tasks_of
from overlapscope.ingest.large_tables import Joining, join_tables, places_of, stays, take_over
from overlapscope.ingest.read import joined, require_files, stored_run
from overlapscope.ingest.read_apart import Unwatched, Watch, go_on_with
from overlapscope.ingest.read_options import ReadOptions
from overlapscope.ingest.reading_folder import LARGE, SMALL, Part, load_outline
from overlapscope.ingest.shown import shown
from overlapscope.ingest.workplace import READ, workplace
from overlapscope.timeline.columns import make, size
from overlapscope.timeline.run import RankTimeline, Run, Source, is_run_directory
from overlapscope.timeline.run_folder import is_taken, take_place
from overlapscope.timeline.store import (
    RankEntry,
    rank_folder,
    save_run,
    table_file,
    write_entry,
    write_job,
    write_table,
)
from overlapscope.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A run directory that was written."""

    path: Path
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
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
) -> Written:
    """Read traces, logs and other sources of one job and write the run directory `out`.

    Files are read by `workers` processes of this machine (as many as are worth it if None), or by `executor`, whose
    workers must see inputs and `out` under the same paths. The executor stays open. A file that cannot be used costs
    only itself. Raises UsageError when `out` exists and `force` is not given, InputError when nothing is usable or
    `out` cannot be written; what was read until then need not be read again by the next call for the same `out`.
    """
    _require_free(out, force=force)  # before anything is read
    options = options or ReadOptions()
    out = out.absolute()
    with workplace(out) as work, unpacked(list(paths), options.max_bytes, within=work) as found:
        _require_free(out, force=force)  # another process may have written it meanwhile
        run = stored_run(found, options)
        if run is not None:
            save_run(run, out, version=__version__, force=force)
            return _written(out, run, sum(each.num_spans for each in run.ranks.values()), 0)
        require_files(found, paths)
        watch = watch or Unwatched()
        tasks = tasks_of(found, options, work / READ)
        resumed = go_on_with(tasks)
        parts: list[Part] = []
        with _open(executor, lambda: own_executor(tasks, workers, watch)) as running:
            gathered = gather_apart(tasks, running, watch, partial(load_outline, parts=parts))
            run = joined(gathered, found, options)
            prepared = work / "run"
            prepared.mkdir()
            entries = _write_ranks(run, parts, prepared, running)
        write_job(run, entries, prepared, version=__version__)
        take_place(prepared, out)
        return _written(out, run, sum(entry.spans for entry in entries), resumed)


def _require_free(out: Path, *, force: bool) -> None:
    taken = is_taken(out)
    if taken and not force:
        raise UsageError(f"{shown(out)} exists already; choose another place, or replace it with -f")
    if taken and not is_run_directory(out):
        raise UsageError(f"{shown(out)} exists and is no run directory: it is not replaced")


def _open(given: Executor | None, make_own: Callable[[], Executor]) -> AbstractContextManager[Executor]:
    return nullcontext(given) if given is not None else make_own()


def _written(out: Path, run: Run, spans: int, resumed: int) -> Written:
    return Written(
        path=out,
        ranks=tuple(run.ranks),
        missing_ranks=run.missing_ranks,
        spans=spans,
        sources=run.sources,
        resumed_files=resumed,
    )


def _write_ranks(run: Run, parts: Sequence[Part], folder: Path, executor: Executor) -> list[RankEntry]:
    """Write the folders of all ranks: what decisions changed from memory, the rest from the files' own tables."""
    entries = []
    joinings: list[Joining] = []
    empty = _empty_tables(folder.parent)
    for rank, timeline in sorted(run.ranks.items()):
        place = folder / rank_folder(rank)
        place.mkdir()
        spans = sum(parts[part].rows.get("spans", 0) for part in timeline.spans.correlation.tolist())
        entries.append(write_entry(timeline, place, spans=spans))
        whole = _as_it_is(timeline, parts)
        for name in SMALL:
            if whole is None or name not in whole.rows or name == "collectives":
                write_table(getattr(timeline, name), timeline.names, rank, table_file(place, name))
            else:
                take_over(name, whole, table_file(place, name))
        joinings += _large_tables(timeline, parts, place, empty)
    pending = {executor.submit(join_tables, each): each for each in joinings}
    wait(pending)
    for future, joining in pending.items():
        error = future.exception()
        if error is not None:
            raise InputError(
                f"rank {joining.rank}: its {joining.table} cannot be written ({type(error).__name__}: {error}); "
                "what was read is kept, and the same call goes on from there"
            )
    return entries


def _as_it_is(timeline: RankTimeline, parts: Sequence[Part]) -> Part | None:
    """Give the file's timeline that is the rank's, but for its calls; None where it was put together of several."""
    places = places_of(timeline.spans, parts)
    if len(places) != 1:
        return None
    part = parts[int(timeline.spans.correlation[0])]
    alone = part.rows.get("recordings", 0) == size(timeline.recordings)
    return part if alone and stays(places[0], part, timeline.rank) else None


def _empty_tables(folder: Path) -> dict[str, Path]:
    """Write an empty file for each large table: those of all ranks are alike."""
    files = {name: table_file(folder, f"empty_{name}") for name in LARGE}
    for name, kind in LARGE.items():
        write_table(make(kind, 0), (), 0, files[name])
    return files


def _large_tables(
    timeline: RankTimeline, parts: Sequence[Part], folder: Path, empty: Mapping[str, Path]
) -> list[Joining]:
    """Put the large tables that can stay as they are into the rank's folder; give the others to be written."""
    own = [parts[part] for part in timeline.spans.correlation.tolist()]
    places = places_of(timeline.spans, parts)
    joinings = []
    for name in LARGE:
        target = table_file(folder, name)
        having = [(place, part) for place, part in zip(places, own, strict=True) if name in part.rows]
        if not having:
            shutil.copyfile(empty[name], target)
        elif len(having) == 1 and stays(*having[0], timeline.rank):
            take_over(name, having[0][1], target)
        else:
            names = folder.parent.parent / f"{folder.name}.names"
            names.write_bytes(msgspec.json.encode(timeline.names))
            chosen = tuple(place for place, _ in having)
            joinings.append(Joining(table=name, rank=timeline.rank, names=names, places=chosen, target=target))
    return joinings

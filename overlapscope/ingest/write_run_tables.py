"""The tables of a run's ranks from what workers left on disk: each that is as it will be stays the file it is."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor, wait
from pathlib import Path

import msgspec

from overlapscope.errors import InputError
from overlapscope.ingest.parallel.spool_format import LARGE, SMALL, Part, calls_digest, load_part
from overlapscope.timeline.columns import Columns, Spans, concat, make, move_rows, recode, size
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run, tables_of
from overlapscope.timeline.store.manifest import RankEntry, rank_folder
from overlapscope.timeline.store.rank_files import RowCounts, table_file, write_entry, write_table


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file's timeline goes in its rank's: what its rows count from begins there."""

    folder: Path
    recording: int
    lane: int
    call: int


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """One large table of a rank to write."""

    table: str
    rank: int
    names: Path
    """A file with the rank's names."""
    places: tuple[Place, ...]
    target: Path


def write_ranks(run: Run, parts: Sequence[Part], folder: Path) -> tuple[list[RankEntry], list[Joining]]:
    """Write the folders of all ranks, and return what is left to do: large tables to put together.

    Small tables that decisions changed come from memory, the rest are the files' own. Raises OSError.
    """
    entries = []
    joinings: list[Joining] = []
    for rank, timeline in sorted(run.ranks.items()):
        place = folder / rank_folder(rank)
        place.mkdir()
        own = [parts[part].rows for part in timeline.spans.correlation.tolist()]
        spans, host, syncs = (sum(rows.get(table, 0) for rows in own) for table in ("spans", "host", "syncs"))
        entries.append(write_entry(timeline, place, RowCounts(spans=spans, host_spans=host, syncs=syncs)))
        _small_tables(timeline, parts, place)
        joinings += _large_tables(timeline, parts, place)
    return entries, joinings


def join_all(joinings: Sequence[Joining], executor: Executor) -> None:
    """Put large tables together. Raises InputError where one cannot be, and what `submit` raises."""
    pending = {executor.submit(join_tables, each): each for each in joinings}
    wait(pending)
    for future, joining in pending.items():
        error = future.exception()
        if error is not None:
            raise InputError(
                f"rank {joining.rank}: its {joining.table} cannot be written ({type(error).__name__}: {error}); "
                "what was read is kept, and the same call goes on from there"
            )


def _small_tables(timeline: RankTimeline, parts: Sequence[Part], folder: Path) -> None:
    """Put the small tables into the rank's folder."""
    whole = _as_it_is(timeline, parts)
    for name in tables_of(timeline.basis).keys() & SMALL.keys():
        target = table_file(folder, name)
        if whole is not None and _is_written(name, timeline, whole):
            take_over(name, whole, target)
        else:
            write_table(getattr(timeline, name), timeline.names, timeline.rank, target)


def _is_written(name: str, timeline: RankTimeline, whole: Part) -> bool:
    """Return whether a small table is as the file's reader wrote it: what the job tells changes calls alone."""
    same = whole.rows.get(name, 0) == size(getattr(timeline, name))
    return same and (name != "collectives" or whole.calls == calls_digest(timeline))


def _as_it_is(timeline: RankTimeline, parts: Sequence[Part]) -> Part | None:
    """Return the file's timeline that is the rank's, but for its calls; None where it was put together of several."""
    places = places_of(timeline.spans, parts)
    if len(places) != 1:
        return None
    part = parts[int(timeline.spans.correlation[0])]
    alone = part.rows.get("recordings", 0) == size(timeline.recordings)
    return part if alone and stays(places[0], part, timeline.rank) else None


def _large_tables(timeline: RankTimeline, parts: Sequence[Part], folder: Path) -> list[Joining]:
    """Put the large tables that can stay as they are into the rank's folder; give the others to be written."""
    own = [parts[part] for part in timeline.spans.correlation.tolist()]
    placed = list(zip(places_of(timeline.spans, parts), own, strict=True))
    joinings = []
    for name, kind in LARGE.items():
        target = table_file(folder, name)
        having = [(place, part) for place, part in placed if name in part.rows]
        sources = having or placed
        if len(sources) == 1 and stays(*sources[0], timeline.rank):
            take_over(name, sources[0][1], target)
        elif not having:
            write_table(make(kind, 0), (), timeline.rank, target)
        else:
            names = folder.parent.parent / f"{folder.name}.names"
            names.write_bytes(msgspec.json.encode(timeline.names))
            chosen = tuple(place for place, _ in having)
            joinings.append(Joining(table=name, rank=timeline.rank, names=names, places=chosen, target=target))
    return joinings


def places_of(spans: Spans, parts: Sequence[Part]) -> list[Place]:
    """Return the places that the rows in an outline's spans stand for."""
    columns = (spans.correlation, spans.recording, spans.lane, spans.collective)
    return [
        Place(folder=parts[part].folder, recording=recording, lane=lane, call=call)
        for part, recording, lane, call in zip(*(each.tolist() for each in columns), strict=True)
    ]


def stays(place: Place, part: Part, rank: int) -> bool:
    """Return whether a file's tables are its rank's as they are."""
    return part.written_rank == rank and (place.recording, place.lane, place.call) == (0, 0, 0)


def take_over(table: str, part: Part, target: Path) -> None:
    """Make a file's table its rank's, without a copy where the file system can. Raises OSError."""
    source = table_file(part.folder, table)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def join_tables(joining: Joining) -> None:
    """Write one table of a rank, in whatever process. Raises OSError, ValueError for damaged parts."""
    names = msgspec.json.decode(joining.names.read_bytes(), type=list[str])
    known = NameTable(names)
    kind = LARGE[joining.table]
    tables: list[Columns] = [make(kind, 0)]
    for place in joining.places:
        part = load_part(place.folder)
        table = recode(part.table(joining.table), part.names, known)
        tables.append(move_rows(table, recording=place.recording, lane=place.lane, call=place.call))
    write_table(concat(tables), tuple(names), joining.rank, joining.target)

"""The ranks of a run from what its files left on disk: each table that is as it will be stays the file it is."""

from collections.abc import Sequence
from concurrent.futures import Executor, wait
from pathlib import Path

import msgspec

from overlapscope.errors import InputError
from overlapscope.ingest.foreseen import calls_digest
from overlapscope.ingest.large_tables import Joining, join_tables, places_of, stays, take_over
from overlapscope.ingest.reading_folder import LARGE, SMALL, Part
from overlapscope.timeline.columns import make, size
from overlapscope.timeline.manifest import RankEntry, rank_folder
from overlapscope.timeline.rank_files import table_file, write_entry, write_table
from overlapscope.timeline.run import RankTimeline, Run


def write_ranks(run: Run, parts: Sequence[Part], folder: Path, executor: Executor) -> list[RankEntry]:
    """Write the folders of all ranks: what decisions changed from memory, the rest from the files' own tables.

    Raises OSError, InputError where a table cannot be put together.
    """
    entries = []
    joinings: list[Joining] = []
    for rank, timeline in sorted(run.ranks.items()):
        place = folder / rank_folder(rank)
        place.mkdir()
        spans = sum(parts[part].rows.get("spans", 0) for part in timeline.spans.correlation.tolist())
        entries.append(write_entry(timeline, place, spans=spans))
        _small_tables(timeline, parts, place)
        joinings += _large_tables(timeline, parts, place)
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


def _small_tables(timeline: RankTimeline, parts: Sequence[Part], folder: Path) -> None:
    """Put the small tables into the rank's folder."""
    whole = _as_it_is(timeline, parts)
    for name in SMALL:
        target = table_file(folder, name)
        if whole is not None and _is_written(name, timeline, whole):
            take_over(name, whole, target)
        else:
            write_table(getattr(timeline, name), timeline.names, timeline.rank, target)


def _is_written(name: str, timeline: RankTimeline, whole: Part) -> bool:
    """Whether a small table is as the file's reader wrote it: what the job tells changes calls alone."""
    same = whole.rows.get(name, 0) == size(getattr(timeline, name))
    return same and (name != "collectives" or whole.calls == calls_digest(timeline))


def _as_it_is(timeline: RankTimeline, parts: Sequence[Part]) -> Part | None:
    """Give the file's timeline that is the rank's, but for its calls; None where it was put together of several."""
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

"""One rank as a folder: a file a table, and what the rank is in `rank.json`."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.timeline.columns import Columns, make, or_none, size
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.store.arrow_tables import parquet_bytes, to_arrow, write_parquet
from overlapscope.timeline.store.lazy_rank import TABLES
from overlapscope.timeline.store.manifest import RankEntry, rank_folder
from overlapscope.timeline.store.run_directory import RANK_ENTRY


def write_rank(timeline: RankTimeline, folder: Path) -> RankEntry:
    """Write a rank into an empty folder, and give what the folder tells of itself. Raises OSError."""
    for name in TABLES:
        write_table(getattr(timeline, name), timeline.names, timeline.rank, table_file(folder, name))
    return write_entry(timeline, folder, spans=size(timeline.spans))


def table_file(folder: Path, table: str) -> Path:
    """Return the file of one table in a rank's folder."""
    return folder / f"{table}.parquet"


def write_table(table: Columns, names: tuple[str, ...], rank: int, file: Path) -> None:
    """Write one table of a rank, with the rank before its columns."""
    if size(table):
        write_parquet(to_arrow(table, names, rank), file)
    else:
        kind: Any = type(table)
        file.write_bytes(_empty(kind))


@cache
def _empty(kind: type[Columns]) -> bytes:
    """Return what the file of a table holds that has no rows, the same for all ranks: most have several."""
    return parquet_bytes(to_arrow(make(kind, 0), (), 0))


def write_entry(timeline: RankTimeline, folder: Path, *, spans: int) -> RankEntry:
    """Write what a rank's folder tells of itself, and give it; it has so many spans."""
    entry = entry_of(timeline, spans=spans)
    (folder / RANK_ENTRY).write_bytes(msgspec.json.encode(entry))
    return entry


def entry_of(timeline: RankTimeline, *, spans: int) -> RankEntry:
    """Return what is told of a rank that has so many spans."""
    basis: Any = timeline.basis
    return RankEntry(
        rank=timeline.rank,
        folder=rank_folder(timeline.rank),
        basis=basis,
        has_device=timeline.has_device,
        spans=spans,
        collectives=size(timeline.collectives),
        steps=timeline.steps.step.tolist(),
        start_ns=or_none(int(timeline.recordings.start_ns[0])),
        end_ns=or_none(int(timeline.recordings.end_ns[-1])),
        recorded=dict(timeline.recorded),
    )


def check_against_entry(entry: RankEntry, timeline: RankTimeline) -> None:
    """Raise ValueError where a rank's tables, each of them whole, are not those that were told of."""
    found = entry_of(timeline, spans=timeline.num_spans)
    for name in ("spans", "collectives", "steps", "start_ns", "end_ns"):
        told, there = getattr(entry, name), getattr(found, name)
        if told != there:
            if isinstance(told, list):
                told, there = len(told), len(there)
            raise ValueError(f"{name}: the tables have {there}, {RANK_ENTRY} tells of {told}")

"""Write one rank as a folder: one file per table, and `rank.json` with a summary of the rank."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.timeline.columns import Columns, make, or_none, size
from overlapscope.timeline.run import RankTimeline, tables_of
from overlapscope.timeline.store.arrow_tables import as_stored, parquet_bytes, to_arrow, write_parquet
from overlapscope.timeline.store.manifest import RankEntry, rank_folder
from overlapscope.timeline.store.run_directory import RANK_ENTRY


def write_rank(timeline: RankTimeline, folder: Path) -> RankEntry:
    """Write a rank into an empty folder, and return its entry. Raises OSError."""
    for name in tables_of(timeline.basis):
        write_table(getattr(timeline, name), timeline.names, timeline.rank, table_file(folder, name))
    rows = RowCounts(spans=size(timeline.spans), host_spans=size(timeline.host), syncs=size(timeline.syncs))
    return write_entry(timeline, folder, rows)


def table_file(folder: Path, table: str) -> Path:
    """Return the file of one table in a rank's folder."""
    return folder / f"{table}.parquet"


def write_table(table: Columns, names: tuple[str, ...], rank: int, file: Path) -> None:
    """Write one table of a rank, with the rank before its columns."""
    if size(table):
        write_parquet(to_arrow(as_stored(table), names, rank), file)
    else:
        kind: Any = type(as_stored(table))
        file.write_bytes(_empty(kind))


@cache
def _empty(kind: type[Columns]) -> bytes:
    """Return the file content of a table without rows; cached, because most ranks have several empty tables."""
    return parquet_bytes(to_arrow(make(kind, 0), (), 0))


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of rows of a rank's tables that may not be in memory; None where an earlier version stated none."""

    spans: int
    host_spans: int | None
    syncs: int | None


def write_entry(timeline: RankTimeline, folder: Path, rows: RowCounts) -> RankEntry:
    """Write `rank.json` of a rank whose tables have that many rows, and return its entry."""
    entry = entry_of(timeline, rows)
    (folder / RANK_ENTRY).write_bytes(msgspec.json.encode(entry))
    return entry


def entry_of(timeline: RankTimeline, rows: RowCounts) -> RankEntry:
    """Return the entry of a rank whose tables have that many rows."""
    basis: Any = timeline.basis
    return RankEntry(
        rank=timeline.rank,
        folder=rank_folder(timeline.rank),
        basis=basis,
        has_device=timeline.has_device,
        spans=rows.spans,
        collectives=size(timeline.collectives),
        steps=timeline.steps.step.tolist(),
        start_ns=or_none(int(timeline.recordings.start_ns[0])),
        end_ns=or_none(int(timeline.recordings.end_ns[-1])),
        host_spans=rows.host_spans,
        syncs=rows.syncs,
        recorded=dict(timeline.recorded),
    )


def check_against_entry(entry: RankEntry, timeline: RankTimeline) -> None:
    """Raise ValueError if a rank's tables, each complete in itself, do not match its entry."""
    rows = RowCounts(spans=timeline.num_spans, host_spans=entry.host_spans, syncs=entry.syncs)
    found = entry_of(timeline, rows)
    for name in ("spans", "collectives", "steps", "start_ns", "end_ns"):
        stated, actual = getattr(entry, name), getattr(found, name)
        if stated != actual:
            if isinstance(stated, list):
                stated, actual = len(stated), len(actual)
            raise ValueError(f"{name}: the tables have {actual}, {RANK_ENTRY} states {stated}")

"""Write one rank as a folder: one file per table, and `rank.json` with a summary of the rank."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.timeline.columns import Columns, make, or_none, size
from overlapscope.timeline.run import TABLES, RankTimeline
from overlapscope.timeline.store.arrow_tables import parquet_bytes, to_arrow, write_parquet
from overlapscope.timeline.store.manifest import RankEntry, rank_folder
from overlapscope.timeline.store.run_directory import RANK_ENTRY


def write_rank(timeline: RankTimeline, folder: Path) -> RankEntry:
    """Write a rank into an empty folder, and return its entry. Raises OSError."""
    for name in TABLES:
        write_table(getattr(timeline, name), timeline.names, timeline.rank, table_file(folder, name))
    return write_entry(timeline, folder, spans=size(timeline.spans), host_spans=size(timeline.host))


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
    """Return the file content of a table without rows; cached, because most ranks have several empty tables."""
    return parquet_bytes(to_arrow(make(kind, 0), (), 0))


def write_entry(timeline: RankTimeline, folder: Path, *, spans: int, host_spans: int) -> RankEntry:
    """Write `rank.json` of a rank with that many rows in `Spans` and `HostSpans`, and return its entry."""
    entry = entry_of(timeline, spans=spans, host_spans=host_spans)
    (folder / RANK_ENTRY).write_bytes(msgspec.json.encode(entry))
    return entry


def entry_of(timeline: RankTimeline, *, spans: int, host_spans: int | None) -> RankEntry:
    """Return the entry of a rank with that many rows in `Spans` and `HostSpans`."""
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
        host_spans=host_spans,
        recorded=dict(timeline.recorded),
    )


def check_against_entry(entry: RankEntry, timeline: RankTimeline) -> None:
    """Raise ValueError if a rank's tables, each complete in itself, do not match its entry."""
    found = entry_of(timeline, spans=timeline.num_spans, host_spans=entry.host_spans)
    for name in ("spans", "collectives", "steps", "start_ns", "end_ns"):
        stated, actual = getattr(entry, name), getattr(found, name)
        if stated != actual:
            if isinstance(stated, list):
                stated, actual = len(stated), len(actual)
            raise ValueError(f"{name}: the tables have {actual}, {RANK_ENTRY} states {stated}")

"""What one file gave, as a folder of columns: whoever reads the file writes it, whoever joins the files reads it.

    FOLDER/reading.json       what the file states of itself and of the job, and each timeline's names
    FOLDER/0/spans.parquet    one folder a timeline, one file a table, as in a run directory
    FOLDER/0/small            the columns of its small tables once more, as they are in memory: read ten times as fast
    FOLDER/facts/...

Of a thousand files one process can hold everything but the large tables, which grow with the events. An *outline* is
a reading without them: a row in place of its spans says which timeline they are of, and joining timelines moves that
row as it would move them.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.reader import Reading, rank_from_path
from overlapscope.timeline.columns import (
    DTYPES,
    Annotations,
    Columns,
    Gradients,
    HostSpans,
    Spans,
    Syncs,
    Telemetry,
    column_kinds,
    make,
    size,
)
from overlapscope.timeline.dimensions import fill_group_columns
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import TABLES, UNKNOWN_RANK, Group, RankTimeline, Source, tables_of
from overlapscope.timeline.store.arrow_tables import read_columns, read_parquet
from overlapscope.timeline.store.fact_files import load_facts, save_facts
from overlapscope.timeline.store.rank_files import table_file, write_table
from overlapscope.timeline.store.run_directory import FACTS

LARGE: Final[dict[str, type[Columns]]] = {
    "spans": Spans,
    "annotations": Annotations,
    "gradients": Gradients,
    "telemetry": Telemetry,
    "host": HostSpans,
    "syncs": Syncs,
}
"""Tables that no decision on joining files needs."""
SMALL: Final = {name: kind for name, kind in TABLES.items() if name not in LARGE}
_SUMMARY: Final = "reading.json"
_SMALL: Final = "small"


class _Timeline(msgspec.Struct, kw_only=True):
    rank: int
    basis: str
    has_device: bool
    names: list[str]
    recorded: dict[str, Any]
    rows: dict[str, int]
    """Of the tables that are not empty."""
    written_rank: int
    """What stands in their column `rank`."""
    calls: str
    """Digest of the calls as they are written."""


class _Summary(msgspec.Struct, kw_only=True):
    source: Source
    world_size: int | None
    groups: list[Group]
    fingerprint: dict[str, str | int | None]
    stands_in: bool
    ranks_assumed: bool
    assumption: str
    fact_names: list[str]
    timelines: list[_Timeline]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One timeline of a file, on disk."""

    folder: Path
    names: tuple[str, ...]
    rows: dict[str, int]
    written_rank: int
    calls: str

    def table(self, name: str) -> Columns:
        """Read one of its tables; names have the codes that they have in `names`."""
        return _table(self.folder, name, TABLES[name], self.rows, NameTable(self.names))


def load_part(folder: Path) -> Part:
    """Return a timeline by its folder. Raises OSError, msgspec.DecodeError for a damaged one."""
    return _part(folder, _summary(folder.parent).timelines[int(folder.name)])


def save_reading(reading: Reading, path: Path, folder: Path) -> None:
    """Write what the file `path` gave into an empty folder. Raises OSError."""
    timelines = []
    # What the whole job tells of calls is known when all files are read. Mostly each file tells the same of its own
    # calls: written so, their table can stay as it is.
    by_number = dict(enumerate(reading.timelines))  # they may not have ranks yet
    filled = fill_group_columns(by_number, reading.groups, reading.world_size)
    for number, timeline in by_number.items():
        ready = filled[number]
        place = folder / str(number)
        place.mkdir()
        # Most often the rank that it will have: then its tables can stay as they are.
        rank = timeline.rank if timeline.rank != UNKNOWN_RANK else rank_from_path(path) or 0
        rows = {name: rows for name in TABLES if (rows := size(getattr(timeline, name)))}
        for name in tables_of(timeline.basis):
            write_table(getattr(ready, name), ready.names, rank, table_file(place, name))
        _save_small(timeline, place / _SMALL)
        timelines.append(
            _Timeline(
                rank=timeline.rank,
                basis=timeline.basis,
                has_device=timeline.has_device,
                names=list(timeline.names),
                recorded=dict(timeline.recorded),
                rows=rows,
                written_rank=rank,
                calls=calls_digest(ready),
            )
        )
    save_facts(reading.facts, folder / FACTS)
    summary = _Summary(
        source=reading.source,
        world_size=reading.world_size,
        groups=list(reading.groups),
        fingerprint=dict(reading.fingerprint),
        stands_in=reading.stands_in,
        ranks_assumed=reading.ranks_assumed,
        assumption=reading.assumption,
        fact_names=list(reading.facts.names),
        timelines=timelines,
    )
    (folder / _SUMMARY).write_bytes(msgspec.json.encode(summary))


def calls_digest(timeline: RankTimeline) -> str:
    """Return what is the same for timelines whose calls are stored alike."""
    digest = hashlib.blake2b(msgspec.json.encode(timeline.names), digest_size=16)
    for column in column_kinds(timeline.collectives):
        digest.update(np.ascontiguousarray(getattr(timeline.collectives, column)).data)
    return digest.hexdigest()


def load_outline(folder: Path, parts: list[Part]) -> Reading:
    """Read all but the large tables; each timeline's part is put behind `parts`.

    Its spans are one row, or none where all large tables are empty: `correlation` is the number of the part, and
    `recording`, `lane` and `collective` are where those that its rows count from begin.
    """
    summary = _summary(folder)
    timelines = []
    for part, stated in _parts(folder, summary):
        tables: Any = _load_small(part) | {name: make(kind, 0) for name, kind in LARGE.items()}
        if part.rows.keys() & LARGE.keys():
            tables["spans"] = make(Spans, 1, recording=0, lane=0, collective=0, correlation=len(parts))
        parts.append(part)
        timelines.append(_timeline(stated, part.names, tables))
    return _reading(folder, summary, timelines)


def _summary(folder: Path) -> _Summary:
    return msgspec.json.decode((folder / _SUMMARY).read_bytes(), type=_Summary)


def _parts(folder: Path, summary: _Summary) -> Iterator[tuple[Part, _Timeline]]:
    for number, stated in enumerate(summary.timelines):
        # Ranks have most names in common: each is kept once.
        names = tuple(map(sys.intern, stated.names))
        yield replace(_part(folder / str(number), stated), names=names), stated


def _part(folder: Path, stated: _Timeline) -> Part:
    return Part(
        folder=folder,
        names=tuple(stated.names),
        rows=stated.rows,
        written_rank=stated.written_rank,
        calls=stated.calls,
    )


def _save_small(timeline: RankTimeline, file: Path) -> None:
    with open(file, "wb") as out:
        for name, kind in SMALL.items():
            for column in column_kinds(kind):
                out.write(getattr(getattr(timeline, name), column).tobytes())


def _load_small(part: Part) -> dict[str, Columns]:
    """Raises OSError, ValueError for a damaged file."""
    content, at = bytearray((part.folder / _SMALL).read_bytes()), 0
    tables: dict[str, Columns] = {}
    for name, kind in SMALL.items():
        rows = part.rows.get(name, 0)
        columns: Any = {}
        for column, stored in column_kinds(kind).items():
            columns[column] = np.frombuffer(content, DTYPES[stored], rows, at) if rows else np.empty(0, DTYPES[stored])
            at += columns[column].nbytes
        tables[name] = kind(**columns)
    return tables


def _table(folder: Path, name: str, kind: type[Columns], rows: dict[str, int], names: NameTable) -> Columns:
    return read_columns(read_parquet(table_file(folder, name)), kind, names) if name in rows else make(kind, 0)


def _timeline(stated: _Timeline, names: Sequence[str], tables: Any) -> RankTimeline:
    return RankTimeline(
        rank=stated.rank,
        basis=stated.basis,
        has_device=stated.has_device,
        names=tuple(names),
        recorded=stated.recorded,
        **tables,
    )


def _reading(folder: Path, summary: _Summary, timelines: Sequence[RankTimeline]) -> Reading:
    facts, unread = load_facts(folder / FACTS, summary.fact_names)
    if unread:
        raise ValueError(unread[0])
    return Reading(
        source=summary.source,
        timelines=tuple(timelines),
        world_size=summary.world_size,
        groups=tuple(summary.groups),
        fingerprint=summary.fingerprint,
        facts=replace(facts, names=tuple(map(sys.intern, facts.names))),
        stands_in=summary.stands_in,
        ranks_assumed=summary.ranks_assumed,
        assumption=summary.assumption,
    )

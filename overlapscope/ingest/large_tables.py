"""The large tables of a rank, put together on disk from those of the files that it was read from."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.ingest.reading_folder import LARGE, Part, load_part
from overlapscope.timeline.columns import Columns, Spans, concat, make, recode, shift
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rank_files import table_file, write_table
from overlapscope.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a file's timeline goes in its rank's: what its rows count from begins there."""

    folder: Path
    recording: int
    lane: int
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """One large table of a rank to write."""

    table: str
    rank: int
    names: Path
    """A file with the rank's names."""
    places: tuple[Place, ...]
    target: Path


def places_of(spans: Spans, parts: Sequence[Part]) -> list[Place]:
    """Give the places that the rows in an outline's spans stand for."""
    rows = zip(
        spans.correlation.tolist(),
        spans.recording.tolist(),
        spans.lane.tolist(),
        spans.collective.tolist(),
        strict=True,
    )
    return [
        Place(folder=parts[part].folder, recording=recording, lane=lane, call=call)
        for part, recording, lane, call in rows
    ]


def stays(place: Place, part: Part, rank: int) -> bool:
    """Whether a file's tables are its rank's as they are."""
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
        tables.append(_moved(recode(part.table(joining.table), part.names, known), place))
    write_table(concat(tables), tuple(names), joining.rank, joining.target)


def _moved(table: Any, place: Place) -> Columns:
    changed: dict[str, Any] = {}
    for column, by in (("recording", place.recording), ("lane", place.lane)):
        if hasattr(table, column):
            changed[column] = getattr(table, column) + by
    if hasattr(table, "collective"):
        changed["collective"] = shift(table.collective, place.call)
    moved: Columns = replace(table, **changed)
    return moved

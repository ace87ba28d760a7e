"""A run directory whose ranks write themselves, each when it is done and in whatever process."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from overlapscope.files.atomic import atomic_file
from overlapscope.files.temporary_folder import locked_folder
from overlapscope.timeline.run import Group, RankTimeline
from overlapscope.timeline.store.manifest import (
    SCHEMA,
    Manifest,
    RankEntry,
    encode_manifest,
    join_entries,
    rank_folder,
    read_parts,
    read_rank_entries,
)
from overlapscope.timeline.store.rank_files import write_rank
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY, part_folder
from overlapscope.timeline.store.run_folder import move_into_place, write_then_replace


def save_rank(timeline: RankTimeline, run: Path, beside: Sequence[Path] = ()) -> None:
    """Add or replace one rank of the run directory `run`, whole or not at all; files of `beside` are moved into it.

    A run whose `run.json` was written before, or by another process, is read with this rank: each folder tells of
    itself in its `rank.json`. Raises OSError when it cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    # A job that ends waits for no disk: what a power cut damages costs that rank, with a warning.
    with write_then_replace(run / rank_folder(timeline.rank), durable=False) as temporary:
        write_rank(timeline, temporary)
        for file in beside:
            shutil.move(file, temporary / file.name)


def save_part(timeline: RankTimeline, run: Path, number: int, revision: int, *, first: bool) -> None:
    """Write a part of a rank that is still recorded, whole or not at all. Raises OSError.

    A part is written again when there is more of it, under a new revision, which holds all of the earlier one: so at
    every moment one of them is complete. With `first` the rank's folder is new, and replaces that of an older run.
    """
    name = part_folder(number, revision)
    place = run / rank_folder(timeline.rank)
    if first:
        run.mkdir(parents=True, exist_ok=True)
        with write_then_replace(place, durable=False) as temporary:
            (temporary / name).mkdir()
            write_rank(timeline, temporary / name)
        return
    with locked_folder(place, f".{name}.overlapscope-new-") as temporary:
        write_rank(timeline, temporary)
        move_into_place(temporary, place / name, durable=False)
    for older in place.glob(part_folder(number, 0).replace(".0", ".*")):
        if older.name != name:
            shutil.rmtree(older, ignore_errors=True)


def remove_parts(run: Path, rank: int, before_ns: int) -> None:
    """Remove the parts of a rank that ended before this time, but for the last one. Raises OSError."""
    for folder, entry in read_parts(run / rank_folder(rank))[0][:-1]:
        if entry.end_ns is not None and entry.end_ns < before_ns:
            shutil.rmtree(folder, ignore_errors=True)


def close_parts(run: Path, rank: int, recorded: Mapping[str, Any]) -> RankEntry:
    """Write the `rank.json` of a rank that consists of parts: it was recorded to its end. Raises OSError.

    `recorded` is how the whole rank was recorded; what each part states of its own steps is added.
    """
    folder = run / rank_folder(rank)
    entry = join_entries([entry for _, entry in read_parts(folder)[0]])
    entry = replace(entry, recorded={**entry.recorded, **recorded})
    with atomic_file(folder / RANK_ENTRY, durable=False) as file:
        file.write(msgspec.json.encode(entry))
    return entry


def save_job(
    path: Path,
    *,
    version: str,
    world_size: int | None,
    groups: Sequence[Group],
    fingerprint: Mapping[str, str | int | None],
    tell_ranks: bool = False,
) -> None:
    """Write the `run.json` of a run whose ranks write themselves with `save_rank`. Raises OSError.

    With `tell_ranks` it lists the ranks that stand there now and those that are missing.
    """
    entries = sorted(read_rank_entries(path), key=lambda entry: entry.rank) if tell_ranks else []
    known = {entry.rank for entry in entries}
    manifest = Manifest(
        schema_=SCHEMA,
        version=version,
        world_size=world_size,
        missing_ranks=[rank for rank in range(world_size or 0) if rank not in known] if tell_ranks else [],
        ranks=entries,
        groups=list(groups),
        sources=[],
        fingerprint=dict(fingerprint),
    )
    path.mkdir(parents=True, exist_ok=True)
    with atomic_file(path / MANIFEST, durable=False) as file:
        file.write(encode_manifest(manifest))

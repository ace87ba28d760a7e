"""A run directory whose ranks write themselves, each when it is done and in whatever process."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from overlapscope.files.atomic import atomic_file
from overlapscope.timeline.run import Group, RankTimeline
from overlapscope.timeline.store.manifest import SCHEMA, Manifest, encode_manifest, rank_folder, read_rank_entries
from overlapscope.timeline.store.rank_files import write_rank
from overlapscope.timeline.store.run_directory import MANIFEST
from overlapscope.timeline.store.run_folder import write_then_replace


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

"""What a run directory says of itself: `run.json` of the job, `rank.json` of each rank."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.errors import InputError, NewerSchemaError
from overlapscope.timeline.run import MAX_RANKS, Group, Source
from overlapscope.timeline.run_directory import MANIFEST, RANK_ENTRY, is_run_directory

SCHEMA: Final = "overlapscope.run/1"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")


class RankEntry(msgspec.Struct, kw_only=True):
    """What `run.json` and the rank's own `rank.json` say of it, enough to list a run without opening its tables."""

    rank: int
    folder: str
    basis: str
    has_device: bool
    spans: int
    collectives: int
    steps: list[int]
    start_ns: int | None
    end_ns: int | None
    recorded: dict[str, Any] = {}


class Manifest(msgspec.Struct, kw_only=True, rename={"schema_": "schema"}):
    """The content of `run.json`."""

    schema_: str
    version: str
    world_size: int | None
    missing_ranks: list[int]
    ranks: list[RankEntry]
    groups: list[Group]
    sources: list[Source]
    fingerprint: dict[str, str | int | None]


class _Schema(msgspec.Struct, rename={"schema_": "schema"}):
    schema_: str = ""


def encoded(manifest: Manifest) -> bytes:
    """Give the content of `run.json`."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(path: Path) -> Manifest:
    """Read `run.json` of the folder `path`.

    Raises InputError when it is damaged, NewerSchemaError when a newer version wrote it.
    """
    if not (path / MANIFEST).is_file() and is_run_directory(path):
        return Manifest(
            schema_=SCHEMA,
            version="",
            world_size=None,
            missing_ranks=[],
            ranks=[],
            groups=[],
            sources=[],
            fingerprint={},
        )
    try:
        content = (path / MANIFEST).read_bytes()
        schema = msgspec.json.decode(content, type=_Schema).schema_
        if schema != SCHEMA:
            family, _, number = schema.rpartition("/")
            if family == _FAMILY and number.isdecimal() and int(number[:9]) > int(_NUMBER):
                raise NewerSchemaError(f"{path}: written by a newer OverlapScope ({schema}); this one reads {SCHEMA}")
            raise InputError(f"{path / MANIFEST}: not a run of OverlapScope (its schema is {schema!r})")
        return _possible(msgspec.json.decode(content, type=Manifest), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path / MANIFEST}: damaged: {error}") from error


def _possible(manifest: Manifest, path: Path) -> Manifest:
    """Give the manifest; raises InputError where its numbers are no ranks, which would be counted one by one."""
    for number in (manifest.world_size or 0, *(entry.rank for entry in manifest.ranks)):
        if not 0 <= number <= MAX_RANKS:
            raise InputError(f"{path / MANIFEST}: damaged: {number} is no possible rank, nor number of ranks")
    return manifest


def recorded_ranks(path: Path, manifest: Manifest) -> list[RankEntry]:
    """Give what the manifest lists, then the ranks that wrote themselves without being listed."""
    listed = {entry.rank for entry in manifest.ranks}
    return [*manifest.ranks, *(each for each in written_entries(path) if each.rank not in listed)]


def written_entries(path: Path) -> list[RankEntry]:
    """Give what the rank folders say of themselves; a damaged entry is as if its rank had not been recorded."""
    entries = []
    for file in sorted(path.glob(f"rank_*/{RANK_ENTRY}")):
        try:
            entries.append(msgspec.json.decode(file.read_bytes(), type=RankEntry))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
    return entries


def rank_folder(rank: int) -> str:
    """Give the name of a rank's folder in a run directory."""
    return f"rank_{rank:05d}"


def is_rank_folder(name: str) -> bool:
    """Say whether a folder's name is that of a rank: what a run's entries name is read nowhere else."""
    return re.fullmatch(r"rank_\d+", name) is not None

"""The JSON files of a run directory: `run.json` of the job, `rank.json` of each rank."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.errors import InputError, NewerSchemaError
from overlapscope.files.safe_open import read_regular
from overlapscope.timeline.run import MAX_RANKS, Group, Source, join_recorded
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY, is_run_directory, part_folders
from overlapscope.version import __version__

SCHEMA: Final = "overlapscope.run/2"
"""What is written; those with a lower number, of earlier versions, are read as well."""
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_MOST_SHOWN: Final = 60
"""Characters of a schema's name that are shown."""
DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a damaged file raises."""


class RankEntry(msgspec.Struct, kw_only=True):
    """The entry of a rank in `run.json` and in its own `rank.json`: enough to list a run without opening its tables."""

    rank: int
    folder: str
    basis: Literal["trace", "events", "log", "dryrun"]
    has_device: bool
    spans: int
    collectives: int
    steps: list[int]
    start_ns: int | None
    end_ns: int | None
    host_spans: int | None = None
    """Rows of `HostSpans`; None in runs of the first schema, whose ranks have no such table, nor `Syncs`."""
    syncs: int | None = None
    """Rows of `Syncs`."""
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
    facts: dict[str, int] | None = None
    """Rows of each fact table that is not empty; None in runs of captures, which write no facts."""


class _Schema(msgspec.Struct, rename={"schema_": "schema"}):
    schema_: str = ""


class _Version(msgspec.Struct):
    version: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of `run.json`."""
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
        family, _, number = schema.rpartition("/")
        known = number.isdecimal() and 0 < int(number[:9]) <= int(_NUMBER)
        if family != _FAMILY or not known:
            if family == _FAMILY and number.isdecimal() and int(number[:9]) > int(_NUMBER):
                newer = f"written by a newer OverlapScope ({schema[:_MOST_SHOWN]})"
                raise NewerSchemaError(f"{path}: {newer}; this one, {__version__}, reads {SCHEMA}{_install(content)}")
            raise InputError(f"{path / MANIFEST}: not a run of OverlapScope (its schema is {schema[:_MOST_SHOWN]!r})")
        return _possible(msgspec.json.decode(content, type=Manifest), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DAMAGED as error:
        raise _damaged(path, str(error)) from error


def _install(content: bytes) -> str:
    """Return how to install the version that wrote a `run.json`, where it says which."""
    try:
        version = msgspec.json.decode(content, type=_Version).version
    except DAMAGED:
        return ""
    if re.fullmatch(r"\d{1,5}(\.\d{1,5}){1,3}", version) is None:
        return ""
    return f". To read it: pip install 'overlapscope>={version}'"


def _damaged(path: Path, why: str) -> InputError:
    away = f"move {MANIFEST} away, and each rank is read by what its own folder states"
    return InputError(f"{path / MANIFEST}: damaged: {why}; {away}")


def _possible(manifest: Manifest, path: Path) -> Manifest:
    """Return the manifest; raises InputError where its numbers are no ranks, which would be counted one by one."""
    ranks: set[int] = set()
    for entry in manifest.ranks:
        if entry.rank in ranks:
            raise _damaged(path, f"rank {entry.rank} is listed twice")
        ranks.add(entry.rank)
    for number in (manifest.world_size or 0, *ranks):
        if not 0 <= number <= MAX_RANKS:
            raise _damaged(path, f"{number} is no possible rank, nor number of ranks")
    return manifest


class RankSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks found in a run directory."""

    entries: list[RankEntry]
    unread: list[tuple[Path, int, str]]
    """Rank folders without a valid entry: each with the rank that it may be, and why."""


def recorded_ranks(path: Path, manifest: Manifest) -> list[RankEntry]:
    """Return the ranks that the manifest lists and those that wrote themselves without being listed, in order."""
    return find_ranks(path, manifest).entries


def find_ranks(path: Path, manifest: Manifest) -> RankSearch:
    """Return the ranks of the manifest and of the rank folders; a folder's own entry takes precedence.

    It was written together with its tables, whenever the manifest was written.
    """
    own, unread = _read_entries(path)
    listed = {each.rank for each in manifest.ranks}
    entries = [own.get(each.rank, each) for each in manifest.ranks]
    entries += [each for each in own.values() if each.rank not in listed]
    named = {Path(each.folder).name for each in manifest.ranks}
    in_order = sorted(entries, key=lambda each: each.rank)
    return RankSearch(entries=in_order, unread=[each for each in unread if each[0].name not in named])


def read_rank_entries(path: Path) -> list[RankEntry]:
    """Return the entries in the rank folders; a rank with a damaged entry counts as not recorded."""
    return list(_read_entries(path)[0].values())


def _read_entries(path: Path) -> tuple[dict[int, RankEntry], list[tuple[Path, int, str]]]:
    """Return the entries in the rank folders, and the folders without an entry or with that of another folder."""
    entries: dict[int, RankEntry] = {}
    unread: list[tuple[Path, int, str]] = []
    for folder in sorted(each for each in path.glob("rank_*") if is_rank_folder(each.name)):
        number = int(folder.name.removeprefix("rank_")[:9])
        try:
            entry = _entry_of_parts(folder) or read_entry(folder)
        except OSError as error:
            unread.append((folder, number, f"{RANK_ENTRY}: {error.strerror}" if error.strerror else str(error)))
        except DAMAGED as error:
            unread.append((folder, number, f"{RANK_ENTRY}: {error}"))
        else:
            if folder.name == entry.folder == rank_folder(entry.rank) and entry.rank <= MAX_RANKS:
                entries[entry.rank] = entry
            else:
                whose = f"{RANK_ENTRY} is that of rank {entry.rank} in {entry.folder[:_MOST_SHOWN]}"
                rank = entry.rank if 0 <= entry.rank <= MAX_RANKS else number
                unread.append((folder, rank, f"{whose}: a copy, or renamed"))
    return entries, unread


def read_entry(folder: Path) -> RankEntry:
    """Read the `rank.json` of a rank's folder, or of one of its parts. Raises OSError, or one of `DAMAGED`."""
    return msgspec.json.decode(read_regular(folder / RANK_ENTRY), type=RankEntry)


def _entry_of_parts(folder: Path) -> RankEntry | None:
    """Return the entry of a rank whose recording was never closed, from its parts; None for any other rank."""
    if (folder / RANK_ENTRY).exists():
        return None
    parts = [entry for _, entry in read_parts(folder)[0]]
    if not parts:
        return None
    joined = join_entries(parts)
    at = (
        "" if joined.end_ns is None else f" at {datetime.fromtimestamp(joined.end_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    )
    failure = f"rank {joined.rank}: the recording was cut off{at}, or goes on: what came after is missing"
    failures = joined.recorded.get("failures")
    recorded = joined.recorded | {
        "complete": False,
        "failures": [*(failures if isinstance(failures, list) else []), failure],
    }
    return replace(joined, recorded=recorded)


def read_parts(folder: Path) -> tuple[list[tuple[Path, RankEntry]], list[str]]:
    """Return the parts in a rank's folder with their entries, in order, and why others cannot be read."""
    found: list[tuple[Path, RankEntry]] = []
    lost = []
    for part in part_folders(folder):
        try:
            entry = read_entry(part)
        except OSError as error:
            lost.append(f"{part.name}: {RANK_ENTRY}: {error.strerror or error}")
        except DAMAGED as error:
            lost.append(f"{part.name}: {RANK_ENTRY}: {error}")
        else:
            if entry.folder == folder.name == rank_folder(entry.rank):
                found.append((part, entry))
            else:
                lost.append(f"{part.name}: {RANK_ENTRY} is that of rank {entry.rank}: a copy, or renamed")
    return found, lost


def join_entries(parts: Sequence[RankEntry]) -> RankEntry:
    """Return the entry of a rank from those of its parts, in order."""
    ends = [each.end_ns for each in parts if each.end_ns is not None]
    return replace(
        parts[-1],
        has_device=any(each.has_device for each in parts),
        spans=sum(each.spans for each in parts),
        collectives=sum(each.collectives for each in parts),
        steps=[step for each in parts for step in each.steps],
        start_ns=parts[0].start_ns,
        end_ns=max(ends, default=None),
        host_spans=sum(each.host_spans or 0 for each in parts),
        syncs=sum(each.syncs or 0 for each in parts),
        recorded=join_recorded([each.recorded for each in parts]),
    )


def rank_folder(rank: int) -> str:
    """Return the name of a rank's folder in a run directory."""
    return f"rank_{rank:05d}"


def is_rank_folder(name: str) -> bool:
    """Return whether a folder's name is that of a rank: what a run's entries name is read nowhere else."""
    return re.fullmatch(r"rank_\d+", name) is not None

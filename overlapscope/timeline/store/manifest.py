"""The JSON files of a run directory: `run.json` of the job, `rank.json` of each rank."""

import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from overlapscope.errors import InputError, NewerSchemaError
from overlapscope.files.safe_open import read_regular
from overlapscope.timeline.run import MAX_RANKS, Group, Source
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY, is_run_directory
from overlapscope.version import __version__

SCHEMA: Final = "overlapscope.run/2"
"""What is written; those with a lower number, of earlier versions, are read as well."""
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
_MOST_SHOWN: Final = 60
"""Characters of a schema's name that are shown."""
_DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a damaged file raises."""


class RankEntry(msgspec.Struct, kw_only=True):
    """The entry of a rank in `run.json` and in its own `rank.json`: enough to list a run without opening its tables."""

    rank: int
    folder: str
    basis: Literal["trace", "events", "log"]
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
    except _DAMAGED as error:
        raise _damaged(path, str(error)) from error


def _install(content: bytes) -> str:
    """Return how to install the version that wrote a `run.json`, where it says which."""
    try:
        version = msgspec.json.decode(content, type=_Version).version
    except _DAMAGED:
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
            entry = msgspec.json.decode(read_regular(folder / RANK_ENTRY), type=RankEntry)
        except OSError as error:
            unread.append((folder, number, f"{RANK_ENTRY}: {error.strerror}" if error.strerror else str(error)))
        except _DAMAGED as error:
            unread.append((folder, number, f"{RANK_ENTRY}: {error}"))
        else:
            if folder.name == entry.folder == rank_folder(entry.rank) and entry.rank <= MAX_RANKS:
                entries[entry.rank] = entry
            else:
                whose = f"{RANK_ENTRY} is that of rank {entry.rank} in {entry.folder[:_MOST_SHOWN]}"
                rank = entry.rank if 0 <= entry.rank <= MAX_RANKS else number
                unread.append((folder, rank, f"{whose}: a copy, or renamed"))
    return entries, unread


def rank_folder(rank: int) -> str:
    """Return the name of a rank's folder in a run directory."""
    return f"rank_{rank:05d}"


def is_rank_folder(name: str) -> bool:
    """Return whether a folder's name is that of a rank: what a run's entries name is read nowhere else."""
    return re.fullmatch(r"rank_\d+", name) is not None

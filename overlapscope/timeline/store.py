"""The run directory: `run.json` and one folder of Parquet tables a rank, readable by any dataframe tool.

    RUN/run.json                    schema, world size, ranks, groups, sources, fingerprint, how each rank was recorded
    RUN/rank_00000/spans.parquet    zstd; one file a table of `columns`; missing is null, names are dictionaries
    RUN/facts/links.parquet         one file a table of `facts` that is not empty

It is written under a temporary name beside its place and renamed at the end, so that a run directory is whole or
not there.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.errors import InputError, NewerSchemaError, UsageError
from overlapscope.timeline.arrow import from_arrow, read_parquet, to_arrow, write_parquet
from overlapscope.timeline.columns import NONE, Columns, size
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.facts import FACT_TABLES, Facts, join_facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.read_ahead import available_cores, in_threads
from overlapscope.timeline.recorded_links import recorded_links
from overlapscope.timeline.run import MANIFEST, RANK_ENTRY, Group, RankTimeline, Run, Source, is_run_directory
from overlapscope.timeline.run_folder import beside_place, is_taken, put_aside, replace_run, umask
from overlapscope.timeline.stored import EMPTY, TABLES, UNREADABLE, Kept, one_line, open_rank, read_rank

SCHEMA: Final = "overlapscope.run/1"
_FAMILY, _, _NUMBER = SCHEMA.rpartition("/")
FACTS: Final = "facts"
AT_ONCE_BYTES: Final = 256 << 20
"""What the tables of ranks that are read at the same time may take together, however many cores there are."""
A_SPAN_BYTES: Final = 200
"""What a span takes while it is read: as it is stored, as Arrow decodes it, and as columns."""


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


def save_run(run: Run, path: Path, *, version: str, force: bool = False) -> None:
    """Write the run to the folder `path`, which must not exist unless `force` is given.

    Raises UsageError when it exists, or when `force` would replace a folder that is no run; InputError when it
    cannot be written.
    """
    if is_taken(path) and not force:
        raise UsageError(f"{path} exists already; choose another place, or replace it with -f")
    with replace_run(path) as temporary:
        fill_run(run, temporary, version=version)


def fill_run(run: Run, folder: Path, *, version: str) -> None:
    """Write the run into an empty folder. Raises OSError."""
    entries = [_save_rank(timeline, folder) for _, timeline in sorted(run.ranks.items())]
    write_job(run, entries, folder, version=version)


def write_job(run: Run, entries: Sequence[RankEntry], folder: Path, *, version: str) -> None:
    """Write what a run directory says of the job beside the folders of its ranks, which `entries` tell of."""
    manifest = Manifest(
        schema_=SCHEMA,
        version=version,
        world_size=run.world_size,
        missing_ranks=list(run.missing_ranks),
        ranks=list(entries),
        groups=list(run.groups),
        sources=list(run.sources),
        fingerprint=dict(run.fingerprint),
    )
    save_facts(run.facts, folder / FACTS)
    (folder / MANIFEST).write_bytes(_encoded(manifest))


def _encoded(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def rank_folder(rank: int) -> str:
    """Give the name of a rank's folder in a run directory."""
    return f"rank_{rank:05d}"


def is_rank_folder(name: str) -> bool:
    """Say whether a folder's name is that of a rank: what a run's entries name is read nowhere else."""
    return re.fullmatch(r"rank_\d+", name) is not None


def save_rank(timeline: RankTimeline, run: Path, beside: Sequence[Path] = ()) -> None:
    """Add or replace one rank of the run directory `run`, whole or not at all; files of `beside` are moved into it.

    A run whose `run.json` was written before, or by another process, is read with this rank: each folder tells of
    itself in its `rank.json`. Raises OSError when it cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    # A job that ends waits for no disk: what a power cut damages costs that rank, with a warning.
    with beside_place(run / rank_folder(timeline.rank), durable=False) as temporary:
        _write_rank(timeline, temporary)
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
    entries = sorted(_entries(path), key=lambda entry: entry.rank) if tell_ranks else []
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
    handle, temporary = tempfile.mkstemp(prefix=f".{MANIFEST}.", dir=path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_encoded(manifest))
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path / MANIFEST)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save_facts(facts: Facts, folder: Path) -> None:
    """Write the tables that are not empty, into a folder that is made for them."""
    for name in FACT_TABLES:
        table = getattr(facts, name)
        if size(table):
            folder.mkdir(exist_ok=True)
            write_parquet(to_arrow(table, facts.names), folder / f"{name}.parquet")


def load_facts(folder: Path, known: Sequence[str] = ()) -> tuple[Facts, list[str]]:
    """Give the facts that were written, and why some cannot be read; names that are `known` keep their codes."""
    names = NameTable(known)
    tables: dict[str, Any] = {}
    problems = []
    for name, kind in FACT_TABLES.items():
        file = folder / f"{name}.parquet"
        if file.exists():
            try:
                tables[name] = from_arrow(read_parquet(file), kind, names)
            except UNREADABLE as error:
                problems.append(f"{FACTS}/{name} left out: it cannot be read ({one_line(error)})")
    return Facts(names=tuple(names.to_list()), **tables), problems


def _save_rank(timeline: RankTimeline, run: Path) -> RankEntry:
    folder = run / rank_folder(timeline.rank)
    folder.mkdir()
    return _write_rank(timeline, folder)


def _write_rank(timeline: RankTimeline, folder: Path) -> RankEntry:
    for name in TABLES:
        write_table(getattr(timeline, name), timeline.names, timeline.rank, table_file(folder, name))
    return write_entry(timeline, folder, spans=size(timeline.spans))


def table_file(folder: Path, table: str) -> Path:
    """Give the file of one table in a rank's folder."""
    return folder / f"{table}.parquet"


def write_table(table: Columns, names: tuple[str, ...], rank: int, file: Path) -> None:
    """Write one table of a rank, with the rank before its columns."""
    write_parquet(to_arrow(table, names, rank), file)


def write_entry(timeline: RankTimeline, folder: Path, *, spans: int) -> RankEntry:
    """Write what a rank's folder tells of itself, and give it; it has so many spans."""
    entry = RankEntry(
        rank=timeline.rank,
        folder=rank_folder(timeline.rank),
        basis=timeline.basis,
        has_device=timeline.has_device,
        spans=spans,
        collectives=size(timeline.collectives),
        steps=timeline.steps.step.tolist(),
        start_ns=_or_none(int(timeline.recordings.start_ns[0])),
        end_ns=_or_none(int(timeline.recordings.end_ns[-1])),
        recorded=dict(timeline.recorded),
    )
    (folder / RANK_ENTRY).write_bytes(msgspec.json.encode(entry))
    return entry


def _or_none(value: int) -> int | None:
    return None if value == NONE else value


def read_manifest(path: Path) -> Manifest:
    """Read `run.json` of the folder `path`.

    Raises InputError when it is damaged, NewerSchemaError when a newer version wrote it.
    """
    if not (path / MANIFEST).exists() and is_run_directory(path):
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
        return msgspec.json.decode(content, type=Manifest)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path / MANIFEST}: damaged: {error}") from error


def recorded_ranks(path: Path, manifest: Manifest) -> list[RankEntry]:
    """Give what the manifest lists, then the ranks that wrote themselves without being listed."""
    listed = {entry.rank for entry in manifest.ranks}
    return [*manifest.ranks, *(each for each in _entries(path) if each.rank not in listed)]


def load_run(path: Path) -> Run:
    """Read a run directory. A rank whose tables are damaged costs that rank, with a warning in the sources.

    All is read and checked; of a large run the spans are then let go, and read again when they are asked for. Raises
    InputError when no rank can be read.
    """
    manifest = read_manifest(path)
    ranks: dict[int, RankTimeline] = {}
    sources = list(manifest.sources)
    problems = []
    kept = Kept()
    entries = recorded_ranks(path, manifest)
    opening = in_threads(partial(_opened, path, kept), entries, ahead=_at_once(entries))
    for entry, opened in zip(entries, opening, strict=True):
        folder = path / Path(entry.folder).name
        if isinstance(opened, str):
            problems.append(opened)
            sources.append(Source(path=str(folder), format="overlapscope", warnings=(opened,)))
            continue
        ranks[entry.rank] = opened
        if not manifest.sources:
            sources.append(_source_of(entry, folder))
    facts, unread = load_facts(path / FACTS)
    sources += [Source(path=str(path / FACTS), format="overlapscope", warnings=(each,)) for each in unread]
    sources += [Source(path=str(path), format="overlapscope", warnings=(each,)) for each in put_aside(path)]
    if size(facts.links) == 0:
        facts = join_facts([facts, recorded_links(ranks.values())])
    if not ranks and not facts:
        raise InputError(f"{path}: no rank can be read; {problems[0] if problems else 'the run is empty'}")
    return Run(
        world_size=manifest.world_size,
        ranks=with_dimensions(ranks, tuple(manifest.groups), manifest.world_size),
        groups=tuple(manifest.groups),
        sources=tuple(sources),
        fingerprint=manifest.fingerprint,
        facts=facts,
    )


def _at_once(entries: Sequence[RankEntry]) -> int:
    """Give how many ranks may be read at a time: one for each core, but no more than there is room for."""
    most = max((entry.spans for entry in entries), default=0)
    return max(1, min(available_cores(), AT_ONCE_BYTES // max(1, most * A_SPAN_BYTES)))


def _opened(path: Path, kept: Kept, entry: RankEntry) -> RankTimeline | str:
    """Give a rank, or why it is left out."""
    try:
        return open_rank(_bare(entry), _folder(path, entry), kept)
    except UNREADABLE as error:
        return f"rank {entry.rank} left out: its tables cannot be read ({one_line(error)})"


def load_rank(path: Path, entry: RankEntry) -> RankTimeline:
    """Read one rank of the run directory `path`, as `load_run` does; raises InputError where it cannot be read.

    Of dimensions it knows what the names of groups tell.
    """
    try:
        timeline = read_rank(_bare(entry), _folder(path, entry))
    except UNREADABLE as error:
        raise InputError(f"{path}: rank {entry.rank} cannot be read: {one_line(error)}") from error
    return with_dimensions({entry.rank: timeline}, (), None)[entry.rank]


def _source_of(entry: RankEntry, folder: Path) -> Source:
    """Give the source that a rank of our own capture is; what it could not record is a warning."""
    failures = entry.recorded.get("failures", [])
    return Source(
        path=str(folder),
        format="overlapscope",
        ranks=(entry.rank,),
        events=entry.spans,
        warnings=tuple(str(failure) for failure in failures) if isinstance(failures, list) else (),
    )


def _entries(path: Path) -> list[RankEntry]:
    """Give what the rank folders say of themselves; a damaged entry is as if its rank had not been recorded."""
    entries = []
    for file in sorted(path.glob(f"rank_*/{RANK_ENTRY}")):
        try:
            entries.append(msgspec.json.decode(file.read_bytes(), type=RankEntry))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
    return entries


def _bare(entry: RankEntry) -> RankTimeline:
    """Give what an entry tells of a rank, with empty tables."""
    return RankTimeline(
        rank=entry.rank,
        basis=entry.basis,
        has_device=entry.has_device,
        names=(),
        recorded=entry.recorded,
        **EMPTY,
    )


def _folder(path: Path, entry: RankEntry) -> Path:
    """Give the folder of a rank; raises ValueError where its entry names another place."""
    folder = path / Path(entry.folder).name
    if not is_rank_folder(folder.name):
        raise ValueError(f"{entry.folder!r} is no folder of a rank")
    return folder

"""The run directory: `run.json` and one folder of Parquet tables a rank, readable by any dataframe tool.

    RUN/run.json                    schema, world size, ranks, groups, sources, fingerprint, how each rank was recorded
    RUN/rank_00000/spans.parquet    zstd; one file a table of `columns`; missing is null, names are dictionaries
    RUN/facts/links.parquet         one file a table of `facts` that is not empty

It is written under a temporary name beside its place and renamed at the end, so that a run directory is whole or
not there.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE, make, size
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.facts import Facts, Links, join_facts
from overlapscope.timeline.found_groups import with_found_groups
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import MAX_RANKS, Group, RankTimeline, Run, Source
from overlapscope.timeline.store.fact_files import load_facts, missing_facts, save_facts, table_rows
from overlapscope.timeline.store.lazy_rank import (
    EMPTY,
    UNREADABLE,
    OpenedRank,
    TableCache,
    first_line,
    open_rank,
    read_rank,
)
from overlapscope.timeline.store.manifest import (
    SCHEMA,
    Manifest,
    RankEntry,
    encode_manifest,
    find_ranks,
    is_rank_folder,
    rank_folder,
    read_manifest,
)
from overlapscope.timeline.store.rank_files import write_rank
from overlapscope.timeline.store.read_ahead import available_cores, in_threads
from overlapscope.timeline.store.run_directory import FACTS, MANIFEST
from overlapscope.timeline.store.run_folder import explain_interrupted, replace_run

AT_ONCE_BYTES: Final = 256 << 20
"""Most bytes for the tables of ranks that are read at the same time, however many cores there are."""
SPAN_BYTES: Final = 200
"""Bytes of a span while it is read: stored, decoded by Arrow, and as columns."""


def save_run(run: Run, path: Path, *, version: str, force: bool = False) -> None:
    """Write the run to the folder `path`, which must not exist unless `force` is given.

    Raises UsageError when it exists, or when `force` would replace a folder that is no run; InputError when it
    cannot be written.
    """
    with replace_run(path, force=force) as temporary:
        fill_run(run, temporary, version=version)


def fill_run(run: Run, folder: Path, *, version: str) -> None:
    """Write the run into an empty folder. Raises OSError."""
    entries = [_save_rank(timeline, folder) for _, timeline in sorted(run.ranks.items())]
    write_job(run, entries, folder, version=version)


def _save_rank(timeline: RankTimeline, run: Path) -> RankEntry:
    folder = run / rank_folder(timeline.rank)
    folder.mkdir()
    return write_rank(timeline, folder)


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
        facts=table_rows(run.facts),
    )
    save_facts(run.facts, folder / FACTS)
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))


def load_run(path: Path) -> Run:
    """Read a run directory. A rank whose tables are damaged costs that rank, with a warning in the sources.

    All is read and checked; of a large run the spans are then let go, and read again when they are asked for. Raises
    InputError when no rank can be read.
    """
    manifest = read_manifest(path)
    ranks: dict[int, RankTimeline] = {}
    sources = list(manifest.sources)
    problems = []
    kept = TableCache()
    found = find_ranks(path, manifest)
    for folder, rank, why in found.unread:
        problems.append(f"{folder.name} left out: {why}")
        sources.append(_warning(folder, problems[-1], rank))
    entries = found.entries
    opening = in_threads(partial(_opened, path, kept), entries, ahead=_at_once(entries))
    for entry, opened in zip(entries, opening, strict=True):
        folder = path / Path(entry.folder).name
        if isinstance(opened, str):
            problems.append(opened)
            sources.append(_warning(folder, opened, entry.rank))
            continue
        ranks[entry.rank] = opened.timeline
        if opened.lost is not None:
            sources.append(_warning(folder, f"rank {entry.rank}: {opened.lost}"))
        if not manifest.sources:
            sources.append(_source_of(entry, folder))
    world_size, groups, odd = _sound(manifest, path, max(ranks, default=-1), _groups_of(ranks.values()))
    sources += [_warning(path / MANIFEST, each) for each in odd]
    facts, unread = _facts(path, manifest)
    sources += [_warning(path / FACTS, each) for each in unread]
    sources += [_warning(path, each) for each in explain_interrupted(path)]
    if size(facts.links) == 0:
        facts = join_facts([facts, recorded_links(ranks.values())])
    if not ranks and not facts:
        raise InputError(f"{path}: no rank can be read; {problems[0] if problems else 'the run is empty'}")
    with_groups, groups = with_found_groups(ranks, groups, world_size)
    return Run(
        world_size=world_size,
        ranks=with_dimensions(with_groups, groups, world_size),
        groups=groups,
        sources=tuple(sources),
        fingerprint=manifest.fingerprint,
        facts=facts,
        version=manifest.version,
    )


def _facts(path: Path, manifest: Manifest) -> tuple[Facts, list[str]]:
    """Return the facts that the manifest states, all where there is no manifest, and why some cannot be read."""
    if not manifest.facts and (path / MANIFEST).is_file():
        found = os.path.lexists(path / FACTS)
        return Facts(), [f"{FACTS} left out: {MANIFEST} states none, so they are of another run"] if found else []
    facts, unread = load_facts(path / FACTS)
    return facts, unread or missing_facts(facts, manifest.facts or {})


def _warning(path: Path, text: str, *unread_ranks: int) -> Source:
    """Return a source that states what is wrong with a part of the run."""
    return Source(path=str(path), format="overlapscope", warnings=(text,), unread_ranks=unread_ranks)


def _groups_of(ranks: Iterable[RankTimeline]) -> list[Group]:
    """Return the groups that ranks themselves list: the manifest has those that rank 0 knows."""
    found = []
    for each in (each for rank in ranks if isinstance(listed := rank.recorded.get("groups"), list) for each in listed):
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(each, Group))
    return found


def _sound(
    manifest: Manifest, path: Path, last: int, others: Sequence[Group]
) -> tuple[int | None, tuple[Group, ...], list[str]]:
    """Return the world size, the possible groups, and messages about what was wrong; `last` is the last rank, `others`
    are groups that the manifest may lack."""
    odd = []
    if not (path / MANIFEST).is_file():
        odd.append(f"{MANIFEST} is not there: how many ranks the job had, its groups and its software are not known")
    world_size = manifest.world_size
    if world_size is not None and world_size <= last:
        odd.append(f"rank {last} is none of a world of {world_size}: {last + 1} ranks are taken; are they of one job?")
        world_size = last + 1
    groups = tuple(each for each in manifest.groups if _is_possible(each))
    names, world = {each.name for each in groups}, float("inf") if world_size is None else world_size
    more = {
        each.name: each
        for each in others
        if each.name and each.name not in names and _is_possible(each) and max(each.ranks or (0,)) < world
    }
    if len(groups) < len(manifest.groups):
        odd.append(f"groups whose ranks or sizes cannot be, left out: {len(manifest.groups) - len(groups)}")
    return world_size, (*groups, *more.values()), odd


def _is_possible(group: Group) -> bool:
    members = group.ranks or ()
    distinct = len(set(members)) == len(members)
    return distinct and all(0 <= each <= MAX_RANKS for each in (group.size or 0, *members))


def _at_once(entries: Sequence[RankEntry]) -> int:
    """Return how many ranks may be read at a time: one for each core, but no more than there is room for."""
    most = max((entry.spans for entry in entries), default=0)
    return max(1, min(available_cores(), AT_ONCE_BYTES // max(1, most * SPAN_BYTES)))


def _opened(path: Path, kept: TableCache, entry: RankEntry) -> OpenedRank | str:
    """Return a rank, or why it is left out."""
    try:
        return open_rank(_without_tables(entry), _rank_path(path, entry), kept, entry)
    except UNREADABLE as error:
        return f"rank {entry.rank} left out: its tables cannot be read ({first_line(error)})"


def load_rank(path: Path, entry: RankEntry) -> RankTimeline:
    """Read one rank of the run directory `path`, as `load_run` does; raises InputError where it cannot be read.

    Dimensions are known only where the names of groups state them.
    """
    try:
        timeline = read_rank(_without_tables(entry), _rank_path(path, entry), TableCache(), entry).timeline
    except UNREADABLE as error:
        raise InputError(f"{path}: rank {entry.rank} cannot be read: {first_line(error)}") from error
    return with_dimensions({entry.rank: timeline}, (), None)[entry.rank]


def _source_of(entry: RankEntry, folder: Path) -> Source:
    """Return the source that a rank of our own capture is; what it could not record is a warning."""
    failures = entry.recorded.get("failures", [])
    return Source(
        path=str(folder),
        format="overlapscope",
        ranks=(entry.rank,),
        events=entry.spans,
        warnings=tuple(str(failure) for failure in failures) if isinstance(failures, list) else (),
    )


def _without_tables(entry: RankEntry) -> RankTimeline:
    """Return the timeline of a rank's entry, with empty tables."""
    return RankTimeline(
        rank=entry.rank,
        basis=entry.basis,
        has_device=entry.has_device,
        names=(),
        recorded=entry.recorded,
        **EMPTY,
    )


def _rank_path(path: Path, entry: RankEntry) -> Path:
    """Return the folder of a rank; raises ValueError where its entry names another place."""
    folder = path / Path(entry.folder).name
    if not is_rank_folder(folder.name):
        raise ValueError(f"{entry.folder!r} is no folder of a rank")
    return folder


def recorded_links(ranks: Iterable[RankTimeline]) -> Facts:
    """Return the links of all ranks' devices, each once; a host without a name, or an odd entry, is left out."""
    rows: dict[tuple[str, str, str], tuple[str | None, int]] = {}
    for timeline in ranks:
        settings, links = timeline.recorded.get("settings"), timeline.recorded.get("links")
        host = settings.get("host") if isinstance(settings, dict) else None
        if not isinstance(host, str) or not isinstance(links, list):
            continue
        for link in links:
            found = _row(link)
            if found is not None:
                rows[host, *found[0]] = found[1]
    names = NameTable()
    if not rows:
        return Facts()
    table = make(
        Links,
        len(rows),
        host=names.encode([key[0] for key in rows]),
        a=names.encode([key[1] for key in rows]),
        b=names.encode([key[2] for key in rows]),
        kind=names.codes(kind for kind, _ in rows.values()),
        lanes=[lanes for _, lanes in rows.values()],
    )
    return Facts(names=tuple(names.to_list()), links=table)


def _row(link: Any) -> tuple[tuple[str, str], tuple[str | None, int]] | None:
    if not isinstance(link, dict):
        return None
    a, b, kind, lanes = (link.get(key) for key in ("a", "b", "kind", "lanes"))
    if not isinstance(a, str) or not isinstance(b, str):
        return None
    if not isinstance(lanes, int) or isinstance(lanes, bool) or not 0 <= lanes < 1 << 16:
        lanes = NONE
    return (a, b), (kind if isinstance(kind, str) else None, lanes)

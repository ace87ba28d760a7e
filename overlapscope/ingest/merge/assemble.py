"""Combine the readings of one job into a run: assign a rank to each timeline, and join the timelines of one rank."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from overlapscope.display import display_name, display_path
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.merge.assumed_ranks import without_clashing
from overlapscope.ingest.merge.by_name import are_ranks, numbers_in_names, rename_advice, shared_name
from overlapscope.ingest.merge.jobs import Job, Readings, split_jobs
from overlapscope.ingest.merge.message_peers import with_checked_places, with_ranks_of_peers
from overlapscope.ingest.merge.same_job import keep_matching_size, keep_one_run, same_job_doubts
from overlapscope.ingest.options import BY_NAME
from overlapscope.ingest.reader import Reading, rank_from_path
from overlapscope.timeline.columns import size
from overlapscope.timeline.configured_groups import with_configured_groups
from overlapscope.timeline.dimensions import fill_group_columns
from overlapscope.timeline.facts import Facts, join_facts, with_rank
from overlapscope.timeline.found_groups import with_found_groups
from overlapscope.timeline.names import Codes, NameTable
from overlapscope.timeline.run import UNKNOWN_RANK, Group, RankTimeline, Run, Source, join_recordings


def assemble_jobs(readings: Readings, given: Mapping[str, int]) -> list[tuple[Job, Run]]:
    """Return each job that the readings (at least one) are of, with its run. Raises as `assemble` does.

    `given` is the user's rank by file name.
    """
    jobs = split_jobs(readings, given)
    if len(jobs) == 1:
        return [(jobs[0], assemble(readings, given))]
    unused = set(given) - {path.name for path, _ in readings}
    if unused:
        raise _unusable_rank(min(unused), given, len({path for path, _ in readings}))
    found: list[tuple[Job, Run]] = []
    failed: list[Source] = []
    for job in jobs:
        try:
            own = {path.name: given[path.name] for path, _ in job.readings if path.name in given}
            found.append((job, assemble(job.readings, own)))
        except InputError as error:  # costs that job
            if not found and job is jobs[-1]:
                raise
            failed.append(Source(path=display_path(job.readings[0][0]), warnings=(f"{job.title} left out: {error}",)))
    (first, run), *rest = found
    return [(first, replace(run, sources=(*run.sources, *failed))), *rest]


def assemble(readings: list[tuple[Path, Reading]], given: Mapping[str, int]) -> Run:
    """Return the run that consists of the readings (at least one). `given` is the user's rank by file name.

    Raises UsageError where `given` names a file that is not an input, InputError where no timeline has a rank or two
    recordings of a rank overlap.
    """
    readings = keep_one_run(keep_matching_size(_with_ranks(_without_stand_ins(readings), given)))
    doubts = same_job_doubts(readings)
    readings = with_ranks_of_peers(_with_distinct_group_names(readings))
    parts: dict[int, list[RankTimeline]] = {}
    used: list[Reading] = []
    sources = []
    for _, reading in readings:
        known = [timeline.rank for timeline in reading.timelines if timeline.rank != UNKNOWN_RANK]
        sources.append(replace(reading.source, ranks=tuple(sorted({*reading.source.ranks, *known}))))
        if reading.timelines and not known:
            continue
        for timeline in reading.timelines:
            if timeline.rank != UNKNOWN_RANK:
                parts.setdefault(timeline.rank, []).append(timeline)
        used.append(reading)
    facts = join_facts([reading.facts for _, reading in readings])
    ranks, groups, facts, notes = _merged(parts, _groups(used), facts)
    fingerprint = _fingerprint(used)
    sizes = sorted({reading.world_size for reading in used if reading.world_size})
    world_size = max([*sizes, max(ranks, default=-1) + 1]) if sizes else None
    ranks, groups = with_configured_groups(ranks, groups, world_size)
    ranks, groups = with_found_groups(ranks, groups, world_size)
    ranks = with_checked_places(ranks, groups)
    notes = [*notes, *doubts, *_differences(sizes, world_size, fingerprint)]
    sources[0] = replace(sources[0], warnings=(*sources[0].warnings, *notes))
    return Run(
        world_size=world_size,
        ranks=fill_group_columns(ranks, groups, world_size),
        groups=groups,
        sources=tuple(sources),
        fingerprint=dict(sorted(fingerprint.items())),
        facts=facts,
    )


def _merged(
    parts: Mapping[int, Sequence[RankTimeline]], groups: tuple[Group, ...], facts: Facts
) -> tuple[Mapping[int, RankTimeline], tuple[Group, ...], Facts, Sequence[str]]:
    """Return the ranks, the groups, the facts and the notes of `merge_sources`, loaded only where there are logs."""
    if not size(facts.members) and all(part.basis != "log" for of_rank in parts.values() for part in of_rank):
        return {rank: join_recordings(parts[rank]) for rank in sorted(parts)}, groups, facts, ()
    from overlapscope.ingest.merge.sources import merge_sources  # noqa: PLC0415 - for traces alone, not loaded

    merged = merge_sources(parts, groups, facts)
    return merged.ranks, merged.groups, merged.facts, merged.notes


def _groups(readings: Sequence[Reading]) -> tuple[Group, ...]:
    """Return the groups sorted by name, each from the first reading that states its ranks, else from the first."""
    groups: dict[str, Group] = {}
    for reading in readings:
        for group in reading.groups:
            before = groups.get(group.name)
            if before is None or (before.ranks is None and group.ranks is not None):
                groups[group.name] = group
    return tuple(groups[name] for name in sorted(groups))


def _fingerprint(readings: Sequence[Reading]) -> dict[str, str | int | None]:
    fingerprint: dict[str, str | int | None] = {}
    for reading in readings:
        for key, value in reading.fingerprint.items():
            fingerprint.setdefault(key, value)
            if fingerprint[key] != value:
                fingerprint[key] = "mixed"
    return fingerprint


def _differences(
    sizes: Sequence[int], world_size: int | None, fingerprint: Mapping[str, str | int | None]
) -> list[str]:
    """Return notes on differences that suggest several jobs; `sizes` are the stated world sizes, the largest last."""
    notes = []
    if sizes and world_size and world_size > sizes[-1]:
        beyond = f"rank {world_size - 1} does not fit the world size {sizes[-1]} that the sources state"
        notes.append(f"{beyond}: {world_size} ranks are assumed; are they of one job?")
    different = [key for key in ("device", "backend") if fingerprint.get(key) == "mixed"]
    if different:
        notes.append(f"the sources differ in {' and '.join(different)}: are they of one job?")
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes))
        notes.append(f"the sources state different world sizes ({listed}): are they of one job?")
    return notes


def _without_stand_ins(readings: list[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Drop the timelines of stand-in files where the better file is present, in the same folder or of the same rank."""
    folders = set()
    ranks: set[int] = set()
    for path, reading in readings:
        timed = [timeline for timeline in reading.timelines if timeline.basis != "log"]
        if timed and not reading.stands_in:
            folders.add(path.parent)
            ranks |= {timeline.rank for timeline in timed} - {UNKNOWN_RANK}

    def kept(path: Path, reading: Reading) -> Reading:
        if not reading.stands_in or path.parent in folders:
            return replace(reading, timelines=()) if reading.stands_in else reading
        return replace(reading, timelines=tuple(each for each in reading.timelines if each.rank not in ranks))

    return [(path, kept(path, reading)) for path, reading in readings]


def _with_ranks(readings: list[tuple[Path, Reading]], given: Mapping[str, int]) -> list[tuple[Path, Reading]]:
    """Assign each timeline its rank: from its content, else from the file's name, else from the user's option.

    A single timeline without a rank is rank 0; one among several is left out, with a warning. So is one whose rank is
    only assumed, and recorded elsewhere at the same time.
    """
    unused = set(given) - {path.name for path, _ in readings} - {""}
    files = len({path for path, _ in readings})
    if unused or ("" in given and files > 1):
        raise _unusable_rank(min(unused, default=""), given, files)
    with_timelines = [path for path, reading in readings if reading.timelines]
    timed = sum(any(each.basis != "log" for each in reading.timelines) for _, reading in readings)
    often = Counter(path.name for path in set(with_timelines))
    ranked = []
    for path, reading in readings:
        rank, ranks = given.get(path.name, given.get("")), reading
        if reading.ranks_assumed:
            ranks = _numbered(path, reading, rank, alone=timed == 1)
        how = rename_advice(path.name) if often[path.name] > 1 else f"use --rank {display_name(path)}=N"
        ranked.append((path, _ranked(path, ranks, rank, alone=len(with_timelines) == 1, how=how)))
    certain = without_clashing(readings, ranked, given)
    if certain is not readings:
        return _with_ranks(certain, given)
    known = [timeline.rank for _, reading in ranked for timeline in reading.timelines]
    if known and all(rank == UNKNOWN_RANK for rank in known):
        for path, reading in readings:
            if len(reading.timelines) > 1 and not reading.ranks_assumed:  # --rank can only set the rank of one
                why = "; ".join(reading.source.warnings) or "it does not state which ranks they are"
                raise InputError(f"{display_path(path)}: its {len(reading.timelines)} ranks are not known: {why}")
        ranks_per_file = len(next(reading.timelines for path, reading in readings if path == with_timelines[0]))
        numbers = numbers_in_names(with_timelines) if ranks_per_file == 1 else {}
        if are_ranks(numbers.values()):
            warning = "ranks are the numbers in the names of the files, as no file states its rank"
            first = min(numbers, key=numbers.__getitem__)
            warned = [(path, _with_warning(each, warning) if path == first else each) for path, each in readings]
            return _with_ranks(warned, {path.name: number for path, number in numbers.items()})
        raise _no_rank_known(with_timelines, ranks_per_file, numbers)
    return ranked


def _no_rank_known(paths: Sequence[Path], ranks_per_file: int, numbers: Mapping[Path, int]) -> InputError:
    """Return the error for traces none of which states its rank; `numbers` are those in their names, where they differ
    by these alone."""
    names = [display_name(path) for path in paths]
    problem = f"none of the {len(names)} traces says which rank it is"
    if shared := shared_name(paths):
        return InputError(f"{problem}, and {rename_advice(shared)}")
    first = {
        name: numbers.get(path, at * ranks_per_file)
        for at, (path, name) in enumerate(zip(paths[:2], names, strict=False))
    }
    options = (f"--rank {name}={rank}" for name, rank in first.items())
    ordered = "for the order of file names, or"
    return InputError(
        f"{problem}; use ranks={BY_NAME!r} {ordered} ranks={first}",
        in_shell=f"{problem}; use --rank {BY_NAME} {ordered} {' '.join(options)} ...",
    )


def _unusable_rank(name: str, given: Mapping[str, int], files: int) -> UsageError:
    """Return the error for a rank given for a file that is not an input, or without a file name for several inputs."""
    rank = given[name]
    if name:
        why = "no input has that name"
        return UsageError(f"ranks={{{name!r}: {rank}}}: {why}", in_shell=f"--rank {name}={rank}: {why}")
    why = f"there are {files} inputs; say whose rank it is with"
    return UsageError(f"ranks={rank}: {why} {{'FILE': {rank}}}", in_shell=f"--rank {rank}: {why} FILE={rank}")


def _numbered(path: Path, reading: Reading, given_rank: int | None, *, alone: bool) -> Reading:
    """Number the ranks of a file that does not state them: from the user's first rank, else from 0 if alone."""
    if given_rank is not None:
        moved = tuple(replace(each, rank=given_rank + at) for at, each in enumerate(reading.timelines))
        return replace(reading, timelines=moved)
    if alone or len(reading.timelines) == 1:  # a single one is numbered by its device
        return _with_warning(reading, reading.assumption) if reading.assumption else reading
    unknown = tuple(replace(each, rank=UNKNOWN_RANK) for each in reading.timelines)
    return _with_warning(
        replace(reading, timelines=unknown),
        f"it does not say which its {len(unknown)} ranks are, and there are other inputs; "
        f"use --rank {display_name(path)}=FIRST",
    )


def _ranked(path: Path, reading: Reading, given_rank: int | None, *, alone: bool, how: str) -> Reading:
    """Return the reading with the rank of its only timeline, or with a warning why it has none, and `how` to say it."""
    if len(reading.timelines) != 1:
        unknown = sum(timeline.rank == UNKNOWN_RANK for timeline in reading.timelines)
        if given_rank is not None and not reading.ranks_assumed:
            warning = f"--rank {given_rank} is not used: it holds {len(reading.timelines)} ranks"
            reading = _with_warning(reading, warning)
        if unknown:
            reading = _with_warning(reading, f"{unknown} of its ranks left out: it does not say which they are")
        return reading
    timeline = reading.timelines[0]
    stated = timeline.rank if timeline.rank != UNKNOWN_RANK else None
    rank = stated if stated is not None else rank_from_path(path)
    if given_rank is not None and rank is not None and given_rank != rank:
        where = "it" if stated is not None else "its name"
        reading = _with_warning(reading, f"--rank {given_rank} is not used: {where} says rank {rank}")
    rank = given_rank if rank is None else rank
    if rank is None and alone:
        reading = _with_warning(reading, "no rank stands in the trace or its name; taken as rank 0")
        rank = 0
    if rank is None:
        return _with_warning(reading, f"left out: no rank stands in the trace or its name; {how}")
    facts = with_rank(reading.facts, rank) if stated is None else reading.facts
    return replace(reading, timelines=(replace(timeline, rank=rank),), facts=facts)


def _with_distinct_group_names(readings: list[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Rename groups that have one name but different ranks, by appending the ranks to the name."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for _, reading in readings:
        for group in reading.groups:
            if group.ranks is not None:
                members.setdefault(group.name, set()).add(group.ranks)
    shared = {name for name, ranks in members.items() if len(ranks) > 1}
    return [(path, _rename_groups(reading, shared) if shared else reading) for path, reading in readings]


def _rename_groups(reading: Reading, shared: set[str]) -> Reading:
    new = {
        group.name: f"{group.name} {list(group.ranks)}"
        for group in reading.groups
        if group.name in shared and group.ranks is not None
    }
    groups = tuple(replace(group, name=new.get(group.name, group.name)) for group in reading.groups)
    timelines = []
    for timeline in reading.timelines:
        names, codes = _recoded(timeline.names, new)
        calls = replace(timeline.collectives, group=codes[timeline.collectives.group])
        timelines.append(replace(timeline, names=names, collectives=calls))
    facts = reading.facts
    names, codes = _recoded(facts.names, new)
    facts = replace(facts, names=names, progress=replace(facts.progress, group=codes[facts.progress.group]))
    return replace(reading, groups=groups, timelines=tuple(timelines), facts=facts)


def _recoded(names: Sequence[str], new: Mapping[str, str]) -> tuple[tuple[str, ...], Codes]:
    """Return the names with the new ones added, and the new code of each old code; the last code, -1, stays -1."""
    table = NameTable(names)
    codes = np.append(np.arange(len(names), dtype=np.int32), np.int32(-1))
    for old, name in new.items():
        if old in names:
            codes[names.index(old)] = table.code(name)
    return tuple(table.to_list()), codes


def _with_warning(reading: Reading, warning: str) -> Reading:
    return replace(reading, source=replace(reading.source, warnings=(*reading.source.warnings, warning)))

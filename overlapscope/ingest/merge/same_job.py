"""Whether the recordings that were put together can be of one job: what they say of groups, and when they were made.

These are questions to the user, not errors: which of the files do not belong cannot be told.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import listed, shown
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import UNKNOWN_RANK

DAY_NS: Final = 24 * 3600 * 10**9
"""Recordings of one rank further apart than this are asked about."""
_ID: Final = "0x"
"""How the names of communicators begin that are known by their id."""
_LIBRARY_LOG: Final = "nccl-log"
"""The format that takes a rank in its largest communicator for the rank in the world."""
Process = tuple[str, int]
"""Host and number."""


def doubts(readings: Sequence[tuple[Path, Reading]]) -> list[str]:
    """Say why the readings may be of different jobs; nothing where nothing contradicts it. One of each kind."""
    return [*_groups_that_differ(readings), *_far_apart(readings)]


def _groups_that_differ(readings: Sequence[tuple[Path, Reading]]) -> Iterator[str]:
    """Find a group of which a rank says that another is a member, who gives the group of that name other members."""
    said: dict[str, dict[tuple[int, ...], dict[int, Path]]] = {}
    for path, reading in readings:
        ranks = {timeline.rank for timeline in reading.timelines}
        if len(ranks) != 1 or UNKNOWN_RANK in ranks:
            continue
        for group in reading.groups:
            if group.ranks is not None:
                said.setdefault(group.name, {}).setdefault(group.ranks, {}).setdefault(next(iter(ranks)), path)
    for name, members in said.items():
        for one, other in _pairs_of(members):
            claimed = sorted(set(one) & members[other].keys() & set(other))
            if claimed:
                here, there = next(iter(members[one].items())), members[other][claimed[0]]
                yield (
                    f"group {name} is of ranks {listed(one)} in {shown(here[1])}, and of ranks {listed(other)} in "
                    f"{shown(there)}, though rank {claimed[0]} is in both: are they of one job?"
                )
                return


def _pairs_of(
    members: Mapping[tuple[int, ...], Mapping[int, Path]],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the pairs of sets of ranks that share one."""
    seen: dict[int, tuple[int, ...]] = {}
    for ranks in members:
        for rank in ranks:
            if rank in seen and seen[rank] != ranks:
                yield seen[rank], ranks
                yield ranks, seen[rank]
            seen.setdefault(rank, ranks)


def _far_apart(readings: Sequence[tuple[Path, Reading]]) -> Iterator[str]:
    windows: dict[int, list[tuple[int, int, Path]]] = {}
    for path, reading in readings:
        for timeline in reading.timelines:
            table = timeline.recordings
            if timeline.rank != UNKNOWN_RANK and size(table) and NONE not in (table.start_ns.min(), table.end_ns.min()):
                spanned = (int(table.start_ns.min()), int(table.end_ns.max()), path)
                windows.setdefault(timeline.rank, []).append(spanned)
    for rank, theirs in sorted(windows.items()):
        for before, after in pairwise(sorted(theirs)):
            if after[0] - before[1] > DAY_NS:
                yield (
                    f"rank {rank} was recorded in {shown(before[2])}, and in {shown(after[2])} "
                    f"{(after[0] - before[1]) / DAY_NS:.1f} days later: are they of one job?"
                )
                return


class _Log(msgspec.Struct, frozen=True, kw_only=True):
    """What tells of which run a log is."""

    at: int
    processes: Mapping[int, Process]
    """By rank."""
    ids: frozenset[str]
    calls: int


class _Odd(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is one process in one log and another one in another."""

    rank: int
    here: Process
    there: Process
    other: int
    """Place of the other log."""


def of_one_run(readings: Sequence[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Leave out the logs of other runs than the one that counts; each tells why in a warning of its own."""
    result = list(readings)
    by_format: dict[str, list[_Log]] = {}
    for at, (_, reading) in enumerate(readings):
        log = _log(at, reading)
        if log.processes:
            by_format.setdefault(reading.source.format, []).append(log)
    for at, odd in chain.from_iterable(_odd(logs).items() for logs in by_format.values()):
        path, reading = readings[at]
        text = (
            f"left out: rank {odd.rank} is process {odd.here[1]} on {odd.here[0]}, but process {odd.there[1]} on "
            f"{odd.there[0]} in {shown(readings[odd.other][0])}: are these logs of two runs, or of a job that was "
            "restarted? Name those of one"
        )
        source = replace(reading.source, ranks=(), warnings=(*reading.source.warnings, text))
        result[at] = (path, Reading(source=source))
    return result


def of_that_size(readings: Sequence[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Leave out logs whose largest communicator is not as large as the job that was recorded.

    Ranks in such a log are those in that communicator: of a part of the job, or of more than it.
    """
    timed = (each for _, each in readings if any(timeline.basis != "log" for timeline in each.timelines))
    sizes = {reading.world_size for reading in timed} - {None}
    job = sizes.pop() if len(sizes) == 1 else None
    result = []
    for path, reading in readings:
        own = reading.world_size
        if job is not None and own not in (None, job) and reading.source.format == _LIBRARY_LOG:
            text = (
                f"left out: its largest communicator has {own} ranks, and the job that was recorded {job}: which of "
                "the job's ranks its processes are is not known"
            )
            source = replace(reading.source, ranks=(), warnings=(*reading.source.warnings, text))
            result.append((path, Reading(source=source)))
        else:
            result.append((path, reading))
    return result


def _log(at: int, reading: Reading) -> _Log:
    names, table = reading.facts.names, reading.facts.members
    processes: dict[int, Process] = {}
    for rank, host, number in zip(table.rank.tolist(), table.host.tolist(), table.process.tolist(), strict=True):
        if NONE not in (rank, number) and host >= 0:
            processes.setdefault(rank, (names[host], number))
    ids = {names[code] for code in set(table.communicator.tolist()) if code >= 0 and names[code].startswith(_ID)}
    calls = sum(size(each.collectives) for each in reading.timelines)
    return _Log(at=at, processes=processes, ids=frozenset(ids), calls=calls)


def _odd(logs: Sequence[_Log]) -> dict[int, _Odd]:
    """Return the logs that do not count, by their place."""
    runs = sorted(_runs(logs), key=lambda run: (not _named(run), -sum(log.calls for log in run), run[0].at))
    owners: dict[int, tuple[Process, list[_Log], int]] = {}
    found: dict[int, _Odd] = {}
    for run in runs:
        odd = [
            _Odd(rank=rank, here=process, there=owners[rank][0], other=owners[rank][2])
            for log in run
            for rank, process in log.processes.items()
            if rank in owners and owners[rank][0] != process
        ]
        for log in run if odd else ():
            own = next((each for each in odd if log.processes.get(each.rank) == each.here), odd[0])
            found[log.at] = own
        for each in odd:
            others = owners[each.rank][1]
            for other in () if _named(others) else others:
                found.setdefault(other.at, _Odd(rank=each.rank, here=each.there, there=each.here, other=run[0].at))
        for log in run:
            for rank, process in log.processes.items():
                if not odd or not _named(run):
                    owners.setdefault(rank, (process, run, log.at))
    return found


def _named(run: Sequence[_Log]) -> bool:
    return any(log.ids for log in run)


def _runs(logs: Sequence[_Log]) -> list[list[_Log]]:
    """Put logs together that share a process or the id of a communicator, directly or over others."""
    run_of: dict[object, list[_Log]] = {}
    for log in logs:
        keys: set[object] = {*log.processes.values(), *log.ids}
        together = {id(run_of[key]): run_of[key] for key in keys if key in run_of}
        joined = sorted(chain([log], *together.values()), key=lambda each: each.at)
        for each in joined:
            run_of.update(dict.fromkeys((*each.processes.values(), *each.ids), joined))
    return list({id(run): run for run in run_of.values()}.values())

"""Check whether recordings belong to one job and one run.

- `same_job_doubts`: contradictions in groups and times. These are questions to the user, not errors, because it is not
  known which of the files do not belong.
- `keep_one_run`: in a run a rank is one process, so logs that name two processes for a rank are not joined. Folders may
  keep the logs of yesterday's run, of a job that was restarted, or of processes that share no communicator and so seem
  to have the same ranks. Logs are of one run if they share a process, or a communicator by its id. Of runs that
  contradict each other, the one with the most calls is kept. Where communicators have no ids (before NCCL 2.16) it is
  not known which logs belong together, and none of those that contradict each other is kept.
- `keep_matching_size`: logs of a job of another size.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path, list_some
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.run import UNKNOWN_RANK

DAY_NS: Final = 24 * 3600 * 10**9
"""Recordings of one rank with a longer gap between them raise a question."""
_ID: Final = "0x"
"""Prefix of the names of communicators that are known by their id."""
_LIBRARY_LOG: Final = "nccl-log"
"""The format that treats a rank in its largest communicator as the global rank."""
Process = tuple[str, int]
"""Host name and process id."""


def same_job_doubts(readings: Sequence[tuple[Path, Reading]]) -> list[str]:
    """Return reasons why the readings may be of different jobs, at most one of each kind."""
    return [*_contradictory_groups(readings), *_far_apart(readings)]


def _contradictory_groups(readings: Sequence[tuple[Path, Reading]]) -> Iterator[str]:
    """Yield at most one group for which a rank names as a member a rank that states other members."""
    stated: dict[str, dict[tuple[int, ...], dict[int, Path]]] = {}
    for path, reading in readings:
        ranks = {timeline.rank for timeline in reading.timelines}
        if len(ranks) != 1 or UNKNOWN_RANK in ranks:
            continue
        for group in reading.groups:
            if group.ranks is not None:
                stated.setdefault(group.name, {}).setdefault(group.ranks, {}).setdefault(next(iter(ranks)), path)
    for name, members in stated.items():
        for one, other in _overlapping_pairs(members):
            claimed = sorted(set(one) & members[other].keys() & set(other))
            if claimed:
                here, there = next(iter(members[one].items())), members[other][claimed[0]]
                yield (
                    f"group {name} is of ranks {list_some(one)} in {display_path(here[1])}, "
                    f"and of ranks {list_some(other)} in "
                    f"{display_path(there)}, though rank {claimed[0]} is in both: are they of one job?"
                )
                return


def _overlapping_pairs(
    members: Mapping[tuple[int, ...], Mapping[int, Path]],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield, in both orders, pairs of different rank lists that share a rank."""
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
                    f"rank {rank} was recorded in {display_path(before[2])}, and in {display_path(after[2])} "
                    f"{(after[0] - before[1]) / DAY_NS:.1f} days later: are they of one job?"
                )
                return


class _Log(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that show to which run a log belongs."""

    at: int
    processes: Mapping[int, Process]
    """By rank."""
    ids: frozenset[str]
    """Ids of its communicators."""
    calls: int


class _Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is one process in one log and another process in another log."""

    rank: int
    here: Process
    there: Process
    other: int
    """Index of the other log's reading."""


def keep_one_run(readings: Sequence[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Drop the logs of all runs but one; each dropped reading keeps its source, with the reason as a warning."""
    result = list(readings)
    by_format: dict[str, list[_Log]] = {}
    for at, (_, reading) in enumerate(readings):
        log = _log(at, reading)
        if log.processes:
            by_format.setdefault(reading.source.format, []).append(log)
    for at, conflict in chain.from_iterable(_conflicts(logs).items() for logs in by_format.values()):
        path, reading = readings[at]
        here, there = conflict.here, conflict.there
        text = (
            f"rank {conflict.rank} is process {here[1]} on {here[0]}, but process {there[1]} on "
            f"{there[0]} in {display_path(readings[conflict.other][0])}: "
            "are these logs of two runs, or of a job that was "
            "restarted? Name those of one"
        )
        result[at] = (path, _left_out(reading, text))
    return result


def _left_out(reading: Reading, why: str) -> Reading:
    source = reading.source
    return Reading(source=replace(source, ranks=(), warnings=(*source.warnings, f"left out: {why}")))


def keep_matching_size(readings: Sequence[tuple[Path, Reading]]) -> list[tuple[Path, Reading]]:
    """Drop logs whose largest communicator has another size than the recorded job.

    Ranks in such a log count within that communicator, which is a part of the job or larger than it.
    """
    timed = (each for _, each in readings if any(timeline.basis != "log" for timeline in each.timelines))
    sizes = {reading.world_size for reading in timed} - {None}
    job = sizes.pop() if len(sizes) == 1 else None
    result = list(readings)
    for at, (path, reading) in enumerate(readings):
        own = reading.world_size
        if job is not None and own not in (None, job) and reading.source.format == _LIBRARY_LOG:
            text = (
                f"its largest communicator has {own} ranks, and the job that was recorded {job}: which of "
                "the job's ranks its processes are is not known"
            )
            result[at] = (path, _left_out(reading, text))
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


def _conflicts(logs: Sequence[_Log]) -> dict[int, _Conflict]:
    """Return the conflict of each log to drop, by the index of its reading."""
    runs = sorted(_runs(logs), key=lambda run: (not _has_ids(run), -sum(log.calls for log in run), run[0].at))
    owners: dict[int, tuple[Process, list[_Log], int]] = {}
    found: dict[int, _Conflict] = {}
    for run in runs:
        conflicts = [
            _Conflict(rank=rank, here=process, there=owners[rank][0], other=owners[rank][2])
            for log in run
            for rank, process in log.processes.items()
            if rank in owners and owners[rank][0] != process
        ]
        for log in run if conflicts else ():
            own = next((each for each in conflicts if log.processes.get(each.rank) == each.here), conflicts[0])
            found[log.at] = own
        for each in conflicts:
            others = owners[each.rank][1]
            for other in () if _has_ids(others) else others:
                conflict = _Conflict(rank=each.rank, here=each.there, there=each.here, other=run[0].at)
                found.setdefault(other.at, conflict)
        for log in run:
            for rank, process in log.processes.items():
                if not conflicts or not _has_ids(run):
                    owners.setdefault(rank, (process, run, log.at))
    return found


def _has_ids(run: Sequence[_Log]) -> bool:
    return any(log.ids for log in run)


def _runs(logs: Sequence[_Log]) -> list[list[_Log]]:
    """Return groups of logs that share a process or the id of a communicator, directly or through other logs."""
    run_of: dict[object, list[_Log]] = {}
    for log in logs:
        keys: set[object] = {*log.processes.values(), *log.ids}
        together = {id(run_of[key]): run_of[key] for key in keys if key in run_of}
        joined = sorted(chain([log], *together.values()), key=lambda each: each.at)
        for each in joined:
            run_of.update(dict.fromkeys((*each.processes.values(), *each.ids), joined))
    return list({id(run): run for run in run_of.values()}.values())

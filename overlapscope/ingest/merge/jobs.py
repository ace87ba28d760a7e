"""Divide what was read into jobs: recordings are of one job unless the evidence excludes it.

Excluded is what states another world size; another device, at another time; a rank that is another process; and, more
than a day apart, a rank that does not go on with its steps, or a trace without a rank. Times alone decide nothing:
clocks of hosts may differ, and a job may be recorded for an hour of each day.
"""

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_name, list_some
from overlapscope.ingest.merge.same_job import DAY_NS
from overlapscope.ingest.reader import Reading, rank_from_path
from overlapscope.timeline.columns import HOST, NONE
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline

Readings = list[tuple[Path, Reading]]
NS: Final = 10**9


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one job, and why they are not of the jobs before it."""

    readings: Readings
    why: str = ""
    with_folders: bool = False
    """Whether its files are named with their folders, because another job has files of the same names."""

    @property
    def title(self) -> str:
        """What tells it apart, as text: size of the world, device, time, files."""
        timed = [reading for _, reading in self.readings if _timed(reading)]
        worlds = sorted({each.world_size for each in timed if each.world_size})
        devices = sorted({str(each.fingerprint["device"]) for each in timed if each.fingerprint.get("device")})
        begins = [window[0] for each in timed if (window := _window(each))]
        when = datetime.datetime.fromtimestamp(min(begins) / NS, datetime.UTC) if begins else None
        said = [f"world of {each}" for each in worlds[:1]] + devices[:2]
        if when is not None and when.year > 2000:
            said.append(f"{when:%Y-%m-%d %H:%M:%S} UTC")
        names = self.names
        if self.with_folders:
            folders = [display_name(path.parent) for path, _ in self.readings]
            names = [f"{folder}/{name}" for folder, name in zip(folders, names, strict=True)]
        return f"{', '.join(said) or 'unknown'}: {list_some(names, 2)}"

    @property
    def names(self) -> list[str]:
        """The names of its files."""
        return [display_name(path) for path, _ in self.readings]


def split_jobs(readings: Readings, given: Mapping[str, int]) -> list[Job]:
    """Return the jobs, by the time at which they began; `given` is the user's rank by file name.

    What has no times (logs, topologies) goes to the job of the same folder. Where that is not one, only its source is
    kept, with a warning, in the first job.
    """
    members = [_Member.of(path, reading, given) for path, reading in readings if _timed(reading)]
    if len(members) < 2:
        return [Job(readings=readings)]
    jobs: list[list[_Member]] = []
    whys: list[str] = []
    for unit in _units(sorted(members, key=lambda each: each.window)):
        reasons = [_excluded(job, unit) for job in jobs]
        if None in reasons:
            jobs[reasons.index(None)] += unit
        else:
            jobs.append(unit)
            whys.append(" and ".join(dict.fromkeys(each for each in reasons if each)))
    if len(jobs) == 1:
        return [Job(readings=readings)]
    of_path = {each.path: number for number, job in enumerate(jobs) for each in job}
    found: list[Readings] = [[] for _ in jobs]
    for path, reading in readings:
        number = of_path.get(path) if _timed(reading) else _nearest(path, of_path)
        if number is None:
            why = f"left out: which of the {len(jobs)} jobs it is of is not known; name the files of one job"
            source = reading.source
            reading = Reading(source=replace(source, ranks=(), warnings=(*source.warnings, why)))  # noqa: PLW2901
        found[number or 0].append((path, reading))
    split = [Job(readings=each, why=why) for each, why in zip(found, whys, strict=True)]
    often = Counter(name for job in split for name in {*job.names})
    return [replace(job, with_folders=any(often[name] > 1 for name in job.names)) for job in split]


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """What of one reading with times tells jobs apart."""

    path: Path
    format: str
    window: tuple[int, int]
    world_size: int | None
    device: str | None
    ranks: Mapping[int, "_Rank"]
    """By rank; empty where it states none."""
    assumed: bool
    """Whether its ranks are not stated, but assumed."""

    @classmethod
    def of(cls, path: Path, reading: Reading, given: Mapping[str, int]) -> "_Member":
        ranks = {}
        for timeline in reading.timelines:
            rank: int | None = timeline.rank
            if rank == UNKNOWN_RANK and len(reading.timelines) == 1:
                rank = given.get(path.name, given.get("", rank_from_path(path)))
            if rank is not None and rank != UNKNOWN_RANK:
                ranks[rank] = _Rank.of(timeline)
        device = reading.fingerprint.get("device")
        return cls(
            path=path, format=reading.source.format, window=_window(reading) or (NONE, NONE),
            world_size=reading.world_size, device=None if device in (None, "mixed") else str(device), ranks=ranks,
            assumed=reading.ranks_assumed,
        )  # fmt: skip


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a rank, and its first and last step."""

    processes: frozenset[str]
    steps: tuple[int, int] | None

    @classmethod
    def of(cls, timeline: RankTimeline) -> "_Rank":
        lanes, steps = timeline.lanes, timeline.steps.step.tolist()
        codes = set(lanes.process[lanes.kind == HOST].tolist())
        names = {timeline.names[code] for code in codes if code >= 0}
        return cls(
            processes=frozenset(each for each in names if each.isdigit()),
            steps=(min(steps), max(steps)) if steps else None,
        )


def _timed(reading: Reading) -> bool:
    return any(each.basis != "log" for each in reading.timelines)


def _window(reading: Reading) -> tuple[int, int] | None:
    """Return when a reading began and ended; None where that is not known."""
    begins = [int(each.recordings.start_ns.min()) for each in reading.timelines if each.recordings.start_ns.size]
    ends = [int(each.recordings.end_ns.max()) for each in reading.timelines if each.recordings.end_ns.size]
    return (min(begins), max(ends)) if begins and NONE not in begins else None


def _units(members: Sequence[_Member]) -> Iterator[list[_Member]]:
    """Yield what is not divided any further: members, by time, that nothing excludes from the one before."""
    jobs: dict[int | None, list[_Member]] = {}
    until = NONE
    for each in members:
        if until != NONE and each.window[0] - until > DAY_NS:
            yield from jobs.values()
            jobs = {}
        until = max(until, each.window[1])
        known = each.world_size
        if known is None and len(jobs) == 1:
            known = next(iter(jobs))
        elif known is not None and None in jobs and len(jobs) == 1:
            jobs[known] = jobs.pop(None)
        unit = jobs.setdefault(known, [])
        ended = max((other.window[1] for other in unit), default=NONE)
        if unit and each.window[0] >= ended and _excluded(unit, [each]):
            yield unit
            unit = jobs[known] = []
        unit.append(each)
    yield from jobs.values()


def _excluded(job: Sequence[_Member], unit: Sequence[_Member]) -> str | None:
    """Return why a unit cannot be of a job that began before it; None where nothing excludes it."""
    worlds = [{each.world_size for each in of} - {None} for of in (job, unit)]
    if all(worlds) and worlds[0] != worlds[1]:
        return "another world size"
    begin, end = min(each.window[0] for each in unit), max(each.window[1] for each in job)
    apart_ns = begin - end if NONE not in (begin, end) else -1
    devices = [{each.device for each in of} - {None} for of in (job, unit)]
    if apart_ns >= 0 and all(devices) and not devices[0] & devices[1]:
        return "another device"
    if apart_ns > DAY_NS and not all(each.ranks for each in (*job, *unit)):
        return "a trace without a rank, of another day"
    before_of = {(other.format, rank): its for other in job for rank, its in other.ranks.items()}  # the last of each
    for each in unit if apart_ns >= 0 else ():
        for rank, now in each.ranks.items():
            before = before_of.get((each.format, rank))
            if before is None:
                continue
            if now.processes and before.processes and not now.processes & before.processes:
                unsure = " (ranks are assumed: if it is the same job, say them with --rank)" if each.assumed else ""
                return f"rank {rank} is another process{unsure}"
            if apart_ns > DAY_NS and now.steps and before.steps and now.steps[0] <= before.steps[1]:
                return f"rank {rank} begins its steps again on another day"
    return None


def _nearest(path: Path, of_path: Mapping[Path, int]) -> int | None:
    """Return the job whose files share most folders with a file; None where several do."""
    shared = {
        number: max(_common(path, other) for other, its in of_path.items() if its == number)
        for number in set(of_path.values())
    }
    most = [number for number, common in shared.items() if common == max(shared.values())]
    return most[0] if len(most) == 1 else None


def _common(one: Path, other: Path) -> int:
    pairs = list(zip(one.parent.parts, other.parent.parts, strict=False))
    return next((at for at, (here, there) in enumerate(pairs) if here != there), len(pairs))

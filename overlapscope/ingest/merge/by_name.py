"""Number files that state no rank in the order of their names, together with those that could not be read."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from overlapscope.display import display_name
from overlapscope.errors import UsageError
from overlapscope.ingest.merge.jobs import Readings
from overlapscope.ingest.options import BY_NAME
from overlapscope.ingest.reader import Reading, rank_from_path
from overlapscope.timeline.run import UNKNOWN_RANK, Source

DEVICES_OF_A_HOST: Final = 8
"""Numbers in names below this are ranks, also where some are missing: processes have larger ones."""
RANKS_PER_FILE: Final = 64
"""Numbers in names below this times the number of files may be ranks; larger ones are those of processes. A choice."""


def numbered_by_name(readings: Readings, unread: Sequence[Source]) -> tuple[Readings, dict[str, int], list[Source]]:
    """Return the readings with a warning, the rank by file name, and the unread files with the ranks that they take.

    Files that state no rank are numbered from 0 on, numbers in their names by value, without ranks that other traces
    state. An unread file takes its place among them if its name ends as one of theirs does. Raises UsageError where
    another file has the name of one of these.
    """
    silent = _silent(readings)
    counts = {path.name: count for path, count in silent.items()}
    usual = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    ends = {path.suffix for path in silent}
    lost = [Path(each.path) for each in unread if not each.unread_ranks and Path(each.path).suffix in ends]
    names = {path.name for path in (*silent, *lost)}
    if shared := shared_name(path for path in (*(path for path, _ in readings), *lost) if path.name in names):
        why = rename_advice(shared)
        raise UsageError(f"ranks={BY_NAME!r}: {why}", in_shell=f"--rank {BY_NAME}: {why}")
    stated = _stated([(path, reading) for path, reading in readings if path not in silent])
    if len(readings) == 1 and usual > 1 and not lost:
        return readings, {}, list(unread)  # its ranks have their order already
    stated |= {rank for each in unread for rank in each.unread_ranks}
    counts |= {path.name: usual for path in lost}
    first, ranks = 0, {}
    for name in sorted(counts, key=_place):
        while not stated.isdisjoint(range(first, first + counts[name])):
            first += 1
        ranks[name], first = first, first + counts[name]
    names_lost = {path.name for path in lost}
    given = {name: rank for name, rank in ranks.items() if name not in names_lost}
    taken = {path: tuple(range(ranks[path.name], ranks[path.name] + usual)) for path in lost}
    return _warned(readings, given), given, [_with_ranks(each, taken.get(Path(each.path), ())) for each in unread]


def numbers_in_names(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the number in which each path's name differs from the others; empty where they differ in more, where two
    have the same, or where numbers are so large that they are those of processes."""
    every = sorted(set(paths))
    parts = [re.split(r"(\d+)", path.name) for path in every]
    if len(every) < 2 or len(set(map(len, parts))) > 1:
        return {}
    differing = [at for at, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1 or not differing[0] % 2:
        return {}
    numbers = {path: int(each[differing[0]]) for path, each in zip(every, parts, strict=True)}
    distinct = len(set(numbers.values())) == len(every)
    return numbers if distinct and max(numbers.values()) < RANKS_PER_FILE * len(every) else {}


def are_ranks(numbers: Collection[int]) -> bool:
    """Return whether numbers in names are ranks: those of all, or of some devices of a host. Those from 1 on may count
    hosts."""
    counted_from_one = sorted(numbers) == list(range(1, len(numbers) + 1))
    return not counted_from_one and max(numbers) < max(len(numbers), DEVICES_OF_A_HOST)


def shared_name(paths: Iterable[Path]) -> str | None:
    """Return the first name that several of the paths have."""
    often = Counter(path.name for path in set(paths))
    return min((name for name, count in often.items() if count > 1), default=None)


def rename_advice(name: str) -> str:
    """Return what to do about several files of one name that state no rank."""
    return f"several inputs are named {display_name(Path(name))}; rename them, or their folders (rank0, rank1, ...)"


def _silent(readings: Readings) -> dict[Path, int]:
    """Return the number of ranks of each file that states none. A single rank that its device tells is kept, unless
    another trace has it, too."""
    unstated = [
        (path, reading)
        for path, reading in readings
        if reading.timelines and rank_from_path(path) is None
        if reading.ranks_assumed or all(each.rank == UNKNOWN_RANK for each in reading.timelines)
    ]
    silent = {path: len(reading.timelines) for path, reading in unstated}
    by_device = {
        path: reading.timelines[0].rank
        for path, reading in unstated
        if len(reading.timelines) == 1 and reading.timelines[0].rank != UNKNOWN_RANK
    }
    stated = _stated([(path, reading) for path, reading in readings if path not in silent])
    if len(set(by_device.values())) == len(by_device) and stated.isdisjoint(by_device.values()):
        return {path: count for path, count in silent.items() if path not in by_device}
    return silent


def _stated(readings: Readings) -> set[int]:
    """Return the ranks that traces state, or their names; logs and stand-ins may be of the same ranks as others."""
    found: set[int] = set()
    for path, reading in readings:
        timed = [each.rank for each in reading.timelines if each.basis != "log" and not reading.stands_in]
        by_name = rank_from_path(path)
        found |= {by_name} if len(timed) == 1 and timed[0] == UNKNOWN_RANK and by_name is not None else set(timed)
    return found - {UNKNOWN_RANK}


def _place(name: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _warned(readings: Readings, given: dict[str, int]) -> Readings:
    """Return the readings with a warning in the first of those that were numbered."""
    first = min(given, key=given.__getitem__, default=None)
    warning = f"{len(given)} files are ranks in the order of their names; whether they have that order is not known"
    if first is not None and len(given) == 1:
        warning = f"no rank stands in the trace or its name; numbered as rank {given[first]}"
    return [(path, _with_warning(each, warning) if path.name == first else each) for path, each in readings]


def _with_warning(reading: Reading, warning: str) -> Reading:
    return replace(reading, source=replace(reading.source, warnings=(*reading.source.warnings, warning)))


def _with_ranks(source: Source, ranks: tuple[int, ...]) -> Source:
    """Return an unread file's source with the ranks that its name takes."""
    if not ranks:
        return source
    listed = ", ".join(map(str, ranks))
    warning = f"by its name taken for rank {listed}" if len(ranks) == 1 else f"by its name taken for ranks {listed}"
    return replace(source, unread_ranks=ranks, warnings=(*source.warnings, warning))

"""The critical path of a step: the chain of dependencies across ranks that determined its length.

It is followed backwards from the end of the step: from a span to what it waited for, from a collective to the member
that arrived last, on aligned clocks. So wait time is not on the path; what the other ranks waited for is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.analysis.critical_path.path_walk import (
    LAUNCH,
    MOST_SEGMENTS,
    PARTS,
    FollowedPath,
    NoPathError,
    Walker,
    on_clock_of,
)
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.exposure.arrivals import arrivals
from overlapscope.analysis.per_rank.steps import StepWindow, whole_windows
from overlapscope.timeline.columns import NONE, Codes, Ints, Small
from overlapscope.timeline.rows import factorize_rows, sum_by, unique
from overlapscope.timeline.run import Run

MOST_STEPS: Final = 11
"""Steps whose path is followed; of more steps, a selection from the shortest to the longest."""
MOST_OPERATIONS: Final = 20
UNNAMED: Final = "unnamed"


class PathOperation(msgspec.Struct, kw_only=True, frozen=True):
    """All pieces of a path with one name. For host time it is the operation that was about to be launched."""

    part: str
    name: str
    ns: int
    count: int


class StepPath(msgspec.Struct, kw_only=True, frozen=True):
    """The critical path of one step; parts and ranks each add up to its length."""

    step: int | None
    """None for a whole recording without steps."""
    rank: int
    """The rank on which the step ended last; the path covers its window."""
    length_ns: int
    parts: dict[str, int]
    ranks: dict[str, int]
    operations: list[PathOperation]


class CriticalPath(msgspec.Struct, kw_only=True, frozen=True):
    """The critical paths of a run's steps."""

    scope: Literal["ranks", "rank"] | None = None
    """Whether paths cross ranks or stay within one; None where no path was found, see `reason`."""
    reason: str | None = None
    median_step: int | None = None
    steps: list[StepPath] = []
    left_out: int = 0
    """Steps whose path was not followed."""


class FollowedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The critical paths with all their segments."""

    scope: Literal["ranks", "rank"] | None = None
    reason: str | None = None
    median_step: int | None = None
    paths: tuple[FollowedPath, ...] = ()
    left_out: int = 0


Windows = Mapping[int, Sequence[StepWindow]]


def critical_path(run: Run, windows: Windows, cross_rank: CrossRank) -> CriticalPath:
    """Return the critical paths of a run's steps, with their parts and operations."""
    found = follow_paths(run, windows, cross_rank)
    return CriticalPath(
        scope=found.scope,
        reason=found.reason,
        median_step=found.median_step,
        steps=[_summed(run, path) for path in found.paths],
        left_out=found.left_out,
    )


def follow_paths(
    run: Run,
    windows: Windows,
    cross_rank: CrossRank,
    only: frozenset[int] | None = None,
) -> FollowedPaths:
    """Follow the paths of the complete steps (of all steps where none is complete); of `only` these if given."""
    ranks, reason = _connected(run, cross_rank)
    if reason is not None:
        return FollowedPaths(reason=reason)
    ends = _ends(run, cross_rank.clocks, {rank: windows[rank] for rank in ranks}, only)
    if not ends:
        return FollowedPaths(
            reason="no step with a window was recorded, and the recording has several parts or is empty"
        )
    lengths = sorted(end - start for _, _, (start, end) in ends)
    middle = next(each for each in ends if each[2][1] - each[2][0] == median_low(lengths))
    paths: list[FollowedPath] = []
    left, why = MOST_SEGMENTS, None
    chosen = [middle, *(each for each in _spread(ends) if each is not middle)]
    walker = Walker(run, arrivals(run, cross_rank), cross_rank.clocks, [(rank, window) for rank, _, window in chosen])
    for rank, step, window in chosen:
        try:
            path = walker.path(rank, step, window, left)
        except NoPathError as error:
            why = str(error)
            continue
        left -= path.segments.part.size
        paths.append(path)
    if not paths:
        return FollowedPaths(reason=f"the path could not be followed: {why}", left_out=len(ends))
    return FollowedPaths(
        scope="ranks" if len(ranks) > 1 else "rank",
        median_step=middle[1],
        paths=tuple(sorted(paths, key=lambda path: path.step or 0)),
        left_out=len(ends) - len(paths),
    )


_End = tuple[int, int | None, tuple[int, int]]
"""Where a path ends: the rank, the step, the step's window."""


def _connected(run: Run, cross_rank: CrossRank) -> tuple[list[int], str | None]:
    """Return the largest set of ranks that matched calls connect; or the reason why there is none."""
    timed = [rank for rank, timeline in run.ranks.items() if timeline.num_spans]
    if not timed:
        return [], "no times were recorded"
    if len(run.ranks) == 1:
        return timed, None
    tied = {rank: {rank} for rank in timed}
    blocks = [each.block for each in (*cross_rank.splits, *cross_rank.uneven) if each.block.whole and each.block.calls]
    pairs = {(each.sender, each.receiver) for each in cross_rank.pairs.pairs if each.send_rows.size}
    for members in {each.ranks for each in blocks} | pairs:
        joined = set().union(*{id(tied[rank]): tied[rank] for rank in members if rank in tied}.values())
        tied |= dict.fromkeys(joined, joined)
    most = max(tied.values(), key=lambda each: (len(each), -min(each)))
    if len(most) > 1:
        return sorted(most), None
    why = f" ({cross_rank.matching.reasons[0]})" if cross_rank.matching.reasons else ""
    if cross_rank.matched:
        return [], f"members of the matched collectives were not recorded, so the ranks are not connected{why}"
    return [], f"no collective could be matched across ranks, so the ranks are not connected{why}"


def _ends(run: Run, clocks: Clocks, windows: Windows, only: frozenset[int] | None) -> list[_End]:
    """Return for each step where it ended last."""
    known = [
        (rank, each)
        for rank, own in windows.items()
        for each in own
        if each.window is not None and each.window[1] > each.window[0] and (only is None or each.step in only)
    ]
    complete = [(rank, each) for rank, each in known if each.complete]
    if not known and only is None and not any(windows.values()):
        return _whole(run, clocks, windows)
    last: dict[int, tuple[int, _End]] = {}
    first = min(windows)
    for rank, each in complete or known:
        assert each.window is not None
        at = on_clock_of(clocks, first, rank, each.window[1])
        if each.step not in last or at > last[each.step][0]:
            last[each.step] = at, (rank, each.step, each.window)
    return [last[step][1] for step in sorted(last)]


def _whole(run: Run, clocks: Clocks, windows: Windows) -> list[_End]:
    """Return where the recording of a run without steps ended; only where each rank was recorded in one part."""
    wholes = {rank: whole_windows(run.ranks[rank]) for rank in windows}
    if any(len(each) != 1 for each in wholes.values()):
        return []
    first = min(windows)
    rank = max(wholes, key=lambda each: on_clock_of(clocks, first, each, wholes[each][0][1]))
    start, end = wholes[rank][0]
    return [(rank, None, (start, end))] if end > start else []


def _spread(ends: Sequence[_End]) -> Iterable[_End]:
    """Return all ends, or MOST_STEPS of them spread evenly over the lengths."""
    if len(ends) <= MOST_STEPS:
        return ends
    by_length = sorted(ends, key=lambda each: each[2][1] - each[2][0])
    return [by_length[round(at * (len(ends) - 1) / (MOST_STEPS - 1))] for at in range(MOST_STEPS)]


def _summed(run: Run, path: FollowedPath) -> StepPath:
    segments = path.segments
    length = segments.end_ns - segments.start_ns
    ranks: dict[int, int] = {}
    operations: dict[tuple[str, str], tuple[int, int]] = {}
    for rank in unique(segments.rank).tolist():
        own = segments.rank == rank
        ranks[rank] = int(length[own].sum())
        own &= (segments.row != NONE) & (segments.part != LAUNCH)
        names = run.ranks[rank].names
        for (at, code), ns, count in _totals(segments.part[own], segments.name[own], length[own]):
            key = PARTS[at], names[code] if code >= 0 else UNNAMED
            before = operations.get(key, (0, 0))
            operations[key] = before[0] + ns, before[1] + count
    most = sorted(operations.items(), key=lambda item: (-item[1][0], item[0]))[:MOST_OPERATIONS]
    parts = {part: int(length[segments.part == at].sum()) for at, part in enumerate(PARTS)}
    return StepPath(
        step=path.step,
        rank=path.rank,
        length_ns=path.end_ns - path.start_ns,
        parts={part: total for part, total in parts.items() if total},
        ranks={str(rank): total for rank, total in sorted(ranks.items(), key=lambda item: (-item[1], item[0]))},
        operations=[PathOperation(part=part, name=name, ns=ns, count=count) for (part, name), (ns, count) in most],
    )


def _totals(part: Small, code: Codes, length: Ints) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Return ((part, name), nanoseconds, count) of each distinct part and name."""
    which, first = factorize_rows([part, code])
    total = sum_by(which, length, first.size)
    count = np.bincount(which, minlength=first.size)
    keys = zip(part[first].tolist(), code[first].tolist(), strict=True)
    return zip(keys, total.tolist(), count.tolist(), strict=True)

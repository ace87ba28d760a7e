"""Find clock steps: clocks that were set (NTP, PTP) during the recording, when and by how much.

Where the distance of a rank's ends to those of the others changes from one level to another, the clocks are aligned
separately before and after. The rank whose clock moved against the middle of all others is removed from the calls on
the side with fewer of them: there its arrival times would show the clock step, not lateness.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks, connected
from overlapscope.analysis.cross_rank.clocks.clock_offsets import clock_offsets
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.display import list_some
from overlapscope.timeline.columns import Flags, Floats, Ints

LEAST_NS: Final = 200_000
"""Levels closer than this are no clock step ..."""
SCATTERS: Final = 10.0
"""... nor levels closer than this many times the scatter within a level, and the usual change from call to call."""
FEWEST: Final = 24
"""Clock steps are searched for in at least this many calls of the same ranks."""
STRETCHES: Final = 20
SHORTEST: Final = 3
LONGEST: Final = 25
"""Levels are medians of stretches of calls: at most so many stretches, each of so many calls."""
HOLDS: Final = 8
"""A level lasts for at least this many calls."""
MOST: Final = 4
"""A level that changes more often than this is not caused by clock steps."""


class ClockStep(msgspec.Struct, frozen=True, kw_only=True):
    """A clock step: between two times on the common clock, with the nanoseconds that each rank's clock moved."""

    begin_ns: float
    end_ns: float
    moved_ns: Mapping[int, float]
    either: bool = False
    """It is not known which of these clocks moved, or when."""


class _Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ends of some ranks change their level, on the common clock, widened by its uncertainty."""

    begin_ns: float
    end_ns: float
    by_ns: float
    ranks: frozenset[int]


def remove_clock_steps(matching: Matching, clocks: Clocks, hosts: Mapping[int, str]) -> Matching:
    """Remove ranks whose clock was stepped from the calls on one side of the step; reasons name them."""
    blocks = (*matching.blocks, *matching.uneven)
    clocks = replace(clocks, drift={})  # a clock step looks like a drift, and removing that would hide the step
    where = _merged(sorted(_suspected(matching.blocks, clocks, hosts), key=lambda each: each.begin_ns))
    jumps = _confirmed(matching.blocks, clocks, hosts, where) if where else []
    if not jumps:
        return matching
    spoilt = _wrong_times(matching.blocks, clocks, jumps)
    kept = [part for block in blocks for part in _parts(block, clocks, spoilt)]
    lost = sum(block.rows.size for block in blocks) - sum(block.rows.size for block in kept)
    even, uneven = (tuple(block for block in kept if block.even == kind) for kind in (True, False))
    reasons = tuple(_reason(each) for each in jumps)
    return replace(
        matching, blocks=even, uneven=uneven, unmatched=matching.unmatched + lost, reasons=matching.reasons + reasons
    )


def _suspected(blocks: Sequence[MatchedCalls], clocks: Clocks, hosts: Mapping[int, str]) -> Iterator[_Suspected]:
    tables: dict[tuple[int, ...], list[Floats]] = {}
    for block in blocks:
        tables.setdefault(block.ranks, []).append(clocks.ends(block))
    for ranks, parts in tables.items():
        if len({hosts.get(rank) for rank in ranks}) == 1 and ranks[0] in hosts:
            continue
        ends = np.concatenate(parts, axis=1)
        centre = np.median(ends, axis=0)
        order = np.argsort(centre, kind="stable")
        centre = centre[order]
        for rank, row in zip(ranks, ends[:, order] - centre, strict=True):
            for at, change in _level_changes(row):
                pair = len(ranks) == 2
                by = change * (2 if pair else 1)  # the median of two moves with either
                yield _Suspected(
                    begin_ns=float(centre[at - 1]) - by,  # the clocks that give this time may be wrong by as much
                    end_ns=float(centre[at]) + by,
                    by_ns=by,
                    ranks=frozenset(ranks if pair else (rank,)),
                )


def _level_changes(row: Floats) -> list[tuple[int, float]]:
    """Return the positions before which a row of distances changes its level, and by how much."""
    calls = row.size
    if calls < FEWEST:
        return []
    length = min(max(calls // STRETCHES, SHORTEST), LONGEST)
    whole = row[: calls // length * length].reshape(-1, length)
    level = np.median(whole, axis=1)
    change = np.abs(level[2:] - level[:-2])
    if not (change > LEAST_NS).any():
        return []
    scatter = np.median(np.abs(whole - level[:, None]), axis=1)
    noise = np.maximum(np.maximum(scatter[2:], scatter[:-2]), max(np.median(scatter), np.quantile(change, 1 / 3)))
    left = change > np.maximum(LEAST_NS, SCATTERS * noise)
    found: list[tuple[int, float]] = []
    while left.any():
        at = int(np.where(left, change, 0.0).argmax())
        first = at * length
        near = row[first : first + 3 * length]
        before = np.abs(near - level[at]) - np.abs(near - level[at + 2])
        split = int(np.append(0.0, np.cumsum(before)).argmin())
        found.append((min(max(first + split, 1), calls - 1), float(change[at])))
        left[max(at - 2, 0) : at + 3] = False
    lasting = [0, *sorted(at for at, _ in found), calls]
    return found if len(found) <= MOST and min(np.diff(lasting)) >= HOLDS else []


def _merged(found: Sequence[_Suspected]) -> list[_Suspected]:
    """Merge those that overlap."""
    merged: list[_Suspected] = []
    for each in found:
        if merged and each.begin_ns <= merged[-1].end_ns:
            before = merged[-1]
            merged[-1] = _Suspected(
                begin_ns=before.begin_ns,
                end_ns=max(each.end_ns, before.end_ns),
                by_ns=max(each.by_ns, before.by_ns),
                ranks=each.ranks | before.ranks,
            )
        else:
            merged.append(each)
    return merged


def _confirmed(
    blocks: Sequence[MatchedCalls],
    clocks: Clocks,
    hosts: Mapping[int, str],
    where: Sequence[_Suspected],
) -> list[ClockStep]:
    """Align the clocks between the suspected steps; return those at which a clock moved against the others."""
    cuts = [-np.inf, *(time for each in where for time in (each.begin_ns, each.end_ns)), np.inf]
    between = [
        clock_offsets([each for block in blocks for each in _within(block, clocks, begin, end)], hosts)
        for begin, end in zip(cuts[::2], cuts[1::2], strict=True)
    ]
    found = []
    for each, before, after in zip(where, between[:-1], between[1:], strict=True):
        if each.ranks - before.offset_ns.keys() or each.ranks - after.offset_ns.keys():
            unclear = dict.fromkeys(each.ranks, each.by_ns)
            found.append(ClockStep(begin_ns=-np.inf, end_ns=np.inf, moved_ns=unclear, either=True))
            continue
        moved = {
            rank: _moved(before, after, rank, clocks.reference_ns + round(offset + each.begin_ns))
            for rank, offset in clocks.offset_ns.items()
            if rank in before.offset_ns and rank in after.offset_ns
        }
        noise = SCATTERS * max(before.residual_ns or 0.0, after.residual_ns or 0.0)
        for ranks in _tied(blocks, moved):
            usual = sorted(moved[rank] for rank in ranks)[(len(ranks) - 1) // 2]
            odd = {
                rank: moved[rank] - usual
                for rank in ranks
                if abs(moved[rank] - usual) > max(LEAST_NS, noise, each.by_ns / 4)
            }
            if odd:
                either = len(ranks) == 2
                named = dict.fromkeys(ranks, max(odd.values(), key=abs)) if either else odd
                found.append(ClockStep(begin_ns=each.begin_ns, end_ns=each.end_ns, moved_ns=named, either=either))
    return found


def _moved(before: Clocks, after: Clocks, rank: int, own_ns: int) -> float:
    """Return how many nanoseconds a rank's clock is further ahead after the step than before."""
    at = np.array([own_ns])
    aligned = [float(each.aligned(rank, at)[0]) for each in (before, after)]
    return aligned[0] - aligned[1] + (before.reference_ns - after.reference_ns)


def _tied(blocks: Sequence[MatchedCalls], ranks: Mapping[int, float]) -> list[list[int]]:
    """Return the given ranks in connected sets. Groups may have made no calls at the time of the step."""
    tied = ([rank for rank in each if rank in ranks] for each in connected({block.ranks for block in blocks}))
    return [each for each in tied if each]


def _within(block: MatchedCalls, clocks: Clocks, begin: float, end: float) -> Iterator[MatchedCalls]:
    """Yield the part of a block between two times on the common clock, where there is one."""
    centre = np.median(clocks.ends(block), axis=0)
    columns = (centre > begin) & (centre < end)
    if columns.any():
        yield _part(block, np.arange(len(block.ranks)), columns)


def _part(block: MatchedCalls, places: Ints, columns: Flags) -> MatchedCalls:
    return replace(
        block,
        ranks=tuple(block.ranks[place] for place in places),
        rows=block.rows[places][:, columns],
        start_ns=block.start_ns[places][:, columns],
        end_ns=block.end_ns[places][:, columns],
        whole=block.whole and len(places) == len(block.ranks),
    )


def _wrong_times(
    blocks: Sequence[MatchedCalls], clocks: Clocks, jumps: Sequence[ClockStep]
) -> dict[int, list[tuple[float, float]]]:
    """Return for each rank with a clock step the times at which its clock is not at its most frequent level."""
    found = {}
    for rank in {rank for jump in jumps for rank in jump.moved_ns}:
        own = [jump for jump in jumps if rank in jump.moved_ns]
        times = np.sort(
            np.concatenate([np.median(clocks.ends(block), axis=0) for block in blocks if rank in block.ranks])
        )
        begins = [-np.inf, *(jump.end_ns for jump in own)]
        ends = [*(jump.begin_ns for jump in own), np.inf]
        level = np.cumsum([0.0, *(jump.moved_ns[rank] for jump in own)])
        calls = np.searchsorted(times, ends) - np.searchsorted(times, begins)
        close = np.abs(level[:, None] - level) < min(abs(jump.moved_ns[rank]) for jump in own) / 4
        usual = close[int((close * calls).sum(axis=1).argmax())]
        found[rank] = [(jump.begin_ns, jump.end_ns) for jump in own] + [
            (begin, end) for begin, end, same in zip(begins, ends, usual, strict=True) if not same
        ]
    return found


def _parts(
    block: MatchedCalls, clocks: Clocks, spoilt: Mapping[int, Sequence[tuple[float, float]]]
) -> Iterator[MatchedCalls]:
    """Yield a block's calls without the ranks whose clock is wrong there, one block for each remaining set of ranks."""
    if not any(rank in spoilt for rank in block.ranks):
        yield block
        return
    centre = np.median(clocks.ends(block), axis=0)
    good = np.array(
        [
            ~np.any(
                [(centre >= begin) & (centre <= end) for begin, end in spoilt.get(rank, ((np.inf, np.inf),))], axis=0
            )
            for rank in block.ranks
        ]
    )
    for pattern in np.unique(good, axis=1).T:
        if pattern.sum() > 1:
            yield _part(block, np.flatnonzero(pattern), (good == pattern[:, None]).all(axis=0))


def _reason(jump: ClockStep) -> str:
    by = max(jump.moved_ns.values(), key=abs) / 1e6
    ranks = list_some(sorted(jump.moved_ns))
    whose = f"the clock of rank {ranks} was stepped by {by:+.1f} ms"
    if jump.either:
        whose = f"the clocks of ranks {ranks} moved apart by {abs(by):.1f} ms"
    when, which = "while they were recorded", "their calls"
    if np.isfinite(jump.begin_ns):
        when = f"about {(jump.begin_ns + jump.end_ns) / 2e6:.1f} ms after the first matched call"
        which = "its calls before or after, whichever are fewer,"
    return (
        f"{whose} {when}: {which} are not compared with those of other ranks; record again while no clock is being set"
    )

"""The same collective on every rank that took part: by its number in the group, else by order, checked by its ends.

Each call is paired among the ranks that recorded it: one recording that was cut costs no more than one that is missing.
A pairing by order alone is a guess, which a sampled recording shifts. So it needs ranks with equally many calls of each
kind (`order_numbers`), and `agreeing` drops what does not end together once clocks are aligned.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.group_calls import (
    EXCHANGE,
    GroupCalls,
    group_calls,
    listed,
    named,
    spelled_size,
)
from overlapscope.analysis.order_numbers import by_order
from overlapscope.timeline.columns import NONE, Collectives, Flags, Ints, size
from overlapscope.timeline.run import RankTimeline, Run

SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"})
"""Operations that no member leaves before all have come: only these tell waiting from transferring."""
OTHER_STEPS = 0.1
"""Of calls paired by order, more than this share in steps of different numbers are not the same calls: an order that
lags behind by one hides in the clocks."""
ENDS_TOGETHER = 0.1
"""Ends of one call differ by less than this share of the usual time between calls of its kind ..."""
ENDS_TOGETHER_ON_ONE_CLOCK = 0.5
"""... or than this share where the members have one clock: no estimate of it can hide that calls are shifted ..."""
ENDS_WITHIN_NS = 50_000_000
"""... and by less than this; CPU ranks that share cores end milliseconds apart."""
MAX_REASONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """All matched calls of one kind: row i of each array is `ranks[i]`, column k the k-th call."""

    group: str | None
    op: str
    dtype: str | None
    bytes: int | None
    ranks: tuple[int, ...]
    rows: npt.NDArray[np.int64]
    """Row of the call in the rank's `Collectives`."""
    start_ns: npt.NDArray[np.int64]
    """On the rank's own clock, as the ends."""
    end_ns: npt.NDArray[np.int64]
    by_order: bool
    """Paired by order within its kind, for want of sequence numbers."""
    whole: bool
    """Every member of the group was recorded."""
    even: bool = True
    """All ranks move as much. Of uneven ones waiting cannot be split off, nor do they end together; `bytes` is None."""

    @property
    def calls(self) -> int:
        """How many calls."""
        return int(self.rows.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """What could be paired; `unmatched` counts the recorded calls that were not, one for each rank."""

    blocks: tuple[Matched, ...] = ()
    uneven: tuple[Matched, ...] = ()
    """Matched calls of uneven all-to-all, which tell no transfer."""
    unmatched: int = 0
    reasons: tuple[str, ...] = ()


def match(run: Run) -> Matching:
    """Pair the symmetric collectives of all recorded ranks, group by group; reasons say what was not paired.

    All-to-all counts as symmetric where every rank gives and gets as much; uneven ones are paired all the same.
    """
    blocks: list[Matched] = []
    uneven: list[Matched] = []
    reasons: list[str] = []
    unmatched = 0
    members = _members(run)
    calls: dict[tuple[str | None, tuple[int, ...] | None], dict[int, Ints]] = defaultdict(dict)
    for rank, timeline in run.ranks.items():
        for group, rows in _symmetric_by_group(timeline):
            calls[group, members(rank, group, timeline.collectives, rows)][rank] = rows
    lone: dict[str | None, int] = {}
    for (group, ranks), rows_of in calls.items():
        if not [rank for rank in (ranks or rows_of) if rank in run.ranks][1:]:
            rank = next(iter(rows_of))
            lone[group] = rank
            unmatched += rows_of[rank].size
            continue
        found = _match_group(run, group, ranks, rows_of)
        blocks += found.blocks
        uneven += found.uneven
        unmatched += found.unmatched
        reasons += found.reasons
    if lone:
        group, rank = next(iter(lone.items()))
        others = f", and {len(lone) - 1} more groups on one rank each" if len(lone) > 1 else ""
        reasons.append(f"{named(group)}: it was recorded on rank {rank} only{others}; their calls are not paired")
    said = list(dict.fromkeys(reasons))
    more = [f"{len(said) - MAX_REASONS} more such reasons"] if len(said) > MAX_REASONS else []
    return Matching(
        blocks=tuple(blocks), uneven=tuple(uneven), unmatched=unmatched, reasons=(*said[:MAX_REASONS], *more)
    )


def agreeing(
    matching: Matching, spread_ns: Callable[[Matched], Ints], one_clock: Callable[[Matched], bool] = lambda _: False
) -> Matching:
    """Drop the blocks paired by order whose calls do not end together.

    `spread_ns` gives, for each call of a block, how far apart its ends lie on aligned clocks; `one_clock` whether the
    members are known to have the same clock.
    """
    kept: list[Matched] = []
    reasons = list(matching.reasons)
    unmatched = matching.unmatched
    for block in (*matching.blocks, *matching.uneven):
        if not block.by_order:
            kept.append(block)
            continue
        limit = float(ENDS_WITHIN_NS)
        if block.calls > 1:
            share = ENDS_TOGETHER_ON_ONE_CLOCK if one_clock(block) else ENDS_TOGETHER
            limit = min(limit, share * float(np.median(np.diff(np.sort(block.end_ns[0])))))
        apart = float(np.median(spread_ns(block)))
        if apart <= limit:
            kept.append(block)
            continue
        unmatched += block.rows.size
        reasons.append(
            f"{named(block.group)}: {block.calls} {block.op} of {spelled_size(block.bytes)} on ranks "
            f"{listed(block.ranks)} are not paired by order: their ends lie {apart / 1e6:.1f} ms apart, so they are "
            "not the same calls"
        )
    even, uneven = (tuple(block for block in kept if block.even == kind) for kind in (True, False))
    return replace(matching, blocks=even, uneven=uneven, unmatched=unmatched, reasons=tuple(reasons))


def _members(run: Run) -> Callable[[int, str | None, Collectives, Ints], tuple[int, ...] | None]:
    known = {group.name: group.ranks for group in run.groups if group.ranks is not None}

    def of(rank: int, group: str | None, calls: Collectives, rows: Ints) -> tuple[int, ...] | None:
        if group in known:
            # Groups of one name may stand beside each other, each on ranks of its own; the run holds only one of them.
            return known[group] if rank in known[group] else None
        sizes = set(calls.group_size[rows].tolist())
        return tuple(range(run.world_size)) if run.world_size and sizes == {run.world_size} else None

    return of


def _symmetric_by_group(timeline: RankTimeline) -> Iterable[tuple[str | None, Ints]]:
    calls = timeline.collectives
    if not size(calls):
        return
    wanted = [code for code, name in enumerate(timeline.names) if name in SYMMETRIC]
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    rows = np.flatnonzero(np.isin(calls.op, wanted) & timed)
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]  # tables are in the order of their source
    for code in np.unique(calls.group[rows]).tolist():
        yield (timeline.names[code] if code >= 0 else None), rows[calls.group[rows] == code]


def _match_group(run: Run, group: str | None, members: tuple[int, ...] | None, rows_of: Mapping[int, Ints]) -> Matching:
    """Pair the calls of one group. `rows_of` holds the rows of its symmetric calls by rank."""
    total = sum(rows.size for rows in rows_of.values())
    ranks = [rank for rank in members if rank in rows_of] if members is not None else sorted(rows_of)
    silent = [rank for rank in members or () if rank in run.ranks and rank not in rows_of]
    why = [f"nothing of it was recorded on rank {listed(silent)}, a member"] if silent else []
    if len(ranks) < 2:
        return Matching(unmatched=total, reasons=_of_group(group, why, "; its calls are not paired"))
    numbers = [run.ranks[rank].collectives.seq[rows_of[rank]] for rank in ranks]
    numbered = all((each != NONE).all() and np.unique(each).size == each.size for each in numbers)
    if members is None:
        sizes = {
            int(each) for rank in ranks for each in np.unique(run.ranks[rank].collectives.group_size[rows_of[rank]])
        }
        if sizes - {NONE} and len(ranks) > max(sizes):
            many = (
                f"{len(ranks)} ranks made calls of it, but it has {max(sizes)} members, and which they are was not "
                "recorded: its calls are not paired"
            )
            return Matching(unmatched=total, reasons=_of_group(group, [many]))
        if sizes == {NONE} and numbered and max(len(ranks), run.world_size or 0) > 2:
            # Numbers would pair the calls of groups of one name that stand beside each other, and clocks would hide it.
            several = (
                "neither its members nor how many they are was recorded: it may be several groups of one name, and its "
                "calls are not paired by number"
            )
            return Matching(unmatched=total, reasons=_of_group(group, [several]))
    calls = group_calls(run, ranks, rows_of)
    said = _of_group(group, why, ": its calls are paired without it")
    if numbered:
        number = np.concatenate(numbers)
    else:
        ordered = by_order(calls)
        calls, number = ordered.calls, ordered.number
        said += _of_group(group, ordered.reasons)
    blocks, reasons = _pair(run, group, members, calls, number, numbered=numbered)
    even, uneven = (tuple(block for block in blocks if block.even == kind) for kind in (True, False))
    matched = sum(block.rows.size for block in blocks)
    return Matching(blocks=even, uneven=uneven, unmatched=total - matched, reasons=said + _of_group(group, reasons))


def _of_group(group: str | None, reasons: Iterable[str], so: str = "") -> tuple[str, ...]:
    return tuple(f"{named(group)}: {reason}{so}" for reason in reasons)


def _pair(
    run: Run, group: str | None, members: tuple[int, ...] | None, calls: GroupCalls, number: Ints, *, numbered: bool
) -> tuple[list[Matched], list[str]]:
    """Pair the calls of one number; reasons say which were not, or not on all ranks."""
    found: list[tuple[int, Matched]] = []
    reasons: list[str] = []
    sets, why = _by_ranks(calls, number)
    exchange = np.array([kind.op == EXCHANGE for kind in calls.kinds], np.bool_)
    for places, table in sets:
        ranks = tuple(calls.ranks[place] for place in places)
        kinds, loose = calls.kind[table], calls.loose[table]
        alike = (kinds == kinds[0]).all(axis=0)
        uneven = ~alike & exchange[loose[0]] & (loose == loose[0]).all(axis=0)
        whole = members is not None and len(ranks) == len(members)
        kind, chosen = np.where(uneven, loose[0], kinds[0]), np.flatnonzero(alike | uneven)
        chosen = chosen[np.argsort(kind[chosen], kind="stable")]
        columns = table[:, chosen]
        of_other_steps = None if numbered else _of_other_steps(run, ranks, calls.row[columns])
        for part, block in _blocks(run, group, calls, ranks, columns, kind[chosen], numbered=numbered, whole=whole):
            if of_other_steps is not None and float(of_other_steps[part].mean()) > OTHER_STEPS:
                spelled = calls.kinds[int(kind[chosen[part.start]])]
                why.append(f"{block.calls} {spelled} would be paired across steps of different numbers: not paired")
            else:
                found.append((int(number[columns[0, part]].min()), block))
        wrong = np.flatnonzero(~alike & ~uneven)
        if wrong.size:
            reasons.append(_differing(calls, ranks, table[:, wrong[0]], number))
    by_first = sorted(range(len(found)), key=lambda at: (-len(found[at][1].ranks), found[at][0]))
    return [found[at][1] for at in by_first], reasons[:1] + why


def _of_other_steps(run: Run, ranks: Sequence[int], rows: Ints) -> Flags:
    """Say which calls their members made in steps of different numbers, where all say their step."""
    steps = np.array([run.ranks[rank].collectives.step[own] for rank, own in zip(ranks, rows, strict=True)])
    found: Flags = (steps != NONE).all(axis=0) & (steps != steps[0]).any(axis=0)
    return found


def _by_ranks(calls: GroupCalls, number: Ints) -> tuple[list[tuple[list[int], Ints]], list[str]]:
    """Give the calls of one number by the ranks that made them: (places, table of calls), a column for each number."""
    known = np.flatnonzero(number >= 0)
    order = known[np.lexsort((calls.place[known], number[known]))]
    _, begins, counts = np.unique(number[order], return_index=True, return_counts=True)
    sets: list[tuple[list[int], Ints]] = []
    for many in np.unique(counts[counts > 1])[::-1].tolist():
        table = order[begins[counts == many][:, None] + np.arange(many)]
        places, which = np.unique(calls.place[table], axis=0, return_inverse=True)
        which = which.reshape(-1)
        by_set = np.argsort(which, kind="stable")
        cuts = np.searchsorted(which[by_set], np.arange(1, len(places)))
        sets += [
            (chosen.tolist(), table[columns].T) for chosen, columns in zip(places, np.split(by_set, cuts), strict=True)
        ]
    # A recording that was cut lacks its first or its last calls: more sets of ranks than that are of lossy recordings.
    most = 2 * len(calls.ranks) + 1
    sets.sort(key=lambda each: -each[1].shape[1])
    return sets[:most], _lacking(calls, number, order[begins[counts == 1]], sets, most)


def _lacking(calls: GroupCalls, number: Ints, alone: Ints, sets: list[tuple[list[int], Ints]], most: int) -> list[str]:
    """Say which ranks lack calls that others made, and which were recorded `alone`."""
    reasons = []
    have = np.zeros(len(calls.ranks), np.int64)
    for places, table in sets[:most]:
        have[places] += table.shape[1]
    paired = sum(table.shape[1] for _, table in sets[:most])
    known = np.bincount(calls.place[number >= 0], minlength=have.size) > 0
    lacking = {calls.ranks[at]: paired - have[at] for at in np.flatnonzero(known & (have < paired)).tolist()}
    if lacking:
        few = "; ".join(f"{lack} on rank {rank}" for rank, lack in list(lacking.items())[:8])
        more = "; ..." if len(lacking) > 8 else ""
        reasons.append(
            f"of the {paired} calls that several ranks recorded, some were not recorded on all: missing are {few}"
            f"{more} (cut or lossy recordings); those are paired among the ranks that have them"
        )
    if alone.size:
        on = np.unique(calls.place[alone])
        where = (
            f"rank {calls.ranks[on[0]]}" if on.size == 1 else f"one of ranks {listed([calls.ranks[at] for at in on])}"
        )
        reasons.append(f"{alone.size} calls were recorded on {where} only, and are not paired")
    if len(sets) > most:
        left = sum(table.size for _, table in sets[most:])
        reasons.append(f"recordings lack different calls on too many ranks: {left} calls are not paired")
    return reasons


def _differing(calls: GroupCalls, ranks: tuple[int, ...], column: Ints, number: Ints) -> str:
    kinds = calls.kind[column]
    other = int(np.flatnonzero(kinds != kinds[0])[0])
    return (
        f"call {number[column[0]]} is {calls.kinds[kinds[0]]} on rank {ranks[0]} and {calls.kinds[kinds[other]]} on "
        f"rank {ranks[other]}; calls that differ so are not paired"
    )


def _blocks(
    run: Run,
    group: str | None,
    calls: GroupCalls,
    ranks: tuple[int, ...],
    table: Ints,
    kind: Ints,
    *,
    numbered: bool,
    whole: bool,
) -> Iterator[tuple[slice, Matched]]:
    """Give a block for each kind of call, and which columns of the table it has; these stand in the order of kinds."""
    rows = calls.row[table]
    made = [run.ranks[rank].collectives for rank in ranks]
    start, end = (
        np.array([getattr(each, side)[own] for each, own in zip(made, rows, strict=True)])
        for side in ("start_ns", "end_ns")
    )
    codes, begins = np.unique(kind, return_index=True)
    for code, begin, until in zip(codes.tolist(), begins.tolist(), [*begins[1:].tolist(), kind.size], strict=False):
        part = slice(begin, until)
        yield (
            part,
            Matched(
                group=group,
                op=calls.kinds[code].op,
                dtype=calls.kinds[code].dtype,
                bytes=calls.kinds[code].bytes,
                ranks=ranks,
                rows=rows[:, part],
                start_ns=start[:, part],
                end_ns=end[:, part],
                by_order=not numbered,
                whole=whole,
                even=calls.kinds[code].even,
            ),
        )

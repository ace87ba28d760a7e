"""Pair the calls of one group among the ranks that recorded them: by sequence number, else by order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.call_numbering import by_order
from overlapscope.analysis.cross_rank.matching.end_noise import FAR_LOOSER, FEWEST, LEAST_NS, noise_beside
from overlapscope.analysis.cross_rank.matching.group_calls import EXCHANGE, GroupCalls, group_calls, named
from overlapscope.analysis.cross_rank.matching.nameless_calls import DividedCalls, divide
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.rows import sort_order, unique
from overlapscope.timeline.run import Run

OTHER_STEPS: Final = 0.1
"""Calls paired by order of which more than this share are in steps of different numbers are not the same calls. Without
this check, the clock alignment would hide an order that is shifted by one."""
FEW_ALONE: Final = 0.1
"""Of calls whose operation is not known, so many may be of one rank alone where the others are paired. A choice: a root
that leaves early is one of the members, which are rarely more than ten."""
FEWEST_TO_END: Final = 4
"""In fewer calls than this, nothing shows that they end together: offset and drift of a clock explain two of them."""


def match_group(run: Run, group: str | None, members: tuple[int, ...] | None, rows_of: Mapping[int, Codes]) -> Matching:
    """Pair the calls of one group. `rows_of` holds the rows of its symmetric calls by rank, in order of time."""
    total = sum(rows.size for rows in rows_of.values())
    ranks = [rank for rank in members if rank in rows_of] if members is not None else sorted(rows_of)
    silent = [rank for rank in members or () if rank in run.ranks and rank not in rows_of]
    why = [f"none of its calls was recorded on its member rank {list_some(silent)}"] if silent else []
    if len(ranks) < 2:
        return Matching(unmatched=total, reasons=_of_group(group, why, "; its calls are not paired"))
    number = _numbers(run, ranks, rows_of)
    numbered = number is not None
    if members is None:
        sizes = _sizes(run, ranks, rows_of)
        too_many = _too_many(ranks, sizes)
        if too_many:
            return Matching(unmatched=total, reasons=_of_group(group, too_many))
        if sizes == {NONE} and numbered and max(len(ranks), run.world_size or 0) > 2:
            # Sequence numbers would pair calls of several groups of the same name, and the clocks would hide that.
            several = (
                "neither its members nor its size was recorded: it may be several groups of the same name, so its "
                "calls are not paired by sequence number"
            )
            return Matching(unmatched=total, reasons=_of_group(group, [several]))
    calls = group_calls(run, ranks, rows_of)
    said = _of_group(group, why, ": its calls are paired without it")
    if number is None:
        ordered = by_order(calls, one_group=group is not None)
        calls, number = ordered.calls, ordered.number
        said += _of_group(group, ordered.reasons)
    blocks, reasons = _pair(run, group, members, calls, number, numbered=numbered)
    even, uneven = (tuple(block for block in blocks if block.even == kind) for kind in (True, False))
    matched = sum(block.rows.size for block in blocks)
    return Matching(blocks=even, uneven=uneven, unmatched=total - matched, reasons=said + _of_group(group, reasons))


def match_nameless(run: Run, rows_of: Mapping[int, Codes]) -> Matching:
    """Pair symmetric calls without a group's name; those of devices stream by stream, where they have no numbers, or
    where more ranks made them than one group has members."""
    ranks = sorted(rows_of)
    divided = None
    several = _too_many(ranks, _sizes(run, ranks, rows_of))
    if len(ranks) > 1 and (several or _numbers(run, ranks, rows_of) is None):
        divided = divide(run, group_calls(run, ranks, rows_of))
    if divided is None:
        return match_group(run, None, None, rows_of)
    return _matched(run, rows_of, divided)


def match_unnamed(run: Run, rows_of: Mapping[int, Codes]) -> Matching:
    """Pair calls of devices whose operation and group no source tells, where a stream's calls end together on ranks.

    The operation may have a root, which leaves early, while the other members end together: where more than a few calls
    are of no other rank, none is paired. No reason is returned then: that no operation is known is reason enough.
    """
    total = sum(rows.size for rows in rows_of.values())
    divided = divide(run, group_calls(run, sorted(rows_of), rows_of)) if len(rows_of) > 1 else None
    found = _matched(run, rows_of, divided) if divided is not None else Matching(unmatched=total)
    return found if found.unmatched <= FEW_ALONE * total else Matching(unmatched=total)


def _matched(run: Run, rows_of: Mapping[int, Codes], divided: DividedCalls) -> Matching:
    found: list[MatchedCalls] = []
    reasons: list[str] = list(divided.reasons)
    for each in divided.sets:
        members = each.calls.ranks
        sizes = set(unique(each.calls.size).tolist())
        too_many = _too_many(members, sizes)
        reasons += too_many
        if too_many:
            continue
        known = members if each.whole and sizes <= {NONE, len(members)} else None
        blocks, why = _pair(run, None, known, each.calls, each.number, numbered=False)
        found += blocks
        reasons += why
    even, uneven = (tuple(block for block in found if block.even == kind) for kind in (True, False))
    unmatched = sum(rows.size for rows in rows_of.values()) - sum(block.rows.size for block in found)
    return Matching(blocks=even, uneven=uneven, unmatched=unmatched, reasons=_of_group(None, reasons))


def _sizes(run: Run, ranks: Iterable[int], rows_of: Mapping[int, Codes]) -> set[int]:
    """Return the sizes of the group that calls state, and NONE for those that state none."""
    return {int(each) for rank in ranks for each in np.unique(run.ranks[rank].collectives.group_size[rows_of[rank]])}


def _too_many(ranks: Sequence[int], sizes: set[int]) -> list[str]:
    """Return a reason where more ranks made the calls than the group has members."""
    if not sizes - {NONE} or len(ranks) <= max(sizes):
        return []
    return [
        f"{len(ranks)} ranks made these calls, in groups of {max(sizes)}: which ranks are in which group was not "
        "recorded, so they are not paired"
    ]


def _numbers(run: Run, ranks: Sequence[int], rows_of: Mapping[int, Codes]) -> Ints | None:
    """Return the sequence numbers of the calls, rank by rank; None where some are missing or repeated."""
    found = []
    for rank in ranks:
        found.append(run.ranks[rank].collectives.seq[rows_of[rank]])
        if (found[-1] == NONE).any() or unique(found[-1]).size < found[-1].size:
            return None
    return np.concatenate(found)


def _of_group(group: str | None, reasons: Iterable[str], so: str = "") -> tuple[str, ...]:
    return tuple(f"{named(group)}: {reason}{so}" for reason in reasons)


def _pair(
    run: Run, group: str | None, members: tuple[int, ...] | None, calls: GroupCalls, number: Ints, *, numbered: bool
) -> tuple[list[MatchedCalls], list[str]]:
    """Pair the calls of the same number; reasons say which were not paired, or not on all ranks."""
    found: list[tuple[int, MatchedCalls]] = []
    reasons: list[str] = []
    sets, why = _by_ranks(calls, number)
    exchange = np.array([kind.op == EXCHANGE for kind in calls.kinds], np.bool_)
    for places, table in sets:
        ranks = tuple(calls.ranks[place] for place in places)
        kinds = calls.kind[table]
        alike = (kinds == kinds[0]).all(axis=0)
        uneven, kind = np.zeros(alike.size, np.bool_), kinds[0]
        if not alike.all():
            loose = calls.loose_of[kinds]
            uneven = ~alike & exchange[loose[0]] & (loose == loose[0]).all(axis=0)
            kind = np.where(uneven, loose[0], kind)
        whole = _are_all_members(run, ranks, members, calls.size[table].ravel(), calls.row[table[:, alike]])
        chosen = np.flatnonzero(alike | uneven)
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


def _are_all_members(run: Run, ranks: Sequence[int], members: tuple[int, ...] | None, size: Ints, rows: Codes) -> bool:
    """Return whether the ranks that made the same calls (`rows`, a rank a row) are all members of its group.

    Where the members were not recorded, a call that every rank of the job made has them all, and so has one that as
    many ranks made as its group has, if no rank is missing that may have made it instead: where it is not known how
    many ranks the job has, if the calls end together, as those of one group do, although they begin apart.
    """
    if members is not None:
        return len(ranks) == len(members)
    as_many = set(unique(size).tolist()) == {len(ranks)}
    if run.world_size is None:
        return as_many and _end_together(run, ranks, rows)
    if len(run.ranks) < run.world_size:
        return False
    return len(ranks) == run.world_size or set(unique(size).tolist()) - {NONE} == {len(ranks)}


def _end_together(run: Run, ranks: Sequence[int], rows: Codes) -> bool:
    """Return whether the ends of these calls keep their distance to those of the first rank from call to call, and the
    begins of no rank do: of few calls by so much more that it is no chance."""
    made = [run.ranks[rank].collectives for rank in ranks]
    begins, ends = (
        np.array([getattr(each, side)[own] for each, own in zip(made, rows, strict=True)])
        for side in ("start_ns", "end_ns")
    )
    calls = rows.shape[1]
    if calls < FEWEST_TO_END or (begins == NONE).any() or (ends == NONE).any():
        return False
    own = np.array(ranks)
    apart, together = noise_beside(begins, 0, own)[1:].min(), noise_beside(ends, 0, own)[1:].max()
    return bool(apart > FAR_LOOSER ** (1 if calls >= FEWEST else 2) * max(together, LEAST_NS))


def _of_other_steps(run: Run, ranks: Sequence[int], rows: Codes) -> Flags:
    """Return which calls the ranks made in steps of different numbers; only where the step is known on all ranks."""
    steps = np.array([run.ranks[rank].collectives.step[own] for rank, own in zip(ranks, rows, strict=True)])
    found: Flags = (steps != NONE).all(axis=0) & (steps != steps[0]).any(axis=0)
    return found


def _by_ranks(calls: GroupCalls, number: Ints) -> tuple[list[tuple[list[int], Codes]], list[str]]:
    """Return the calls by the ranks that made them: (positions of ranks, table of calls), one column a number."""
    order = sort_order(number)  # stable: of the same number, rank by rank
    order = order[np.count_nonzero(number < 0) :].astype(np.int32)
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    counts = np.diff(begins, append=order.size)
    sets: list[tuple[list[int], Codes]] = []
    for many in unique(counts[counts > 1])[::-1].tolist():
        table = order[begins[counts == many][:, None] + np.arange(many)]
        if many == len(calls.ranks):
            sets.append((list(range(many)), table.T))
            continue
        places, which = np.unique(calls.place[table], axis=0, return_inverse=True)
        which = which.reshape(-1)
        by_set = np.argsort(which, kind="stable")
        cuts = np.searchsorted(which[by_set], np.arange(1, len(places)))
        sets += [
            (chosen.tolist(), table[columns].T) for chosen, columns in zip(places, np.split(by_set, cuts), strict=True)
        ]
    # A cut recording lacks its first or its last calls: more sets of ranks than this come from lossy recordings.
    most = 2 * len(calls.ranks) + 1
    sets.sort(key=lambda each: -each[1].shape[1])
    return sets[:most], _lacking(calls, number, order[begins[counts == 1]], sets, most)


def _lacking(
    calls: GroupCalls, number: Ints, alone: Codes, sets: list[tuple[list[int], Codes]], most: int
) -> list[str]:
    """Return reasons for ranks that lack calls of others, and for calls recorded on one rank only (`alone`)."""
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
            f"of the {paired} calls that several ranks recorded, some were not recorded on all ranks: missing are {few}"
            f"{more} (cut or lossy recordings, or launched before them); they are paired among the ranks that have them"
        )
    if alone.size:
        on = np.unique(calls.place[alone])
        where = (
            f"rank {calls.ranks[on[0]]}"
            if on.size == 1
            else f"one of ranks {list_some([calls.ranks[at] for at in on])}"
        )
        reasons.append(f"{alone.size} calls were recorded on {where} only, and are not paired")
    if len(sets) > most:
        left = sum(table.size for _, table in sets[most:])
        reasons.append(f"different calls are missing on too many ranks: {left} calls are not paired")
    return reasons


def _differing(calls: GroupCalls, ranks: tuple[int, ...], column: Codes, number: Ints) -> str:
    kinds = calls.kind[column]
    other = int(np.flatnonzero(kinds != kinds[0])[0])
    return (
        f"call {number[column[0]]} is {calls.kinds[kinds[0]]} on rank {ranks[0]} and {calls.kinds[kinds[other]]} on "
        f"rank {ranks[other]}; calls that differ like this are not paired"
    )


def _blocks(
    run: Run,
    group: str | None,
    calls: GroupCalls,
    ranks: tuple[int, ...],
    table: Codes,
    kind: Codes,
    *,
    numbered: bool,
    whole: bool,
) -> Iterator[tuple[slice, MatchedCalls]]:
    """Yield (columns of the table, block) for each kind of call; the columns are sorted by kind."""
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
            MatchedCalls(
                group=group,
                op=calls.kinds[code].op,
                dtype=calls.kinds[code].dtype,
                bytes=calls.kinds[code].bytes,
                ranks=ranks,
                rows=rows[:, part].astype(np.int64),
                start_ns=start[:, part],
                end_ns=end[:, part],
                by_order=not numbered,
                whole=whole,
                even=calls.kinds[code].even,
            ),
        )

"""Match the same collective on every rank: by its sequence number in the group, else by order, checked by its ends.

Each call is paired among the ranks that recorded it, so one cut recording costs no more than one missing recording.
Pairing by order alone is a guess, which is wrong for sampled recordings. So it needs ranks with equally many calls of
each kind (`call_numbering`), and `drop_disagreeing` removes calls that do not end together once clocks are aligned.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.early_calls import are_early, early_by_group, match_early, not_placed
from overlapscope.analysis.cross_rank.matching.group_calls import named, spelled_size
from overlapscope.analysis.cross_rank.matching.match_group import match_group, match_nameless, match_unnamed
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import not_named
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Codes, Collectives, Ints, size
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SYMMETRIC, UNNAMED
from overlapscope.timeline.rows import factorize_rows, sort_order
from overlapscope.timeline.run import RankTimeline, Run

ENDS_TOGETHER = 0.1
"""The ends of one call differ by less than this share of the usual time between calls of its kind ..."""
ENDS_TOGETHER_ON_ONE_CLOCK = 0.5
"""... or than this share where the members share a clock, or made each call in the step of the same number: no clock
estimate can then hide a shifted pairing ..."""
ENDS_WITHIN_NS = 50_000_000
"""... and by less than this; CPU ranks that share cores end milliseconds apart ..."""
ENDS_WITHIN_IN_STEPS_NS = 100_000_000
"""... and over a slow link tens of them, allowed in the same steps: those of two jobs have the same numbers, too."""
MAX_REASONS = 20


def match(run: Run, ops: Collection[str] = SYMMETRIC) -> Matching:
    """Pair the collectives `ops` of all recorded ranks, group by group; reasons say what was not paired.

    All-to-all is symmetric where every rank sends and receives the same amount; uneven ones are paired separately. With
    symmetric ones are calls of devices whose source tells neither group nor operation, if they end together.
    """
    named = _match_named(run, ops)
    if ops != SYMMETRIC:
        return named
    unnamed = match_unnamed(run, _unnamed(run))
    reasons = (*named.reasons, *unnamed.reasons)
    if unnamed.unmatched and not unnamed.blocks and named.blocks:
        reasons = (*reasons, not_named(unnamed.unmatched))
    return replace(
        named, blocks=(*named.blocks, *unnamed.blocks), unmatched=named.unmatched + unnamed.unmatched, reasons=reasons
    )


def _match_named(run: Run, ops: Collection[str]) -> Matching:
    """Pair calls whose operation is known."""
    blocks: list[MatchedCalls] = []
    uneven: list[MatchedCalls] = []
    reasons: list[str] = []
    unmatched = 0
    members = _members(run)
    calls: dict[tuple[str | None, tuple[int, ...] | None], dict[int, Codes]] = defaultdict(dict)
    early = 0
    early_of: dict[str | None, dict[int, Codes]] = defaultdict(dict)
    for rank, timeline in run.ranks.items():
        for group, every in _by_group(timeline, ops):
            rows = every
            if group is None:
                of_group = early_by_group(timeline, every)
                nameless = of_group.pop(None)
                for name, own in of_group.items():
                    early_of[name][rank] = own
                rows = _from_first_known(timeline.collectives, nameless)
                early += nameless.size - rows.size
            if rows.size:
                calls[group, members(rank, group, timeline.collectives, rows)][rank] = rows
    if early:
        unmatched += early
        reasons.append(
            f"{named(None)}: {early} call{'s' * (early > 1)} of which neither size nor number is known came before the "
            "first known one of their rank, as launched before the recording, and are not paired"
        )
    lone: dict[str | None, int] = {}
    for (group, ranks), rows_of in calls.items():
        if not [rank for rank in (ranks or rows_of) if rank in run.ranks][1:]:
            rank = next(iter(rows_of))
            lone[group] = rank
            unmatched += rows_of[rank].size
            continue
        any_group = group is None and ranks is None and ops == SYMMETRIC
        found = match_nameless(run, rows_of) if any_group else match_group(run, group, ranks, rows_of)
        launched = {rank: early_of[group].pop(rank) for rank in rows_of if rank in early_of.get(group, {})}
        before = match_early(run, group, found, rows_of, launched) if launched else Matching()
        blocks += (*found.blocks, *before.blocks)
        uneven += found.uneven
        unmatched += found.unmatched + before.unmatched
        unseen = group is None and not found.blocks and are_early(run, rows_of)
        reasons += [not_placed(None, found.unmatched)] if unseen else (*found.reasons, *before.reasons)
    for group, left in early_of.items():
        if left:
            unmatched += (many := sum(rows.size for rows in left.values()))
            reasons.append(not_placed(group, many))
    if lone:
        group, rank = next(iter(lone.items()))
        others = f", and {len(lone) - 1} more groups on one rank each" if len(lone) > 1 else ""
        reasons.append(f"{named(group)}: it was recorded on rank {rank} only{others}; their calls are not paired")
    said = [*_found_groups(run), *dict.fromkeys(reasons)]
    more = [f"{len(said) - MAX_REASONS} more such reasons"] if len(said) > MAX_REASONS else []
    return Matching(
        blocks=tuple(blocks), uneven=tuple(uneven), unmatched=unmatched, reasons=(*said[:MAX_REASONS], *more)
    )


def _found_groups(run: Run) -> list[str]:
    """Return a sentence about the groups whose members were not recorded."""
    found = [group for group in run.groups if group.found]
    if not found:
        return []
    listed = list_some([f"[{list_some(group.ranks or ())}] ({group.description or group.name})" for group in found], 4)
    return [
        f"the traces do not say which group a call is of: {len(found)} groups were found from when calls begin and "
        f"end: ranks {listed}"
    ]


def drop_disagreeing(
    matching: Matching,
    spread_ns: Callable[[MatchedCalls], Ints],
    one_clock: Callable[[MatchedCalls], bool] = lambda _: False,
    same_steps: Callable[[MatchedCalls], bool] = lambda _: False,
) -> Matching:
    """Remove the blocks paired by order whose calls do not end together.

    `spread_ns` returns, for each call of a block, the time between its first and last end on aligned clocks;
    `one_clock` returns whether the members are known to share a clock, and `same_steps` whether each call was made in
    the step of the same number on all of them, in several steps.
    """
    kept: list[MatchedCalls] = []
    reasons = list(matching.reasons)
    unmatched = matching.unmatched
    for block in (*matching.blocks, *matching.uneven):
        if not block.by_order:
            kept.append(block)
            continue
        limit = float(ENDS_WITHIN_NS)
        if block.calls > 1:
            in_steps = same_steps(block)
            share = ENDS_TOGETHER_ON_ONE_CLOCK if in_steps or one_clock(block) else ENDS_TOGETHER
            of_interval = share * float(np.median(np.diff(np.sort(block.end_ns[0]))))
            limit = min(float(ENDS_WITHIN_IN_STEPS_NS) if in_steps else limit, of_interval)
        apart = float(np.median(spread_ns(block)))
        if apart <= limit:
            kept.append(block)
            continue
        unmatched += block.rows.size
        reasons.append(
            f"{named(block.group)}: {block.calls} {block.op} of {spelled_size(block.bytes)} on ranks "
            f"{list_some(block.ranks)} are not paired by order: their ends are {apart / 1e6:.1f} ms apart, so they may "
            "not be the same calls"
        )
    even, uneven = (tuple(block for block in kept if block.even == kind) for kind in (True, False))
    return replace(matching, blocks=even, uneven=uneven, unmatched=unmatched, reasons=tuple(reasons))


def _members(run: Run) -> Callable[[int, str | None, Collectives, Codes], tuple[int, ...] | None]:
    known = {group.name: group.ranks for group in run.groups if group.ranks is not None}

    def of(rank: int, group: str | None, calls: Collectives, rows: Codes) -> tuple[int, ...] | None:
        if group in known:
            # Several groups may have the same name, each on different ranks; the run holds only one of them.
            return known[group] if rank in known[group] else None
        sizes = set(calls.group_size[rows].tolist())
        return tuple(range(run.world_size)) if run.world_size and sizes == {run.world_size} else None

    return of


def _from_first_known(calls: Collectives, rows: Codes) -> Codes:
    """Return the nameless calls of a rank from the first one of which the group's size or a sequence number is known,
    where that is so of all later ones and fewer than half come before; else all.

    Of a call that was launched before the recording only its kernel is known.
    """
    known = (calls.group_size[rows] != NONE) | (calls.seq[rows] != NONE)
    first = int(known.argmax()) if known.any() else 0
    return rows[first:] if known[first:].all() and 2 * first < rows.size else rows


def _unnamed(run: Run) -> dict[int, Codes]:
    """Return the calls of devices of which neither group nor operation is known, by rank, in order of time."""
    found = {}
    for rank, timeline in run.ranks.items():
        calls = timeline.collectives
        if timeline.has_device and size(calls):
            known = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.group < 0)
            rows = np.flatnonzero(known & rows_named(calls.op, timeline.names, UNNAMED.__eq__))
            if rows.size:
                found[rank] = rows[sort_order(calls.start_ns[rows], calls.end_ns[rows])].astype(np.int32)
    return found


def _by_group(timeline: RankTimeline, ops: Collection[str]) -> Iterable[tuple[str | None, Codes]]:
    calls = timeline.collectives
    if not size(calls):
        return
    wanted = [code for code, name in enumerate(timeline.names) if name in ops]
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    rows = np.flatnonzero(np.isin(calls.op, wanted) & timed)
    rows = rows[sort_order(calls.start_ns[rows], calls.end_ns[rows])]  # tables are in the order of their source
    groups, rows = calls.group[rows], rows.astype(np.int32)
    _, first = factorize_rows([groups])
    for code in groups[first].tolist():  # not by code: a run directory has other codes, and clocks depend on the order
        yield timeline.name(code), rows[groups == code]

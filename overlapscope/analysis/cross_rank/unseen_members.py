"""Find calls whose last member was not recorded: by their own waiting, where their source recorded that; and those in
which the last recorded member may have waited for such a one, as they take longer than their like."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.matched_calls import Matching
from overlapscope.analysis.cross_rank.matching.point_to_point import PairMatching
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import unmatched_calls
from overlapscope.analysis.cross_rank.wait_transfer import BASELINE_CALLS, BASELINE_QUANTILE, LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SYMMETRIC, move_as_much
from overlapscope.timeline.run import Run

FEW_UNMATCHED: Final = 0.05
"""A rank that made at most this share of its calls alone does not show that members were not recorded: ranks do not
begin and end recording at the same time. A choice."""
AS_ITS_LIKE: Final = 2.0
"""A call that takes so many times as long as its like, from when the last recorded member came, was waited in, or was
slow. A choice: beside compute, transfers take up to about 1.5 times as long."""
MOST_WAITED: Final = 0.02
"""Share of a recording for which a rank may wait for ranks that were not recorded where it is replayed. A choice."""


def waited_for_unseen(run: Run, splits: Sequence[Split]) -> Mapping[int, tuple[Ints, Ints]]:
    """Return for each rank the rows of calls whose last member was not recorded, and how long each waited at least.

    A member waits until all have come. Where it waited beyond the last recorded one, and that one did so, too, another
    member came last. Only of groups that are not known to be recorded whole. No clock is needed.
    """
    found: dict[int, list[tuple[Ints, Ints]]] = {}
    for split in splits:
        block = split.block
        if block.whole:
            continue
        own = zip(block.ranks, block.rows, strict=True)
        waited = np.array([run.ranks[rank].collectives.waited_ns[rows] for rank, rows in own])
        beyond = waited - split.wait_ns > LEADS_COUNT_NS
        calls = np.flatnonzero(((waited != NONE) & beyond).all(axis=0))
        for rank, rows, waits in zip(block.ranks, block.rows, waited, strict=True):
            if calls.size:
                found.setdefault(rank, []).append((rows[calls], waits[calls]))
    for rank, timeline in run.ranks.items() if len(run.ranks) == 1 and run.world_size != 1 else ():
        waited = timeline.collectives.waited_ns
        rows = np.flatnonzero(waited > LEADS_COUNT_NS)
        if rows.size:
            found[rank] = [(rows, waited[rows])]
    return {rank: (np.concatenate([a for a, _ in each]), np.concatenate([b for _, b in each]))
            for rank, each in found.items()}  # fmt: skip


def may_not_be_replayed(run: Run, waited_ns: Mapping[int, int]) -> bool:
    """Return whether ranks waited for long (`waited_ns`, by rank) for ranks that were not recorded: whatever a replay
    changes, they would wait for these."""
    return any(
        waits_ns > MOST_WAITED * int((run.ranks[rank].recordings.end_ns - run.ranks[rank].recordings.start_ns).sum())
        for rank, waits_ns in waited_ns.items()
    )


def without_unseen(run: Run, matching: Matching, splits: Sequence[Split]) -> list[Split]:
    """Return the splits without the leads of calls that, from when the last recorded member came, take longer than
    their like by as much as that one leads, or more: if another member came then, nobody waited for this one.

    Only of groups that are not known to be recorded whole; where sizes are not known, so that a call may be longer as
    it is larger, only of jobs of which more ranks than the recorded ones are known to exist.
    """
    partial = any(not each.block.whole for each in splits)
    missing = partial and (bool(run.missing_ranks) or _has_other_groups(run, matching))
    return [_marked(each, missing=missing) for each in splits]


def _marked(split: Split, *, missing: bool) -> Split:
    """Return a split with its calls `for_unseen`, whose leads are 0; `missing` says that ranks were not recorded."""
    block, took = split.block, split.transfer_ns
    alike = missing or move_as_much(block.op, block.bytes)
    if block.whole or not block.even or not alike or block.calls < BASELINE_CALLS:
        return split
    needed = np.quantile(took, BASELINE_QUANTILE, method="higher")  # a few that are too short may be damage
    beyond = took - needed
    found = (needed > 0) & (split.lead_ns > LEADS_COUNT_NS) & (beyond >= split.lead_ns) & (took >= AS_ITS_LIKE * needed)
    if not found.any():
        return split
    return replace(split, for_unseen=found, lead_ns=np.where(found, 0.0, split.lead_ns))


def _has_other_groups(run: Run, matching: Matching) -> bool:
    """Return whether a rank made many calls of all members that no other recorded rank made, while the calls of another
    rank were matched: these are of a group whose other members were not recorded."""
    shares, unmatched = [], unmatched_calls(run.ranks, matching, PairMatching())
    for rank, timeline in run.ranks.items():
        calls = timeline.collectives
        symmetric = rows_named(calls.op, timeline.names, SYMMETRIC.__contains__)
        timed = symmetric & (calls.end_ns != NONE) & (calls.group_size != 1)
        if timed.sum() >= BASELINE_CALLS:
            shares.append(float(unmatched[rank][timed].mean()))
    return bool(shares) and min(shares) <= FEW_UNMATCHED < max(shares)


def unseen_reasons(splits: Sequence[Split]) -> tuple[str, ...]:
    """Return a reason where calls are left out of blame because members that were not recorded may have come last."""
    found = [each.transfer_ns[each.for_unseen] for each in splits if each.for_unseen is not None]
    if not found:
        return ()
    lasted = np.concatenate(found)
    return (
        f"{lasted.size} of {sum(each.block.calls for each in splits)} matched calls went on for "
        f"{lasted.sum() / 1e6:.1f} ms once the last recorded rank had come, far longer than their like: another "
        "member came later, or they were slow; which of these is not known, and no rank is blamed for them",
    )

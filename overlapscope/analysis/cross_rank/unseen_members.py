"""Find calls whose last member was not recorded: by their own waiting, where their source recorded that."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS, Split
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import Run

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

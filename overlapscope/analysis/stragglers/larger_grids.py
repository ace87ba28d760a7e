"""Find more work of a device by the grids of its kernels in sum: as much larger than its peers' as they take longer.

A kernel whose calls all have other grids, as sizes differ from call to call, cannot be held against the same kernel of
another rank. But blocks measure work: a device that is slower takes longer for as many of them. That grids are as large
shows nothing, as some kernels have one for any work.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.stragglers.onset import MOST_PEERS
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import RankTimeline, Run

EXPLAINS: Final = 0.5
"""More blocks are the cause if they explain more than this share of what the kernels take longer, as every cause of
lateness must."""
LARGER: Final = 1.05
"""Blocks of a kernel are more than the peers' from this factor on: in sums over calls whose sizes differ by chance,
ranks differ by some percent."""
GRIDS_TIMES: Final = "grids_times"
"""The evidence of how many times as large as its peers' the grids are, weighted by the peers' time."""


def larger_grids(rank: int, others: Sequence[int], run: Run) -> dict[str, Any]:
    """Return as evidence how many times as large as its peers' the grids of a device's kernels are, where that explains
    most of what they take longer; empty where it does not, or where it is not known.

    Compared are kernels of one name that each of these ranks, of the peers the first ones, ran as often, with grids
    that are all known.
    """
    timelines = [run.ranks[each] for each in (rank, *others[:MOST_PEERS])]
    if len(timelines) < 2 or not all(each.has_device for each in timelines):
        return {}
    own, *theirs = map(_sums, timelines)
    compared, longer_ns, explained_ns, usual_all_ns = [], 0.0, 0.0, 0.0
    for name, (count, ns, blocks) in own.items():
        usual = [found[name] for found in theirs if name in found and found[name][0] == count]
        if len(usual) < len(theirs):
            continue
        _, usual_ns, usual_blocks = np.median(usual, axis=0).tolist()
        more_ns, times = ns - usual_ns, blocks / usual_blocks
        longer_ns += more_ns
        explained_ns += min(usual_ns * (times - 1), more_ns) if times >= LARGER and more_ns > 0 else 0.0
        usual_all_ns += usual_ns
        compared.append(usual_ns * times)
    if longer_ns <= 0 or explained_ns <= EXPLAINS * longer_ns:
        return {}
    return {GRIDS_TIMES: sum(compared) / usual_all_ns}


def _sums(timeline: RankTimeline) -> dict[str, tuple[int, float, float]]:
    """Return by name how often a rank ran a kernel, for how many ns, and with how many blocks; without those of which a
    grid is not known."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
    codes, place, counts = np.unique(spans.name[rows], return_inverse=True, return_counts=True)
    blocks = spans.blocks[rows]
    known = np.bincount(place, blocks > 0, codes.size) == counts
    took, sizes = (np.bincount(place, each, codes.size) for each in ((spans.end_ns - spans.start_ns)[rows], blocks))
    return {
        timeline.names[code]: (int(counts[at]), float(took[at]), float(sizes[at]))
        for at, code in enumerate(codes.tolist())
        if known[at]
    }

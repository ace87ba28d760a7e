"""Name the range, of the user or a framework, in which a late rank spent what made it late."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.user_ranges import times_in_ranges
from overlapscope.analysis.stragglers.host_cause import SharedInterval, more_than_peers
from overlapscope.timeline.intervals import BusyTime, length, union
from overlapscope.timeline.run import Run

MOST: Final = 0.5
"""A range is named where a rank spent at least this share of its lateness more in it than its peers."""
AS_MUCH: Final = 0.8
"""Of nested ranges the innermost is named that explains this share of what the best one does."""


def late_range(rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int) -> dict[str, Any]:
    """Return the name of the range in which a rank spent most of its lateness (ns) more than the median of its peers,
    as `range`, and how much more (ns), as `range_more_ns`; empty where there is none.

    Ranges whose names differ in numbers alone are one.
    """
    own = {
        name: times
        for name, times in times_in_ranges(run.ranks[rank], MOST * lead_ns).items()
        if length(times) >= MOST * lead_ns
    }
    if not own:
        return {}
    peers = {each for group in met for each in group.ranks} - {rank}
    theirs = {each: times_in_ranges(run.ranks[each], names=own.keys()) for each in peers}
    more = {}
    for name, times in own.items():
        spent = {rank: times} | {each: theirs[each].get(name, union()) for each in peers}
        in_all = length(times) - float(np.median([length(spent[each]) for each in peers]))
        # Intervals of several groups overlap: no more than in the whole recording.
        more[name] = min(
            more_than_peers(rank, met, {each: BusyTime(its) for each, its in spent.items()}), round(in_all)
        )
    most = max(more.values())
    if most < MOST * lead_ns:
        return {}
    name = min((name for name, ns in more.items() if ns >= AS_MUCH * most), key=lambda each: (length(own[each]), each))
    return {"range": name, "range_more_ns": more[name]}

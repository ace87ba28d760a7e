"""Name the range, of the user or a framework, in which a late rank spent what made it late."""

from collections.abc import Callable, Sequence, Set
from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.user_ranges import times_in_ranges
from overlapscope.analysis.stragglers.host_cause import SharedInterval, more_than_peers
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.intervals import BusyTime, Intervals, length, union
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline, Run

MOST: Final = 0.5
"""A range is named where a rank spent at least this share of its lateness more in it than its peers."""
AS_MUCH: Final = 0.8
"""Of nested ranges the innermost is named that explains this share of what the best one does."""
MOST_RANKS: Final = 64
"""Of more ranks what their devices ran is not looked at."""
_Times = Callable[[RankTimeline, float, Set[str] | None], dict[str, Intervals]]
"""Times of ranges by name: of those with so many ns in sum, and of some names alone if given."""


def late_range(
    rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int, *, on_device: bool = False
) -> dict[str, Any]:
    """Return the name of the range in which a rank spent most of its lateness (ns) more than the median of its peers,
    as `range`, how much more (ns), as `range_more_ns`, and, where no peer has such a range, `range_alone`; empty where
    there is none.

    That is time of its host; with `on_device`, where that explains nothing, what its device computed that was launched
    in the range. Ranges whose names differ in numbers alone are one.
    """
    found = _longest_more(rank, run, met, lead_ns, times_in_ranges)
    members = {each for group in met for each in group.ranks}
    if found or not on_device or len(members) > MOST_RANKS:
        return found
    return _longest_more(rank, run, met, lead_ns, _launched_in)


def _longest_more(rank: int, run: Run, met: Sequence[SharedInterval], lead_ns: int, times_of: _Times) -> dict[str, Any]:
    own = {
        name: times
        for name, times in times_of(run.ranks[rank], MOST * lead_ns, None).items()
        if length(times) >= MOST * lead_ns
    }
    if not own:
        return {}
    peers = {each for group in met for each in group.ranks} - {rank}
    theirs = {each: times_of(run.ranks[each], 0.0, own.keys()) for each in peers}
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
    alone = {"range_alone": True} if not any(name in its for its in theirs.values()) else {}
    return {"range": name, "range_more_ns": more[name], **alone}


def _launched_in(timeline: RankTimeline, least_ns: float, names: Set[str] | None) -> dict[str, Intervals]:
    """Return when the device computed what was launched in ranges of each name; arguments as of `times_in_ranges`."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.launch_ns != NONE))
    rows = rows[sort_order(spans.launch_ns[rows])]
    launched, start, end = spans.launch_ns[rows], spans.start_ns[rows], spans.end_ns[rows]
    found = {}
    for name, times in times_in_ranges(timeline, names=names).items():
        inside = np.searchsorted(times.starts, launched, "right") > np.searchsorted(times.ends, launched, "right")
        ran = union((start[inside], end[inside]))
        if length(ran) >= least_ns:
            found[name] = ran
    return found

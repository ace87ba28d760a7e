"""Find since when a device computes longer than its peers: from which of its kernels on.

The kernels of a rank, in order, are held against what one of their name usually takes on its peers. Where a rank became
slower in the middle of a recording, the sum of what they take longer, less its mean, is least there: the usual estimate
of one change of a mean (Page 1954, "Continuous inspection schemes"; the least squares of one change point).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Floats, Ints
from overlapscope.timeline.run import RankTimeline, Run

ALIKE: Final = 0.02
"""Before, it took no more than this share longer, or shorter, than its peers: equal devices differ by as much ..."""
AS_LITTLE: Final = 0.1
"""... or than this share of what it takes longer after: a clock may fall over a few steps. A choice."""
LONGER: Final = 1.05
"""After, it took so many times as long in each piece of the rest: one long pause is no change."""
PIECES: Final = 4
LEAST: Final = 0.1
"""Both sides hold at least this share of what its kernels usually take. A choice."""
MOST_PEERS: Final = 8


class _Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a rank in the order of their starts: those that its peers run, too."""

    row: Ints
    taken_ns: Floats
    usual_ns: Floats
    share: Floats
    """For each, the share of all usual time up to its end."""

    def times(self, begin: float, end: float) -> float:
        """Return how many times as long as usual those between two shares of the usual time took; NaN without any."""
        inside = slice(*np.searchsorted(self.share, (begin, end), side="right").tolist())
        usual_ns = float(self.usual_ns[inside].sum())
        return float(self.taken_ns[inside].sum()) / usual_ns if usual_ns else np.nan


def onset(rank: int, others: Sequence[int], run: Run) -> dict[str, Any]:
    """Return as evidence since which step a device takes longer than its peers, and how many times as long from there
    on; empty where it always does, or that is not known."""
    others = [each for each in others if each in run.ranks][:MOST_PEERS]
    if not others or not all(run.ranks[each].has_device for each in (rank, *others)):
        return {}
    usual = _usual([run.ranks[each] for each in others])
    own, *theirs = (_kernels(run.ranks[each], usual) for each in (rank, *others))
    if not own.row.size or not all(each.row.size for each in theirs):
        return {}
    longer = np.cumsum(own.taken_ns - own.usual_ns * (own.taken_ns.sum() / own.usual_ns.sum()))
    at = int(longer.argmin())
    change = float(own.share[at])
    if not LEAST <= change <= 1 - LEAST:
        return {}

    def compared(begin: float, end: float) -> float:
        usual_times = float(np.median([each.times(begin, end) for each in theirs]))
        return own.times(begin, end) / usual_times if usual_times > 0 else np.nan

    before, after = compared(0.0, change), compared(change, 1.0)
    ends = np.linspace(change, 1.0, PIECES + 1).tolist()
    pieces = [compared(begin, end) for begin, end in pairwise(ends)]
    step = int(run.ranks[rank].spans.step[own.row[at + 1]])
    was_alike = abs(before - 1) <= max(ALIKE, AS_LITTLE * (after - 1))
    if not was_alike or not all(each >= LONGER for each in pieces) or step == NONE:
        return {}
    return {"since_step": step, "times_since": after}


def _usual(timelines: Sequence[RankTimeline]) -> dict[str, float]:
    """Return what a kernel of each name usually takes, in ns: the median of the means of ranks."""
    found: dict[str, list[float]] = {}
    for each in timelines:
        spans = each.spans
        rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0))
        codes, place, counts = np.unique(spans.name[rows], return_inverse=True, return_counts=True)
        mean = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], codes.size) / counts
        for code, ns in zip(codes.tolist(), mean.tolist(), strict=True):
            found.setdefault(each.names[code], []).append(ns)
    return {name: float(np.median(means)) for name, means in found.items()}


def _kernels(timeline: RankTimeline, usual: Mapping[str, float]) -> _Kernels:
    spans = timeline.spans
    of_name = np.array([*(usual.get(name, 0.0) for name in timeline.names), 0.0])  # index -1: without a name
    rows = np.flatnonzero(spans.kind == COMPUTE)
    rows = rows[of_name[spans.name[rows]] > 0]
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    expected = of_name[spans.name[rows]]
    return _Kernels(
        row=rows, taken_ns=(spans.end_ns - spans.start_ns)[rows].astype(np.float64), usual_ns=expected,
        share=np.cumsum(expected) / expected.sum() if rows.size else expected,
    )  # fmt: skip

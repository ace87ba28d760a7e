"""Time per step of each operation of each group: transfer, wait, and time that could not be separated."""

from collections.abc import Mapping

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.exposure.collectives import chosen_rows
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import NONE, Ints, or_none
from overlapscope.timeline.run import RankTimeline, Run


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of one operation in one group: sums per step, mean over the ranks that made such calls.

    Concurrent calls count twice, so this is not a part of the step time.
    """

    op: str
    group: str | None
    group_size: int | None
    ranks: int
    """Recorded ranks that made such calls."""
    calls: float
    """Per step and rank."""
    transfer_ns: float
    wait_ns: float
    unsplit_ns: float
    """Transfer and wait of calls that were not matched across ranks."""

    @property
    def total_ns(self) -> float:
        """Sum of transfer, wait and unseparated time."""
        return self.transfer_ns + self.wait_ns + self.unsplit_ns


_Key = tuple[str, str | None, int | None]
_Figures = tuple[float, float, float, float]
"""Calls, transfer, wait, unseparated time of one rank, per step."""


def op_times(run: Run, cross_rank: CrossRank) -> list[OpTime]:
    """Return a row for each operation and group, the longest first; a recording without complete steps is one step."""
    transfers = cross_rank.transfers(run)
    by_rank: dict[_Key, list[_Figures]] = {}
    for rank, timeline in run.ranks.items():
        for key, figures in _of_rank(timeline, transfers[rank].transfer_ns).items():
            by_rank.setdefault(key, []).append(figures)
    found = []
    for (op, group, group_size), each in by_rank.items():
        calls, transfer, wait, unsplit = np.mean(each, axis=0).tolist()
        found.append(
            OpTime(op=op, group=group, group_size=group_size, ranks=len(each), calls=calls,
                   transfer_ns=transfer, wait_ns=wait, unsplit_ns=unsplit)
        )  # fmt: skip
    return sorted(found, key=lambda each: (-each.total_ns, each.op, each.group or ""))


def _of_rank(timeline: RankTimeline, transfer_ns: Ints) -> Mapping[_Key, _Figures]:
    windows = step_windows(timeline)
    steps = sum(each.complete for each in windows) or 1
    calls = timeline.collectives
    rows = chosen_rows(timeline, windows)
    rows = rows[(calls.start_ns[rows] != NONE) & (calls.end_ns[rows] != NONE)]
    if not rows.size:
        return {}
    kinds = np.stack((calls.op[rows], calls.group[rows], calls.group_size[rows]), axis=1)
    distinct, place = np.unique(kinds, axis=0, return_inverse=True)
    place = place.ravel()
    duration, transfer = calls.end_ns[rows] - calls.start_ns[rows], transfer_ns[rows]
    split = transfer != NONE
    parts = (np.ones(rows.size), np.where(split, transfer, 0), np.where(split, duration - transfer, 0),
             np.where(split, 0, duration))  # fmt: skip
    totals = [np.bincount(place, weights=each, minlength=len(distinct)) / steps for each in parts]
    names = timeline.names
    return {
        (names[op] if op >= 0 else "unknown", names[group] if group >= 0 else None, or_none(size)): (
            float(count), float(moved), float(waited), float(rest)
        )
        for (op, group, size), count, moved, waited, rest in zip(distinct.tolist(), *totals, strict=True)
    }  # fmt: skip

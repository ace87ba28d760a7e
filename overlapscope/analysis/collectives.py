"""The collectives of a run, one row for each kind of call."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from overlapscope.analysis.across import Transfers
from overlapscope.analysis.call_kind import CallFields
from overlapscope.analysis.call_sums import CallSums, KindSums
from overlapscope.analysis.distinct import distinct
from overlapscope.analysis.steps import StepWindow
from overlapscope.analysis.waiting import BASELINE_CALLS, BASELINE_QUANTILE
from overlapscope.timeline.columns import NONE, Ints, size
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.volume import bus_factor


class CollectiveRow(CallFields, kw_only=True, frozen=True):
    """All calls of one operation, group, type and size.

    With estimate `upper_bound`, transfer is the whole duration, waiting included, and the bandwidths are lower bounds.
    """

    algorithm: str | None
    protocol: str | None
    count: int
    """Calls, not ranks."""
    estimate: Literal["matched", "upper_bound"]
    transfer_ns_median: float | None
    baseline_ns: float | None
    wait_fraction: float | None
    exposed_ns: int | None
    """Of all these calls, mean over ranks; a moment of several calls in flight belongs to the one that ends last."""
    algbw_gbs: float | None
    busbw_gbs: float | None


def collective_rows(
    ranks: Mapping[int, RankTimeline],
    windows: Mapping[int, list[StepWindow]],
    transfers: Mapping[int, Transfers],
    exposed_ns: Mapping[int, Ints],
) -> list[CollectiveRow]:
    """Give one row a kind of call, the largest total time first.

    Covers each rank's complete steps where it has any, else everything it recorded. A call that every member of a group
    made counts once: the count is the largest of any rank. `transfers` holds what could be told from waiting,
    `exposed_ns` the exposed time of each of a rank's calls.
    """
    sums = CallSums()
    for rank, timeline in ranks.items():
        sums.add(timeline, chosen_rows(timeline, windows[rank]), transfers[rank], exposed_ns[rank])
    found = sorted(sums.found(), key=lambda kind: (-kind.sums["total_ns"], *_spelled(kind)))
    return [_row(kind) for kind in found]


def chosen_rows(timeline: RankTimeline, windows: list[StepWindow]) -> Ints:
    """Give the rows of the calls that belong to complete steps; all rows where no step is complete.

    A call belongs to the step that launched it; one without a launch, to the step in whose window it began.
    """
    calls = timeline.collectives
    complete = [each for each in windows if each.complete]
    if not complete:
        return np.arange(size(calls))
    places = {(each.recording, each.step) for each in complete}
    which, first = distinct([calls.recording, calls.step])
    told = zip(calls.recording[first].tolist(), calls.step[first].tolist(), strict=True)
    inside = np.array([place in places for place in told], np.bool_)[which]
    windows_of = sorted(each.window for each in complete if each.window)
    starts = np.array([start for start, _ in windows_of], np.int64)
    ends = np.array([end for _, end in windows_of], np.int64)
    row = np.searchsorted(starts, calls.start_ns, side="right") - 1
    begun = (row >= 0) & (calls.start_ns < np.append(ends, NONE)[row])
    return np.flatnonzero(inside | (begun & (calls.launch_ns == NONE)))


def _spelled(kind: KindSums) -> tuple[str, str, int]:
    return kind.key["op"], kind.key["group"] or "", kind.key["bytes"] or 0


def _row(kind: KindSums) -> CollectiveRow:
    sums, matched = kind.sums, kind.transfers_ns
    volume, group_size = kind.key["bytes"], kind.key["group_size"]
    is_matched = kind.is_split
    transfer = _middle(matched if is_matched else kind.durations_ns) if sums["timed"] else None
    baseline = float(np.quantile(matched, BASELINE_QUANTILE)) if is_matched and matched.size >= BASELINE_CALLS else None
    algbw = volume / transfer if volume and transfer else None
    busbw = algbw * bus_factor(kind.key["op"], group_size) if algbw is not None and group_size else None
    return CollectiveRow(
        **kind.key,
        count=sums["most"],
        estimate="matched" if is_matched else "upper_bound",
        transfer_ns_median=transfer,
        baseline_ns=baseline,
        wait_fraction=sums["waited_ns"] / sums["total_ns"] if is_matched and sums["total_ns"] else None,
        exposed_ns=round(sums["exposed_ns"] / sums["ranks"]) if sums["timed"] else None,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
    )


def _middle(ordered: Ints) -> float:
    """Give the median of values in order."""
    return float(ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2

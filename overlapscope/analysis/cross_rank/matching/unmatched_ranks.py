"""Find the calls that were matched with none of another rank, and explain ranks without a matched call: recorded at
another time, or without calls that could be paired."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import Matching
from overlapscope.analysis.cross_rank.matching.point_to_point import PairMatching
from overlapscope.display import list_some
from overlapscope.ingest.build.kernel_names import HOST_COLLECTIVE
from overlapscope.timeline.columns import NONE, Flags, size
from overlapscope.timeline.operations import ROOTED, UNNAMED
from overlapscope.timeline.run import RankTimeline, Run

NO_CALLS: Final = "no collective with times was recorded on any rank: there is nothing to pair"
ON_HOSTS: Final = "no collective ran on a device, and those on hosts (gloo) are not paired"
ROOTED_ALONE: Final = (
    "ranks share no call that all members of a group must reach before it ends: of calls with a root, such as "
    "broadcasts, it is not known how much of them is waiting"
)
NOT_SHARED: Final = "ranks share no call that all members of a group make"
UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "s"))


def unmatched_calls(ranks: Mapping[int, RankTimeline], matching: Matching, pairs: PairMatching) -> dict[int, Flags]:
    """Return for each row of the `Collectives` of these ranks whether it has times and is matched with none of another
    rank."""
    found = {rank: np.asarray(timeline.collectives.end_ns != NONE, np.bool_) for rank, timeline in ranks.items()}
    ends = [end for block in (*matching.blocks, *matching.uneven) for end in zip(block.ranks, block.rows, strict=True)]
    for each in pairs.pairs:
        ends += [(each.sender, each.send_rows), (each.receiver, each.recv_rows)]
    for rank, rows in ends:
        if rank in found:
            found[rank][rows] = False
    return found


def unmatched_shares(ranks: Mapping[int, RankTimeline], matching: Matching, pairs: PairMatching) -> dict[int, float]:
    """Return which share of each rank's timed calls is matched with none of another rank; 0 without such calls."""
    found = unmatched_calls(ranks, matching, pairs)
    timed = {rank: int((timeline.collectives.end_ns != NONE).sum()) for rank, timeline in ranks.items()}
    return {rank: int(own.sum()) / max(timed[rank], 1) for rank, own in found.items()}


def explain_unmatched(run: Run, matching: Matching, pairs: PairMatching) -> tuple[str, ...]:
    """Return reasons for ranks without a matched call that were recorded at another time, or if nothing was paired."""
    blocks = (*matching.blocks, *matching.uneven)
    tied = {rank for block in blocks for rank in block.ranks}
    tied |= {rank for each in pairs.pairs for rank in (each.sender, each.receiver)}
    recorded = _windows(run)
    alone: dict[float, list[int]] = {}
    if len(recorded) > 1:
        ranks = list(recorded)
        begin, end = np.array([recorded[rank] for rank in ranks]).T
        for at, rank in enumerate(ranks):
            if rank in tied:
                continue
            gaps = np.delete(np.maximum(begin - end[at], begin[at] - end), at)
            if gaps.min() > 0:
                alone.setdefault(float(gaps.min()) / 1e9, []).append(rank)
    reasons = [_reason(ranks, gap_s) for gap_s, ranks in alone.items()]
    if not tied and not (reasons or matching.reasons or pairs.reasons):
        reasons.append(_nothing_shared(run))
    return tuple(reasons)


def not_named(calls: int, of: int = 0) -> str:
    """Return the reason for so many calls, of so many, of an operation that no source names."""
    many, are = f"{calls} of {of}" if of > calls else str(calls), "call is" if max(calls, of) == 1 else "calls are"
    return (
        f"the sources do not say which operation {many} {are}, so it is not known which of them all members of a group "
        "must reach before they end: they are not paired"
    )


def _nothing_shared(run: Run) -> str:
    if _ranks_with_roots(run) > 1:
        return ROOTED_ALONE
    timed = sum(int((timeline.collectives.end_ns != NONE).sum()) for timeline in run.ranks.values())
    unnamed = sum(_of_unnamed_operation(timeline) for timeline in run.ranks.values())
    if 2 * unnamed > timed:
        return not_named(unnamed, of=timed)
    if timed:
        return NOT_SHARED
    on_hosts = any(map(HOST_COLLECTIVE.match, (name for each in run.ranks.values() for name in each.names)))
    return ON_HOSTS if on_hosts else NO_CALLS


def _ranks_with_roots(run: Run) -> int:
    """Return how many ranks made calls with a root."""
    found = 0
    for timeline in run.ranks.values():
        codes = [code for code, name in enumerate(timeline.names) if name in ROOTED]
        found += bool(np.isin(timeline.collectives.op, codes).any())
    return found


def _of_unnamed_operation(timeline: RankTimeline) -> int:
    """Return how many timed calls are of no operation that their source names."""
    codes = [code for code, name in enumerate(timeline.names) if name == UNNAMED]
    calls = timeline.collectives
    return int((np.isin(calls.op, codes) & (calls.end_ns != NONE)).sum())


def _windows(run: Run) -> dict[int, tuple[int, int]]:
    """Return the begin and the end of each rank's recordings, where they are known."""
    found = {}
    for rank, timeline in run.ranks.items():
        table = timeline.recordings
        if size(table) and NONE not in (table.start_ns.min(), table.end_ns.min()):
            found[rank] = (int(table.start_ns.min()), int(table.end_ns.max()))
    return found


def _reason(ranks: Sequence[int], gap_s: float) -> str:
    factor, unit = next((each for each in UNITS if gap_s >= each[0]), (0.001, "ms"))
    return (
        f"rank {list_some(ranks)} shares no matched call with another rank, and was recorded "
        f"{gap_s / factor:.1f} {unit} apart from all others: does it belong to the same job, or was its clock wrong?"
    )

"""Pair device calls that were launched before the recording: of them only the kernel is known, on which stream it ran.

A communicator has a stream of its own. So a kernel whose launch was not recorded is a call of the group that all calls
launched later on its stream are of. Nothing numbers such calls: they are counted back from the first launched call of
the group, where that is the same call on all ranks.
"""

from collections.abc import Mapping

import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.group_calls import named
from overlapscope.timeline.columns import NONE, Codes, Ints
from overlapscope.timeline.rows import Column, unique
from overlapscope.timeline.run import RankTimeline, Run


def call_lanes(timeline: RankTimeline) -> Ints:
    """Return the stream of each call of a rank; NONE where no kernel of it was recorded."""
    spans = timeline.spans
    found = np.full(timeline.collectives.op.size, NONE, np.int64)
    known = np.flatnonzero(spans.collective >= 0)
    found[spans.collective[known]] = spans.lane[known]
    return found


def early_by_group(timeline: RankTimeline, rows: Codes) -> dict[str | None, Codes]:
    """Divide nameless calls of a rank by the group of their stream; None holds those of which it is not known.

    `rows` are in order of time. Known is the group of a kernel without a launch, if all calls with one on its stream
    name one group.
    """
    calls = timeline.collectives
    if not timeline.has_device or not rows.size:
        return {None: rows}
    lanes = call_lanes(timeline)
    early = (calls.launch_ns[rows] == NONE) & (lanes[rows] != NONE)
    launched = calls.launch_ns != NONE
    group = np.full(rows.size, NONE, np.int64)
    for lane in unique(lanes[rows[early]]).tolist():
        of_lane = unique(calls.group[launched & (lanes == lane)])
        if of_lane.size == 1:
            group[early & (lanes[rows] == lane)] = of_lane[0]
    found = {timeline.names[code]: rows[group == code] for code in unique(group[group >= 0]).tolist()}
    return {None: rows[group < 0], **found}


def match_early(
    run: Run, group: str | None, found: Matching, rows_of: Mapping[int, Codes], early: Mapping[int, Codes]
) -> Matching:
    """Pair the early calls of a group whose other calls (`rows_of`) were paired as `found`; all rows by rank, in order
    of time. A reason says how many were not paired."""
    table, whole = _last_of_each(run, found, rows_of, early)
    blocks = []
    ranks = tuple(sorted(early))
    ops = [
        [timeline.names[code] for code in timeline.collectives.op[rows]]
        for timeline, rows in zip((run.ranks[rank] for rank in ranks), table, strict=True)
    ]
    if any(each != ops[0] for each in ops):
        table, ops = table[:, :0], [[]]
    for op in dict.fromkeys(ops[0]):
        rows = table[:, np.array(ops[0]) == op]
        start, end = (
            np.array([getattr(run.ranks[rank].collectives, side)[own] for rank, own in zip(ranks, rows, strict=True)])
            for side in ("start_ns", "end_ns")
        )
        blocks.append(
            MatchedCalls(
                group=group, op=op, dtype=None, bytes=None, ranks=ranks, rows=rows, start_ns=start, end_ns=end,
                by_order=True, whole=whole,
            )
        )  # fmt: skip
    left = sum(rows.size for rows in early.values()) - table.size
    return Matching(blocks=tuple(blocks), unmatched=left, reasons=(not_placed(group, left),) if left else ())


def not_placed(group: str | None, calls: int) -> str:
    """Return the reason for early calls of a group, or of unknown ones, that are not paired."""
    many = "1 call was" if calls == 1 else f"{calls} calls were"
    why = "so their group is not recorded" if group is None else "and cannot be placed among those of other ranks"
    return f"{named(group)}: {many} launched before the recording began, {why}: not paired"


def are_early(run: Run, rows_of: Mapping[int, Column]) -> bool:
    """Return whether all these calls were launched before the recording, on ranks with calls launched in it."""
    launches = [(run.ranks[rank].collectives.launch_ns, rows) for rank, rows in rows_of.items()]
    return all((launch[rows] == NONE).all() and (launch != NONE).any() for launch, rows in launches)


def _last_of_each(
    run: Run, found: Matching, rows_of: Mapping[int, Codes], early: Mapping[int, Codes]
) -> tuple[Ints, bool]:
    """Return the early calls that all ranks recorded, a rank a row, a call a column, and whether these are all members
    of the group; no calls where the first launched call is not the same on all ranks."""
    ranks = tuple(sorted(early))
    none = np.empty((len(ranks), 0), np.int64)
    if ranks != tuple(sorted(rows_of)) or any(
        _start_ns(run, rank, early[rank][-1]) > _start_ns(run, rank, rows_of[rank][0]) for rank in ranks
    ):
        return none, False
    first = np.array([rows_of[rank][0] for rank in ranks])
    for block in (*found.blocks, *found.uneven):
        if block.ranks == ranks and (block.rows == first[:, None]).all(axis=0).any():
            many = min(early[rank].size for rank in ranks)
            return np.array([early[rank][-many:] for rank in ranks], np.int64), block.whole
    return none, False


def _start_ns(run: Run, rank: int, row: int) -> int:
    return int(run.ranks[rank].collectives.start_ns[row])

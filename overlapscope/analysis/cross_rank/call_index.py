"""Number the matched calls, and find the number of each row of a rank's `Collectives`.

What is known of a call is stored once, not once for each member.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.matched_calls import positions_by_ranks
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints, size
from overlapscope.timeline.run import Run


class CallIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All matched calls with a known transfer time, numbered from 0."""

    call: Mapping[int, Codes]
    """For each rank, the number of each of its calls; -1 for a call that was not matched."""
    transfer_ns: Ints
    baseline_ns: Ints
    """Transfer time of this kind of call when nothing slows it down; NONE with too few calls."""
    last: Codes
    """The rank that arrived last."""
    whole: Flags
    """Whether every member was recorded."""
    members: Ints
    """Number of ranks that made the call."""

    @classmethod
    def of(cls, run: Run, splits: Sequence[Split]) -> Self:
        """Number the calls of all splits."""
        call = {rank: np.full(size(timeline.collectives), -1, np.int32) for rank, timeline in run.ranks.items()}
        begin = np.concatenate([[0], np.cumsum([each.block.calls for each in splits])]).tolist()
        for ranks, places in positions_by_ranks([each.block for each in splits]).items():
            number = np.concatenate([np.arange(begin[at], begin[at + 1], dtype=np.int32) for at in places])
            rows = np.concatenate([splits[at].block.rows for at in places], axis=1)
            for rank, own in zip(ranks, rows, strict=True):
                call[rank][own] = number
        counts = [each.block.calls for each in splits]
        baseline = [NONE if each.baseline_ns is None else round(each.baseline_ns) for each in splits]
        none = [np.zeros(0, np.int64)]
        return cls(
            call=call,
            transfer_ns=np.concatenate([each.transfer_ns for each in splits] or none),
            baseline_ns=np.repeat(np.array(baseline, np.int64), counts),
            last=np.concatenate([np.array(each.block.ranks)[each.last] for each in splits] or none).astype(np.int32),
            whole=np.repeat(np.array([each.block.whole for each in splits], np.bool_), counts),
            members=np.repeat(np.array([len(each.block.ranks) for each in splits], np.int64), counts),
        )

"""Calls in which the last recorded member may have waited for one that was not recorded: nobody is blamed for these."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.unseen_members import unseen_reasons, without_unseen
from overlapscope.analysis.cross_rank.wait_transfer import split_waits, waits_by_rank
from overlapscope.analysis.exposure.arrivals import arrivals
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
CLOCKS = Clocks(offset_ns={0: 0.0, 1: 0.0, 2: 0.0}, tied={0: 0, 1: 0, 2: 0})
TOOK_MS = (1, 1, 6, 6, 1, 2)
"""How long each call takes from when rank 1 came, the last recorded one, by 2 ms: a transfer of 1 ms, and in two of
them 5 ms more."""


def block_of(size: int | None = 8, *, whole: bool = False) -> MatchedCalls:
    """Return calls of ranks 0 and 1, 100 ms apart."""
    starts = np.array([[100 * MS * at, 100 * MS * at + 2 * MS] for at in range(len(TOOK_MS))], np.int64).T
    ends = np.broadcast_to(starts[1] + np.array(TOOK_MS, np.int64) * MS, starts.shape)
    return MatchedCalls(
        group=None, op="all_gather", dtype=None, bytes=size, ranks=(0, 1), rows=np.array([range(len(TOOK_MS))] * 2),
        start_ns=starts, end_ns=ends, by_order=False, whole=whole,
    )  # fmt: skip


def run_of(ranks: int = 2, world: int | None = None) -> Run:
    """Return a run whose ranks 0 and 1 make the calls of `block_of`; rank 2 makes as many in a group of its own."""
    block = block_of()
    rows = [
        [{"op": "all_gather", "start_ns": start, "end_ns": end, "launch_ns": start}
         for start, end in zip(block.start_ns[own].tolist(), block.end_ns[own].tolist(), strict=True)]
        for own in (0, 1, 1)
    ]  # fmt: skip
    return Run(world_size=world, ranks={rank: rank_timeline(rank, calls=rows[rank]) for rank in range(ranks)})


@pytest.mark.parametrize(
    ("run", "block", "leads_ms"),
    [
        pytest.param(run_of(), block_of(), [2, 2, 0, 0, 2, 2], id="of one size they are alike"),
        pytest.param(run_of(), block_of(whole=True), [2] * 6, id="all members were recorded"),
        pytest.param(run_of(), block_of(None), [2] * 6, id="of unknown size they may be larger"),
        pytest.param(run_of(world=4), block_of(None), [2, 2, 0, 0, 2, 2], id="ranks are missing"),
        pytest.param(
            run_of(3), block_of(None), [2, 2, 0, 0, 2, 2], id="rank 2 is in a group of ranks that are missing"
        ),
    ],
)
def test_who_came_last_of_the_recorded_has_no_lead_where_it_waits_on_for_longer(
    run: Run, block: MatchedCalls, leads_ms: list[int]
) -> None:
    (found,) = without_unseen(run, Matching(blocks=(block,)), split_waits([block], CLOCKS))
    assert found.lead_ns.tolist() == [ms * MS for ms in leads_ms]
    assert waits_by_rank([found], CLOCKS)[1].blame_ns == sum(leads_ms) * MS
    arrived = arrivals(run, CrossRank(matching=Matching(blocks=(block,)), clocks=CLOCKS, splits=(found,)))[0]
    assert arrived.last.tolist() == [1 if ms else NONE for ms in leads_ms]
    assert (arrived.arrived_ns == block.start_ns[1]).all(), "when the last recorded one came is known all the same"
    said = "".join(unseen_reasons([found]))
    assert ("2 of 6 matched calls went on for 12.0 ms" in said) is (0 in leads_ms)


def test_a_lead_longer_than_what_the_last_one_waits_on_is_its_own() -> None:
    """It leads by 30 ms, and waits on for 5: whoever came then, these 30 ms were waited for it."""
    block = block_of()
    earlier = replace(block, start_ns=block.start_ns - np.array([[28 * MS], [0]]))
    (found,) = without_unseen(run_of(), Matching(blocks=(earlier,)), split_waits([earlier], CLOCKS))
    assert found.for_unseen is None
    assert found.lead_ns.tolist() == [30 * MS] * 6

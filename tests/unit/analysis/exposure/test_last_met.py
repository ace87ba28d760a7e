"""Where two ranks last met, and what a late rank did longer since then: by hand."""

import numpy as np

from overlapscope.analysis.exposure.last_met import Meetings, last_met
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import NONE
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.figures.test_exposed_causes import US, explained, rank_of


def test_ranks_do_not_meet_in_calls_of_unnamed_groups_that_were_not_matched_between_them() -> None:
    """Rank 0 makes a call with rank 1, one with others, and another one with rank 1."""
    times = [(0, 10), (50, 60), (100, 120)]
    rank = rank_timeline(0, calls=[{"op": "all_gather", "start_ns": start, "end_ns": end} for start, end in times])
    cover, rows, came, other = Coverage.of(rank.spans), np.array([2]), np.array([100]), np.array([1])
    meets = Meetings(may=np.ones(3, np.bool_), ranks=np.array([0, NONE, 0]), sets=[(0, 1)])
    assert last_met(rank, cover, rows, came, other, {}, meets).tolist() == [10]
    of_others = Meetings(may=meets.may, ranks=np.array([0, 1, 0]), sets=[(0, 1), (0, 2)])
    assert last_met(rank, cover, rows, came, other, {}, of_others).tolist() == [10]
    assert last_met(rank, cover, rows, came, other, {}).tolist() == [60], "what was matched is not known"


def test_waiting_for_a_late_rank_in_earlier_calls_is_nothing_that_the_waiting_rank_did() -> None:
    """All meet at 10 us. Rank 0 computes for 10 us, and waits in two calls; rank 1 computes for 30, communicates
    elsewhere for 30, comes to the first call at 70, and computes beside it, until it comes to the second one at 110.

    By hand: the first wait, 50 us, is for 20 us of compute and 30 of communication more. At the second one, 20 us, that
    is 60 us of compute, and 10 of communication, as rank 0 was in the first one's transfer for 20 us; not 0 of it, as
    if it had communicated for as long as it waited.
    """
    first = rank_of(
        0, [(0, 10 * US, 0), (20 * US, 90 * US, 20 * US), (90 * US, 130 * US, 90 * US)], [(10 * US, 20 * US, "work")],
        has_device=True,
    )  # fmt: skip
    second = rank_of(
        1, [(0, 10 * US, 0), (70 * US, 90 * US, 70 * US), (110 * US, 130 * US, 110 * US)],
        [(10 * US, 40 * US, "work"), (70 * US, 110 * US, "work")], has_device=True, elsewhere=[(40 * US, 70 * US)],
    )  # fmt: skip
    _, causes = explained(first, second)
    assert round(causes[0]["peer_compute"] / US, 1) == round(20 + 20 * 60 / 70, 1)
    assert round(causes[0]["peer_comm"] / US, 1) == round(30 + 20 * 10 / 70, 1)

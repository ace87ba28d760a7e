"""What a late rank computes while others wait, but had put off when its host idled, it does not compute longer."""

import numpy as np
import pytest

from overlapscope.analysis.exposure.exposed_causes import each_causes
from overlapscope.analysis.exposure.own_parts import own_parts
from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import Row, rank_timeline
from tests.unit.analysis.figures.test_exposed_causes import together

US = 1_000
MET_US = (70, 100)
"""The last call of the step before."""


def rank_of(
    rank: int, calls_us: list[tuple[int, int]], computes_us: list[tuple[int, int]], *, met: bool = True
) -> RankTimeline:
    """Return a rank that met the other until 100 us, in a step of its own unless it had not, then called and computed
    in the next step."""
    calls: list[Row] = [
        {
            "op": "all_reduce", "group": "0", "seq": seq, "bytes": 1000, "group_size": 2,
            "step": int(seq > 0 or not met), "start_ns": start * US, "end_ns": end * US, "launch_ns": start * US,
        }
        for seq, (start, end) in enumerate([MET_US, *calls_us])
    ]  # fmt: skip
    work: list[Row] = [
        {"start_ns": start * US, "end_ns": end * US, "name": "gemm", "step": int(start >= MET_US[1])}
        for start, end in [(0, MET_US[0]), *computes_us]
    ]
    return rank_timeline(rank, calls=calls, work=work)


def waits_us(waiting: RankTimeline, late: RankTimeline, unlaunched_us: tuple[int, int] = (0, 0)) -> dict[str, int]:
    """Return why the first rank waits for the other one; beside a call the next compute of that was not launched."""
    run, cross_rank = together(waiting, late)
    unlaunched = {"host_not_ready": union(tuple(np.array([each * US]) for each in unlaunched_us))}  # type: ignore[arg-type]
    parts = {0: own_parts(waiting, OwnCauses()), 1: own_parts(late, OwnCauses(idle={}, exposed=unlaunched))}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    found = dict(each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run)))[0].within((0, 10**9))
    return {cause: ns // US for cause, ns in found.items() if cause.startswith("peer")}


@pytest.mark.parametrize(
    ("met", "causes"),
    [(True, {"peer_host": 50}), (False, {"peer_compute": 40, "peer_host": 10})],
    ids=["since they met before the step", "what the late rank did before that is not known"],
)
def test_work_that_was_put_off_is_of_the_host_that_idled_then(met: bool, causes: dict[str, int]) -> None:
    """The late rank idles from 100 to 160, meets the other at 200, and has 40 us left to do while that waits."""
    late = rank_of(1, [(190, 200), (240, 250)], [(160, 185), (200, 240)], met=met)
    waiting = rank_of(0, [(120, 200), (200, 250)], [(100, 180)], met=met)
    assert waits_us(waiting, late) == causes


@pytest.mark.parametrize(
    ("unlaunched_us", "cause"),
    [((120, 195), "peer_host"), ((0, 0), "peer_compute")],
    ids=["its next compute was not launched", "it waited for the other, which had more to do until then"],
)
def test_a_rank_in_a_call_idles_only_where_its_next_compute_was_not_launched(
    unlaunched_us: tuple[int, int], cause: str
) -> None:
    """Beside its first call the late rank does nothing; it computes for 40 us after it, and the other did before."""
    late = rank_of(1, [(120, 200), (240, 250)], [(100, 120), (200, 240)])
    waiting = rank_of(0, [(180, 200), (200, 250)], [(100, 180)])
    assert waits_us(waiting, late, unlaunched_us) == {cause: 40}


@pytest.mark.parametrize(("idles_until_us", "put_off_us"), [(130, 20), (150, 40)])
def test_no_more_is_put_off_than_the_late_rank_idled_longer_less_what_it_waited(
    idles_until_us: int, put_off_us: int
) -> None:
    """It computes until 190, is in the first call for 10 us, and computes for 40 us after it, while the other waits."""
    late = rank_of(1, [(190, 200), (240, 250)], [(idles_until_us, 190), (200, 240)])
    waiting = rank_of(0, [(190, 200), (200, 250)], [(100, 190)])
    left = {"peer_compute": 40 - put_off_us} if put_off_us < 40 else {}
    assert waits_us(waiting, late) == {**left, "peer_host": put_off_us}

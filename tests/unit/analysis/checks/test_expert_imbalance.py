"""Expert parallelism: a dispatch gives tokens unevenly, the fullest rank comes last to the combine."""

from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.run import Group, Run
from tests.unit.analysis.cross_rank.matching.test_matching import Call, job

MS = 1_000_000
RANKS = 4
WORLD = Group(name="w", size=RANKS, ranks=tuple(range(RANKS)))
EXPERTS = Group(name="g", description="EXPERT_MODEL_PARALLEL_GROUP", size=RANKS, ranks=tuple(range(RANKS)))


def layers(
    share: list[int], *, calls: int = 8, dimension: str | None = "expert", received: bool = True, **by_time: Any
) -> Run:
    """Return a job whose ranks get `share` times 1,000 bytes; a byte computes for 1 us, or as `delay` says."""
    delay = by_time.get("delay", [1000 * each for each in share])
    own: dict[int, list[Call]] = {}
    for rank in range(RANKS):
        own[rank] = []
        for k in range(calls):
            at = k * 100 * MS
            got, mean = 1000 * share[rank], sum(share) * 1000 // RANKS
            back = at + MS + delay[rank] * 1000
            shared = {"seq": NONE_SEQ + 2 * k, "dimension": dimension}
            own[rank] += [
                Call(start=at, length=MS, volume=mean, received=got if received else mean, **shared),
                Call(
                    start=back, length=at + 50 * MS - back, volume=got if received else mean, received=mean,
                    **{**shared, "seq": NONE_SEQ + 2 * k + 1},
                ),
                Call(op="all_reduce", group="w", start=at + 60 * MS, length=MS, size=RANKS, seq=k),
            ]  # fmt: skip
    return job(own, (EXPERTS, WORLD))


NONE_SEQ = 100


def said(run: Run) -> list[Any]:
    return [each for each in analyze(run).findings if each.id.startswith("expert_imbalance")]


def test_the_wait_for_the_fullest_rank_is_a_finding_with_its_share():
    (finding,) = said(layers([10, 10, 30, 10]))
    evidence = finding.evidence
    assert finding.id == "expert_imbalance:g"
    assert evidence["imbalance"] == pytest.approx(2.0)
    assert evidence["received_share"] == pytest.approx({"0": 1 / 6, "1": 1 / 6, "2": 1 / 2, "3": 1 / 6})
    assert (evidence["combines"], evidence["fullest_came_last"]) == (8, 8)
    # It comes 20 ms after the three others: 15 ms after the mean, eight times.
    assert evidence["mean_wait_ns"] == pytest.approx(8 * 15 * MS)
    assert evidence["dispatch_exposed_ns"] == 8 * MS
    assert evidence["combine_exposed_ns"] == pytest.approx(8 * (49 - 15) * MS)
    assert evidence["combine_hidden_ns"] == 0


def test_even_shares_and_shares_that_cost_nothing_are_none():
    assert said(layers([10, 10, 10, 10], delay=[10_000, 10_000, 30_000, 10_000])) == []
    assert said(layers([10, 11, 10, 10])) == []
    assert said(layers([10, 10, 30, 10], delay=[10_000, 10_000, 10_100, 10_000])) == []
    assert said(layers([10, 10, 30, 10], delay=[30_000, 10_000, 10_000, 10_000])) == []


def test_other_groups_few_calls_and_unrecorded_sizes_are_left_alone():
    assert said(layers([10, 10, 30, 10], dimension=None)) == []
    assert said(layers([10, 10, 30, 10], calls=4)) == []
    assert said(layers([10, 10, 30, 10], received=False)) == []

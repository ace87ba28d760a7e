"""What the rank that computes longest is exposed bounds what less communication gains, where that is far less."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.largest_loss import OF_EXPOSED, largest_loss
from overlapscope.advice.order import moved_ns, ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.steps.deciding_rank import BOUNDED, DECIDING_NS, DECIDING_RANK, deciding, with_deciding_bound
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.unit.advice.losses.test_order_of_losses import given, named, one  # noqa: F401 - a fixture
from tests.unit.advice.test_slower_in_turn import IN_TURN, MS, job


def looked_at(run: Run) -> RuleInput:
    together = match_and_align(run)
    return RuleInput.of(run, analyze(run, together), together)


@pytest.mark.parametrize(("sent_ms", "decides_ms"), [(3, 3), (6, 6), (7, None)])
def test_the_rank_that_computes_longest_is_exposed_for_the_transfer_alone(sent_ms: int, decides_ms: int | None) -> None:
    """One of three ranks computes for 50 ms, the others for 40 and wait for 10: 3 of 9.7 ms, 7 of 13.7 in the mean."""
    found = deciding(looked_at(job(IN_TURN, sent_ns=sent_ms * MS)))
    assert (None if found is None else (found.exposed_ns, found.rank)) == (decides_ms and (decides_ms * MS, None))


def test_beside_ranks_that_were_not_recorded_no_step_gets_shorter_than_a_recorded_one_computes_either() -> None:
    found = deciding(looked_at(job(IN_TURN, sent_ns=3 * MS, group_size=4)))
    assert found is not None
    assert found.exposed_ns == 3 * MS
    assert "; on the rank that computes longest in each step, of those recorded, 3 ms of it" in found.words


@pytest.mark.parametrize(("slow_in", "rank"), [((1,) * 6, 1), (IN_TURN, None), ((1, 1, 1, 1, 1, 0), None)])
def test_a_rank_that_computes_longest_in_every_step_is_named(slow_in: tuple[int, ...], rank: int | None) -> None:
    """By 10 ms, for which the others wait; as long as calls are not matched, nobody else says so."""
    found = deciding(looked_at(job(slow_in, sent_ns=3 * MS, group_size=4)))
    assert found is not None
    assert found.rank == rank
    words = "rank 1 computes longest in each step, 10 ms longer than the median of the others, which wait for it, and"
    assert (words in found.words) is (rank is not None)


def test_a_rank_whose_peers_wait_for_far_longer_than_it_computes_more_is_not_named() -> None:
    known = looked_at(job((1,) * 6, sent_ns=3 * MS))
    waiting = [
        replace(
            info,
            steps=[
                replace(each, exposed_comm_ns=(each.exposed_comm_ns or 0) + 40 * MS * (info.rank != 1))
                for each in info.steps
            ],
        )
        for info in known.analysis.ranks
    ]
    found = deciding(replace(known, analysis=replace(known.analysis, ranks=waiting)))
    assert found is not None
    assert found.rank is None


def test_what_shortens_communication_gains_no_more_than_that_rank_is_exposed() -> None:
    settings = [
        one("busy_lane", 9000, loss_ns=8 * MS),
        one("small_collectives", 2000),
        one("unfused_optimizer", 9000),
        one("serving"),
    ]
    found = with_deciding_bound(settings, looked_at(job(IN_TURN, sent_ns=3 * MS)), OF_EXPOSED)
    assert (found[0].loss_ns, found[0].measured) == (3 * MS, [BOUNDED])
    assert not found[1].measured
    bounds = {each.id: each.gain_high_ns for each in found}
    assert bounds == {
        "busy_lane": 3 * MS, "small_collectives": 2 * MS, "unfused_optimizer": 9 * MS, "serving": None,
    }  # fmt: skip
    little = with_deciding_bound(settings, looked_at(job(IN_TURN, sent_ns=MS)), OF_EXPOSED)
    assert [each.id for each in little] == ["unfused_optimizer", "serving"], "1 of 57 ms is not worth it"


def test_the_title_says_what_of_the_loss_that_rank_has() -> None:
    found = largest_loss(looked_at(job(IN_TURN, sent_ns=3 * MS)), [])
    assert found is not None
    assert "; on the rank that computes longest in each step, which decides, 3 ms of it" in found.title
    assert found.evidence[DECIDING_NS] == 3 * MS
    assert DECIDING_RANK not in found.evidence


def test_evening_out_comes_before_the_exposed_time_that_it_makes_most_of(given: RuleInput) -> None:  # noqa: F811
    """Of 400 us that are exposed."""
    assert named(given, one("uneven_steps", 150)).startswith("Largest loss: ")
    assert named(given, one("uneven_steps", 250)) == "0.4 ms of a 1 ms step"
    for gain_us, first in ((150, "exposed_communication"), (250, "uneven_steps")):
        found = [one("exposed_communication", loss_ns=400_000), one("uneven_steps", gain_us)]
        assert ranked(found, 1, moved_ns(found, given.analysis))[0].id == first
    decided = replace(found[0], evidence={DECIDING_NS: 140_000})
    for gain_us, first in ((130, "exposed_communication"), (150, "uneven_steps")):
        found = [decided, one("uneven_steps", gain_us)]
        assert ranked(found, 1, moved_ns(found, given.analysis))[0].id == first

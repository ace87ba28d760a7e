"""What is named the largest loss, what stands before it, and which settings stand beside a straggler."""

from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import without_waiting
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.order import moved_ns, ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.result import Recommendation
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.test_exposed_calls import looked_at


def one(name: str, high_us: int | None = None, **more: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "id": name, "title": "", "verdict": "trial", "predicted_gain_ns": None, "gain_low_ns": None,
        "gain_high_ns": None if high_us is None else high_us * US, "confidence": "mixed", "memory_bytes": None,
        "changes_numerics": False, "apply": {}, "verify": "",
    }  # fmt: skip
    return Recommendation(**{**fields, **more})


def straggler(gain_us: int | None, waited_us: int = 100, **more: Any) -> Recommendation:
    """Return one that others wait for, of 400 us in collectives; None: what its removal gains is not known."""
    evidence = {"held_by": "more_work", "rank": 1, "waited_ns": waited_us * US, "collective_ns": 400 * US}
    gain = None if gain_us is None else gain_us * US
    return one("late_rank", predicted_gain_ns=gain, evidence=evidence, **more)


@pytest.fixture(scope="module")
def given() -> RuleInput:
    """A job of which 400 us of each step of 1,000 are exposed communication, 100 of these waiting for late ranks."""
    found = looked_at(made(lambda _: [Kernel(start=0, end=590), Sent(start=590, end=990)]))
    exposed = found.figures.exposed_comm_ns or 0
    assert exposed == 400 * US
    figures = replace(found.figures, causes={"peer_compute": 100 * US, "dependency": 300 * US})
    return replace(found, figures=figures, analysis=replace(found.analysis, headline=figures))


def named(given: RuleInput, *found: Recommendation) -> str:
    loss = largest_loss(given, found)
    assert loss is not None
    return loss.title.split(" are exposed")[0]


def test_a_loss_is_the_largest_where_no_other_cost_is_larger(given: RuleInput) -> None:
    assert named(given) == "Largest loss: 0.4 ms of a 1 ms step"
    assert named(given, one("unfused_optimizer", 399)) == "Largest loss: 0.4 ms of a 1 ms step"
    assert named(given, one("unfused_optimizer", 401)) == "0.4 ms of a 1 ms step"


def test_a_loss_that_is_mostly_waiting_for_a_straggler_is_not_the_largest(given: RuleInput) -> None:
    assert named(given, straggler(150)).startswith("Largest loss: ")
    assert named(given, straggler(250)) == "A further 0.3 ms of a 1 ms step"
    in_turn = named(given, one("late_rank", 450))
    assert in_turn == "A further 0.3 ms of a 1 ms step", "nor beside waiting for several in turn"


@pytest.mark.parametrize(("gain_us", "first"), [(150, "exposed_communication"), (250, "late_rank")])
def test_a_straggler_comes_before_the_exposed_time_that_it_makes_most_of(
    given: RuleInput, gain_us: int, first: str
) -> None:
    found = [one("exposed_communication", loss_ns=400 * US), straggler(gain_us)]
    assert ranked(found, 1, moved_ns(found, given.analysis))[0].id == first


@pytest.mark.parametrize(("small_us", "largest"), [(150, "Largest loss: "), (151, "A further ")])
def test_a_loss_is_not_the_largest_beside_what_others_name_of_it(given: RuleInput, small_us: int, largest: str) -> None:
    found = named(given, straggler(100), one("small_collectives", loss_ns=small_us * US))
    assert found == f"{largest}0.3 ms of a 1 ms step"


def test_what_was_not_launched_yet_is_no_loss_of_communication_beside_launches(given: RuleInput) -> None:
    causes = {"host_not_ready": 150 * US, "dependency": 250 * US}
    figures = replace(given.figures, causes=causes)
    launched_late = replace(given, figures=figures, analysis=replace(given.analysis, headline=figures))
    found = [one("launch_bound", loss_ns=260 * US), one("exposed_communication", loss_ns=400 * US)]
    assert named(launched_late, one("launch_bound", loss_ns=250 * US)) == "Largest loss: 0.4 ms of a 1 ms step"
    assert named(launched_late, found[0]) == "0.4 ms of a 1 ms step"
    assert [each.id for each in ranked(found, 1, moved_ns(found, launched_late.analysis))] == [
        "launch_bound", "exposed_communication",
    ]  # fmt: skip


@pytest.mark.parametrize(("waited_us", "first"), [(199, "busy_lane"), (200, "late_rank")])
def test_a_straggler_that_most_of_the_time_in_collectives_waits_for_comes_before_settings_of_these(
    given: RuleInput, waited_us: int, first: str
) -> None:
    found = [one("busy_lane", 300), straggler(None, waited_us, loss_ns=100 * US)]
    assert ranked(found, 1, moved_ns(found, given.analysis))[0].id == first
    of_compute = [one("unfused_optimizer", 300), found[1]]
    assert ranked(of_compute, 1, moved_ns(of_compute, given.analysis))[0].id == "unfused_optimizer"


def test_what_gains_more_than_it_loses_is_placed_by_its_gain() -> None:
    late = one("late_rank", loss_ns=50 * US, predicted_gain_ns=120 * US)
    assert [each.id for each in ranked([one("a", 100), late, one("b", 130)])] == ["b", "late_rank", "a"]


@pytest.mark.parametrize(("evidence", "first"), [({}, "late_rank"), ({"in_forward": True}, "backward_prefetch")])
def test_a_bound_by_overlap_counts_in_full_where_nothing_is_gathered_ahead(
    evidence: dict[str, bool], first: str
) -> None:
    assert ranked([straggler(60), one("backward_prefetch", 100, evidence=evidence)])[0].id == first


@pytest.mark.parametrize(
    ("high_us", "order"),
    [
        (41, ["tensor_parallel", "keep_buckets", "sixteen_bit_gradients"]),
        (201, ["sixteen_bit_gradients", "tensor_parallel", "keep_buckets"]),
    ],
)
def test_a_change_of_numerics_stands_before_what_addresses_half_as_much(high_us: int, order: list[str]) -> None:
    found = [
        one("sixteen_bit_gradients", high_us, changes_numerics=True), one("keep_buckets", verdict="no_change"),
        one("tensor_parallel", predicted_gain_ns=100 * US),
    ]  # fmt: skip
    assert [each.id for each in ranked(found)] == order


@pytest.mark.parametrize(("gain_us", "bound_us"), [(None, 300), (150, 250)])
def test_settings_beside_a_straggler_gain_at_most_what_is_no_waiting(
    given: RuleInput, gain_us: int | None, bound_us: int
) -> None:
    late = [one("late_rank") if gain_us is None else straggler(gain_us)]
    settings = [one("large", 390, loss_ns=390 * US), one("small", 30), one("no_worth", 10), one("no_bound"),
                one("uneven_stages", 390)]  # fmt: skip
    found = {each.id: (each.gain_high_ns, each.loss_ns) for each in without_waiting(settings, given, late)}
    assert found == {"large": (bound_us * US, bound_us * US), "small": (30 * US, None)}
    assert not without_waiting(settings, given, [straggler(395)]), "nearly all of it is waiting"

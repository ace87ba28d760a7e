"""Groups that correspond: the calls of one show what like calls of another need, of which all may wait."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.exposure.corresponding_groups import corresponding_groups
from overlapscope.timeline.run import Group, Run
from tests.unit.analysis.exposure.test_longer_than_like import KNOWN, steps_of

US = 1_000


def group(name: str, *ranks: int, description: str = "TP") -> Group:
    return Group(name=name, size=len(ranks), ranks=ranks, description=description)


@pytest.mark.parametrize(
    ("other", "like"),
    [
        pytest.param(group("b", 4, 5, 6, 7), True, id="the next four"),
        pytest.param(group("b", 9, 10, 11, 12), False, id="over two nodes, if these are of four"),
        pytest.param(group("b", 4, 5, 6, 7, 8), False, id="more"),
        pytest.param(group("b", 0, 2, 4, 6), False, id="apart"),
        pytest.param(group("b", 4, 5, 6, 7, description="DP"), False, id="for something else"),
    ],
)
def test_groups_correspond_that_are_as_large_and_placed_alike(other: Group, *, like: bool) -> None:
    first = group("a", 0, 1, 2, 3)
    assert corresponding_groups([first, other]) == ({"a": "a", "b": "a"} if like else {})
    assert corresponding_groups([first, replace(first, name="b", ranks=None)]) == {}


def two_replicas(
    waits_us: int, kind: dict[str, object] = KNOWN, members: tuple[int, ...] = (4, 5, 6, 7), calls: int = 6
) -> Run:
    """Return ranks 1 and 5 of two groups; calls of the first one last 10 us, all of the second `waits_us` longer."""
    fast = steps_of([[10] * calls], {**kind, "group": "a"})
    slow = steps_of([[10 + waits_us] * 6], {**kind, "group": "b"})
    return Run(
        world_size=8,
        ranks={1: replace(fast, rank=1), 5: replace(slow, rank=5)},
        groups=(group("a", 0, 1, 2, 3), group("b", *members)),
    )


def test_waiting_in_all_calls_of_a_group_shows_beside_a_group_that_corresponds_to_it() -> None:
    """By hand: the first call lies before the step's compute, so five wait 40 us each; the mean is over two ranks."""
    said = {each.id: each for each in analyze(two_replicas(40)).findings}["longer_than_like"]
    assert said.evidence["longer_ns"] == 5 * 40 * US / 2
    (slower,) = said.evidence["slower_groups"]
    assert (slower["group"], slower["than"], slower["times"]) == ("b", "a", 5.0)
    assert "calls of group b (ranks 4, 6, 7 not recorded) take 5 times as long as those of group a" in said.title
    assert said.title.endswith("a late rank, or a slower link, is there")


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(two_replicas(40, members=(3, 4, 5, 6)), id="placed in another way"),
        pytest.param(two_replicas(40, {**KNOWN, "op": "all_to_all"}), id="members may send more"),
        pytest.param(two_replicas(2), id="within what transfers vary by"),
        pytest.param(two_replicas(40, calls=4), id="too few calls to know"),
    ],
)
def test_of_other_groups_and_calls_nothing_follows(run: Run) -> None:
    assert not any(each.id == "longer_than_like" for each in analyze(run).findings)


def test_a_single_call_that_is_too_short_says_nothing_of_the_calls_of_other_ranks() -> None:
    """It may be damage: the second shortest of its like lasts as long as all others."""
    lasted = [[50] * 6 for _ in range(3)]
    whole = replace(steps_of(lasted, {**KNOWN, "group": "a"}), rank=1)
    lasted[1][3] = 1
    damaged = replace(steps_of(lasted, {**KNOWN, "group": "b"}), rank=5)
    groups = (group("a", 0, 1, 2, 3), group("b", 4, 5, 6, 7))
    found = analyze(Run(world_size=8, ranks={1: whole, 5: damaged}, groups=groups)).findings
    assert not any(each.id == "longer_than_like" for each in found)


def test_waiting_of_a_named_group_is_a_loss_of_its_own_and_no_saving_of_overlap() -> None:
    """Of tensor parallelism 10 us are transferred in a call, at most a fourth more, and 40 are waited."""
    run = two_replicas(40, {**KNOWN, "dimension": "tensor"})
    found = {each.id: each for each in analyze_with_advice(run).recommendations}
    assert found["tensor_parallel"].gain_high_ns == pytest.approx((5 * 12.5 + 5 * 10) * US / 2)
    loss = found["exposed_communication"]
    assert "; calls of group b take at least 0.1 ms longer than the shortest of their like" in loss.title
    assert "record all ranks" in loss.apply["look"]
    assert next(each for each in found if each in (loss.id, "tensor_parallel")) == loss.id

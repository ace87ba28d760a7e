"""Few steps that cost more than every step loses are named by what is more in them, with what they cost."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.steps.long_steps import _More, _of_calls, _of_part, are_of_named, take_longer
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation, WithoutOutliers, costly_outliers
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Sent, made
from tests.unit.advice.losses.test_order_of_losses import one

LONG, MORE = 3, 1500
"""The step, of 1,000 us but for these, that takes so much longer; the next ones begin so much later."""
ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor>"


def row(begin: float, lasting: Sequence[tuple[str, float]]) -> list[Item]:
    """Return kernels one right after the other, all launched early."""
    found: list[Item] = []
    for at, (name, us) in enumerate(lasting):
        found.append(Kernel(start=begin, end=begin + us, launch=at, name=name))
        begin += us
    return found


def job(*, computes: float = 0, sends: float = 0, idles: float = 0, kernels: int = 1) -> Run:
    """Return two ranks, one step of which computes, sends or idles for so many us more, or computes in so many more
    kernels."""

    def step(number: int) -> list[Item]:
        begin, long = (MORE if number > LONG else 0), number == LONG
        times = 1 + computes / 750 if long and kernels == 1 else 1
        work = [("gemm", 600 * times), ("elementwise_kernel", 150 * times), (ADAM, 150)]
        work = [("gemm", computes / (kernels - 1))] * (kernels - 1) * long + work if kernels > 1 else work
        until = begin + sum(us for _, us in work) + idles * long
        call = Sent(start=until, end=until + 90 + sends * long, launch=20)
        return [*row(begin + idles * long, work), *row(begin, [("fill", 1)]), call]

    return made(step)


def named(run: Run) -> dict[str, Recommendation]:
    together = match_and_align(run)
    return {each.id: each for each in by_rules(run, analyze(run, together), together)}


@pytest.mark.parametrize(
    ("run", "name", "words"),
    [
        (
            job(computes=MORE), "long_steps",
            "it computes for 1.5 ms more on rank 0, where that is most, in the same 4 kernels: all but the optimizer's "
            "take 3.00 times as long, those 1.00 times: more to compute, as with a longer batch or longer sequences",
        ),
        (job(sends=MORE), "exposed_communication", "1.5 ms more are exposed communication on rank 0"),
        (job(idles=MORE), "idle_device", "the device is idle for 1.5 ms more on rank 0"),
    ],
    ids=["compute", "communication", "idle time"],
)  # fmt: skip
def test_a_step_that_costs_most_is_named_by_what_is_more_in_it(run: Run, name: str, words: str) -> None:
    found = named(run)
    assert found[name].title.startswith(f"Largest loss: step {LONG} takes 1.5 ms longer than the others: {words}")
    assert (found[name].gain_high_ns, found[name].per, found[name].bound_from) == (MORE * US, "recording", "loss")
    assert next(iter(found)) == name, "it stands first"
    assert sum("longer than the others" in each.title for each in found.values()) == 1


def test_one_call_that_takes_most_of_it_is_named_with_those_who_may_have_been_late() -> None:
    run = job(sends=MORE)
    found = named(replace(run, ranks={0: run.ranks[0]}))["exposed_communication"]
    assert found.title.endswith(
        "one all_reduce of 1 MiB takes 1.59 ms, its like 0.09 ms: one of rank 1 (not recorded) was late to it, or the "
        "network stalled"
    )
    assert "explain one_long_call" in found.apply["look"]


def test_one_call_is_named_only_in_the_step_and_on_the_rank_that_take_longer() -> None:
    run = job(sends=MORE)
    run = replace(run, ranks={0: run.ranks[0]})
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    (call,) = (each.evidence for each in given.analysis.findings if each.id.startswith("one_long_call"))
    assert (call["rank"], call["step"]) == (0, LONG)
    for where, said in (((0, LONG), True), ((1, LONG), False), ((0, LONG + 1), False)):
        assert ("one all_reduce" in _of_calls(given, MORE * US, {where})[0]) is said
    unknown = replace(given, run=replace(run, world_size=None))
    assert "another rank, perhaps one that was not recorded, was late" in _of_calls(unknown, MORE * US, {(0, LONG)})[0]


@pytest.mark.parametrize(
    ("more_us", "words"),
    [
        ((1500, 600), "they compute for 2.1 ms more, most of it in step 3 on rank 0"),
        ((1500, 1600, 1100), "they compute for 4.2 ms more, the largest part in step 4 on rank 1"),
    ],
)
def test_of_several_steps_the_one_is_named_where_most_is_more(more_us: Sequence[int], words: str) -> None:
    """By hand: 1.5 of 2.1 ms; 1.6 of 4.2 ms."""
    run = job()
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    each = [_More(rank=at % 2, step=LONG + at, ns={"compute_ns": us * US}) for at, us in enumerate(more_us)]
    most = max(each, key=lambda more: more.ns["compute_ns"])
    assert _of_part(given, "compute_ns", most, each)[0] == words


def test_a_step_that_only_waits_for_a_long_one_is_none_of_those_that_take_longer() -> None:
    costly = WithoutOutliers(outliers=[3, 4, 8], step_ns=1, exposed_comm_ns=0, longer_of={8: 600 * US, 3: 1500 * US})
    assert take_longer(costly) == "steps 3, 8 take together 2.1 ms longer than the others"
    alone = replace(costly, outliers=[3, 4], longer_of={3: 1500 * US})
    assert take_longer(alone) == "step 3 takes 1.5 ms longer than the others"


def test_a_step_that_does_other_work_is_no_loss() -> None:
    run = job(computes=MORE, kernels=5)
    assert not any("longer than the others" in each.title for each in named(run).values())
    analysis = analyze(run)
    assert costly_outliers(analysis, 0) is None
    without = replace(analysis, findings=[each for each in analysis.findings if not each.id.startswith("odd_step")])
    assert costly_outliers(without, 0) is not None


@pytest.mark.parametrize(
    ("step", "idle_us", "said"), [(3, 750, True), (3, 749, False), (5, 750, True), (6, 750, False)]
)
def test_steps_that_are_longer_for_pauses_that_are_named_are_one_loss_with_them(
    step: int, idle_us: int, said: bool
) -> None:
    costly = WithoutOutliers(outliers=[3, 4], step_ns=1, exposed_comm_ns=0, longer_of={3: 1400 * US, 4: 100 * US})
    pauses = {"steps": [step], "steps_idle_ns": [idle_us * US], "pauses": []}
    assert are_of_named([one("host_pauses", evidence=pauses)], costly) is said
    before = {"before_any_call": True, "pauses": [{"step": 3, "rank": 0}]}
    assert not are_of_named([one("host_pauses", evidence=before), one("launch_bound")], costly)


@pytest.mark.parametrize(("step", "idle_us", "said"), [(3, 750, True), (3, 749, False), (4, 750, False)])
def test_steps_that_are_longer_for_a_loss_whose_mean_holds_them_are_one_loss_with_it(
    step: int, idle_us: int, said: bool
) -> None:
    costly = WithoutOutliers(outliers=[3, 4], step_ns=1, exposed_comm_ns=0, longer_of={3: 1500 * US})
    counted = {"steps": [1, step], "steps_idle_ns": [5000 * US, idle_us * US]}
    assert are_of_named([one("data_loading", evidence=counted)], costly) is said
    assert not are_of_named([one("data_loading", evidence={"data_loading_ns": 1})], costly)

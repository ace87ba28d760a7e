"""Losses of few steps, which a median hides, and of one rank, which a mean does, are named with steps and rank."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.blocked_host import _lost
from overlapscope.advice.losses.host_time import LEAST_IDLE, HostTime, RankLoss, in_the_mean, most_by_number
from overlapscope.advice.losses.named_cause import _beside
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.hosts.host_pauses import STEPS_IDLE_NS
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def stalling(steps: Sequence[int]) -> Run:
    """Return ranks that wait for 600 us for a batch in some steps."""

    def step(number: int) -> list[Item]:
        until = 800 if number in steps else 201
        return [
            Kernel(start=0, end=200), Range(name=LOADER, start=190, end=until),
            Kernel(start=until, end=999, launch=until - 0.5), Sent(start=100, end=150),
        ]  # fmt: skip

    return made(step)


def test_a_loader_that_stalls_in_few_steps_is_named_with_their_number_and_the_mean() -> None:
    loading = fired(stalling((2, 4)))["data_loading"]
    assert "the device waits 0.6 ms in 2 of 6 steps, 0.201 ms a step in the mean, while a batch" in loading.title
    assert loading.loss_ns == pytest.approx(200 * US, rel=0.01)
    assert "data_loading" not in fired(stalling((0,))), "workers begin in the first one"


def lost(
    own: Mapping[int, Sequence[int]], numbers: Mapping[int, Sequence[int]] | None = None
) -> tuple[int, str, str] | None:
    """Return what is said of losses in us by rank and step, of steps of 1,000 us with these numbers, else from 0."""
    run = stalling(())
    together = match_and_align(run)
    of_ranks = {rank: tuple((numbers or {}).get(rank, range(len(each)))) for rank, each in own.items()}
    given = replace(RuleInput.of(run, analyze(run, together), together), numbers=of_ranks)
    found = in_the_mean(given, {rank: np.array(each) * US for rank, each in own.items()}, LEAST_IDLE)
    return None if found is None else (found.ns // US, found.words, found.of)


def test_the_rank_that_loses_far_more_than_the_mean_of_all_is_named() -> None:
    words = "0.3 ms in each step, 0.3 ms a step in the mean"
    assert lost({0: [0] * 6, **{rank: [0] * 6 for rank in range(2, 10)}, 1: [300] * 6}) == (300, words, " of rank 1")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([0, 0, 468, 230, 0, 0], "0.23 ms to 0.468 ms in 2 of 6 steps, 0.116 ms a step in the mean"),
        ([0, 0, 468, 230, 5, 4], "0.23 ms to 0.468 ms in 2 of 6 steps, 0.118 ms a step in the mean"),
        ([0, 0, 468, 400, 0, 0], "0.434 ms in 2 of 6 steps, 0.145 ms a step in the mean"),
        ([0, *[100] * 19], "0.1 ms in 19 of 20 steps, 0.095 ms a step in the mean"),
    ],
    ids=["one half as long", "and noise", "alike", "many alike"],
)
def test_steps_that_have_nearly_all_of_a_loss_are_counted_with_their_range(own: Sequence[int], words: str) -> None:
    assert lost({1: own}) == (sum(own) // len(own), words, "")


def test_of_ranks_that_lose_in_turn_each_step_counts_that_which_loses_most() -> None:
    words = "0.3 ms in 2 of 6 steps, 0.1 ms a step in the mean"
    assert lost({0: [0, 300, 0, 0, 0, 0], 1: [0, 0, 300, 0, 0, 0]}) == (100, words, "")
    assert lost({0: [0, 100, 0, 0, 0, 0], 1: [0, 0, 100, 0, 0, 0]}) is None


def test_ranks_that_recorded_other_steps_are_compared_by_the_number_of_a_step() -> None:
    words = "0.3 ms in 2 of 7 steps, 0.0857 ms a step in the mean"
    later = {0: range(6), 1: range(1, 7)}
    assert lost({0: [0, 0, 300, 0, 300, 0], 1: [0, 300, 0, 300, 0, 0]}, later) == (85, words, "")
    words = "0.6 ms in 1 of 7 steps, 0.0857 ms a step in the mean"
    assert lost({0: [0, 600, 0, 0, 0, 0], 1: [600, 0, 0, 0, 0, 0]}, later) == (85, words, ""), "not the first"


def test_each_step_counts_by_the_rank_that_loses_most_in_it_whatever_steps_ranks_recorded() -> None:
    run = stalling(())
    together = match_and_align(run)
    given = replace(RuleInput.of(run, analyze(run, together), together), numbers={0: (3, 4, 5), 1: (4, 5), 2: ()})
    lost_us = {0: [100, 0, 300], 1: [200, 100], 2: []}
    found = most_by_number(given, {rank: np.array(each, np.int64) for rank, each in lost_us.items()})
    assert found.tolist() == [100, 200, 300]
    assert not most_by_number(given, {2: np.array([], np.int64)}).size


@pytest.mark.parametrize(("steps", "said"), [([2], False), ([1, 2, 4], True)])
def test_pauses_are_named_beside_a_loss_only_where_they_are_in_its_steps(steps: Sequence[int], *, said: bool) -> None:
    """The loss is the median of 6 steps: one of them is not in it."""
    evidence = {"ranks": [0], "steps": steps, "of_steps": 6}
    pauses = Finding(id="host_pauses", severity="warning", title="", evidence=evidence, known_from="trace")
    analysis = analyze(stalling(()))
    analysis.findings.append(pauses)
    assert ("as the host of rank 0 pauses" in _beside(analysis, "unknown")) == said


def late_in(stalls: Mapping[int, int], op: str = "all_reduce") -> Run:
    """Return ranks of which a batch comes so many us late in some steps."""

    def step(number: int) -> list[Item]:
        until = 200 + stalls.get(number, 1)
        return [
            Kernel(start=0, end=200), Range(name=LOADER, start=190, end=until),
            Kernel(start=until, end=999, launch=until - 0.5), Sent(start=100, end=150, op=op),
        ]  # fmt: skip

    return made(step)


def test_a_step_whose_batch_comes_far_later_counts_in_the_mean_of_the_loaders_loss() -> None:
    """By hand: five times 120 us and once 720, of which the median says 120, and the mean 220."""
    loading = fired(late_in({**dict.fromkeys(range(6), 120), 3: 720}))["data_loading"]
    assert loading.loss_ns == pytest.approx(220 * US, rel=0.01)
    assert "the device waits 0.12 ms to 0.72 ms in each step, 0.22 ms a step in the mean, while" in loading.title
    in_steps = dict(zip(loading.evidence["steps"], loading.evidence[STEPS_IDLE_NS], strict=True))
    assert in_steps[3] == pytest.approx(720 * US, rel=0.01)
    alike = fired(late_in({**dict.fromkeys(range(6), 120), 3: 180}))["data_loading"]
    assert "the device waits 0.12 ms of a 1 ms step while" in alike.title
    assert STEPS_IDLE_NS not in alike.evidence, "a median holds no long step"


def test_ranks_that_no_call_joins_lose_what_each_does_in_the_mean_of_all() -> None:
    """As with messages to ranks that were not recorded: 350 and 700 us on one rank, 500 on the other, 1 in all others:
    nobody is known to wait for these."""
    one, other = late_in({0: 350, 1: 700}, "send"), late_in({4: 500}, "send")
    run = replace(one, world_size=4, ranks={0: one.ranks[0], 1: other.ranks[1]})
    loading = fired(run)["data_loading"]
    assert "0.35 ms to 0.7 ms in 3 of 12 steps of ranks 0, 1, 0.13 ms a step in the mean" in loading.title
    assert loading.loss_ns == pytest.approx((350 + 700 + 500 + 9) / 12 * US, rel=0.01)


def test_long_steps_of_waits_which_usual_ones_leave_out_count_in_the_mean() -> None:
    run = stalling(())
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)

    def loss(long_us: int) -> RankLoss | None:
        own = np.array([130, 130, 130, long_us, 130, 130]) * US
        time = HostTime(
            ns=130 * US, by_kind={}, by_call={}, after_ns=0, by_window={0: own, 1: own}, waits=(), awaited={},
            shown_by=None,
        )  # fmt: skip
        return _lost(given, time)

    found = loss(3130)
    assert found is not None
    assert (found.ns, found.in_steps[3]) == (630 * US, 3130 * US)
    assert loss(430) == RankLoss(ns=130 * US, words="0.13 ms of a 1 ms step", of="")

"""Losses of few steps, which a median hides, and of one rank, which a mean does, are named with steps and rank."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.host_time import LEAST_IDLE, in_the_mean, most_by_number
from overlapscope.advice.losses.named_cause import _beside
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
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

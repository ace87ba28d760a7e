"""Since which step a device takes longer than its peers, or in which one alone."""

from collections.abc import Sequence

import pytest

from overlapscope.analysis.stragglers.onset import onset
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import rank_timeline

US = 1_000
CALLS_US = (480, *(80,) * 14)
"""The calls of one kernel in a step: a long one, then short ones, each far below their mean of 107 us."""


def device(rank: int, times: Sequence[float]) -> RankTimeline:
    """Return a device that takes so many times as long in each step."""
    work, now = [], 0
    for step, each in enumerate(times):
        for call_us in CALLS_US:
            end = now + round(each * call_us * US)
            work.append({"name": "gemm", "start_ns": now, "end_ns": end, "launch_ns": now, "step": step})
            now = end
    return rank_timeline(rank, work=work, recordings=[{"start_ns": 0, "end_ns": now}])


def run(*times: float) -> Run:
    return Run(world_size=2, ranks={0: device(0, [1.0] * len(times)), 1: device(1, times)})


def test_one_slow_step_at_the_end_is_that_step_alone_and_nothing_since_the_one_before() -> None:
    """The short calls that end step 2 are below their kernel's mean: by single kernels the change lies there."""
    assert onset(1, [0], run(1, 1, 1, 2.2)) == {
        "only_step": 3, "only_step_is_last": True, "times_in_only_step": pytest.approx(2.2),
    }  # fmt: skip


def test_one_slow_step_between_others_is_alone_too() -> None:
    assert onset(1, [0], run(1, 2.2, 1, 1)) == {
        "only_step": 1, "only_step_is_last": False, "times_in_only_step": pytest.approx(2.2),
    }  # fmt: skip


def test_two_slow_steps_at_the_end_are_since_the_first_of_them() -> None:
    assert onset(1, [0], run(1, 1, 2, 2.2)) == {"since_step": 2, "times_since": pytest.approx(2.1)}


@pytest.mark.parametrize("times", [(2.0, 2.0, 2.0, 2.0), (1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 1.0, 2.0), (1.0, 2.2)])
def test_where_it_always_takes_longer_or_never_or_by_turns_or_steps_are_too_few_nothing_is_said(
    times: tuple[float, ...],
) -> None:
    assert onset(1, [0], run(*times)) == {}

"""A rank that others wait for because its host pauses, or fetches a batch, is named once: by what its host does, unless
it is a straggler."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import _is_of_pauses, by_rules
from overlapscope.advice.late_rank import is_of_host_loss
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.timeline.intervals import Intervals
from overlapscope.timeline.run import Run
from tests.support.builders import EPOCH_NS
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_loss_in_the_mean import trial


@pytest.mark.parametrize(
    ("held_by", "rank", "told"),
    [
        pytest.param(None, 2, True, id="its host pauses"),
        pytest.param(None, 1, False, id="another one's does"),
        pytest.param("host", 2, False, id="a straggler"),
    ],
)
def test_waiting_for_a_host_that_pauses_is_a_loss_of_its_pauses(held_by: str | None, rank: int, *, told: bool) -> None:
    late = trial("late_rank", evidence={"held_by": held_by, "rank": rank})
    pauses = trial("host_pauses", evidence={"ranks": [0, 2]})
    assert _is_of_pauses(late, {"host_pauses": pauses}) == told
    assert not _is_of_pauses(late, {})


def stalling(loads: Sequence[float]) -> Run:
    """Return two ranks; rank 1 waits for a batch for so many us in steps, each before its first kernel and the call."""
    until = [100.0 + us for us in loads]

    def prompt(number: int) -> list[Item]:
        return [
            Kernel(start=0, end=100), Sent(start=101, end=until[number] + 40, launch=90),
            Kernel(start=until[number] + 40, end=995, launch=91),
        ]  # fmt: skip

    def late(number: int) -> list[Item]:
        return [
            Kernel(start=0, end=100), Range(name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                                            start=95, end=until[number]),
            Sent(start=until[number] + 1, end=until[number] + 40, launch=until[number]),
            Kernel(start=until[number] + 40, end=995, launch=until[number]),
        ]  # fmt: skip

    return replace(made(prompt), ranks={0: made(prompt).ranks[0], 1: made(late).ranks[1]})


def test_ranks_that_wait_for_one_that_waits_for_its_batches_are_not_named_beside_these() -> None:
    run = stalling([0, 0, 600, 300, 0, 0])
    together = match_and_align(run)
    found = {each.id: each for each in by_rules(run, analyze(run, together), together)}
    assert "of rank 1 waits 0.3 ms to 0.6 ms in 2 of 6 steps" in found["data_loading"].title
    assert "late_rank" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "held_by", "lost_us", "others_us", "found", "told"),
    [
        pytest.param(1, None, 900, 0, "data_loading", True, id="its host fetches"),
        pytest.param(1, None, 600, 0, "data_loading", False, id="for less than others wait for it"),
        pytest.param(1, None, 900, 900, "data_loading", False, id="as all hosts do"),
        pytest.param(0, None, 900, 0, "data_loading", False, id="another one's host does"),
        pytest.param(1, "data_loading", 900, 0, "data_loading", False, id="a straggler"),
        pytest.param(1, None, 900, 0, "blocking_calls", False, id="and nothing names it"),
    ],
)
def test_waiting_for_a_host_is_a_loss_of_that_host_where_it_is_as_long(
    rank: int, held_by: str | None, lost_us: int, others_us: int, found: str, *, told: bool
) -> None:
    run = stalling([0, 0, 600, 300, 0, 0])
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    lost = {
        each: (HostLoss(kind="data_loading", longest=(0, us), when=Intervals(np.array([EPOCH_NS]),
                                                                            np.array([EPOCH_NS + us * US]))),)
        for each, us in ((0, others_us), (1, lost_us))
    }  # fmt: skip
    late = trial("late_rank", evidence={"held_by": held_by, "rank": rank})
    assert is_of_host_loss(late, {found}, replace(given, host_losses=lost)) == told

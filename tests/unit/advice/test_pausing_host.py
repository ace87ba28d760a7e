"""Pauses of a training thread at one place of each step are named; those that a scheduler makes are not."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.hosts import pausing_host
from overlapscope.advice.order import ranked
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import FUNCTION, NONE, HostSpans, concat, make, take
from tests.support.cpu_runs.cpu_steps import US, Call, Item, Mark, Op, cpu_run
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_host_copies import BACKWARD, FORWARD

TRAINED: tuple[Item, ...] = (*FORWARD, *BACKWARD, Call(start=701, end=720))
LAST = Op("aten::add_", 985, 1000)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of these runs are 1 ms."""
    monkeypatch.setattr(pausing_host, "LONG_NS", 120 * US)


def found(step: Callable[[int, int], Sequence[Item]]) -> Recommendation | None:
    return fired(cpu_run(step)).get("pausing_host")


def paused(length: float, *, more: Sequence[Item] = ()) -> list[Item]:
    """Nothing for so long after 720, then operations until 985."""
    return [*TRAINED, Op("aten::mul", 720 + length, 985), *more, LAST]


def test_a_pause_of_one_rank_in_each_step_is_named_with_its_length_and_who_waits() -> None:
    said = found(lambda step, rank: paused(200 if rank == 0 else 2))
    assert said
    assert said.loss_ns == 200 * US
    assert said.evidence["ranks"] == [0]
    assert "the training thread of rank 0 computes nothing for 0.2 ms of a 1 ms step" in said.title
    assert said.title.endswith("equally long each time")
    assert said.shown_by
    assert said.shown_by.end_ns - said.shown_by.start_ns == 200 * US


def test_a_pause_of_all_ranks_at_the_end_of_the_step_has_its_place_however_long_it_is() -> None:
    said = found(lambda step, rank: [*TRAINED, Op("aten::mul", 720, 700 + 30 * step)])
    assert said
    assert said.evidence["ranks"] == [0, 1]
    assert said.title.endswith("each time at the end of the step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "remedy"),
    [("<built-in function sleep>", "py-spy dump"), ("torch/serialization.py(850): save", "async_save")],
)
def test_the_function_in_which_it_pauses_is_named_where_stacks_were_read(function: str, remedy: str) -> None:
    run = cpu_run(lambda step, rank: paused(200 if rank == 0 else 2))
    own = run.ranks[0]
    begins = own.steps.start_ns
    names = (*own.names, "train.py(3): loop", function)
    code = len(own.names)
    stacks = [
        make(HostSpans, begins.size, lane=2, kind=FUNCTION, name=name, correlation=NONE, start_ns=begins + first * US,
             end_ns=begins + last * US)
        for name, first, last in ((code, 0, 1000), (code + 1, 730, 900))
    ]  # fmt: skip
    host = concat([own.host, *stacks])
    host = take(host, np.lexsort((-host.end_ns, host.start_ns, host.lane)))
    with_stacks = replace(run, ranks={**run.ranks, 0: replace(own, host=host, names=names)})
    found = fired(with_stacks)["pausing_host"]
    assert found.title.endswith(f": it is in {function}")
    assert remedy in str(found.apply)
    assert "it is in" not in fired(run)["pausing_host"].title


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda step, rank: paused(80), id="short"),
        pytest.param(lambda step, rank: paused((130, 250)[step % 2]), id="of many lengths, at no place"),
        pytest.param(lambda step, rank: paused(200 if step % 2 else 2), id="in half of the steps"),
        pytest.param(
            lambda step, rank: [*FORWARD, Op("aten::mm", 430, 700), Op("aten::mul", 830, 985), LAST],
            id="two alike",
        ),
    ],
)
def test_what_a_scheduler_may_make_is_not(step: Callable[[int, int], Sequence[Item]]) -> None:
    assert found(step) is None


def test_loading_that_was_recorded_is_named_instead() -> None:
    loading = Mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 721, 919)
    given_advice = fired(cpu_run(lambda step, rank: paused(200, more=(loading,))))
    assert "data_loading" in given_advice
    assert "pausing_host" not in given_advice


def test_a_pause_that_is_longer_than_loading_is_named() -> None:
    loading = Mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 99)
    step = [loading, Op("aten::linear", 100, 300), *BACKWARD, Call(start=701, end=720), Op("aten::mul", 720, 780)]
    said = found(lambda number, rank: step)
    assert said
    assert said.loss_ns == 220 * US


@pytest.mark.slow
def test_many_ranks_that_pause_are_all_named() -> None:
    run = cpu_run(lambda step, rank: [*TRAINED, Op("aten::mul", 720, 780)], ranks=12)
    assert fired(run)["pausing_host"].evidence["ranks"] == list(range(12))
    run = cpu_run(lambda step, rank: paused(200) if rank == 9 else paused(2)[:-1], ranks=12)
    assert fired(run)["pausing_host"].evidence["ranks"] == [9]


def test_a_pause_beside_the_critical_path_costs_nothing() -> None:
    """While rank 1 pauses rank 0 computes, and ends its step last."""
    run = cpu_run(lambda step, rank: paused(2) if rank == 0 else paused(200)[:-1])
    assert "pausing_host" not in fired(run)
    alone = fired(replace(run, ranks={0: replace(run.ranks[1], rank=0)}, world_size=1, groups=()))
    assert alone["pausing_host"].evidence["ranks"] == [0]


def test_a_pause_that_is_longer_than_the_wait_for_cores_comes_before_them() -> None:
    said = found(lambda step, rank: paused(200))
    assert said
    late = replace(said, id="late_rank", loss_ns=300 * US)

    def cores(loss_ns: int, per: Literal["step", "recording"] = "step") -> Recommendation:
        evidence = {"shares": {"0": 0.5}, "cores": 1, "ranks": [0, 1]}
        return replace(said, id="shared_cores", verdict="change", per=per, loss_ns=loss_ns, evidence=evidence)

    def order(*every: Recommendation) -> list[str]:
        return [each.id for each in ranked(every, steps=100)]

    assert order(cores(100 * US), late, said) == ["pausing_host", "shared_cores", "late_rank"]
    assert order(cores(300 * US), late, said) == ["shared_cores", "late_rank", "pausing_host"]
    assert order(cores(1_000 * US, "recording"), late, said)[0] == "pausing_host", "10 us a step"


def test_the_rank_whose_loading_the_others_wait_for_is_named_and_the_bound_is_its() -> None:
    """Rank 0 loads for 100 us of a step, rank 1 for 400."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    run = cpu_run(
        lambda step, rank: [
            Mark(name, 1, 99 + 300 * rank), Op("aten::linear", 100 + 300 * rank, 500), *BACKWARD[1:],
            Call(start=701, end=720), Op("aten::mul", 720, 990),
        ]
    )  # fmt: skip
    loading = fired(run)["data_loading"]
    assert loading.gain_high_ns == loading.loss_ns == 398 * US
    assert "on the training thread of rank 1 while it fetches a batch" in loading.title
    turns = cpu_run(
        lambda step, rank: [
            Mark(name, 1, 99 + 300 * ((step + rank) % 2)), Op("aten::linear", 100 + 300 * ((step + rank) % 2), 500),
            *BACKWARD[1:], Call(start=701, end=720), Op("aten::mul", 720, 990),
        ]
    )  # fmt: skip
    loading = fired(turns)["data_loading"]
    assert loading.gain_high_ns == 398 * US, "in each step another rank"
    assert "thread while it fetches" in loading.title

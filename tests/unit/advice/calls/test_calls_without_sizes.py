"""All-reduces of unknown size are told apart by type, number and duration: one of all gradients, or those of layers."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.calls import calls_without_sizes
from overlapscope.advice.calls.calls_without_sizes import all_gradients_at_once, layers_over_ranks
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_exposed_calls import looked_at

UNSIZED: Mapping[str, int] = {"size_bytes": NONE, "elements": NONE}
OPTIMIZER = Range(name="Optimizer.step#AdamW.step", start=60, end=70)
FIRST = 4
"""Calls of each pass."""


@pytest.fixture(autouse=True)
def in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_without_sizes, "LONG_NS", 100 * US)
    monkeypatch.setattr(calls_without_sizes, "LARGE_NS", 10 * US)


def job(*more: Item, of_gradients: Sequence[float] = (700, 900), backward: int = FIRST, longer_us: float = 0) -> Run:
    """Return a job that makes calls of 20 us in bfloat16 in forward, from 40 us on, and in backward, from 340 us on,
    and a float32 one of gradients; then an optimizer that computes for 50 us."""

    def step(number: int) -> list[Item]:
        layers = [40 + 70 * at for at in range(FIRST)], [340 + 70 * at for at in range(backward)]
        calls = [
            Sent(start=at, end=at + 20 + longer_us * number, launch=10, phase=phase, group="bfloat16", **UNSIZED)
            for phase, begins in zip((None, "backward"), layers, strict=True)
            for at in begins
        ]
        begin, end = of_gradients
        last = Sent(start=begin, end=end, launch=40, phase="backward", group="float32", **UNSIZED)
        edges = [0.0, *(edge for each in calls for edge in (each.start, each.end)), 700.0]
        compute = [Kernel(start=at, end=until, launch=5) for at, until in zip(edges[::2], edges[1::2], strict=True)]
        return [OPTIMIZER, *compute, *calls, last, Kernel(start=940, end=990, launch=65), *more]

    return made(step)


def typed(run: Run) -> Run:
    """Return a run whose calls are of the type that their group is named after, in a group without a name."""
    return replace(run, ranks={rank: _typed(each) for rank, each in run.ranks.items()}, groups=())


def _typed(timeline: RankTimeline) -> RankTimeline:
    calls = timeline.collectives
    return replace(
        timeline,
        collectives=replace(calls, dtype=calls.group.astype(calls.dtype.dtype), group=np.full_like(calls.group, -1)),
    )


def advised(run: Run) -> dict[str, Recommendation]:
    return fired(typed(run))


def test_one_reduction_a_step_behind_backward_is_to_be_split() -> None:
    found = advised(job())["split_all_reduce"]
    assert found.title.startswith(
        "Split all-reduces that hold all gradients: one begins only when all that it sends is"
    )
    assert found.gain_high_ns == 200 * US
    assert "most_bytes" not in found.evidence
    assert calls_of_types(all_gradients_at_once, job()) == {("float32", "backward")}


def test_as_many_calls_of_one_duration_in_both_passes_are_those_of_layers() -> None:
    found = advised(job())["tensor_parallel"]
    assert found.title.startswith("Overlap all-reduces of one duration in forward and backward (tensor parallelism?): ")
    assert found.evidence["exposed_ns"] == 2 * FIRST * 20 * US
    assert calls_of_types(layers_over_ranks, job()) == {("bfloat16", None), ("bfloat16", "backward")}


def calls_of_types(of: object, run: Run) -> set[tuple[str | None, str | None]]:
    return {(row.dtype, row.phase) for row in of(looked_at(typed(run)))}  # type: ignore[operator]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(job(of_gradients=(600, 900)), id="beside compute"),
        pytest.param(job(of_gradients=(750, 800)), id="short"),
        pytest.param(job(Kernel(start=900, end=940, launch=41)), id="backward goes on behind it"),
        pytest.param(
            job(Sent(start=701, end=702, launch=40, phase="backward", group="float32", **UNSIZED)), id="not alone"
        ),
    ],
)
def test_others_are_not_the_one_of_all_gradients(run: Run) -> None:
    assert not calls_of_types(all_gradients_at_once, run)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(job(backward=FIRST + 1), id="more in backward: gradients"),
        pytest.param(job(longer_us=4), id="of several durations: some wait"),
    ],
)
def test_others_are_not_those_of_layers(run: Run) -> None:
    assert not calls_of_types(layers_over_ranks, run)

"""Broadcasts of the same sizes in each step are named; those of some steps, of little or of ZeRO are not."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.build.host_ranges import DDP_BUFFERS
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import STEPS, Call, Mark, Op, cpu_run

ELEMENTS = 20_000
Dimensions = tuple[str | None, str | None]


def run(elements: Callable[[int], int | None], mark: Mark | None = None, dimensions: Dimensions = (None, None)) -> Run:
    """Return two ranks that broadcast so many elements of 4 bytes at the end of each step, twice, in groups of these
    dimensions, and compute before."""

    def step(number: int, _: int) -> list[Op | Call]:
        sent = elements(number)
        calls = [] if sent is None else [
            Call(start=start, end=start + 100, op="broadcast", called_by="c10d::broadcast_", elements=sent,
                 dimension=dimension)
            for start, dimension in zip((600, 720), dimensions, strict=True)
        ]  # fmt: skip
        return [Op("aten::mm", 10, 590), *calls, *([mark] if mark else [])]

    return cpu_run(step)


def advised(job: Run) -> Recommendation | None:
    found = {each.id: each for each in analyze_with_advice(job).recommendations}
    return found.get("repeated_broadcasts")


def test_the_same_broadcasts_in_each_step_are_named_with_their_size_and_what_they_expose() -> None:
    found = advised(run(lambda _: ELEMENTS))
    assert found is not None
    assert found.title == (
        "Broadcast less: each step broadcasts tensors of the same sizes, 0.2 MB in 2 calls, and 0.2 ms of a 1 ms "
        "step are exposed for it; what all ranks update alike need not be sent; what one rank alone changes must be"
    )
    assert (found.gain_low_ns, found.gain_high_ns) == (0, 200_000)


def test_those_of_ddps_buffers_are_said_to_be_such() -> None:
    job = run(lambda _: ELEMENTS)
    ranks = {}
    for rank, each in job.ranks.items():
        module = each.collectives.module.copy()
        module[:] = len(each.names)
        ranks[rank] = replace(
            each, names=(*each.names, DDP_BUFFERS), collectives=replace(each.collectives, module=module)
        )
    found = advised(replace(job, ranks=ranks))
    assert found is not None
    assert found.title.startswith("Broadcast less: DDP broadcasts its buffers, 0.2 MB in 2 calls")
    assert "broadcast_buffers=False" in found.apply["ddp"]


@pytest.mark.parametrize(
    ("elements", "named"),
    [
        pytest.param(lambda step: ELEMENTS if step else 10 * ELEMENTS, True, id="more of it in the first step"),
        pytest.param(lambda step: ELEMENTS if step % 2 else None, False, id="in every other step"),
        pytest.param(lambda step: ELEMENTS + step, False, id="of other sizes in each"),
        pytest.param(lambda _: 8191, False, id="less than 64 KiB"),
        pytest.param(lambda _: 8192, True, id="64 KiB"),
        pytest.param(lambda _: NONE, False, id="of unknown sizes"),
    ],
)
def test_what_differs_or_is_little_is_not_named(elements: Callable[[int], int | None], *, named: bool) -> None:
    assert STEPS == 6
    assert (advised(run(elements)) is not None) == named


def test_an_optimizer_that_updates_parts_sends_them() -> None:
    mark = Mark("Optimizer.step#ZeroRedundancyOptimizer.step", 830, 900)
    assert advised(run(lambda _: ELEMENTS, mark)) is None


@pytest.mark.parametrize("dimensions", [("data", None), ("data", "data")])
def test_broadcasts_of_data_parallel_groups_count(dimensions: Dimensions) -> None:
    found = advised(run(lambda _: ELEMENTS, dimensions=dimensions))
    assert found is not None
    assert (found.evidence["calls"], found.evidence["bytes"]) == (2, 2 * 4 * ELEMENTS)


@pytest.mark.parametrize("dimension", ["tensor", "pipeline", "expert", "context"])
def test_broadcasts_of_groups_that_divide_a_model_do_not(dimension: str) -> None:
    assert advised(run(lambda _: ELEMENTS, dimensions=(dimension, dimension))) is None
    found = advised(run(lambda _: ELEMENTS, dimensions=(dimension, None)))
    assert found is not None
    assert (found.evidence["calls"], found.evidence["bytes"]) == (1, 4 * ELEMENTS)
    assert found.gain_high_ns == 100_000

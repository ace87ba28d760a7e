"""Broadcasts of the same sizes in each step are named; those of some steps or of little are not. Parameters are known
by as many elements that are reduced, or by their optimizer."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.calls import repeated_broadcasts
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.build.host_ranges import DDP_BUFFERS
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Group, Run
from tests.support.cpu_runs.cpu_steps import STEPS, Call, Mark, Op, cpu_run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made

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


def of_buffers(every: int) -> Run:
    """Return a job of which each first of so many broadcasts is one of DDP's buffers."""
    job = run(lambda _: ELEMENTS)
    ranks = {}
    for rank, each in job.ranks.items():
        module = each.collectives.module.copy()
        module[::every] = len(each.names)
        ranks[rank] = replace(
            each, names=(*each.names, DDP_BUFFERS), collectives=replace(each.collectives, module=module)
        )
    return replace(job, ranks=ranks)


def test_buffers_are_told_from_what_else_is_broadcast() -> None:
    found = advised(of_buffers(2))
    assert found is not None
    assert found.title.startswith("Broadcast less: each step broadcasts tensors of the same sizes, 0.1 MB in one call")


def test_those_of_ddps_buffers_are_said_to_be_such() -> None:
    found = advised(of_buffers(1))
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


def test_what_else_is_broadcast_beside_an_optimizer_that_updates_parts_is_not_named() -> None:
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


KIB, MIB = 1 << 10, 1 << 20
ZERO = "Optimizer.step#ZeroRedundancyOptimizer.step"


def updated(
    *, by: str = "all_reduce", calls: int = 2, reduced: int = 700 * MIB, sent: int = 700 * MIB, group: str = "g",
    phase: str | None = None, optimizer: str = "Optimizer.step#AdamW.step",
) -> Run:  # fmt: skip
    """Return a job on devices that reduces so many bytes beside backward from 150 us on, runs its optimizer, and then
    broadcasts so many, or of unknown size, for 200 us in so many calls, beside nothing."""
    took = 200 / calls
    size = NONE if sent == NONE else sent // calls

    def step(_: int) -> list[Item]:
        broadcasts = [
            Sent(start=600 + at * took, end=600 + (at + 1) * took, launch=110 + at / 100, op="broadcast",
                 size_bytes=size, group=group, phase=phase) for at in range(calls)
        ]  # fmt: skip
        return [
            Kernel(start=0, end=500), Sent(start=150, end=350, launch=100, op=by, size_bytes=reduced, phase="backward"),
            Range(name=optimizer, start=105, end=106), Kernel(start=500, end=600, launch=105.5), *broadcasts,
            Kernel(start=850, end=995, launch=200),
        ]  # fmt: skip

    return made(step)


def test_parameters_are_broadcast_in_vain_where_each_rank_has_all_gradients() -> None:
    found = advised(updated())
    assert found is not None
    assert found.title == (
        "Broadcast no parameters, or beside the next forward: all_reduce leaves all gradients on each rank, yet as "
        "many elements are broadcast in each step, 734.0 MB in 2 calls, and 0.2 ms of a 1 ms step are exposed for it; "
        "needed only where ranks do not all update all parameters alike (one rank alone, or a part each)"
    )
    assert found.gain_high_ns == 200 * US, "all that is broadcast"
    assert found.evidence["beside_forward_ns"] == 150 * US, "until the first reduction begins"
    assert "below 1 MiB" not in found.apply["torch"]
    assert found.assumed[0].startswith("that they are parameters")


def test_where_gradients_are_reduced_to_one_rank_all_are_to_have_them() -> None:
    found = advised(updated(by="reduce"))
    assert found is not None
    assert "reduce leaves each gradient on one rank, and as many elements are broadcast" in found.title
    assert found.apply["torch"].startswith("DistributedDataParallel(model)")


@pytest.mark.parametrize(
    ("at", "optimizer", "is_average"),
    [
        pytest.param(110, 105, True, id="both follow the optimizer"),
        pytest.param(102, 105, False, id="reduced before it"),
        pytest.param(110, 115, False, id="an optimizer between"),
    ],
)
def test_what_is_reduced_to_one_rank_and_sent_back_behind_the_optimizer_is_an_average(
    at: int, optimizer: int, *, is_average: bool
) -> None:
    def step(_: int) -> list[Item]:
        sizes = {"size_bytes": 350 * MIB}
        return [
            Range(name="Optimizer.step#SGD.step", start=optimizer, end=optimizer + 1),
            Kernel(start=0, end=500, launch=1),
            Sent(start=500, end=700, launch=at, op="reduce", **sizes),  # type: ignore[arg-type]
            Sent(start=700, end=800, launch=120, op="broadcast", **sizes),  # type: ignore[arg-type]
            Kernel(start=850, end=995, launch=200),
        ]

    found = advised(made(step))
    assert found is not None
    assert found.gain_high_ns == 100 * US, "the broadcast alone: all_reduce takes no less than reduce"
    assert found.title.startswith("Average parameters with all_reduce: ") == is_average
    assert found.apply["torch"].startswith("dist.all_reduce(") == is_average
    assert ("memory holds" in found.title) != is_average


def test_small_calls_are_to_be_flat() -> None:
    found = advised(updated(calls=8, reduced=512 * KIB, sent=512 * KIB))
    assert found is not None
    assert "# 8 of the calls are below 1 MiB" in found.apply["torch"]


@pytest.mark.parametrize(("sent", "phase"), [(700 * MIB, None), (300 * MIB, "optimizer"), (NONE, "optimizer")])
def test_a_named_optimizer_updates_parts_and_sends_them(
    sent: int, phase: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many elements are reduced, or the optimizer launches the calls."""
    monkeypatch.setattr(repeated_broadcasts, "LONG_NS", 200 * US)
    found = advised(updated(optimizer=ZERO, sent=sent, phase=phase))
    assert found is not None
    assert "each rank updates a part of the parameters, and broadcasts it" in found.title
    assert "one rank updates all" not in found.apply["torch"]
    assert found.gain_high_ns == 200 * US


@pytest.mark.parametrize(
    ("phase", "least_us", "is_named"),
    [("optimizer", 200, True), ("optimizer", 201, False), (None, 200, False)],
    ids=["long, by the optimizer", "short", "not by the optimizer"],
)
def test_broadcasts_of_unknown_size_are_those_of_an_optimizer_that_launches_them_if_they_last(
    phase: str | None, least_us: int, *, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_broadcasts, "LONG_NS", least_us * US)
    found = advised(updated(sent=NONE, phase=phase))
    assert (found is not None) == is_named
    if found is not None:
        assert "the optimizer broadcasts in each step, 2 calls of unknown size, and 0.2 ms of a 1 ms" in found.title
        assert found.evidence["bytes"] is None


@pytest.mark.parametrize("other", [{"sent": 680 * MIB}, {"by": "reduce_scatter"}, {"group": "h"}], ids=str)
def test_other_broadcasts_are_not_called_parameters(other: dict[str, object]) -> None:
    found = advised(updated(**other))  # type: ignore[arg-type]
    assert found is not None
    assert found.title.startswith("Broadcast less: each step broadcasts tensors of the same sizes")


def test_integers_are_no_parameters() -> None:
    job = updated()
    ranks = {}
    for rank, each in job.ranks.items():
        calls, names = each.collectives, (*each.names, "int32")
        sends = calls.op == names.index("broadcast")
        dtype = np.where(sends, len(names) - 1, calls.dtype).astype(calls.dtype.dtype)
        ranks[rank] = replace(each, names=names, collectives=replace(calls, dtype=dtype))
    found = advised(replace(job, ranks=ranks))
    assert found is not None
    assert found.title.startswith("Broadcast less: each step broadcasts tensors of the same sizes")


def test_another_group_of_the_same_ranks_sends_the_same_parameters() -> None:
    job = updated(group="h")
    found = advised(replace(job, groups=(*job.groups, Group(name="h", size=2, ranks=(0, 1)))))
    assert found is not None
    assert found.title.startswith("Broadcast no parameters")


def test_parameters_are_found_where_steps_have_no_marks() -> None:
    job = updated()
    ranks = {}
    for rank, each in job.ranks.items():
        calls, steps = each.collectives, each.steps
        none = {name: getattr(steps, name)[:0] for name in steps.__struct_fields__}
        ranks[rank] = replace(
            each,
            steps=replace(steps, **none),
            collectives=replace(calls, step=np.full(calls.step.size, NONE)),
        )
    found = advised(replace(job, ranks=ranks))
    assert found is not None
    assert found.title.startswith("Broadcast no parameters")
    assert (found.per, found.gain_high_ns) == ("recording", STEPS * 200 * US)

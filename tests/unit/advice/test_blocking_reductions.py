"""Collectives whose result only the host reads, at once: they are named; gradients, layers and late reads are not."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.losses.blocking_reductions import FEW
from overlapscope.analysis.result import Recommendation
from overlapscope.report.redact import redacted
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import STEPS, US, Beside, Call, Item, Mark, Op, cpu_run
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_host_copies import BACKWARD, FORWARD

STEP = Mark("Optimizer.step#AdamW.step", 702, 750)
TRAINED: tuple[Item, ...] = (*FORWARD, *BACKWARD, STEP)
CALL = Call(start=800, end=860)
DIVIDED = Op("aten::div", 862, 863)
ITEM = Op("aten::item", 864, 865)
MEAN = Op("aten::mean", 861, 862)
SHAPES = 147_456
BUFFERS = Call(start=2, end=5, op="broadcast", called_by="c10d::broadcast_", elements=64)


def found(*items: Item) -> Recommendation | None:
    return of(cpu_run(lambda step, rank: items))


def of(run: Run) -> Recommendation | None:
    return fired(run).get("blocking_reductions")


def test_a_number_that_is_reduced_and_read_at_once_is_named_with_the_exposed_time_of_its_call() -> None:
    said = found(*TRAINED, CALL, DIVIDED, ITEM)
    assert said
    assert said.verdict == "look"
    assert (said.gain_low_ns, said.gain_high_ns, said.loss_ns) == (0, 60 * US, 60 * US)
    assert said.evidence["calls"] == 1
    assert "0.06 ms of a 1 ms step are exposed in calls (all_reduce, 1 a step) whose result only the host" in said.title
    assert said.shown_by
    assert said.shown_by.end_ns - said.shown_by.start_ns == 60 * US
    assert "not the tensor" not in said.apply["torch"]
    hidden = redacted(analyze_with_advice(cpu_run(lambda step, rank: (*TRAINED, CALL, DIVIDED, ITEM))))
    assert said.evidence in [each.evidence for each in hidden.recommendations], "nothing in it names the job"


def test_a_tensor_of_which_a_number_is_made_is_named_and_the_number_should_be_reduced_instead() -> None:
    early = [moved(each, -790) for each in (Call(start=800, end=860, elements=SHAPES), MEAN, DIVIDED, ITEM)]
    said = found(*early, Op("aten::linear", 100, 300), *BACKWARD, STEP)
    assert said
    assert said.loss_ns == 60 * US
    assert "not the tensor" in said.apply["torch"]


def after_a_call(*names: str, elements: int = SHAPES) -> list[Item]:
    """Return a reduction of a tensor, these operations after it, one after the other, and the read of a number."""
    operations = [Op(f"aten::{name}", 861 + 2 * at, 862 + 2 * at) for at, name in enumerate((*names, "item"))]
    return [*TRAINED, Call(start=800, end=860, elements=elements), *operations]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("view", "mean"), id="of a view"),
        pytest.param(("mean", "div", "sqrt"), id="number made first"),
        pytest.param(("div_", "sum", "to"), id="a mean over ranks"),
        pytest.param(("detach", "mul_", "view", "linalg_vector_norm"), id="a mean over ranks, and views"),
    ],
)
@pytest.mark.parametrize("elements", [SHAPES, NONE])
def test_a_number_may_be_made_of_many_elements_at_once(names: Sequence[str], elements: int) -> None:
    assert found(*after_a_call(*names, elements=elements))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("div_", "mul", "sub_", "mean"), id="gradients, and SGD by hand"),
        pytest.param(("sub_", "mean"), id="an update at once"),
        pytest.param(("div_", "eq", "sum"), id="parameters, and an accuracy"),
        pytest.param(("div_", "mul_", "sum"), id="scaled twice"),
        pytest.param(("norm", "mul_", "sub_"), id="gradients clipped by their norm"),
        pytest.param(("div_",), id="read before a number is made"),
    ],
)
@pytest.mark.parametrize("elements", [SHAPES, FEW + 1, NONE])
def test_many_elements_with_which_a_model_is_changed_are_not_read_by_the_host_alone(
    names: Sequence[str], elements: int
) -> None:
    assert found(*after_a_call(*names, elements=elements)) is None


def test_a_number_may_be_made_of_few_elements_after_arithmetic() -> None:
    assert found(*after_a_call("div", "add_", "select", elements=FEW))
    assert found(*after_a_call("div", "add_", elements=FEW)) is None


def moved(each: Item, by: float) -> Item:
    """Return an item that begins and ends at other times, in us."""
    return replace(each, start=each.start + by, end=each.end + by)


@pytest.mark.slow
@pytest.mark.parametrize(
    "items",
    [
        pytest.param((*TRAINED, Call(start=800, end=810), DIVIDED, ITEM), id="too short"),
        pytest.param((*TRAINED, CALL, DIVIDED), id="not read"),
        pytest.param((*TRAINED, CALL, Op("aten::linear", 862, 863), ITEM), id="read after other work"),
        pytest.param((*TRAINED, CALL, Call(start=870, end=871), Op("aten::item", 880, 881)), id="read of another"),
        pytest.param((*TRAINED, CALL, Op("aten::mul", 802, 803), ITEM), id="not waited for"),
        pytest.param((*TRAINED, Call(start=800, end=860, elements=SHAPES), DIVIDED, ITEM), id="not one number"),
        pytest.param(
            (BUFFERS, *TRAINED, Call(start=800, end=860, op="all_gather", called_by="c10d::allgather_"), ITEM),
            id="no reduction",
        ),
        pytest.param((Op("aten::item", 1, 2), *TRAINED, CALL), id="read in another step"),
        pytest.param((*TRAINED, Call(start=800, end=860, group_size=1), ITEM), id="of some ranks"),
        pytest.param((*TRAINED, Call(start=800, end=860, dimension="tensor"), ITEM), id="tensor parallel"),
        pytest.param(
            (*TRAINED, Call(start=760, end=761, op="send", called_by="c10d::send", elements=SHAPES), Op("a", 762, 763),
             CALL, ITEM),
            id="pipeline",
        ),
        pytest.param(
            (Op("aten::linear", 10, 100), Call(start=101, end=110, elements=SHAPES), Op("aten::linear", 120, 300),
             *BACKWARD, STEP, CALL, ITEM),
            id="layers over ranks",
        ),
        pytest.param(
            (*FORWARD, *BACKWARD, Call(start=710, end=790, elements=SHAPES), Op("aten::div_", 791, 792), CALL,
             Op("aten::div_", 861, 862), ITEM),
            id="the last of gradients reduced one by one",
        ),
        pytest.param((*FORWARD, *BACKWARD, Mark("Optimizer.step#AdamW.step", 702, 990), CALL, ITEM), id="optimizer"),
    ],
)  # fmt: skip
def test_what_is_not_read_by_the_host_alone_is_not_named(items: Sequence[Item]) -> None:
    assert found(*items) is None


def test_several_numbers_may_be_reduced_before_they_are_read() -> None:
    second, reads = Call(start=870, end=900), [Op("aten::item", 901, 902), Op("aten::item", 903, 904)]
    said = found(*TRAINED, CALL, second, *reads)
    assert said
    assert said.evidence["calls"] == 2
    assert found(*TRAINED, CALL, second, reads[0]) is None, "which of them was read is not known"


def test_functional_calls_are_waited_for_in_an_operation_of_their_own() -> None:
    call = replace(CALL, called_by="_c10d_functional::all_reduce")
    assert found(*TRAINED, call, Op("_c10d_functional::wait_tensor", 802, 861), DIVIDED, ITEM)


def test_what_data_parallel_calls_before_its_forward_divides_no_model() -> None:
    gather = Call(
        start=6, end=8, op="all_gather", called_by="c10d::_allgather_base_", elements=SHAPES, dimension="data"
    )
    assert found(BUFFERS, gather, Op("aten::copy_", 9, 10), *TRAINED, CALL, ITEM)


def test_collectives_after_the_backward_and_those_of_another_step_are_no_layers() -> None:
    gradients = Call(start=701, end=710, elements=SHAPES)
    assert found(*FORWARD, *BACKWARD, gradients, replace(STEP, start=715), CALL, ITEM)
    early = (Call(start=1, end=61), Op("aten::item", 62, 63), Op("aten::linear", 70, 300))
    assert found(*early, *BACKWARD, STEP, Call(start=900, end=910, elements=SHAPES))


def test_waiting_is_not_known_of_calls_that_were_not_matched() -> None:
    run = cpu_run(lambda step, rank: (*TRAINED, CALL, ITEM))
    said = of(replace(run, ranks={0: run.ranks[0]}))
    assert said
    assert (said.loss_ns, said.evidence["waited_ns"]) == (60 * US, 0)


def test_numbers_that_are_read_every_few_steps_are_read_as_they_should_be() -> None:
    def in_steps(number: int) -> Run:
        read = (CALL, ITEM)
        return cpu_run(lambda step, rank: (*TRAINED, *(read if step < number else ())))

    assert of(in_steps(STEPS // 2)) is None
    assert of(in_steps(STEPS // 2 + 1))


def test_all_ranks_must_read() -> None:
    assert of(cpu_run(lambda step, rank: (*TRAINED, CALL, *((ITEM,) if rank else ())))) is None


def test_what_is_computed_beside_a_call_is_not_exposed() -> None:
    beside = Beside("aten::mm", 800, 830)
    said = found(*TRAINED, CALL, ITEM, beside)
    assert said
    assert said.loss_ns == 30 * US


def test_waiting_for_a_straggler_is_no_loss_of_these_calls() -> None:
    def step(late: float) -> Run:
        def items(number: int, rank: int) -> Sequence[Item]:
            begins = [760 + late * rank, 880 + late * rank]
            calls = [Call(start=begin, end=end) for begin, end in zip(begins, (860, 980), strict=True)]
            computed = Op("aten::linear", 751, begins[0])
            return (*TRAINED, computed, calls[0], Op("aten::item", 861, 862), Op("aten::linear", 863, begins[1]),
                    calls[1], Op("aten::item", 981, 982))  # fmt: skip

        return cpu_run(items)

    said = of(step(70))
    assert said
    assert said.gain_high_ns == (100 + 30) * US
    assert said.loss_ns == 60 * US
    assert said.evidence["waited_ns"] == 70 * US
    assert "0.07 ms of it waiting for other ranks" in said.title


def test_nothing_is_said_with_a_device() -> None:
    run = cpu_run(lambda step, rank: (*TRAINED, CALL, ITEM))
    assert of(replace(run, ranks={rank: replace(each, has_device=True) for rank, each in run.ranks.items()})) is None

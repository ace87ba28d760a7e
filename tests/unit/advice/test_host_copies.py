"""Copies on the training thread of a CPU run: those that nothing needs are named, those of frameworks are not."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.result import Recommendation
from overlapscope.report.redact import redacted
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import STEPS, US, Beside, Call, Item, Mark, Op, cpu_run
from tests.unit.advice.test_advice_rules import fired

NODE = "autograd::engine::evaluate_function: "
FORWARD = (Op("aten::linear", 10, 300),)
BACKWARD = (Op(f"{NODE}AddmmBackward0", 300, 700),)
STEP = Mark("Optimizer.step#AdamW.step", 900, 990)


def copies(name: str, start: float, number: int, each: float, pause: float = 0) -> list[Op]:
    return [Op(name, start + at * (each + pause), start + at * (each + pause) + each) for at in range(number)]


CLONES = copies("aten::clone", 710, 12, 10, 4)


def found(*items: Item, **more: int) -> Recommendation | None:
    return of(cpu_run(lambda step, rank: items, **more))


def of(run: Run) -> Recommendation | None:
    return fired(run).get("host_copies")


def test_clones_between_backward_and_optimizer_are_named_with_their_place_and_bounded_by_their_time() -> None:
    said = found(*FORWARD, *BACKWARD, *CLONES, STEP)
    assert said
    assert said.verdict == "look"
    assert (said.gain_low_ns, said.gain_high_ns, said.bound_from) == (0, (120 + 11 * 4) * US, "loss")
    assert said.evidence["copies"] == 12
    assert said.evidence["copies_ns"] == 120 * US
    assert "12 copies (aten::clone), between backward and optimizer, take 0.12 ms of a 1 ms step" in said.title
    assert said.title.endswith("0.044 ms pass between them, on all ranks")
    assert said.shown_by
    assert said.shown_by.end_ns - said.shown_by.start_ns == (120 + 11 * 4) * US


def test_pauses_between_copies_bound_the_gain_up_to_the_time_of_the_copies() -> None:
    said = found(*FORWARD, *BACKWARD, *copies("aten::clone", 710, 2, 40, 100), STEP)
    assert said
    assert said.gain_high_ns == 2 * 80 * US


def test_views_between_copies_are_no_work_and_an_operation_ends_what_follows_on_one_another() -> None:
    views = [Op("aten::view", each.end + 1, each.end + 2) for each in CLONES]
    said = found(*FORWARD, *BACKWARD, *CLONES, *views, STEP)
    assert said
    assert said.evidence["between_copies_ns"] == 44 * US
    apart = [Op("aten::add_", each.end + 1, each.end + 2) for each in CLONES]
    said = found(*FORWARD, *BACKWARD, *CLONES, *apart, STEP)
    assert said
    assert said.evidence["between_copies_ns"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "items",
    [
        pytest.param((*FORWARD, *BACKWARD, *copies("aten::clone", 710, 4, 10), STEP), id="too short"),
        pytest.param((*FORWARD, *BACKWARD, *copies("aten::mul", 710, 12, 10), STEP), id="no copies"),
        pytest.param((*FORWARD, *CLONES, STEP), id="no training"),
        pytest.param(
            (*FORWARD, *BACKWARD, *(Beside(each.name, each.start, each.end) for each in CLONES), STEP),
            id="another thread",
        ),
        pytest.param((*FORWARD, *BACKWARD, Op("my::operation", 705, 880), *CLONES, STEP), id="inside an operation"),
        pytest.param((*FORWARD, *BACKWARD, Mark("Optimizer.step#AdamW.step", 701, 990), *CLONES), id="optimizer"),
        pytest.param((*FORWARD, *BACKWARD, Mark("FSDP::post_backward_reduce", 701, 990), *CLONES), id="FSDP"),
        pytest.param((*FORWARD, *BACKWARD, Op(f"{NODE}Mine", 701, 890), *CLONES, STEP), id="node of autograd"),
        pytest.param(
            (Mark("DistributedDataParallel.forward", 0, 300), *copies("aten::copy_", 1, 12, 10), *BACKWARD, STEP),
            id="buffers of DDP",
        ),
        pytest.param(
            (*FORWARD, *BACKWARD, Op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 701, 890),
             *copies("aten::copy_", 702, 12, 10), STEP),
            id="out of buckets of DDP",
        ),
        pytest.param(
            (Mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 140),
             *copies("aten::stack", 1, 12, 10), Op("aten::linear", 150, 300), *BACKWARD, STEP),
            id="loader",
        ),
        pytest.param(
            (*FORWARD, *BACKWARD, Op("aten::cat", 701, 790), Op("aten::div_", 790, 795), Call(start=800, end=840),
             STEP),
            id="into one flat buffer",
        ),
        pytest.param(
            (*FORWARD, *BACKWARD, Call(start=701, end=740), Op("aten::div_", 741, 745),
             *copies("aten::copy_", 750, 12, 10), STEP),
            id="out of one flat buffer",
        ),
        pytest.param(
            (*FORWARD, *BACKWARD, Call(start=600, end=690), Op("aten::div_", 705, 708),
             *copies("aten::copy_", 710, 6, 10), Op("aten::div_", 775, 778), *copies("aten::copy_", 780, 6, 10), STEP),
            id="out of buffers that hooks of the job reduced",
        ),
        pytest.param(
            (*copies("aten::cat", 10, 12, 10), Op("aten::linear", 140, 300), Op(f"{NODE}CatBackward0", 300, 400),
             STEP),
            id="of the model",
        ),
    ],
)  # fmt: skip
def test_copies_that_something_needs_are_not_named(items: Sequence[Item]) -> None:
    assert found(*items) is None


def test_clones_after_a_collective_take_what_it_delivered_nowhere() -> None:
    assert found(*FORWARD, *BACKWARD, Call(start=701, end=705), *CLONES, STEP)


def test_ddp_copies_out_of_buckets_itself_so_that_other_copies_are_the_jobs_own() -> None:
    reduced: tuple[Item, ...] = (*BACKWARD, Call(start=600, end=690), *copies("aten::copy_", 710, 12, 10), STEP)
    assert found(*FORWARD, *reduced) is None
    assert found(Mark("DistributedDataParallel.forward", 0, 300), *FORWARD, *reduced)


def test_a_kind_of_copies_that_the_model_makes_is_named_only_right_after_the_backward() -> None:
    node = Op(f"{NODE}CloneBackward0", 690, 700)
    assert found(*FORWARD, *BACKWARD, node, *CLONES, STEP)
    validated = (STEP, Op("aten::linear", 991, 992))
    early = copies("aten::clone", 10, 12, 10)
    assert found(*early, Op("aten::linear", 140, 300), *BACKWARD, node, *validated) is None


def test_what_stands_in_another_step_is_beside_nothing() -> None:
    batch = copies("aten::to", 0, 12, 10)
    said = found(*batch, Op("aten::linear", 130, 300), *BACKWARD, STEP, Call(start=991, end=995))
    assert said
    assert said.evidence["places"] == [{"since": "the step's begin", "until": "aten::linear", "copies_ns": 120 * US}]


def test_names_of_the_job_are_hidden() -> None:
    secret = (Op("acme::forward", 10, 690), Op(f"{NODE}AcmeBackward0", 690, 700), *CLONES, Op("acme::secret", 900, 990))
    analysis = analyze_with_advice(cpu_run(lambda step, rank: secret))
    assert "acme::secret" in msgspec.json.encode(analysis).decode()
    hidden = redacted(analysis)
    assert "acme" not in msgspec.json.encode(hidden).decode()
    for shown, said in zip(hidden.recommendations, analysis.recommendations, strict=True):
        assert shown.evidence.keys() == said.evidence.keys(), "our own words stay"


def test_copies_in_most_steps_count_and_those_of_some_steps_do_not() -> None:
    def in_steps(number: int) -> Run:
        return cpu_run(lambda step, rank: (*FORWARD, *BACKWARD, *(CLONES if step < number else ()), STEP))

    assert of(in_steps(STEPS // 2)) is None
    assert of(in_steps(STEPS // 2 + 1))


def test_the_ranks_that_copy_are_named() -> None:
    said = of(cpu_run(lambda step, rank: (*FORWARD, *BACKWARD, *(CLONES if rank else ()), STEP)))
    assert said
    assert said.evidence["ranks"] == [1]
    assert said.title.endswith("on rank 1")


def test_nothing_is_said_with_a_device_or_without_host_operations() -> None:
    run = cpu_run(lambda step, rank: (*FORWARD, *BACKWARD, *CLONES, STEP))
    ranks = run.ranks
    assert of(run)
    assert of(replace(run, ranks={rank: replace(each, has_device=True) for rank, each in ranks.items()})) is None
    unseen = {
        rank: replace(each, recordings=replace(each.recordings, host_events=~each.recordings.host_events))
        for rank, each in ranks.items()
    }
    assert of(replace(run, ranks=unseen)) is None

"""Pauses in a range or function whose name says what the host does are that work, and are advised as it."""

import pytest
from msgspec.structs import replace

from overlapscope.analysis.common.host_work import EVERY, work_of_names, work_of_stack
from tests.unit.analysis.pauses.pausing import Pauses, advice, in_range, in_turn, named, run


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("all_gather_object", "objects"),
        ("broadcast_object_list", "objects"),
        ("torch.save", "checkpoint"),
        ("save_checkpoint", "checkpoint"),
        ("save_full_checkpoint", "checkpoint"),
        ("dcp.save", "checkpoint"),
        ("get_model_state_dict", "checkpoint"),
        ("torch/serialization.py(850): save", "checkpoint"),
        ("[pl][profile][Callback]ModelCheckpoint{}.on_train_batch_end", "checkpoint"),
        ("wandb.log", "logging"),
        ("## log_metrics ##", "logging"),
        ("logging/__init__.py(1477): info", "logging"),
        ("load_state_dict", None),
        ("dcp.async_save", None),
        ("torch.utils.checkpoint", None),
        ("model.state_dict", None),
        ("checkpoint_saved_tensors", None),
        ("Checkpoint.save_for_backward", None),
        ("checkpoint.save_on_cpu", None),
        ("save_activation_checkpoint", None),
        ("checkpoint.save", "checkpoint"),
        ("torch/distributed/checkpoint/state_dict_saver.py(120): save", "checkpoint"),
        ("CheckpointFunction", None),
        ("aten::log_softmax", None),
        ("torch/distributed/c10d_logger.py(79): wrapper", None),
        ("all_gather_into_tensor", None),
        ("evaluate", None),
    ],
)
def test_names_tell_the_kind_of_work(name: str, kind: str | None) -> None:
    found = work_of_names([name])
    assert (None if found is None else found.id) == kind


def test_functions_of_the_program_around_the_innermost_say_nothing() -> None:
    innermost = "torch/distributed/distributed_c10d.py(2500): all_gather_object"
    outer = "train.py(9): save_checkpoint_and_train"
    assert work_of_stack([outer, innermost, "<built-in method dumps>"]) is work_of_names([innermost])
    assert work_of_stack([outer, "model.py(3): forward"]) is None
    assert work_of_stack([]) is None


@pytest.mark.parametrize(
    ("name", "code"),
    [("all_gather_object", "all_gather_into_tensor"), ("torch.save", "async_save"), ("log_metrics", "QueueHandler")],
)
def test_pauses_in_known_work_are_that_work_and_no_accident(name: str, code: str) -> None:
    work = work_of_names([name])
    assert work is not None
    job = in_range(f"## {name} ##", launches=True)
    (found,) = named(job)
    assert found.title.endswith(f": {work.does}")
    recommendation = advice(job)["host_pauses"]
    assert recommendation.title.startswith(f"Take {work.what} off the hosts of ranks 0, 1, or {work.instead}: they ")
    assert code in str(recommendation.apply)
    assert "gc." not in str(recommendation.apply)
    assert [each for each in recommendation.assumed if "checkpoints" in each] == list(work.assumed)


def test_a_checkpoint_in_one_step_alone_is_one() -> None:
    (found,) = named(run(lambda step, rank: {3: 20.0} if (step, rank) == (1, 0) else {}, during="## torch.save ##"))
    assert found.evidence["work"] == "checkpoint"


def other_pauses(step: int, rank: int) -> dict[int, float]:
    return {3: 1.0} if step != 1 else {3: 20.0}


@pytest.mark.parametrize(
    ("pauses", "during"),
    [
        pytest.param(other_pauses, "## log_metrics ##", id="usually far shorter"),
        pytest.param(in_turn, "## pack ##", id="another name"),
    ],
)
def test_what_is_no_known_work_may_be_anything_else(pauses: Pauses, during: str) -> None:
    (found,) = named(run(pauses, during=during))
    assert found.evidence["work"] is None


def test_pauses_beside_those_in_known_work_are_told_apart() -> None:
    """Rank 0 writes for 30 ms in each step, and rank 1 pauses for 6 ms in one of them, in a range of the same name."""
    job = run(lambda step, rank: {3: 30.0} if rank == 0 else {9: 6.0} if step == 1 else {}, during="## torch.save ##")
    names = tuple(each if each != "## torch.save ##" else "## other ##" for each in job.ranks[1].names)
    job.ranks[1] = replace(job.ranks[1], names=names)  # type: ignore[index]
    (found,) = named(job)
    assert found.evidence["work"] == "checkpoint"
    assert "(3 of 4 pauses); behind the others garbage collection" in found.title


def test_each_kind_says_what_to_do() -> None:
    assert all(each.apply and each.does.startswith("the host ") for each in EVERY)

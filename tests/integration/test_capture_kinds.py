"""`overlapscope.profile` on other kinds of training: compiled, uneven, of mixed precision, with several groups."""

import shutil
from pathlib import Path

import pytest

import overlapscope
from overlapscope.loaded_run import LoadedRun

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from tests.integration.test_capture import Trained, passed
from tests.integration.test_capture import train as train_in
from tests.support.old_torch import needs_fsdp2_without_cuda

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]


def train(scenario: str, folder: Path, mode: str = "events", world: int = 2) -> Trained:
    return passed(train_in(scenario, folder, mode=mode, world=world, module="tests.integration.jobs.training_kinds"))


def runs(folder: Path) -> dict[str, LoadedRun]:
    """The runs of a job that was recorded in both modes, one after the other."""
    return {"events": overlapscope.load(folder / "run"), "trace": overlapscope.load(folder / "run-trace")}


def all_reduces(run: LoadedRun, rank: int) -> list[list[int]]:
    """Bytes of the all-reduces of each complete step."""
    calls = run.table("collectives", rank)
    calls = calls[calls.op == "all_reduce"].sort_values("launch_ns")
    steps = [step.step for step in run.analysis().ranks[rank].steps if step.complete]
    return [calls[calls.step == step].bytes.tolist() for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_compiled_model_trains_to_the_same_bits_and_its_buckets_are_seen(backend: str, tmp_path: Path) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler: inductor cannot compile for the CPU")
    first, second = train(f"compiled_{backend}", tmp_path).results
    assert first
    assert first == second
    assert first["without"] == first["events"] == first["trace"]
    buckets = first["without"]["bucket_bytes"]
    assert len(buckets) > 1
    for run in runs(tmp_path).values():
        for rank in (0, 1):
            steps = all_reduces(run, rank)
            assert len(steps) >= 2
            assert all(step == buckets for step in steps)
    spans = runs(tmp_path)["events"].table("spans", 0)
    assert {"forward", "backward", "optimizer"} <= set(spans[spans.kind == "compute"].name)


@pytest.mark.slow
def test_uneven_inputs_under_join_do_not_hang_and_train_to_the_same_bits(tmp_path: Path) -> None:
    trained = train("uneven", tmp_path, world=3)
    first = trained.results[0]
    assert first
    assert first["without"] == first["events"] == first["trace"]
    assert all(result == first for result in trained.results)
    assert [len(runs(tmp_path)["events"].table("steps", rank)) for rank in range(3)] == [4, 6, 8]
    for run in runs(tmp_path).values():
        for rank in range(3):
            assert all(all_reduces(run, rank))


@pytest.mark.slow
def test_autocast_changes_no_bit_and_ddp_still_reduces_float32(tmp_path: Path) -> None:
    first = train("mixed_precision", tmp_path).results[0]
    assert first
    assert first["without"] == first["events"] == first["trace"]
    for run in runs(tmp_path).values():
        calls = run.table("collectives", 0)
        assert set(calls[calls.op == "all_reduce"].dtype) == {"float32"}


@pytest.mark.slow
def test_no_computation_hides_a_collective_of_fsdp2_that_blocks_its_thread(tmp_path: Path) -> None:
    needs_fsdp2_without_cuda()
    results = train("fsdp_timed", tmp_path).results
    for mode, run in runs(tmp_path).items():
        for rank in run.analysis().ranks:
            steps = [step for step in rank.steps if step.complete]
            assert len(steps) >= 3
            blocked_ns = sum(results[rank.rank][mode][step.step] for step in steps)
            comm_ns = sum(step.comm_ns for step in steps)
            assert 0.9 * comm_ns < sum(step.exposed_comm_ns for step in steps) < blocked_ns, mode


@pytest.mark.slow
def test_fsdp2_of_mixed_precision_gathers_one_type_and_reduces_the_other(tmp_path: Path) -> None:
    needs_fsdp2_without_cuda()
    train("fsdp_mixed", tmp_path)
    layer = 64 * 64 + 64
    for mode, run in runs(tmp_path).items():
        calls = run.table("collectives", 0)
        gathers, scatters = calls[calls.op == "all_gather"], calls[calls.op == "reduce_scatter"]
        assert set(scatters.bytes) == {4 * layer}
        # A trace holds the bytes that gloo moves, not their type.
        assert set(gathers.bytes) == {2 * layer}, mode
        assert set(scatters.dtype) == {"float32"}, mode
    gathers = runs(tmp_path)["events"].table("collectives", 0)
    assert set(gathers[gathers.op == "all_gather"].dtype) == {"bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_g24_a_process_group_written_in_python_is_named_as_not_recorded(mode: str, tmp_path: Path) -> None:
    trained = train("python_group", tmp_path, mode)
    assert [each["sum"] for each in trained.results if each] == [float(4**3)] * 2
    run = overlapscope.load(tmp_path / "run")
    for rank in (0, 1):
        recorded = run.run.ranks[rank].recorded
        (failure,) = recorded["failures"]
        assert "PythonGroup is written in Python: what it does not send" in failure
        assert not recorded["complete"]
        assert len(run.table("collectives", rank)) == 3  # those of the other group
    assert "! rank 1: communication of process groups of the class" in trained.output[0]


def test_a_static_graphs_buckets_are_seen(tmp_path: Path) -> None:
    trained = train("static_graph", tmp_path)
    assert trained.results[0]
    run = overlapscope.load(tmp_path / "run")
    assert all(step == trained.results[0]["bucket_bytes"] for step in all_reduces(run, 0))
    assert len(all_reduces(run, 0)) >= 3
    assert run.run.ranks[0].recorded["ddp"]["static_graph"] is True


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_a_decorated_step_of_a_job_that_takes_its_groups_down_is_recorded_whole(mode: str, tmp_path: Path) -> None:
    trained = train("decorated_ddp", tmp_path, mode)
    assert trained.results[0]
    run = overlapscope.load(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert f"{mode} of 2 of 2 ranks" in trained.output[0]
    assert [group.size for group in run.run.groups] == [2]
    assert all(step == trained.results[0]["bucket_bytes"] for step in all_reduces(run, 1))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_tensor_parallel_layers_show_their_all_reduces(mode: str, tmp_path: Path) -> None:
    train("tensor_parallel", tmp_path, mode)
    run = overlapscope.load(tmp_path / "run")
    for rank in run.ranks:
        steps = all_reduces(run, rank)
        assert len(steps) >= 3
        # What the second layer gives, and the gradient of what the first was given, where anybody asks for it.
        assert all(step[0] == 16 * 64 * 4 for step in steps)
        assert all(step.exposed_comm_ns for step in run.analysis().ranks[rank].steps if step.complete)


@pytest.mark.slow
def test_collectives_of_two_groups_at_once_are_kept_apart_and_right(tmp_path: Path) -> None:
    result = train("crossing", tmp_path).results[0]
    assert result
    right = [[2.0 * number + 1] * 2 for number in range(6)]
    assert result["sums"] == {"without": right, "events": right, "trace": right}
    calls = runs(tmp_path)["events"].table("collectives", 0).sort_values("launch_ns")
    last = calls[calls.step == calls.step.max()]
    assert last.group.tolist() == result["groups"]
    assert (last.start_ns < last.end_ns).all()
    spans = runs(tmp_path)["events"].table("spans", 0)
    assert spans[spans.kind == "comm"].lane.nunique() == 2
    for run in runs(tmp_path).values():
        calls = run.table("collectives", 0).sort_values("launch_ns")
        assert calls[calls.step == 3].bytes.tolist() == [4000, 8000]


@pytest.mark.slow
def test_a_rank_that_ends_early_keeps_its_steps_and_nobody_waits_for_it(tmp_path: Path) -> None:
    trained = train_in("ends_early", tmp_path, module="tests.integration.jobs.training_kinds")
    assert trained.codes == [0, 0], trained.output
    assert "events of 2 of 2 ranks" in trained.output[0]
    run = overlapscope.load(tmp_path / "run")
    assert [len(run.table("steps", rank)) for rank in run.ranks] == [7, 3]

"""Rows of small steps against sums by hand; what is refused; and torch as it was afterwards."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import overlapscope
from overlapscope.errors import InputError, UsageError
from overlapscope.report.text import analysis as text

torch = pytest.importorskip("torch", reason="torch is not installed: no step can run")

from tests.unit.dry_run import steps  # noqa: E402 - skipped without torch

pytestmark = [pytest.mark.torch, pytest.mark.dry_run]

KIB = 1 << 10


def tables(build: Callable[[Any], Any], world_size: int = 4) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    run = overlapscope.dryrun(build, world_size=world_size)
    return tuple(run.table(name, 0) for name in ("operations", "collectives", "schedule"))  # type: ignore[return-value]


def test_products_have_their_flops_and_bytes() -> None:
    operations, calls, _ = tables(steps.plain)
    products = operations[operations.work == "matmul"]
    one = 2 * 64 * 256 * 256
    assert products.flops.tolist() == [one] * 5  # two forward; the first layer's input needs no gradient
    activation, weight = 64 * 256 * 4, 256 * 256 * 4
    assert products.read_bytes.tolist()[:2] == [activation + weight] * 2
    assert products.written_bytes.tolist()[:2] == [activation] * 2
    assert products.module.tolist() == ["0", "1", "1", "1", "0"]
    assert products.phase.tolist() == ["forward"] * 2 + ["backward"] * 3
    assert calls.empty


def test_lines_of_backward_are_those_of_forward() -> None:
    operations, _, _ = tables(steps.plain)
    lines = {phase: set(rows.source) for phase, rows in operations[operations.work == "matmul"].groupby("phase")}
    assert lines["forward"] == lines["backward"]
    (line,) = lines["forward"]
    file, _, number = line.rpartition(":")
    assert "model(x).sum().backward()" in Path(file).read_text().splitlines()[int(number) - 1]


def test_memory_at_the_peak_is_the_sum_by_hand() -> None:
    run = overlapscope.dryrun(steps.plain, world_size=1)
    memory = run.run.ranks[0].recorded["memory"]
    weights, batch, gradient_of_activation = 2 * 256 * KIB, 64 * KIB, 64 * KIB
    peak = weights + batch + 2 * 256 * KIB + gradient_of_activation
    assert peak <= memory["peak_bytes"] <= peak + 64  # and scalars: the loss and its gradient
    assert memory["at_peak_bytes"]["parameters"] == weights


def test_causal_attention_counts_half_and_an_embedding_the_rows_it_reads() -> None:
    operations, _, _ = tables(steps.attends)
    attention = operations[operations.work == "attention"]
    product = 2 * 2 * 4 * 128 * 128 * 32
    assert attention.flops.tolist() == [2 * product // 2, 5 * product // 2]
    (embedding,) = operations[operations.name.str.contains("embedding")].itertuples()
    assert embedding.read_bytes == 16 * 64 * 4 + 16 * 8
    assert embedding.written_bytes == 16 * 64 * 4


def test_buckets_are_needed_at_the_end_of_backward_and_only_the_last_cannot_overlap() -> None:
    operations, calls, schedule = tables(steps.ddp)
    assert calls.bytes.tolist() == [256 * KIB] * 3
    last_of_backward = operations[(operations.phase == "backward") & (operations.work == "matmul")].order.max()
    assert (schedule.needed_order > last_of_backward).all()
    assert schedule.prefetched.tolist() == ["yes", "yes", "no"]
    assert calls.seq.tolist() == [1, 2, 3]


def test_gathers_of_fsdp_begin_before_the_layer_in_front_of_them_computes() -> None:
    operations, calls, schedule = tables(steps.fsdp)
    forward = (calls.op == "all_gather") & (calls.phase == "forward")
    assert calls[forward].module.tolist() == ["0", "1", "2"]
    assert schedule[forward].prefetched.tolist() == ["no", "yes", "yes"]
    assert schedule.parameters.tolist() == [256 * 256] * len(calls)
    products = operations[operations.work == "matmul"]
    for call, when in zip(calls[forward].itertuples(), schedule[forward].itertuples(), strict=True):
        own = products[(products.module == call.module) & (products.phase == "forward")].order.min()
        assert when.launch_order < when.needed_order <= own


def test_a_number_that_the_host_reads_is_a_row_with_its_line_and_an_assumption() -> None:
    run = overlapscope.dryrun(steps.reads_loss, world_size=1)
    (sync,) = run.table("operations", 0).query("work == 'host_sync'").itertuples()
    assert "steps.py:" in sync.source
    assert run.sources[0].warnings == (
        f"{sync.source}: a number that the host reads from the device is taken to be 1.0",
    )


def test_a_functional_collective_is_needed_where_its_result_is_used() -> None:
    operations, calls, schedule = tables(steps.reduces_beside_compute)
    assert calls.op.tolist() == ["all_reduce"] * 2
    assert schedule.prefetched.tolist() == ["yes", "no"]
    first_sum = operations[operations.name.str.startswith("aten.add.")].order.min()
    assert schedule.needed_order.tolist()[0] == first_sum


@pytest.mark.slow
def test_what_a_loader_makes_is_the_hosts() -> None:
    operations, _, _ = tables(steps.loads_with_workers)
    assert not operations.name.str.contains("stack").any()
    peak = overlapscope.dryrun(steps.loads_with_workers, world_size=1).run.ranks[0].recorded["memory"]["peak_bytes"]
    weights, batch = 256 * KIB, 8 * KIB
    assert 3 * weights + batch <= peak < 3 * weights + 2 * batch  # with gradients of before and of this step


def test_the_host_waits_once_for_what_it_copies() -> None:
    operations, _, _ = tables(steps.copies_to_the_host)
    assert operations[operations.work == "host_sync"].name.tolist() == ["cpu", "to"]


def test_a_module_changes_its_dtype() -> None:
    operations, _, _ = tables(steps.changes_dtype)
    assert set(operations[operations.work == "matmul"].dtype) == {"bfloat16"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where its compiler is imported first
def test_usual_loops_run() -> None:
    for build in (steps.scales_and_prints, steps.loads, steps.exchanges_objects, steps.on_meta):
        operations, _, _ = tables(build)
        assert (operations.work == "matmul").any()
    syncs = tables(steps.scales_and_prints)[0].query("work == 'host_sync'")
    assert {"cpu", "aten._local_scalar_dense.default"} == set(syncs.name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where its compiler is imported first
def test_a_compiled_module_runs_as_it_is_and_a_warning_says_so() -> None:
    (warning,) = overlapscope.dryrun(steps.loads, world_size=1).sources[0].warnings
    assert "steps.py:" in warning
    assert "torch.compile is left out" in warning


@pytest.mark.filterwarnings("ignore:Backend nccl:UserWarning")
def test_groups_of_every_backend_are_pretended() -> None:
    _, calls, _ = tables(steps.reduces_in_groups_of_their_own)
    assert calls.group_size.tolist() == [2, 2, 2]
    assert calls.group.nunique() == 3


@pytest.mark.slow
def test_ranks_that_run_one_after_the_other_do_the_same() -> None:
    run = overlapscope.dryrun(steps.fsdp, world_size=4, ranks=(0, 1))
    first, second = (run.table("operations", rank).drop(columns="rank") for rank in (0, 1))
    pd.testing.assert_frame_equal(first, second)


def test_nothing_is_timed() -> None:
    run = overlapscope.dryrun(steps.ddp, world_size=4)
    found = run.analysis()
    assert found.headline.step_ns is None
    assert all(each.transfer_ns_median is None for each in found.collectives)
    assert run.table("collectives", 0)[["launch_ns", "start_ns", "end_ns"]].isna().all(axis=None)
    assert found.dry_step is not None
    assert [each.total_bytes for each in found.dry_step.ranks[0].calls] == [3 * 256 * KIB]


@pytest.mark.slow
def test_a_run_directory_holds_all_of_it(tmp_path: Path) -> None:
    written = overlapscope.dryrun(steps.ddp, world_size=4, to=tmp_path / "run")
    read = overlapscope.load(tmp_path / "run")
    for name in ("operations", "schedule", "collectives"):
        pd.testing.assert_frame_equal(read.table(name, 0), written.table(name, 0))
    assert read.analysis().dry_step == written.analysis().dry_step


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (steps.reads_integer, "reads an integer from a tensor.*compute with the tensor, or take the number from"),
        (steps.selects, "depends on data.*use fixed shapes"),
        (steps.needs_device, "needs a device.*on the device that build is given"),
        (steps.makes_tensor_of_cuda, r"needs a device \(cuda:0\).*on the device that build is given"),
        (steps.autocast_of_cuda, "autocast is that of cuda: give it the type of the device"),
        (steps.scaler_of_cuda, "GradScaler is that of cuda: give it the type of the device"),
        (steps.nothing, "nothing returned NoneType instead of a function: return the step"),
        (steps.a_module, "a_module returned a module instead of the step: return a function"),
        (steps.takes_nothing, "takes_nothing cannot be called with the device alone: write def build"),
        (steps.takes_a_batch, "the step that takes_a_batch returned takes arguments: return a function without"),
        (steps.imports_what_is_missing, "package nowhere_at_all is not installed: install what the job"),
        (steps.does_not_factor, "mesh does not fit the world.*choose a world that is the product"),
        (steps.leaves_ranks_out, "mesh has 3 ranks, the world 4: choose a world that is the product"),
        (steps.shards_with_the_first_fsdp, r"needs a device.*: shard with fully_shard \(FSDP2\)"),
        (steps.asserts, "AssertionError: ranks come in threes"),
        (steps.ends, "SystemExit: 1"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_with_a_remedy(build: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        overlapscope.dryrun(build, world_size=4)
    assert "\n" not in str(raised.value)


def test_a_misuse_is_refused() -> None:
    for named in ({"world_size": 0}, {"world_size": 4, "ranks": (4,)}, {"world_size": 4, "ranks": ()}):
        with pytest.raises(UsageError):
            overlapscope.dryrun(steps.plain, **named)  # type: ignore[arg-type]


@pytest.mark.slow
def test_torch_is_as_it_was_afterwards() -> None:
    from torch import distributed  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415
    from torch.distributed import _functional_collectives, device_mesh  # noqa: PLC0415
    from torch.optim import optimizer  # noqa: PLC0415

    def state() -> list[Any]:
        return [
            torch.cpu.Stream, torch.cpu.Event, torch.autocast.__init__, torch.amp.GradScaler.__init__,
            device_mesh.DeviceMesh.__init__, torch.utils.data.DataLoader._get_iterator,
            _functional_collectives._maybe_wrap_tensor, FakeTensor.__dict__.get("to"),
            torch.cpu.current_stream, torch.nn.Module.__call__,
            torch.nn.Module._apply, torch.autograd.backward, distributed.Reducer, distributed.init_process_group,
            distributed.recv_object_list,
            device_mesh.torch, optimizer._get_foreach_kernels_supported_devices,
            optimizer.Optimizer.__init__, torch.UntypedStorage.resize_, torch.get_rng_state().tolist(),
            dict(os.environ),
        ]  # fmt: skip

    before = state()
    for build in (steps.fsdp, steps.selects):
        with suppress(InputError):
            overlapscope.dryrun(build, world_size=4)
    assert state() == before
    assert not distributed.is_initialized()


def test_a_step_that_holds_no_memory_names_none() -> None:
    run = overlapscope.dryrun(lambda _: lambda: None, world_size=1)
    assert "Memory at the peak: 0 B." in text.render(run.analysis())

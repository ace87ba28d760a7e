"""What the events of a Kineto trace mean: launches, evidence of communication, kinds, sizes, CPU runs, dialects."""

import tracemalloc
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

import overlapscope
from overlapscope.advice.advise import advise
from overlapscope.analysis.common.findings import recording_gaps
from overlapscope.errors import InputError
from overlapscope.ingest.parsing.json_values import elements_of
from overlapscope.loaded_run import LoadedRun
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.message_groups import messages_in_ranges
from tests.support.writers.kineto import (
    ABSOLUTE_FLOATS,
    BACKWARD,
    COMM_STREAM,
    COMPUTE_STREAM,
    DIALECTS,
    GEMM,
    MAIN,
    MS,
    NCCL_KERNEL,
    PROCESS,
    TORCH_1_8,
    TORCH_2022,
    TORCH_2024,
    TRAINING_STEP_NS,
    US,
    Dialect,
    Event,
    annotation,
    collective_args,
    distributed,
    kernel,
    launch,
    mark,
    memcpy,
    memset,
    op,
    step,
    training,
    write,
)

MYSTERY = "mystery_v7"
"""A kernel that no table knows."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "traces"
    inside.mkdir()
    return inside


def load(folder: Path, events: list[Event], dialect: Dialect = TORCH_2024, **options: Any) -> LoadedRun:
    path = folder / "worker.json"
    path.write_bytes(write(events, dialect, **({"metadata": distributed(0)} | options)))
    return overlapscope.load(path)


def whole(run: LoadedRun) -> dict[str, int]:
    figures: dict[str, int] = msgspec.to_builtins(run.analysis().ranks[0].whole)
    return figures


def spans(run: LoadedRun) -> pd.DataFrame:
    return run.table("spans", 0).sort_values(["start_ns", "lane"], ignore_index=True)


def calls(run: LoadedRun) -> pd.DataFrame:
    return run.table("collectives", 0).sort_values("start_ns", ignore_index=True)


def launched(
    at_ns: int, correlation: int, *device: Event, thread: int = BACKWARD, name: str = "cudaLaunchKernel"
) -> list[Event]:
    """A launch and its kernel; the 3 us before the launch are free for ranges that enclose it."""
    return [launch(at_ns, correlation, thread=thread, name=name), *device]


def around(name: str, width_us: int = 20, **options: Any) -> Event:
    """A range on the backward thread around the launch at 1 ms; a wider range is outside it."""
    sort = "cpu_op" if name.startswith(("aten::", "c10d::", "record", "autograd::")) else "user_annotation"
    return op(name, 1 * MS - width_us * US, 2 * width_us * US, thread=BACKWARD, sort=sort, **options)


def one_kernel(folder: Path, *ranges: Event, **options: Any) -> LoadedRun:
    """A GEMM, and a kernel on a stream of its own that was launched inside the given ranges."""
    device = kernel(options.pop("name", MYSTERY), 5 * MS, 2 * MS, stream=COMM_STREAM, correlation=9, **options)
    return load(folder, [kernel(GEMM, 0, 4 * MS), *ranges, *launched(1 * MS, 9, device)])


def is_comm(run: LoadedRun) -> bool:
    return whole(run)["comm_ns"] == 2 * MS


# --- launches


def test_a_graph_gives_all_its_kernels_the_launch_of_the_graph(folder: Path) -> None:
    kernels = [kernel(GEMM, (2 + each) * MS, MS, correlation=77) for each in range(8)]
    kernels.append(kernel(NCCL_KERNEL, 4 * MS, MS, stream=COMM_STREAM, correlation=77))
    run = load(folder, launched(1 * MS, 77, *kernels, name="cudaGraphLaunch", thread=MAIN))
    table = spans(run)
    assert len(table) == 9
    assert table.launch_ns.nunique() == 1
    assert (table.start_ns - table.launch_ns).min() == 1 * MS
    assert run.sources[0].unlinked == 0
    assert whole(run)["overlapped_ns"] == 1 * MS


def test_spans_without_a_launch_count_in_full_and_are_counted_as_unlinked(folder: Path) -> None:
    linked = training(3)
    unlinked = [event for event in linked if event.sort != "cuda_runtime"]
    a, b = load(folder, linked), load(folder, unlinked)
    assert whole(a) == whole(b)
    assert (a.sources[0].unlinked, b.sources[0].unlinked) == (0, 15)
    assert not [finding for finding in a.analysis().findings if finding.id.startswith("unlinked")]
    found = [finding for finding in b.analysis().findings if finding.id.startswith("unlinked")]
    assert [finding.evidence for finding in found] == [{"rank": 0, "spans": 15, "unlinked": 15}]
    assert spans(b).launch_ns.isna().all()


def test_ranks_with_spans_without_a_launch_share_a_finding() -> None:
    assert recording_gaps((), {0: (100, 0), 1: (100, 3)}) == []
    (found,) = recording_gaps((), {0: (3781, 581), 1: (100, 0), 2: (3790, 590), 3: (3779, 579)})
    assert found.title.startswith(
        "579 to 590 of 3779 to 3790 device spans on each of ranks 0, 2, 3 have no recorded launch"
    )
    assert found.id == "unlinked_spans"
    assert found.evidence == {"ranks": [0, 2, 3], "spans": 11350, "unlinked": 1750}


def test_kernels_of_graphs_without_a_launch_are_told_from_those_before_the_profiler() -> None:
    (few,) = recording_gaps((), {0: (100, 20)}, {0})
    (most,) = recording_gaps((), {0: (100, 90)}, {0})
    (other,) = recording_gaps((), {0: (100, 90)}, {1})
    assert "record a few eager steps" in most.title
    assert not any("CUDA graphs" in each.title for each in (few, other))


def test_kernels_of_a_graph_without_its_correlation_belong_to_no_step_and_have_no_path(folder: Path) -> None:
    begun = [event for event in training(3) if event.sort != "cuda_runtime"]
    run = load(folder, [*begun, *launched(1 * MS, 777, name="cudaGraphLaunch", thread=MAIN)])
    found = run.analysis()
    (unlinked,) = (each for each in found.findings if each.id.startswith("unlinked_spans"))
    assert unlinked.title.endswith("record a few eager steps, too")
    assert found.critical_path.reason == "steps are marked, but no kernel in them could be linked to a launch"
    _, reasons = advise(run.run, found)
    assert any("its steps are CUDA graphs, which record no gradients" in each for each in reasons)


def test_where_no_host_was_recorded_its_launches_are_not_missed(folder: Path) -> None:
    bare = [event for event in training(3) if event.sort in ("kernel", "gpu_memcpy")]
    found = load(folder, bare).analysis()
    assert [each.no_causes_reason for each in found.ranks] == ["no_host_events"]
    assert not [each for each in found.findings if each.id.startswith("unlinked_spans")]


@pytest.mark.parametrize("correlation", [None, 0])
def test_a_span_without_a_correlation_has_no_launch(correlation: int | None, folder: Path) -> None:
    run = load(folder, [launch(1 * MS, 0), kernel(GEMM, 2 * MS, MS, correlation=correlation)])
    assert run.sources[0].unlinked == 1


def test_a_correlation_that_two_processes_use_says_nothing(folder: Path) -> None:
    events = [launch(1 * MS, 5), launch(3 * MS, 5, process=PROCESS + 1), kernel(GEMM, 4 * MS, MS, correlation=5)]
    run = load(folder, [*events, launch(1 * MS, 6), kernel(GEMM, 6 * MS, MS, correlation=6)])
    assert spans(run).launch_ns.isna().tolist() == [True, False]
    assert any("more than one process" in warning for warning in run.sources[0].warnings)


def test_device_work_belongs_to_the_step_that_launched_it_however_late_it_runs(folder: Path) -> None:
    events = [step(1, 0, 2 * MS), step(2, 2 * MS, 2 * MS)]
    events += launched(1 * MS, 5, kernel(GEMM, 10 * MS, MS, correlation=5))
    events += launched(3 * MS, 6, kernel(GEMM, 20 * MS, MS, correlation=6))
    run = load(folder, events)
    assert spans(run).step.tolist() == [1, 2]
    windows = [each.window_ns for each in run.analysis().ranks[0].steps]
    assert windows == [10 * MS, 1 * MS]


# --- evidence of communication


def test_collective_arguments_make_any_kernel_communicate(folder: Path) -> None:
    assert not is_comm(one_kernel(folder))
    assert is_comm(one_kernel(folder, args=collective_args()))
    assert is_comm(one_kernel(folder, name=GEMM, args=collective_args()))


@pytest.mark.parametrize("name", ["nccl:all_reduce", "nccl:_all_gather_base", "xccl:broadcast", "hccl:all_to_all"])
def test_a_library_annotation_around_the_launch_makes_a_kernel_communicate(name: str, folder: Path) -> None:
    assert is_comm(one_kernel(folder, around(name)))


def test_record_param_comms_around_the_launch_makes_a_kernel_communicate(folder: Path) -> None:
    assert is_comm(one_kernel(folder, around("record_param_comms")))
    assert is_comm(one_kernel(folder, around("c10d::allreduce_", 40), around("record_param_comms")))


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["aten::copy_", "aten::cat", "autograd::engine", "c10d::allreduce_", "my annotation"])
def test_only_the_innermost_range_around_the_launch_is_evidence(inner: str, folder: Path) -> None:
    for outer in ("nccl:all_reduce", "record_param_comms", "c10d::_allgather_base_"):
        assert not is_comm(one_kernel(folder, around(outer, 40), around(inner, 10)))
        assert is_comm(one_kernel(folder, around(inner, 40), around("nccl:all_reduce", 10)))


def test_an_annotation_on_another_thread_is_no_evidence(folder: Path) -> None:
    assert not is_comm(one_kernel(folder, annotation("nccl:all_reduce", 1 * MS - 20 * US, 40 * US, thread=MAIN)))


def test_an_annotation_that_ended_before_the_launch_is_no_evidence(folder: Path) -> None:
    before = annotation("nccl:all_reduce", 1 * MS - 20 * US, 20 * US, thread=BACKWARD)
    assert not is_comm(one_kernel(folder, before))
    begins = annotation("nccl:all_reduce", 1 * MS, 20 * US, thread=BACKWARD)
    assert is_comm(one_kernel(folder, begins))


def test_an_annotation_projected_on_the_device_speaks_for_kernels_without_a_launch(folder: Path) -> None:
    def trace(start_ns: int, duration_ns: int, stream: int, *host: Event) -> LoadedRun:
        note = kernel("nccl:all_gather", start_ns, duration_ns, stream=stream, sort="gpu_user_annotation")
        own = kernel("generic_v2", 5 * MS, 2 * MS, stream=COMM_STREAM, correlation=9)
        return load(folder, [kernel(GEMM, 0, 4 * MS), note, own, *host])

    named = trace(5 * MS - 1, 2 * MS + 3, COMM_STREAM)
    assert is_comm(named)
    assert calls(named).op.tolist() == ["all_gather"]
    assert not is_comm(trace(5 * MS - 1, 1 * MS, COMM_STREAM))
    assert not is_comm(trace(5 * MS - 1, 2 * MS + 3, 21))
    assert not is_comm(trace(5 * MS - 1, 2 * MS + 3, COMM_STREAM, launch(1 * MS, 9)))


@pytest.mark.parametrize(
    ("name", "op", "dtype"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", "float32"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter", "bfloat16"),
        ("ncclDevKernel_AllReduce_Sum_u8_TREE_LL(x)", "all_reduce", None),  # int8 runs in it, too
        ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather", None),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(x)", "all_reduce", None),  # RCCL ran all types in one
    ],
)
def test_where_nothing_states_the_type_of_a_call_it_is_that_of_its_kernel_of_nccl(
    name: str, op: str, dtype: str | None, folder: Path
) -> None:
    """Without host events, and arguments of torch."""
    events = [kernel(GEMM, 0, 4 * MS), kernel(name, 5 * MS, 2 * MS, stream=COMM_STREAM)]
    found = calls(load(folder, events))
    assert found.op.tolist() == [op]
    assert [None if pd.isna(each) else each for each in found.dtype] == [dtype]
    stated = kernel(name, 5 * MS, 2 * MS, stream=COMM_STREAM, args={"Collective name": op, "dtype": "Half"})
    assert calls(load(folder, [events[0], stated]))["dtype"].tolist() == ["float16"]


def messages(folder: Path, *groups: tuple[str, list[int]], records: Mapping[str, str] | None = None) -> LoadedRun:
    """Return rank 0 of four that sends to its neighbour twice, of which once the launch was not recorded.

    `records` are the arguments of the recorded call: none of these traces says which peer it was with.
    """
    args = {"Collective name": "send", "dtype": "Float", "In msg nelems": 4, "Group size": 4, **(records or {})}
    events = [kernel(GEMM, 0, 4 * MS)]
    for at in (5, 9):
        events.append(kernel("nccl:send 0->1", at * MS - 1, 2 * MS + 3, stream=COMM_STREAM, sort="gpu_user_annotation"))
    events.append(kernel("ncclDevKernel_Generic(x)", 5 * MS, 2 * MS, stream=COMM_STREAM, correlation=9))
    own = args if records else None
    events.append(kernel("ncclDevKernel_Generic(x)", 9 * MS, 2 * MS, stream=COMM_STREAM, correlation=10, args=own))
    config = [{"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in groups]
    return load(folder, events, metadata={"distributedInfo": {"rank": 0, "world_size": 4, "pg_config": config}})


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("groups", "records", "group", "peer"),
    [
        pytest.param([("0", ALL)], None, "0", 1, id="the only group"),
        pytest.param([("0", ALL), ("5", ALL)], None, None, 1, id="the same peer in both groups"),
        pytest.param([("0", ALL), ("7", [0, 3])], None, None, NONE, id="another peer in another group"),
        pytest.param(
            [("0", ALL), ("5", ALL), ("7", [0, 3])], {"Process Group Name": "5"}, "5", 1, id="the group of others"
        ),
        pytest.param([], None, None, NONE, id="no group"),
    ],
)
def test_a_note_on_the_device_says_the_peer_of_a_message_whose_launch_was_not_recorded(
    groups: list[tuple[str, list[int]]], records: Mapping[str, str] | None, group: str | None, peer: int, folder: Path
) -> None:
    found = calls(messages(folder, *groups, records=records))
    assert found.op.tolist() == ["send", "send"]
    first = found.iloc[0]
    assert (None if pd.isna(first.group) else first.group, NONE if pd.isna(first.peer) else first.peer) == (group, peer)


# --- copies


def copied(folder: Path, *ranges: Event, name: str = "Memcpy DtoD (Device -> Device)") -> LoadedRun:
    options: dict[str, Any] = {"stream": COMM_STREAM, "correlation": 9}
    device = memset(5 * MS, 2 * MS, **options) if name == "Memset" else memcpy(5 * MS, 2 * MS, name=name, **options)
    events = launched(1 * MS, 9, device, name="cudaMemsetAsync" if name == "Memset" else "cudaMemcpyAsync")
    return load(folder, [kernel(GEMM, 0, 4 * MS), *ranges, *events])


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)"])
def test_a_copy_between_devices_right_inside_a_collective_communicates(name: str, folder: Path) -> None:
    run = copied(folder, around("nccl:_all_gather_base"), name=name)
    assert is_comm(run)
    assert whole(run)["copy_ns"] == 0
    assert calls(run).op.tolist() == ["all_gather"]


def test_a_copy_of_the_framework_around_a_collective_stays_a_copy(folder: Path) -> None:
    for outer in ("c10d::_allgather_base_", "record_param_comms", "nccl:_all_gather_base"):
        run = copied(folder, around(outer, 40), around("aten::copy_", 10))
        assert whole(run)["comm_ns"] == 0
        assert whole(run)["copy_ns"] == 2 * MS
    assert whole(copied(folder, around("c10d::_allgather_base_")))["comm_ns"] == 0


@pytest.mark.parametrize("name", ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memset"])
def test_what_moves_nothing_between_devices_stays_a_copy(name: str, folder: Path) -> None:
    run = copied(folder, around("nccl:_all_gather_base"), name=name)
    assert (whole(run)["comm_ns"], whole(run)["copy_ns"]) == (0, 2 * MS)


def test_several_copies_of_one_call_are_one_collective(folder: Path) -> None:
    events = [kernel(GEMM, 0, 4 * MS), around("nccl:_all_gather_base")]
    for each in range(4):
        copy = memcpy(
            (5 + each) * MS, MS, name="Memcpy PtoP (Device -> Device)", stream=20 + each, correlation=9 + each
        )
        events += launched(1 * MS + each * US, 9 + each, copy, name="cudaMemcpyAsync")
    run = load(folder, events)
    table = calls(run)
    assert len(table) == 1
    assert (table.end_ns - table.start_ns).tolist() == [4 * MS]
    assert run.analysis().collectives[0].count == 1


# --- neither compute nor communication; kernels of both


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync", "Device Synchronize"]
)
def test_a_record_of_synchronisation_is_no_work(name: str, folder: Path) -> None:
    for sort in ("kernel", "cuda_sync"):
        wait = kernel(name, 1 * MS, 9 * MS, stream=COMM_STREAM, sort=sort)
        run = load(folder, [kernel(GEMM, 0, 4 * MS), wait])
        assert whole(run)["compute_ns"] == 4 * MS
        assert whole(run)["window_ns"] == 4 * MS
        assert len(spans(run)) == 1


def test_a_trace_of_synchronisation_alone_holds_no_device_work(folder: Path) -> None:
    with pytest.raises(InputError, match="holds neither device work nor host operations"):
        load(folder, [kernel("Stream Wait Event", 0, MS)])


FUSED = "userbuffers_fp16_sum_inplace_gpu_rw_rs"


def test_a_kernel_that_computes_and_communicates_counts_as_compute_and_is_listed(folder: Path) -> None:
    fused = kernel(FUSED, 5 * MS, 2 * MS, stream=COMM_STREAM)
    run = load(folder, [kernel(GEMM, 0, 4 * MS), fused, kernel(NCCL_KERNEL, 6 * MS, 2 * MS, stream=30)])
    assert (whole(run)["compute_ns"], whole(run)["comm_ns"], whole(run)["overlapped_ns"]) == (6 * MS, 2 * MS, 1 * MS)
    listed = run.analysis().fused
    assert (listed.spans, listed.duration_ns, listed.names) == (1, 2 * MS, [FUSED])
    assert any(finding.id == "fused_kernels" for finding in run.analysis().findings)


def test_unknown_kernels_are_listed_on_a_stream_of_their_own_only(folder: Path) -> None:
    events = [kernel(GEMM, 0, 4 * MS), kernel(MYSTERY, 4 * MS, MS), kernel(MYSTERY, 5 * MS, 2 * MS, stream=31)]
    events.append(kernel("enigma", 8 * MS, 3 * MS, stream=32))
    run = load(folder, events)
    listed = run.analysis().unclassified
    assert (listed.spans, listed.duration_ns, listed.names) == (2, 5 * MS, ["enigma", MYSTERY])
    assert whole(run)["compute_ns"] == 10 * MS
    alone = load(folder, [kernel(MYSTERY, 0, MS)])
    assert alone.analysis().unclassified.spans == 0


def test_unknown_kernels_of_the_framework_are_not_listed(folder: Path) -> None:
    assert one_kernel(folder, around("aten::something")).analysis().unclassified.spans == 0
    assert one_kernel(folder, around("my annotation")).analysis().unclassified.spans == 1


@pytest.mark.parametrize(
    "name", ["my_allreduce_kernel", "custom_all_reduce_kernel", "fast_allgather_kernel", "a2a_kernel"]
)
def test_an_unknown_kernel_that_may_communicate_is_listed(name: str, folder: Path) -> None:
    run = one_kernel(folder, name=name)
    assert run.analysis().unclassified.names == [name] or is_comm(run)


# --- sizes and groups


def row(run: LoadedRun) -> Any:
    (only,) = run.analysis().collectives
    return only


def test_sizes_come_from_the_arguments_of_the_kernel(folder: Path) -> None:
    args = collective_args(
        "_allgather_base", elements=1000, out_elements=4000, dtype="BFloat16", ranks=range(4), seq=17
    )
    run = one_kernel(folder, args=args)
    only = row(run)
    assert (only.op, only.group, only.group_size, only.dtype, only.bytes) == ("all_gather", "0", 4, "bfloat16", 8000)
    assert calls(run).seq.tolist() == [17]
    assert only.algbw_gbs == pytest.approx(8000 / (2 * MS))
    assert only.busbw_gbs == pytest.approx(8000 / (2 * MS) * 3 / 4)


def test_sizes_come_from_record_param_comms_where_the_kernel_has_none(folder: Path) -> None:
    args = collective_args(
        "_reduce_scatter_base", elements=4000, out_elements=1000, dtype="Half", ranks=range(4), seq=3
    )
    run = one_kernel(folder, around("record_param_comms", args=args), name=NCCL_KERNEL)
    only = row(run)
    assert (only.op, only.group_size, only.dtype, only.bytes) == ("reduce_scatter", 4, "float16", 8000)
    assert calls(run).seq.tolist() == [3]


def test_old_positional_inputs_give_sequence_number_and_group_size(folder: Path) -> None:
    inputs = ["", "12", "140230", "0", "_allgather_base", "[]", "[]", "8"]
    shapes = {"Input Dims": [[500]], "Input type": ["c10::BFloat16"]}
    run = one_kernel(
        folder,
        around("record_param_comms", 40, args={"Concrete Inputs": inputs}),
        around("nccl:_all_gather_base", 10, args=shapes),
        name="ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
    )
    only = row(run)
    assert (only.op, only.group_size, only.dtype, only.bytes) == ("all_gather", 8, "bfloat16", 8000)
    assert calls(run).seq.tolist() == [12]


def test_sizes_come_from_the_input_dims_of_older_annotations(folder: Path) -> None:
    args = {"Input Dims": [[[300], [10, 10]]], "Input type": ["float"]}
    only = row(one_kernel(folder, around("nccl:all_reduce", args=args), name=NCCL_KERNEL))
    assert (only.op, only.dtype, only.bytes, only.group_size) == ("all_reduce", "float32", 1600, 2)  # of two ranks
    caller = {"Input Dims": [[800], [200], [], []], "Input type": ["float", "float", "", ""]}
    gather = row(
        one_kernel(
            folder,
            around("c10d::_allgather_base_", 40, args=caller),
            around("nccl:_all_gather_base", 10, args={"Input Dims": [[200]], "Input type": ["float"]}),
            name="ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
        )
    )
    assert (gather.op, gather.bytes) == ("all_gather", 3200)


def test_a_size_that_nobody_wrote_is_missing_and_not_zero(folder: Path) -> None:
    only = row(one_kernel(folder, name=NCCL_KERNEL))
    assert (only.op, only.group, only.dtype, only.bytes) == ("all_reduce", None, "float32", None), "as its name says"
    assert only.group_size == 2  # every group of a job of two ranks
    assert (only.algbw_gbs, only.busbw_gbs) == (None, None)


@pytest.mark.parametrize("name", ["barrier", "wait"])
def test_a_collective_that_moves_nothing_has_no_size(name: str, folder: Path) -> None:
    only = row(one_kernel(folder, args=collective_args(name, elements=1, dtype="Byte")))
    assert (only.op, only.dtype, only.bytes) == (name, None, None)


def test_groups_of_a_trace_are_known_with_their_ranks(folder: Path) -> None:
    run = one_kernel(folder, args=collective_args(group="9", ranks=(2, 5)))
    groups = {group.name: (group.size, group.ranks) for group in run.run.groups}
    assert groups == {"0": (2, (0, 1)), "9": (2, (2, 5))}


# --- CPU runs over gloo

WORKER = PROCESS + 7


def gloo(name: str, start_ns: int, duration_ns: int, dims: list[Any], thread: int = WORKER) -> Event:
    return annotation(
        f"gloo:{name}", start_ns, duration_ns, thread=thread, args={"Input Dims": dims, "Input type": ["float"]}
    )


def cpu_run() -> list[Event]:
    """In ms: the step 0-20; compute 0-4 and 6-10 and 12-15 (backward thread), enqueueing 4-4.5, waiting 10-12."""
    reduce_scatter = {"Input Dims": [[16], [32], [], [], []], "Input type": ["float", "float", "", "", ""]}
    gather = {"Input Dims": [[32], [16], [], []], "Input type": ["float", "float", "", ""]}
    return [
        step(3, 0, 20 * MS),
        annotation("FSDP::forward", 0, 19 * MS),
        op("aten::linear", 0, 4 * MS),
        op("aten::addmm", 1 * MS, 2 * MS),
        op("c10d::_reduce_scatter_base_", 4 * MS, 500 * US, args=reduce_scatter),
        op("aten::mm", 6 * MS, 4 * MS),
        op("aten::wait_all", 9 * MS, 3 * MS),
        op("c10d::_allgather_base_", 10 * MS, 2 * MS, args=gather),
        op("aten::mm", 12 * MS, 3 * MS, thread=BACKWARD),
        gloo("all_reduce", 5 * MS, 3 * MS, [[32]]),
        gloo("all_gather", 11 * MS, 2 * MS, [[16]]),
        op("aten::copy_", 11 * MS, 1 * MS, thread=WORKER),
    ]


def test_a_cpu_run_breaks_down_by_threads(folder: Path) -> None:
    run = load(folder, cpu_run(), metadata=distributed(0, backend="gloo"))
    assert not run.run.ranks[0].has_device
    figures = msgspec.to_builtins(run.analysis().ranks[0].steps[0])
    expected = {
        "window_ns": 20 * MS,
        "comm_ns": 5 * MS,
        "compute_ns": 11 * MS,
        "copy_ns": 0,
        "overlapped_ns": 3 * MS,
        "exposed_comm_ns": 2 * MS,
        "compute_only_ns": 8 * MS,
        "copy_only_ns": 0,
        "idle_ns": 7 * MS,
    }
    assert {name: figures[name] for name in expected} == expected


def test_enqueueing_and_waiting_are_no_compute(folder: Path) -> None:
    events = [op("aten::mm", 0, MS), op("c10d::allreduce_", 2 * MS, 5 * MS), op("aten::nested", 3 * MS, MS)]
    events += [op("aten::outer", 8 * MS, 4 * MS), op("c10d::barrier", 9 * MS, 2 * MS)]
    run = load(folder, [*events, gloo("all_reduce", 2 * MS, 4 * MS, [[8]])])
    assert whole(run)["compute_ns"] == 3 * MS


def test_autograd_waits_in_its_hooks_up_to_the_end_of_a_collective(folder: Path) -> None:
    engine = "autograd::engine::evaluate_function: "
    events = [
        # In ms: the hook calls a gather at 1 and waits until 6, runs on until 7; the node multiplies until 9.
        op(f"{engine}AddmmBackward0", 0, 10 * MS),
        op("c10d::_allgather_base_", 1 * MS, 1 * MS),
        op("AddmmBackward0", 7 * MS, 2 * MS),
        op("aten::mm", 7 * MS, 2 * MS),
        # A node of Python without a node of its own below: it calls a reduction at 11 and waits until 15.
        op("RegisterPostBackwardFunctionBackward", 10 * MS, 6 * MS),
        op("c10d::_reduce_scatter_base_", 11 * MS, 1 * MS),
        # A hook waits until 19 for what was called elsewhere, and one computes while a collective runs.
        op(f"{engine}MulBackward0", 17 * MS, 4 * MS),
        op("MulBackward0", 20 * MS, 1 * MS),
        op("aten::outer", 21 * MS, 4 * MS),
    ]
    ends = [(1, 6), (11, 15), (16, 19), (21, 23)]
    gathers = [gloo("all_gather", start * MS, (end - start) * MS, [[16]]) for start, end in ends]
    figures = whole(load(folder, [*events, *gathers]))
    assert figures["compute_ns"] == (1 + 4 + 1 + 1 + 2 + 4) * MS
    assert figures["overlapped_ns"] == 2 * MS


def test_r5_an_operation_around_a_wait_counts_by_what_runs_inside_it(folder: Path) -> None:
    """FSDP2's post-backward node: it scatters and waits, which no operation of the trace says."""
    node = op("RegisterPostBackwardFunctionBackward", 0, 10 * MS)
    inside = [op("aten::copy_", MS, MS), op("c10d::_reduce_scatter_base_", 2 * MS, MS), op("aten::add_", 9 * MS, MS)]
    run = load(folder, [node, *inside, gloo("all_reduce", 2 * MS, 6 * MS, [[8]]), op("aten::mm", 10 * MS, 2 * MS)])
    figures = whole(run)
    assert figures["compute_ns"] == 6 * MS  # before the call, and once the transfer is done
    assert figures["exposed_comm_ns"] == 6 * MS


def test_callbacks_of_a_communication_hook_are_no_communication_but_what_they_send_is(folder: Path) -> None:
    """gloo's range ends behind the callbacks, and theirs are missing: the recording states these transfers."""
    node = op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 20 * MS)
    events = [node, op("c10d::allreduce_", MS, MS), gloo("all_reduce", 2 * MS, 16 * MS, [[8]])]
    base = int(spans(load(folder, events)).start_ns.min())

    def sent(called_ms: int, ended_ms: int, elements: int) -> dict[str, object]:
        times = {"called_ns": base + called_ms * MS, "ended_ns": base + ended_ms * MS}
        return {"op": "all_reduce", "elements": elements, "dtype": "float32", "group_size": 2, **times}

    stated = {"overlapscope_transfers": [sent(8, 12, 4), sent(1, 5, 8)]}
    run = load(folder, events, metadata=distributed(0) | stated)
    figures = whole(run)
    assert figures["comm_ns"] == figures["exposed_comm_ns"] == (3 + 4) * MS
    assert figures["compute_ns"] == (1 + 8) * MS  # before the call, and once the last transfer is done
    table = calls(run)
    assert (table.start_ns - base).tolist() == [2 * MS, 8 * MS]
    assert (table.end_ns - base).tolist() == [5 * MS, 12 * MS]
    assert (table.launch_ns - base).tolist() == [1 * MS, 8 * MS]
    assert table.bytes.tolist() == [32, 16]
    assert set(table.op) == {"all_reduce"}


@pytest.mark.parametrize("stated", [5, [{"op": "all_reduce"}], [{"op": 1, "called_ns": "x", "ended_ns": []}]])
def test_transfers_that_are_none_are_a_warning(stated: object, folder: Path) -> None:
    events = [op("c10d::allreduce_", 0, MS), gloo("all_reduce", MS, 6 * MS, [[8]]), op("aten::mm", 7 * MS, MS)]
    run = load(folder, events, metadata=distributed(0) | {"overlapscope_transfers": stated})
    assert whole(run)["comm_ns"] == 6 * MS
    assert any("overlapscope_transfers could not be read" in each for each in run.run.sources[0].warnings)


@pytest.mark.parametrize(("called", "ended"), [(0, 5), (0, 1 << 61), (1 << 61, (1 << 62) - 1)])
def test_transfers_outside_of_the_trace_are_left_out(called: int, ended: int, folder: Path) -> None:
    events = [op("c10d::allreduce_", 0, MS), gloo("all_reduce", MS, 6 * MS, [[8]]), op("aten::mm", 7 * MS, MS)]
    sent = {"op": "all_reduce", "called_ns": called, "ended_ns": ended}
    run = load(folder, events, metadata=distributed(0) | {"overlapscope_transfers": [sent]})
    assert whole(run)["comm_ns"] == 6 * MS
    assert len(calls(run)) == 1
    assert any(each.endswith("outside of the trace's time: 1") for each in run.run.sources[0].warnings)


def test_a_compiled_region_computes_beside_its_collective(folder: Path) -> None:
    """Compiled kernels leave no ranges; the wait of a functional collective has one of its own."""
    events = [op("Torch-Compiled Region: 0/0", 0, 10 * MS), op("_c10d_functional::all_reduce_", MS, MS)]
    events.append(op("_c10d_functional::wait_tensor", 8 * MS, MS))
    figures = whole(load(folder, [*events, gloo("all_reduce", 2 * MS, 5 * MS, [[8]])]))
    assert (figures["compute_ns"], figures["overlapped_ns"]) == (8 * MS, 5 * MS)


def test_gloo_names_a_reduce_scatter_all_reduce_and_the_caller_is_right(folder: Path) -> None:
    table = calls(load(folder, cpu_run(), metadata=distributed(0, backend="gloo")))
    assert table.op.tolist() == ["reduce_scatter", "all_gather"]
    assert table.executed_op.tolist() == ["all_reduce", "all_gather"]
    assert table.bytes.tolist() == [128, 128]
    assert table.group.tolist() == ["0", "0"]
    assert table.group_size.tolist() == [2, 2]
    assert (table.start_ns - table.launch_ns).tolist() == [1 * MS, 1 * MS]
    assert table.step.tolist() == [3, 3]


def test_what_a_gather_over_gloo_gathers_is_known_without_its_group(folder: Path) -> None:
    """With several groups the trace does not say whose a call is; a tensor without dimensions is one element."""
    metadata: Any = distributed(0, backend="gloo")
    config = metadata["distributedInfo"]["pg_config"]
    metadata["distributedInfo"]["pg_config"] = [*config, {**config[0], "pg_name": "1", "ranks": [0], "pg_size": 1}]
    table = calls(load(folder, [*cpu_run(), gloo("all_reduce", 16 * MS, MS, [[]])], metadata=metadata))
    assert table.group.isna().all()
    assert table.op.tolist() == ["reduce_scatter", "all_gather", "all_reduce"]
    assert table.bytes.tolist() == [128, 128, 4]


def test_a_gloo_collective_whose_call_was_not_recorded_keeps_its_own_name(folder: Path) -> None:
    late = op("c10d::_reduce_scatter_base_", 9 * MS, MS, args={"Input Dims": [[16], [32]], "Input type": ["float"]})
    table = calls(load(folder, [op("aten::mm", 0, MS), gloo("all_reduce", 2 * MS, MS, [[32]]), late]))
    assert table.op.tolist() == ["all_reduce"]
    assert table.launch_ns.isna().all()


@pytest.mark.parametrize("shapes", [True, False])
def test_a_barrier_over_gloo_has_its_call_whether_shapes_were_recorded_or_not(*, shapes: bool, folder: Path) -> None:
    """Its call has a tensor that names the device; what runs has none."""
    args = {"Input Dims": [[1], [], [], [], []], "Input type": ["unsigned char", "", "", "", ""]} if shapes else {}
    entered = [op("c10d::barrier", at * MS, 3 * MS, args=args) for at in (1, 5)]
    ran = [annotation("gloo:barrier", at * MS + 1 * US, 2 * MS, thread=WORKER) for at in (1, 5)]
    table = calls(load(folder, [op("aten::mm", 0, MS), *entered, *ran]))
    assert table.op.tolist() == ["barrier", "barrier"]
    assert (table.start_ns - table.launch_ns).tolist() == [1 * US, 1 * US]


def allreduce(start_ns: int, elements: int) -> Event:
    args = {"Input Dims": [[[elements]], [], [], [], []], "Input type": ["TensorList", "", "", "", "Scalar"]}
    return op("c10d::allreduce_", start_ns, 20 * US, args=args)


def unended(start_ns: int, thread: int) -> Event:
    """What torch 2.4 wrote of a call whose future was done, but not its range, when the profiler stopped."""
    return annotation("gloo:all_reduce", start_ns, 0, thread=thread, args={"External id": 519, "Ev Idx": 1802})


def two_steps_whose_last_call_has_no_end() -> list[Event]:
    """The last two steps of a DDP job over gloo, recorded with torch 2.4 on busy cores; times rounded."""
    other = WORKER + 1
    return [
        step(2, 0, 8880 * US),
        *(allreduce(at * US, elements) for at, elements in ((1300, 8256), (1620, 8320), (1770, 8320), (1790, 64))),
        gloo("all_reduce", 1330 * US, 3286 * US, [[8256]]),
        gloo("all_reduce", 1800 * US, 6900 * US, [[8320]], thread=other),
        gloo("all_reduce", 4623 * US, 3615 * US, [[8320]]),
        gloo("all_reduce", 8242 * US, 182 * US, [[64]]),
        step(3, 8900 * US, 18850 * US),
        *(allreduce(at * US, elements) for at, elements in ((10140, 8256), (10340, 8320), (10480, 8320), (10500, 64))),
        gloo("all_reduce", 10520 * US, 5786 * US, [[8256]], thread=other),
        gloo("all_reduce", 10600 * US, 8695 * US, [[8320]]),
        gloo("all_reduce", 16310 * US, 10780 * US, [[8320]], thread=other),
        unended(19300 * US, WORKER),
    ]


def test_a_call_over_gloo_whose_end_the_profiler_missed_is_left_out_with_its_step(folder: Path) -> None:
    run = load(folder, two_steps_whose_last_call_has_no_end())
    table = calls(run)
    assert table.bytes.tolist() == [4 * each for each in (8256, 8320, 8320, 64, 8256, 8320, 8320)]
    assert table.step.tolist() == [2, 2, 2, 2, 3, 3, 3]
    assert (table.end_ns > table.start_ns).all()
    assert [(each.step, each.complete) for each in run.analysis().ranks[0].steps] == [(2, True), (3, False)]
    assert ["had recorded their end: 1;" in warning for source in run.sources for warning in source.warnings] == [True]


def test_a_call_without_an_end_takes_no_others_call(folder: Path) -> None:
    """Two workers took two calls at once: the range of the second call begins first, and has no end."""
    events = [step(4, 0, 9 * MS), step(5, 10 * MS, 10 * MS), allreduce(11 * MS, 32), allreduce(12 * MS, 8)]
    events += [unended(13 * MS, WORKER), gloo("all_reduce", 13 * MS + US, MS, [[32]], thread=WORKER + 1)]
    table = calls(load(folder, [op("aten::mm", 0, MS), *events]))
    assert (table.bytes.tolist(), (table.start_ns - table.launch_ns).tolist()) == ([128], [2 * MS + US])


@pytest.mark.parametrize("recorded", [True, False])
def test_steps_before_the_launch_of_a_call_without_an_end_stay_complete(recorded: bool, folder: Path) -> None:
    """Where the call itself was not recorded, the begin of its range counts."""
    events = [step(number, 10 * number * MS, 10 * MS) for number in range(3)]
    events += [op("aten::mm", 0, 30 * MS), *([allreduce(15 * MS, 8)] if recorded else []), unended(22 * MS, WORKER)]
    steps = load(folder, events).analysis().ranks[0].steps
    assert [each.complete for each in steps] == [True, not recorded, False]


def test_a_range_of_no_length_before_another_of_its_thread_has_ended(folder: Path) -> None:
    """Old versions write whole microseconds; and a message's range is one of a thread that goes on."""
    events = [op("aten::mm", 0, MS), unended(2 * MS, WORKER), gloo("all_reduce", 3 * MS, MS, [[8]])]
    events.append(annotation("gloo:send", 4 * MS, 0))
    assert calls(load(folder, events)).op.tolist() == ["all_reduce", "all_reduce", "send"]


def test_one_device_span_makes_it_a_device_run(folder: Path) -> None:
    run = load(folder, [*cpu_run(), kernel(GEMM, 3 * MS, MS)])
    assert run.run.ranks[0].has_device
    assert whole(run)["window_ns"] == 1 * MS


# --- times


@pytest.mark.slow
def test_kernels_at_time_0_are_left_out_where_all_others_are_hours_later(folder: Path) -> None:
    for dialect in DIALECTS:
        sound = load(folder, training(), dialect)
        path = folder / "worker.json"
        first = b'{"ph":"X","cat":"kernel","name":"lost","pid":0,"tid":7,"ts":0,"dur":5,"args":{"correlation":400}},'
        first = first.replace(b'"kernel"', b'"Kernel"') if dialect is TORCH_1_8 else first
        text = path.read_bytes()
        path.write_bytes(text.replace(b'"traceEvents": [', b'"traceEvents": [' + first * 3))
        run = overlapscope.load(path)
        assert run.sources[0].dropped == 3
        assert any(warning.startswith("3 device events at time 0") for warning in run.sources[0].warnings)
        assert msgspec.to_builtins(run.analysis().ranks) == msgspec.to_builtins(sound.analysis().ranks)
        assert calls(run).equals(calls(sound))


def test_kernels_at_time_0_stay_where_the_recording_begins_there(folder: Path) -> None:
    early = Dialect(name="from 0", decimals=3, start_us=0)
    run = load(folder, [kernel(GEMM, 0, MS), kernel(GEMM, 2 * MS, MS)], early)
    assert (run.sources[0].dropped, whole(run)["window_ns"]) == (0, 3 * MS)


def relative(run: LoadedRun) -> dict[str, Any]:
    """All data of a run in nanoseconds since its first span, without fields that a dialect cannot express."""
    out: dict[str, Any] = {"ranks": msgspec.to_builtins(run.analysis().ranks)}
    start = int(run.table("spans", 0).start_ns.min())
    for name in ("spans", "collectives", "steps", "recordings"):
        table = run.table(name, 0).copy()
        for column in table.columns:
            if column.endswith("_ns"):
                table[column] -= start
        out[name] = table.drop(columns=["lane", "source"], errors="ignore").astype(str).to_dict("list")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_dialects_of_a_trace_give_the_same_nanoseconds(all_of_them: bool, folder: Path) -> None:
    events = training(3)
    reference = relative(load(folder, events))
    steps = reference["ranks"][0]["steps"]
    assert {name: steps[0][name] for name in TRAINING_STEP_NS} == TRAINING_STEP_NS
    for dialect, indent, ph_first, after, packed in product(DIALECTS, *[(False, True)] * 4):
        if packed != (indent + ph_first + after) % 2 and not all_of_them:
            continue  # any two of them are in each combination all the same
        run = load(folder, events, dialect, indent=indent, ph_first=ph_first, metadata_after=after, compress=packed)
        assert relative(run) == reference, dialect.name
        array = load(folder, events, dialect, indent=indent, ph_first=ph_first, array=True, compress=packed)
        assert relative(array) == reference, dialect.name


def test_dialects_with_decimals_keep_every_nanosecond(folder: Path) -> None:
    events = [mark("Iteration Start: PyTorch Profiler", 0)]
    for each in range(40):
        start = 1 + each * 1_003
        events += [kernel(GEMM, start, 501 + each), kernel(NCCL_KERNEL, start + 250, 333, stream=COMM_STREAM)]
    for dialect in (TORCH_2024, ABSOLUTE_FLOATS):
        table = spans(load(folder, events, dialect))
        origin = dialect.start_us * 1000 + (dialect.base_ns or 0)
        compute = table[table.kind == "compute"]
        assert (compute.start_ns - origin).tolist() == [1 + each * 1_003 for each in range(40)]
        assert (compute.end_ns - compute.start_ns).tolist() == [501 + each for each in range(40)]
        comm = table[table.kind == "comm"]
        assert (comm.start_ns - origin).tolist() == [251 + each * 1_003 for each in range(40)]
    assert whole(load(folder, events, TORCH_2024)) == whole(load(folder, events, ABSOLUTE_FLOATS))


def test_streams_of_any_spelling_are_lanes_of_their_own(folder: Path) -> None:
    events = [kernel(GEMM, 0, MS, stream=COMPUTE_STREAM), kernel(NCCL_KERNEL, 0, MS, stream=COMM_STREAM)]
    for dialect in (TORCH_1_8, TORCH_2022):
        lanes = load(folder, events, dialect).table("lanes", 0)
        assert lanes.kind.tolist() == ["device", "device"]
        assert {label.split()[-1] for label in lanes.label} == {"7", "20"}


def test_the_recording_spans_the_marks_of_the_profiler(folder: Path) -> None:
    run = load(folder, training(2))
    window = run.table("recordings", 0)
    assert (window.end_ns - window.start_ns).tolist() == [20 * MS + 200 * US]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_device_run_without_its_device_events_does_not_pass_for_a_cpu_run(backend: str, tmp_path: Path) -> None:
    """Kineto writes host events first: a file cut early holds these alone."""
    kept = b'{"distributedInfo": {"backend": "%s", "rank": 0, "world_size": 2}, "traceEvents": [' % backend.encode()
    kept += b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 3},'
    path = tmp_path / "rank0.json"
    path.write_bytes(kept + b'{"ph": "X", "cat": "cpu_op", "na')
    if backend == "gloo":
        assert overlapscope.load(path).ranks == [0]
        path.write_bytes(kept + b'{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 6, "dur": 1}]}')
    with pytest.raises(overlapscope.InputError, match="used a device, but no device work"):
        overlapscope.load(path)


def test_a_process_with_a_long_name_costs_its_own_length_alone(tmp_path: Path) -> None:
    calls = [launch(at * US, 9_000 + at, thread=5_000 + at) for at in range(400)]
    head, pid, tail = write([*training(), *calls]).rpartition(b'"pid":4711')
    assert pid
    (tmp_path / "rank0.json").write_bytes(head + b'"pid":"%s"' % (b"x" * 200_000) + tail)
    tracemalloc.start()
    overlapscope.load(tmp_path / "rank0.json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20


def test_the_inputs_of_all_operations_of_a_step_are_summed_where_no_device_was_there(folder: Path) -> None:
    shapes = {"Input Dims": [[6, 3, 32, 32], [16, 3, 3, 3], [], [[5], [2, 2]]]}
    events = [
        step(3, 0, 10 * MS),
        op("aten::conv2d", MS, 2 * MS, args=shapes),
        op("aten::convolution", MS + US, MS, args=shapes),
        op("aten::relu_", 4 * MS, MS, args={"Input Dims": [[7]]}),
        op("aten::sum", 12 * MS, MS, args={"Input Dims": [[100]]}),
        step(4, 20 * MS, 10 * MS),
        op("aten::mm", 21 * MS, MS),
        step(5, 40 * MS, 10 * MS),
        op("aten::mm", 41 * MS, MS, args={"Input Dims": "damaged"}),
    ]
    each = 6 * 3 * 32 * 32 + 16 * 3 * 3 * 3 + 5 + 4
    without = {"deviceProperties": []}
    table = load(folder, events, metadata=distributed(0) | without).table("steps", 0)
    assert table.input_elements.tolist() == [2 * each + 7, pd.NA, pd.NA]
    table = load(folder, events).table("steps", 0)
    assert table.input_elements.isna().all(), "nobody says that there was no device"


@pytest.mark.parametrize(
    ("shapes", "elements"),
    [
        ([[2, 3], []], 6),
        ([], 0),
        ([[[]]], 0),
        ([[1 << 40, 1 << 40]], 1 << 50),
        ([[-1, 2]], 0),
        ("x", NONE),
        (None, NONE),
    ],
)
def test_elements_of_shapes(shapes: object, elements: int) -> None:
    assert elements_of(shapes) == elements


def test_the_peer_of_a_message_is_in_the_name_of_its_range(folder: Path) -> None:
    args = collective_args("send", group="5", ranks=(0, 2, 4))
    run = one_kernel(folder, around("record_param_comms", 30, args=args), around("nccl:send 0->2"), name=NCCL_KERNEL)
    assert (row(run).op, calls(run).peer.tolist()) == ("send", [4])


def test_a_batch_is_more_than_the_message_whose_call_is_around_it(folder: Path) -> None:
    args = collective_args("coalesced", group="5", ranks=(0, 2, 4))
    run = one_kernel(
        folder, around("c10d::send", 40), around("record_param_comms", 30, args=args), around("nccl:coalesced"),
        name=NCCL_KERNEL,
    )  # fmt: skip
    assert (row(run).op, calls(run).peer.isna().tolist()) == ("send_recv", [True])


@pytest.mark.parametrize("kernel_name", [NCCL_KERNEL, "void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)"])
def test_a_servers_own_operation_gives_the_size_of_what_it_reduces(kernel_name: str, folder: Path) -> None:
    shapes = {"Input Dims": [[1000, 4], []], "Input type": ["c10::BFloat16", ""]}
    only = row(one_kernel(folder, around("vllm::all_reduce", args=shapes), name=kernel_name))
    assert (only.op, only.dtype, only.bytes) == ("all_reduce", "bfloat16", 8000)


@pytest.mark.parametrize("dialect", [TORCH_1_8, TORCH_2022])
def test_ranges_that_state_the_places_of_a_message_are_annotations_in_old_traces_too(
    folder: Path, dialect: Dialect
) -> None:
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    rows = [annotation("nccl:recv 0<-3", 100 * US, 50 * US), op("aten::add_", 200 * US, 5 * US)]
    rows += [launch(110 * US, 5), kernel(name, 130 * US, MS, stream=COMM_STREAM, correlation=5)]
    (timeline,) = load(folder, rows, dialect).run.ranks.values()
    assert [timeline.names[code] for code in timeline.annotations.name.tolist()] == ["nccl:recv 0<-3"]
    stated = messages_in_ranges(timeline)
    assert stated is not None
    assert [each.tolist() for each in stated] == [[0], [3]]

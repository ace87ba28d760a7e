"""Ascend profiler folders: what is read of them, against the vendor's own figures and against sums made by hand."""

import csv
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlapscope
from overlapscope.analysis.checks.recording_checks import reported_overlap
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.errors import InputError
from overlapscope.ingest.formats import ascend
from overlapscope.ingest.formats.ascend.device import operation_of
from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import COMM, COMPUTE, COPY, FUSED, NONE, RUNTIME, UNCLASSIFIED
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import reading_or_refusal, spoiled

SAMPLE = "ascend/msinsight_text_level0"
OUTPUT = SAMPLE + "/rank{}_ascend_pt/ASCEND_PROFILER_OUTPUT"
HOST, CANN, HARDWARE, HCCL, OVERLAP = 3016828, 3089232096, 3089232288, 3089232352, 3089232608
BEGIN_US = 1_736_405_443_000_000


def stamp(ns: int) -> str:
    """Nanoseconds since the beginning, as the writer spells a time."""
    whole, rest = divmod(BEGIN_US * 1000 + ns, 1000)
    return f"{whole}.{rest:03}"


def complete(name: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": stamp(start), "dur": (end - start) / 1000}
    return {"name": name, "pid": pid, "tid": tid, **times, "args": args, "ph": "X"}


def task(
    name: str, start: int, end: int, *, stream: int = 2, task_type: str = "AI_CORE", connection: int = 1
) -> dict[str, Any]:
    args = {"Model Id": 4294967295, "connection_id": connection, "Task Type": task_type}
    return complete(name, HARDWARE, stream, start, end, args)


def row(
    name: str, start: int, end: int, *, tid: int = 0, connection: int = 9, data_type: str = "FP32", count: int = 1000
) -> dict[str, Any]:
    args = {"connection_id": connection, "data_type": data_type, "alg_type": "MESH-RING", "count": count}
    return complete(name, HCCL, tid, start, end, args)


def operation(name: str, start: int, end: int) -> dict[str, Any]:
    args = {"Sequence number": -1, "Call stack": "a.py(1): f;\r\nb.py(2): g"}
    return {**complete(name, HOST, HOST, start, end, args), "cat": "cpu_op"}


def arrow(kind: str, key: object, start: tuple[int, int, int], end: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Both ends of a flow; each end is (process, thread, time)."""
    name = "torch_to_npu" if kind == "async_npu" else f"HostToDevice{key}"
    return [
        {"ph": ph, "name": name, "cat": kind, "id": key, "pid": pid, "tid": tid, "ts": stamp(ns)}
        for ph, (pid, tid, ns) in (("s", start), ("f", end))
    ]


def names(
    threads: Sequence[tuple[int, int, str]] = ((HCCL, 0, "Group 0 Communication"), (HCCL, 1, "Plane 0")),
) -> list[dict[str, Any]]:
    processes = {HOST: "Python", CANN: "CANN", HARDWARE: "Ascend Hardware", HCCL: "HCCL", OVERLAP: "Overlap Analysis"}
    named = [("process_name", pid, 0, name) for pid, name in processes.items()]
    named += [("thread_name", *thread) for thread in threads]
    return [{"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}} for what, pid, tid, name in named]


def write(path: Path, events: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(events)))
    return path


def read(path: Path) -> Reading:
    reader = find_reader(read_head(path))
    assert reader is not None
    return reader.read(path, ReadContext())


def read_trace(tmp_path: Path, *events: dict[str, Any]) -> Reading:
    """Read a trace of these events behind the names of processes and threads."""
    return read(write(tmp_path / "t.json", [*names(), *events]))


def spans_of(reading: Reading) -> list[tuple[str, int, int, int]]:
    """(name, kind, start, end) of each span, times since the beginning."""
    timeline = reading.timelines[0]
    spans = timeline.spans
    rows = zip(spans.name.tolist(), spans.kind.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True)
    base = BEGIN_US * 1000
    return sorted((timeline.names[name], kind, start - base, end - base) for name, kind, start, end in rows)


def figures_of(reading: Reading) -> list[tuple[Any, ...]]:
    """(step, subject, name, value) of each figure."""
    by_column = spelled(reading.facts.figures, reading.facts.names)
    return list(zip(*(by_column[name] for name in ("step", "subject", "name", "value")), strict=True))


# --- the real folder ------------------------------------------------------------------------------------------------


def covered(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A union, made with other code than ours."""
    out: list[list[int]] = []
    for start, end in sorted(pairs):
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return [(start, end) for start, end in out]


def shared_ns(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    return sum(max(0, min(e, f) - max(s, t)) for s, e in covered(a) for t, f in covered(b))


def raw_rows(path: Path, chosen: Callable[[dict[str, Any]], bool]) -> list[tuple[int, int]]:
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)
    out = []
    for event in events:
        if event["ph"] == "X" and chosen(event):
            whole, _, rest = event["ts"].partition(".")
            start = int(whole) * 1000 + int((rest + "000")[:3])
            out.append((start, start + round(Decimal(event["dur"]) * 1000)))
    return out


@pytest.mark.parametrize(("rank", "overlapped_ns", "vendor_us"), [(0, 4_001_267, 4001.282), (1, 3_989_587, 3989.596)])
def test_our_overlap_is_the_vendors(rank: int, overlapped_ns: int, vendor_us: float) -> None:
    run = overlapscope.load(shared_file(SAMPLE) / f"rank{rank}_ascend_pt")
    info = run.analysis().ranks[0]
    assert info.rank == rank
    assert info.whole.overlapped_ns == overlapped_ns
    assert [step.step for step in info.steps] == [50]
    assert info.steps[0].complete
    assert info.steps[0].overlapped_ns == overlapped_ns
    assert abs(overlapped_ns / 1000 - vendor_us) <= 0.02
    figures = spelled(run.run.facts.figures, run.run.facts.names)
    by_column = dict(zip(figures["name"], figures["value"], strict=True))
    assert by_column["overlapped_us"] == pytest.approx(vendor_us, abs=1e-6)
    # Stage runs from the first to the last device work of the step, as our window does.
    assert info.steps[0].window_ns == pytest.approx(by_column["stage_us"] * 1000, abs=300)
    assert info.whole.compute_ns == pytest.approx(by_column["computing_us"] * 1000, abs=25)
    assert info.whole.comm_ns == pytest.approx(by_column["communication_us"] * 1000, abs=25)
    assert not [each for each in run.analysis().findings if each.id.startswith("reported_overlap")]


@pytest.mark.parametrize("rank", [0, 1])
def test_spans_are_the_raw_rows(rank: int) -> None:
    path = shared_file(OUTPUT.format(rank)) / "trace_view.json.gz"
    comm = raw_rows(path, lambda event: event["name"].startswith("hcom_"))
    types = ("AI_CORE", "MIX_AIV", "DSA_SQE")
    compute = raw_rows(path, lambda event: (event.get("args") or {}).get("Task Type") in types)
    spans = read(path).timelines[0].spans
    ours = list(zip(spans.start_ns.tolist(), spans.end_ns.tolist(), spans.kind.tolist(), strict=True))
    assert sorted((s, e) for s, e, kind in ours if kind == COMM) == sorted(comm)
    assert sorted((s, e) for s, e, kind in ours if kind == COMPUTE) == sorted(compute)
    assert shared_ns(comm, compute) in (4_001_267, 3_989_587)
    # 22 copies of the compute stream, 2 of another; the SDMA tasks of the collectives are none.
    assert sum(kind == COPY for *_, kind in ours) == 24


def test_every_file_of_the_folder_is_claimed() -> None:
    run = overlapscope.load(shared_file("ascend"))
    assert {len(source.warnings) for source in run.sources} == {0}
    assert len(run.sources) == 10
    assert run.ranks == [0, 1]
    assert [source.ranks for source in run.sources if source.format == "ascend"] == [(0,), (1,)]


def test_collectives_know_operation_group_type_and_size() -> None:
    calls = []
    for rank in (0, 1):
        timeline = read(shared_file(OUTPUT.format(rank)) / "trace_view.json.gz").timelines[0]
        by_column = spelled(timeline.collectives, timeline.names)
        keys = ("op", "group", "dtype", "elements", "bytes", "algorithm", "step", "seq")
        calls.append([by_column[key] for key in keys])
        assert timeline.collectives.launch_ns.min() > 0
        assert (timeline.spans.launch_ns <= timeline.spans.start_ns).all()
    elements = [4_097_000, 16_781_312, 37_752_832, 2_469_696]
    assert calls[0] == [
        ["all_reduce"] * 4, ["868"] * 4, ["float32"] * 4, elements, [4 * each for each in elements],
        ["MESH-RING"] * 4, [50] * 4, [None] * 4,
    ]  # fmt: skip
    assert calls[0] == calls[1]


def test_a_kernel_is_launched_before_it_runs_inside_its_operation() -> None:
    path = shared_file(OUTPUT.format(0)) / "trace_view.json.gz"
    timeline = read(path).timelines[0]
    by_column = spelled(timeline.spans, timeline.names)
    assert None not in by_column["launch_ns"]
    with gzip.open(path) as file:
        events = json.load(file)
    begun = {event["id"]: event for event in events if event["ph"] == "s" and event["cat"] == "async_npu"}
    caller = {}
    for event in events:
        if event["ph"] == "f" and event["cat"] == "async_npu":
            start = begun[event["id"]]
            at = (start["pid"], start["tid"], start["ts"])
            there = [e for e in events if e.get("cat") == "cpu_op" and (e["pid"], e["tid"], e["ts"]) == at]
            caller[event["ts"]] = min(there, key=lambda e: e["dur"])["name"]
    ours = dict(zip(by_column["start_ns"], by_column["host_op"], strict=True))
    assert len(caller) == 210
    for time, name in caller.items():
        assert ours[int(time.replace(".", ""))] == name


def test_the_kernel_table_alone_gives_the_same_overlap(tmp_path: Path) -> None:
    source = shared_file(OUTPUT.format(1)) / "kernel_details.csv"
    run = overlapscope.load(shutil.copy(source, tmp_path / "rank1_kernels.csv"))
    with open(source, newline="") as file:
        table = list(csv.DictReader(file))
    comm, compute = [], []
    for each in table:
        whole, rest = each["Start Time(us)"].strip().split(".")
        start = int(whole + rest)
        pair = (start, start + round(float(each["Duration(us)"]) * 1000))
        (comm if each["Accelerator Core"] == "HCCL" else compute).append(pair)
    whole = run.analysis().ranks[0].whole
    assert run.ranks == [1]
    assert whole.overlapped_ns == shared_ns(comm, compute)
    assert abs((whole.overlapped_ns or 0) / 1000 - 3989.596) <= 0.02


def test_a_kernel_table_beside_a_trace_counts_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "some_name"
    shutil.copytree(shared_file(OUTPUT.format(0)), folder)
    run = overlapscope.load(folder)  # nothing tells the rank
    assert run.analysis().ranks[0].whole.overlapped_ns == 4_001_267
    assert len(run.run.ranks[0].recordings.start_ns) == 1


# --- constructed files ----------------------------------------------------------------------------------------------


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    reading = read_trace(tmp_path, task("Mul1", 1, 1_000_000_007), task("Mul2", 2_000_000_003, 2_000_000_004))
    assert spans_of(reading) == [
        ("Mul1", COMPUTE, 1, 1_000_000_007),
        ("Mul2", COMPUTE, 2_000_000_003, 2_000_000_004),
    ]


def test_times_written_as_numbers_are_read_as_their_text(tmp_path: Path) -> None:
    text = json.dumps([*names(), task("Mul1", 934, 2934)]).replace(f'"{stamp(934)}"', stamp(934))
    path = tmp_path / "t.json"
    path.write_text(text)
    assert spans_of(read(path)) == [("Mul1", COMPUTE, 934, 2934)]


def test_planes_flags_waits_and_the_vendors_sums_are_no_spans(tmp_path: Path) -> None:
    sums = [
        {"name": name, "pid": OVERLAP, "tid": 0, "ts": stamp(0), "dur": 9.0, "ph": "X"}
        for name in ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
    ]
    events = [
        row("hcom_allReduce__868_0_1", 0, 5000),
        row("Memcpy", 100, 4000, tid=1),
        row("Notify Wait", 10, 4900, tid=1),
        task("Notify Wait", 10, 4900, stream=4, task_type="Notify Wait", connection=9),
        task("SDMA", 100, 4000, stream=4, task_type="SDMA", connection=9),
        task("EVENT_WAIT", 0, 9000, task_type="EVENT_WAIT_SQE"),
        task("Write Value", 0, 9000, task_type="Write Value"),
        task("PLACE_HOLDER", 0, 9000, task_type="PLACE_HOLDER_SQE"),
        task("MatMul", 1000, 3000),
        task("MEMCPY_ASYNC", 6000, 7000, task_type="PCIE_DMA_SQE"),
        {"name": "AscendCL@x", "pid": CANN, "tid": 1, "ts": stamp(0), "dur": 1.0, "ph": "X"},
        *sums,
    ]
    assert spans_of(read_trace(tmp_path, *events)) == [
        ("MEMCPY_ASYNC", COPY, 6000, 7000),
        ("MatMul", COMPUTE, 1000, 3000),
        ("hcom_allReduce__868_0_1", COMM, 0, 5000),
    ]


def test_a_call_waited_while_a_notify_wait_ran_before_it_moved_data(tmp_path: Path) -> None:
    def of_call(name: str, start: int, end: int, connection: int) -> dict[str, Any]:
        return task(name, start, end, stream=4, task_type=name, connection=connection)

    timeline = read_trace(
        tmp_path,
        row("hcom_allReduce__868_0_1", 0, 9000, connection=1),
        of_call("SDMA", 100, 200, 1),  # copies within its own memory
        of_call("Notify Wait", 200, 5200, 1),
        of_call("Notify Wait", 200, 7000, 1),
        of_call("SDMA", 6000, 8000, 1),
        of_call("Notify Wait", 8000, 9000, 1),
        row("hcom_allReduce__868_1_1", 10_000, 19_000, connection=2),
        of_call("SDMA", 10_000, 14_000, 2),
        of_call("Notify Wait", 14_000, 18_000, 2),  # between two parts of its data: for what others move
        of_call("SDMA", 18_000, 19_000, 2),
        row("hcom_allReduce__868_2_1", 20_000, 29_000, connection=3),
        row("hcom_broadcast__868_3_1", 30_000, 39_000, connection=4),
        of_call("Notify Wait", 30_000, 38_000, 4),  # the root may be sending meanwhile
        of_call("SDMA", 38_000, 39_000, 4),
    ).timelines[0]
    assert timeline.collectives.waited_ns.tolist() == [5800, 0, NONE, NONE]


def test_planes_without_any_collectives_row_are_no_run_without_communication(tmp_path: Path) -> None:
    add, plane = task("a", 0, 1000), row("Notify_Wait", 0, 500, tid=1)

    def notes(*events: dict[str, Any]) -> list[str]:
        missing = "communication is missing from all figures"
        return [each for each in read_trace(tmp_path, *events).source.warnings if missing in each]

    (note,) = notes(add, plane)
    assert "planes" in note
    assert notes(add, plane, row("hcom_allReduce__868_0_1", 0, 500)) == notes(add) == []


def test_metadata_may_follow_the_work_it_names(tmp_path: Path) -> None:
    events = [row("hcom_broadcast__1_0_1", 0, 500), task("Add", 100, 200), *names()]
    assert [kind for _, kind, *_ in spans_of(read(write(tmp_path / "t.json", events)))] == [COMPUTE, COMM]


def test_fused_and_unnamed_kernels_are_listed(tmp_path: Path) -> None:
    events = [
        task("MatmulAllReduce_ab12", 0, 100),
        task("KERNEL_AIVEC", 200, 300, task_type="AIV_SQE"),
        task("NewEngine", 400, 500, task_type="QUANTUM_SQE"),
        task("Add", 600, 700),
    ]
    timeline = read_trace(tmp_path, *events).timelines[0]
    by_column = spelled(timeline.spans, timeline.names)
    notes = dict(zip(by_column["name"], by_column["note"], strict=True))
    assert set(by_column["kind"]) == {COMPUTE}
    assert notes == {"MatmulAllReduce_ab12": FUSED, "KERNEL_AIVEC": UNCLASSIFIED, "NewEngine": UNCLASSIFIED, "Add": 0}


def test_a_kernel_of_a_collective_counts_only_where_no_row_does(tmp_path: Path) -> None:
    kernel = task("aiv_all_reduce_bfloat16_t", 100, 900, task_type="AIV_SQE")
    with_row = read_trace(tmp_path, row("hcom_allReduce__1_0_1", 0, 1000), kernel)
    assert [name for name, *_ in spans_of(with_row)] == ["hcom_allReduce__1_0_1"]
    alone = read_trace(tmp_path, kernel, task("Add", 0, 50))
    assert [each[:2] for each in spans_of(alone)] == [("Add", COMPUTE), ("aiv_all_reduce_bfloat16_t", COMM)]
    timeline = alone.timelines[0]
    assert spelled(timeline.collectives, timeline.names)["op"] == ["all_reduce"]


def test_the_step_is_the_one_the_operation_was_called_in(tmp_path: Path) -> None:
    events = [
        operation("ProfilerStep#7", 0, 1000),
        operation("ProfilerStep#8", 1000, 2000),
        operation("aten::mm", 900, 950),
        task("MatMul", 1500, 1600),
        # A queue hands it to the device in the next step; the operation was called in this one.
        *arrow("HostToDevice", "55425237668390240255", (CANN, 5, 1100), (HARDWARE, 2, 1500)),
        *arrow("async_npu", 1, (HOST, HOST, 900), (HARDWARE, 2, 1500)),
    ]
    timeline = read_trace(tmp_path, *events).timelines[0]
    by_column = spelled(timeline.spans, timeline.names)
    assert by_column["step"] == [7]
    assert by_column["launch_ns"] == [BEGIN_US * 1000 + 1100]
    assert by_column["host_op"] == ["aten::mm"]
    assert timeline.steps.step.tolist() == [7, 8]


def test_a_launch_without_a_task_shows_a_cut_end(tmp_path: Path) -> None:
    lost = arrow("HostToDevice", "2", (CANN, 5, 900), (HARDWARE, 2, 0))[:1]
    found = arrow("HostToDevice", "1", (CANN, 5, 400), (HARDWARE, 2, 500))
    recording = read_trace(tmp_path, task("Add", 500, 600), *found, *lost).timelines[0].recordings
    assert recording.last_launch_ns.tolist() == [BEGIN_US * 1000 + 400]
    assert recording.lost_launch_ns.tolist() == [BEGIN_US * 1000 + 900]


@pytest.mark.parametrize(
    ("thread", "name", "group"),
    [
        ("Group 0 Communication", "hcom_allReduce__868_0_1", "868"),
        ("Group 13337953553061386822Communication ", "hcom_allReduce__822_0_1", "13337953553061386822"),
        ("Group 10.1.1.1%enp_55000_0_17 Communication", "hcom_allReduce__822_0_1", "10.1.1.1%enp_55000_0_17"),
        ("Communication ", "hcom_allReduce__822_0_1", "822"),
    ],
)
def test_a_group_has_a_name_that_all_ranks_share(tmp_path: Path, thread: str, name: str, group: str) -> None:
    timeline = read(write(tmp_path / "t.json", [*names([(HCCL, 0, thread)]), row(name, 0, 500)])).timelines[0]
    assert [timeline.names[code] for code in timeline.collectives.group.tolist()] == [group]


def test_two_groups_of_one_tag_are_distinguished(tmp_path: Path) -> None:
    threads = [(HCCL, 0, "Group 0 Communication"), (HCCL, 4, "Group 1 Communication")]
    rows = [row("hcom_allReduce__868_0_1", 0, 500), row("hcom_allReduce__868_0_1", 600, 700, tid=4)]
    reading = read(write(tmp_path / "t.json", [*names(threads), *rows]))
    assert len(set(reading.timelines[0].collectives.group.tolist())) == 2
    assert any("868" in warning for warning in reading.source.warnings)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("hcom_allReduce__868_0_1", "all_reduce"),
        ("hcom_reduceScatter__483_4_1", "reduce_scatter"),
        ("hcom_allGather__1_0_1", "all_gather"),
        ("hcom_alltoallvc__1_0_1", "all_to_all"),
        ("hcom_batchSendRecv__1_0_1", "send_recv"),
        ("hcom_BatchSendRecv__1_0_1", "send_recv"),
        ("hcom_receive__1_0_1", "recv"),
        ("hcom_send__1_0_1", "send"),
        ("allreduceAicpuKernel_360_1_1", "all_reduce"),
        ("MatmulAllReduceAicpu_724_2_1", "all_reduce"),
        ("hcom_frobnicate__1_0_1", None),
    ],
)
def test_an_operation_is_read_from_its_row(name: str, op: str | None) -> None:
    assert operation_of(name) == op


@pytest.mark.parametrize(
    ("name", "elements"),
    [("hcom_allReduce__1_0_1", 1000), ("hcom_allGather__1_0_1", None), ("hcom_alltoall__1_0_1", None)],
)
def test_a_part_of_a_collective_is_not_taken_for_the_whole(tmp_path: Path, name: str, elements: int | None) -> None:
    timeline = read_trace(tmp_path, row(name, 0, 500, data_type="FP16")).timelines[0]
    by_column = spelled(timeline.collectives, timeline.names)
    assert by_column["elements"] == [elements]
    assert by_column["bytes"] == [None if elements is None else 2 * elements]
    assert by_column["dtype"] == ["float16"]


def test_the_rank_stands_two_levels_up_or_in_the_folders_name(tmp_path: Path) -> None:
    events = [*names(), task("Add", 0, 100)]
    noted = tmp_path / "host_4711_ascend_pt"
    path = write(noted / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events)
    assert read(path).timelines[0].rank == -1
    (noted / "profiler_info_5.json").write_text('{"rank_id": 5, "start_info": {}}')
    assert read(path).timelines[0].rank == 5
    (noted / "profiler_info_6.json").write_text('{"rank_id": 6, "start_info": {}}')
    assert read(path).timelines[0].rank == -1  # whose is it?
    named = write(tmp_path / "rank3_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events)
    assert overlapscope.load(named).ranks == [3]
    assert overlapscope.load(write(tmp_path / "alone" / "t.json", events)).ranks == [0]


def test_the_devices_part_kept_beside_the_trace_is_not_counted_again(tmp_path: Path) -> None:
    events = [*names(), task("Add", 0, 100)]
    folder = tmp_path / "a_ascend_pt"
    write(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events)
    write(folder / "PROF_1" / "mindstudio_profiler_output" / "msprof_1.json", events)
    (folder / "profiler_info_2.json").write_text('{"rank_id": 2, "start_info": {}}')
    run = overlapscope.load(folder)
    assert run.ranks == [2]
    assert run.analysis().ranks[0].whole.compute_ns == 100
    alone = overlapscope.load(folder / "PROF_1")
    assert alone.ranks == [2]
    assert alone.analysis().ranks[0].whole.compute_ns == 100


def test_several_devices_in_one_file_are_refused(tmp_path: Path) -> None:
    other = task("Add", 0, 100) | {"pid": HARDWARE + 1}
    second = {"ph": "M", "name": "process_name", "pid": HARDWARE + 1, "tid": 0, "args": {"name": "Ascend Hardware"}}
    with pytest.raises(InputError, match="2 devices"):
        read_trace(tmp_path, second, task("Add", 0, 100), other)


def test_a_trace_without_device_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no work of an Ascend device"):
        read_trace(tmp_path, operation("aten::mm", 0, 10))


def test_timed_events_of_unknown_processes_are_reported(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Memory"}}
    reading = read_trace(tmp_path, task("Add", 0, 9), name, task("x", 0, 5) | {"pid": 7})
    assert reading.source.warnings == ("timed events of processes that are not read: Memory (1)",)


def test_a_cut_file_keeps_every_whole_event(tmp_path: Path) -> None:
    events = [*names(), *(task(f"Add{number}", number * 100, number * 100 + 50) for number in range(20))]
    text = json.dumps(events)
    for cut in range(text.index("Add3"), len(text), 37):
        path = tmp_path / "t.json"
        path.write_text(text[:cut])
        reading = read(path)
        assert reading.source.truncated
        whole = text[:cut].count('"ph": "X"}')
        assert len(spans_of(reading)) == whole


def test_a_kineto_array_is_not_claimed() -> None:
    traces = ("kineto/tracelens_mi210_gpu_only.json.gz", "kineto/tracelens_b200_eager.json.gz")
    timelines = (path for path in shared_file("horovod").rglob("*") if path.is_file())
    for path in (*map(shared_file, traces), *timelines):
        assert not ascend.TRACE.recognises(read_head(path)), path


# --- tables, communication, notes -----------------------------------------------------------------------------------


def test_an_overlap_that_differs_from_ours_is_a_finding() -> None:
    figures = FigureRows(3)
    for step, value in ((1, 1000.0), (2, 1000.9), (3, 1500.0), (4, 7.0)):
        figures.add(None, "overlapped_us", value, step=step)
    ours = {(3, step): Breakdown(overlapped_ns=1_000_000) for step in (1, 2, 3)}
    findings = reported_overlap(figures.facts("step_trace_time.csv"), ours)
    assert [finding.evidence for finding in findings] == [
        {"rank": 3, "step": 3, "stated_us": 1500.0, "found_us": 1000.0}
    ]
    assert "step 3 of rank 3" in findings[0].title


def test_step_times_of_all_versions(tmp_path: Path) -> None:
    path = tmp_path / "step_trace_time.csv"
    path.write_text(
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive)\n"
        "4,12,10.5,2,1,3,4,16.5,0,2\n"
        "4,,1,2,N/A,3,4,5,6,7\n"
        "4,13\n"
    )
    reading = read(path)
    assert ascend.STEP_TIMES.recognises(read_head(path))
    rows = figures_of(reading)
    assert (12, "device 4", "computing_us", 10.5) in rows
    assert (12, "device 4", "overlapped_us", 1.0) in rows
    assert (None, "device 4", "communication_us", 3.0) in rows
    assert (None, "device 4", "overlapped_us") not in [each[:3] for each in rows]
    assert reading.source.dropped == 1


COMMUNICATION = {
    "step2": {
        "p2p": {
            "hcom_send__822_0@13337953553061386822": {
                "Communication Time Info": {"Start Timestamp(us)": 1.5, "Elapse Time(ms)": 0.9, "Wait Time(ms)": 0.0},
                "Communication Bandwidth Info": {
                    "RDMA": {"Transit Size(MB)": 20.97152, "Transit Time(ms)": 0.86, "Bandwidth(GB/s)": 24.3},
                    "HCCS": {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0},
                },
            },
            "Total Op Info": {"Communication Time Info": {"Elapse Time(ms)": 0.9}},
        },
        "collective": {
            "hcom_allReduce__483_2@9350434047717501483": {
                "Communication Time Info": {"Elapse Time(ms)": 1.85, "Transit Time(ms)": 1}
            },
            "Total Op Info": {"Communication Time Info": {"Elapse Time(ms)": 1.85}},
        },
    },
    "step": {"collective": {"odd": 5, "hcom_reduce__1_0@7": {"Communication Time Info": None}}},
}


def test_communication_times_leave_out_the_sums(tmp_path: Path) -> None:
    path = tmp_path / "communication.json"
    path.write_text(json.dumps(COMMUNICATION))
    reading = read(path)
    rows = {(step, subject.split("@")[0], name): value for step, subject, name, value in figures_of(reading)}
    assert rows == {
        (2, "hcom_send__822_0", "elapse_ms"): 0.9,
        (2, "hcom_send__822_0", "wait_ms"): 0.0,
        (2, "hcom_send__822_0", "rdma_moved_mb"): 20.97152,
        (2, "hcom_send__822_0", "rdma_moving_ms"): 0.86,
        (2, "hcom_send__822_0", "rdma_gbs"): 24.3,
        (2, "hcom_allReduce__483_2", "elapse_ms"): 1.85,
        (2, "hcom_allReduce__483_2", "transit_ms"): 1.0,
    }
    assert (reading.source.events, reading.source.dropped) == (3, 1)


def test_a_communication_matrix_gives_links(tmp_path: Path) -> None:
    link = {"Transport Type": "HCCS", "Transit Size(MB)": 2.0, "Transit Time(ms)": 0.1, "Bandwidth(GB/s)": 20.0}
    path = tmp_path / "communication_matrix.json"
    path.write_text(
        json.dumps({"step1": {"collective": {"allreduce-top1@7": {"0-1": link}, "Total Op Info": {"0-1": link}}}})
    )
    assert figures_of(read(path)) == [
        (1, "allreduce-top1@7 0-1", "hccs_moved_mb", 2.0),
        (1, "allreduce-top1@7 0-1", "hccs_moving_ms", 0.1),
        (1, "allreduce-top1@7 0-1", "hccs_gbs", 20.0),
    ]


def test_metadata_gives_groups_and_world_size(tmp_path: Path) -> None:
    path = tmp_path / "profiler_metadata.json"
    groups = {
        "10.1.1.1%e_5_0_1": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]},
        "odd": 3,
        "x": {"global_ranks": "?"},
    }
    path.write_text(json.dumps({"distributed_args": {"rank": 0, "world_size": 8}, "parallel_group_info": groups}))
    reading = read(path)
    assert ascend.INFO.recognises(read_head(path))
    assert reading.world_size == 8
    assert [(g.name, g.description, g.size, g.ranks) for g in reading.groups] == [
        ("10.1.1.1%e_5_0_1", "tp", 2, (0, 1)),
        ("x", None, None, None),
    ]


def test_a_database_is_named_with_the_file_to_give_instead(tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER)")
    database.close()
    with pytest.raises(InputError, match=r"trace_view\.json"):
        overlapscope.load(path)
    write(tmp_path / "trace_view.json", [*names(), task("Add", 0, 100)])
    assert {source.warnings for source in overlapscope.load(tmp_path).sources} == {
        ("no rank stands in the trace or its name; taken as rank 0",),
        (),
    }


# --- broken input ---------------------------------------------------------------------------------------------------

TRACE = [*names(), row("hcom_allReduce__868_0_1", 0, 5000), task("Add", 0, 100), operation("a", 0, 9)]
INFO = {"rank_id": 3, "start_info": {}, "parallel_group_info": {"a": {"global_ranks": [0]}}}
FILES = {
    "trace": (ascend.TRACE, json.dumps(TRACE)),
    "steps": (ascend.STEP_TIMES, "Step,Computing,Communication(Not Overlapped),Overlapped\n1,2,3,4\n5,6,7,8\n"),
    "kernels": (ascend.KERNELS, "Name,Accelerator Core,Start Time(us),Duration(us)\na,HCCL,5.5\t,3\nb,N/A,6.0\t,3\n"),
    "communication": (ascend.COMMUNICATION, json.dumps(COMMUNICATION)),
    "info": (ascend.INFO, json.dumps(INFO)),
}


@pytest.mark.slow
@examples(150)
@given(data=st.data())
@pytest.mark.parametrize(("reader", "text"), FILES.values(), ids=FILES)
def test_damage_ends_in_a_reading_or_an_input_error(reader: Reader, text: str, data: st.DataObject) -> None:
    reading = reading_or_refusal(reader, data.draw(spoiled(text.encode())))
    if reading is not None:
        assert all((each.spans.end_ns >= each.spans.start_ns).all() for each in reading.timelines)
        assert np.isfinite(reading.facts.figures.value).all()


# --- host events ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_host_spans_of_the_real_folder_are_its_operations_and_the_tasks_of_its_queue(rank: int) -> None:
    folder = shared_file(f"ascend/msinsight_text_level0/rank{rank}_ascend_pt")
    with gzip.open(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json.gz") as file:
        events = json.load(file, parse_float=Decimal)
    queue = ("enqueue", "dequeue")
    wanted: dict[tuple[int, str], list[int]] = {}
    for event in events:
        if event["ph"] == "X" and event.get("cat") in ("cpu_op", *queue):
            entry = wanted.setdefault((int(event["cat"] in queue), event["name"]), [0, 0])
            entry[0] += 1
            entry[1] += round(Decimal(event["dur"]) * 1000)
    (timeline,) = read_inputs([folder]).ranks.values()
    host = timeline.host
    found: dict[tuple[int, str], list[int]] = {}
    for code, kind, duration in zip(
        host.name.tolist(), host.kind.tolist(), (host.end_ns - host.start_ns).tolist(), strict=True
    ):
        entry = found.setdefault((int(kind == RUNTIME), timeline.name(code) or ""), [0, 0])
        entry[0] += 1
        entry[1] += duration
    assert found == wanted
    # Each task's arrow begins inside a task of the queue, on its thread.
    calls = {
        number: (start, end)
        for number, start, end in zip(
            host.correlation.tolist(), host.start_ns.tolist(), host.end_ns.tolist(), strict=True
        )
    }
    spans = timeline.spans
    assert (spans.correlation != NONE).all()
    for number, launched in zip(spans.correlation.tolist(), spans.launch_ns.tolist(), strict=True):
        start, end = calls[number]
        assert start <= launched < end


def test_a_call_of_cann_is_on_the_frameworks_thread_and_owns_the_tasks_it_launched(tmp_path: Path) -> None:
    call = {"name": "Node@launch", "pid": CANN, "tid": HOST, "ts": stamp(1000), "dur": 1.0, "ph": "X"}
    timeline = read_trace(
        tmp_path,
        operation("aten::mm", 900, 2500),
        call,
        {**call, "name": "AscendCL@other", "ts": stamp(5000)},
        *arrow("HostToDevice", "1", (CANN, HOST, 1200), (HARDWARE, 2, 3000)),
        task("MatMul", 3000, 4000),
        task("Add", 6000, 7000),
    ).timelines[0]
    host = timeline.host
    assert len(set(host.lane.tolist())) == 1
    assert timeline.name(int(timeline.lanes.process[host.lane[0]])) == "Python"
    named = dict(zip(map(timeline.name, host.name.tolist()), host.correlation.tolist(), strict=True))
    owned = dict(
        zip(map(timeline.name, timeline.spans.name.tolist()), timeline.spans.correlation.tolist(), strict=True)
    )
    assert owned == {"MatMul": named["Node@launch"], "Add": NONE}
    assert named["aten::mm"] == NONE != named["AscendCL@other"]


def test_when_the_host_began_a_step_and_what_idled_its_device_is_known_of_the_real_folder() -> None:
    analysis = overlapscope.load(shared_file(SAMPLE)).analysis()
    assert [info.no_causes_reason for info in analysis.ranks] == [None, None]
    assert [round((info.before_first_step_ns or 0) / 1e6, 1) for info in analysis.ranks] == [19.4, 18.9]
    assert [round((each.waited_for_unseen_ns or 0) / 1e6, 1) for each in analysis.skew.ranks] == [81.0, 64.0]
    late = [each for each in analysis.recommendations if each.id == "launch_bound"]
    found = analysis.throughput
    assert found is not None
    assert late[0].gpu_hours_a_day is not None
    assert "that unrecorded ranks, which came later still, get faster as well" in late[0].assumed
    assert late[0].predicted_gain_ns is None  # without late launches it would have waited longer for other ranks
    # A day repeats nothing of the start of the recording: what is late is as much of a day there as here.
    assert late[0].gpu_hours_a_day == pytest.approx(found.idle_causes_gpu_hours_a_day["launch_bound"], rel=0.05)

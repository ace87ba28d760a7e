"""JSON of rocprofv3."""

import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from overlapscope.analysis.analyze import analyze
from overlapscope.errors import InputError
from overlapscope.ingest.formats import rocprof
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import COMM, COPY, NONE, RUNTIME, size
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.hostile import mutations, odd_documents, reading_or_refusal
from tests.support.oracle import split

SAMPLE = "rocprof/tracelens_rocprofv3_908_results.json.gz"
BOOT_NS = 63_855_948_165_371
CPU, GPU0, GPU1 = 500, 501, 502
KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync", "hipGraphLaunch"]},
    {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
    {"kind": "RCCL_API", "operations": ["ncclAllReduce", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv"]},
    {"kind": "HSA_AMD_EXT_API", "operations": ["hsa_amd_memory_async_copy_on_engine"]},
]
RCCL = ["ncclAllReduce", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv"]
NAMES = ["", "Cijk_Ailk_Bljk_BBS_BH", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"]
GEMM, COLLECTIVE = 1, 2


def timed(start: int, end: int, correlation: int, thread: int = 77) -> dict[str, Any]:
    times = {"start_timestamp": BOOT_NS + start, "end_timestamp": BOOT_NS + end}
    return {**times, "thread_id": thread, "correlation_id": {"internal": correlation, "external": 0}}


def kernel(start: int, end: int, name: int = GEMM, *, correlation: int = 0, agent: int = GPU0, stream: int = 1) -> Any:
    info = {"agent_id": {"handle": agent}, "queue_id": {"handle": 9}, "kernel_id": name}
    return {**timed(start, end, correlation), "dispatch_info": info, "stream_id": {"handle": stream}}


def moved(start: int, end: int, source: int, target: int, *, correlation: int = 0) -> Any:
    ends = {"src_agent_id": {"handle": source}, "dst_agent_id": {"handle": target}, "stream_id": {"handle": 2}}
    return {**timed(start, end, correlation), **ends, "bytes": 64}


def call(kind: int, operation: int, start: int, end: int, correlation: int, thread: int = 77) -> Any:
    return {**timed(start, end, correlation, thread), "kind": kind, "operation": operation}


def process(
    kernels: Sequence[Any] = (),
    *,
    copies: Sequence[Any] = (),
    hip: Sequence[Any] = (),
    rccl: Sequence[Any] = (),
    markers: Sequence[tuple[str, int, int]] = (),
    pid: int = 77,
) -> dict[str, Any]:
    """Return one process; markers are (text, start, end)."""
    calls = [call(2, 1, start, end, 9000 + at) for at, (_, start, end) in enumerate(markers)]
    return {
        "metadata": {"pid": pid, "init_time": BOOT_NS},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "logical_node_type_id": 0},
            {"id": {"handle": GPU0}, "type": 2, "logical_node_type_id": 0, "product_name": "AMD Instinct MI300X"},
            {"id": {"handle": GPU1}, "type": 2, "logical_node_type_id": 1, "product_name": "AMD Instinct MI300X"},
        ],
        "strings": {
            "buffer_records": KINDS,
            "marker_api": [{"key": 9000 + at, "value": text} for at, (text, _, _) in enumerate(markers)],
        },
        "kernel_symbols": [{"kernel_id": at, "formatted_kernel_name": name} for at, name in enumerate(NAMES)],
        "buffer_records": {
            "kernel_dispatch": list(kernels), "memory_copy": list(copies),
            "hip_api": list(hip), "rccl_api": list(rccl), "marker_api": calls,
        },
    }  # fmt: skip


def write(path: Path, *processes: Any) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


def read(path: Path) -> Reading:
    return rocprof.READER.read(path, ReadContext())


def one(path: Path) -> RankTimeline:
    (timeline,) = read(path).timelines
    return timeline


def timeline_of(tmp_path: Path, *args: Any, **records: Any) -> RankTimeline:
    """Return the one timeline of one process with these records."""
    return one(write(tmp_path / "x.json", process(*args, **records)))


def names_of(timeline: RankTimeline) -> list[str]:
    return [timeline.names[code] for code in timeline.spans.name.tolist()]


def launches_of(timeline: RankTimeline) -> dict[str, int | None]:
    times = [None if time == NONE else time - BOOT_NS for time in timeline.spans.launch_ns.tolist()]
    return dict(zip(names_of(timeline), times, strict=True))


# --- the real sample ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_file_gives_every_dispatch_and_the_unions_of_its_rows() -> None:
    path = shared_file(SAMPLE)
    with gzip.open(path) as file:
        raw = json.loads(file.read().decode("utf-8", "replace"))["rocprofiler-sdk-tool"][0]
    symbols = {each["kernel_id"]: each["demangled_kernel_name"] for each in raw["kernel_symbols"]}
    comm, compute = [], []
    for each in raw["buffer_records"]["kernel_dispatch"]:
        name = symbols[each["dispatch_info"]["kernel_id"]]
        (comm if name.startswith("nccl") else compute).append((each["start_timestamp"], each["end_timestamp"]))
    window = (min(start for start, _ in comm + compute), max(end for _, end in comm + compute))
    expected = split(comm, compute, [], window)

    run = read_inputs([path])
    (timeline,) = run.ranks.values()
    assert size(timeline.spans) == 43915 == len(comm) + len(compute)
    assert int((timeline.spans.kind == COMM).sum()) == 1310 == len(comm)
    whole = analyze(run).ranks[0].whole
    field = {"exposed": "exposed_comm_ns"}
    assert {name: getattr(whole, field.get(name, f"{name}_ns")) for name in expected} == expected
    assert run.fingerprint["device"] == "AMD Instinct MI350X"
    used = {each["stream_id"]["handle"] for each in raw["buffer_records"]["kernel_dispatch"]}
    assert size(timeline.lanes) == len(used)


# --- constructed ----------------------------------------------------------------------------------------------------


def test_launches_copies_and_graphs_are_linked_by_the_internal_correlation(tmp_path: Path) -> None:
    timeline = timeline_of(
        tmp_path,
        [kernel(100, 200, correlation=5), kernel(210, 220, COLLECTIVE, correlation=7, stream=3)],
        copies=[moved(300, 310, CPU, GPU0, correlation=6)],
        hip=[call(1, 0, 10, 12, 5), call(1, 1, 20, 22, 6), call(1, 2, 30, 32, 7), call(1, 0, 90, 92, 8)],
    )
    assert launches_of(timeline) == {NAMES[GEMM]: 10, "Memcpy HtoD": 20, NAMES[COLLECTIVE]: 30}
    assert int(timeline.recordings.lost_launch_ns[0]) == BOOT_NS + 90
    assert int(timeline.spans.start_ns.min()) == BOOT_NS + 100
    assert {timeline.names[code] for code in timeline.lanes.label} == {"stream 1", "stream 2", "stream 3", "77"}


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [(CPU, GPU0, "Memcpy HtoD"), (GPU0, CPU, "Memcpy DtoH"), (GPU0, GPU0, "Memcpy DtoD"), (GPU1, GPU0, "Memcpy PtoP")],
)
def test_copies_say_between_what(tmp_path: Path, source: int, target: int, name: str) -> None:
    timeline = timeline_of(tmp_path, [kernel(1, 2)], copies=[moved(5, 9, source, target)])
    assert names_of(timeline) == [NAMES[GEMM], name]
    assert timeline.spans.kind[1] == COPY


def test_each_device_that_runs_a_kernel_is_a_rank_and_that_is_reported(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        process([kernel(1, 2, agent=GPU1)], pid=80, hip=[call(1, 0, 0, 1, 5)]),
        process([kernel(1, 2, COLLECTIVE, agent=GPU0, correlation=5)], pid=81, hip=[call(1, 0, 0, 1, 5)]),
    )
    reading = read(path)
    assert [(each.rank, *names_of(each)) for each in reading.timelines] == [(0, NAMES[COLLECTIVE]), (1, NAMES[GEMM])]
    assert len({each.recorded["clock"] for each in reading.timelines}) == 1
    assert any("device 0 (process 81), device 1 (process 80)" in warning for warning in reading.source.warnings)
    other = write(tmp_path / "y.json", process([kernel(1, 2)]), process([kernel(1, 2)], pid=5))
    run = read_inputs([path, other], ReadOptions(ranks={"x.json": 0, "y.json": 2}))
    assert list(run.ranks) == [0, 1, 2, 3]


def test_one_device_alone_leaves_its_rank_to_the_files_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rank5_results.json", process([kernel(1, 2)]))
    assert one(path).rank == UNKNOWN_RANK
    assert list(read_inputs([path]).ranks) == [5]


def test_markers_are_annotations_and_mark_steps(tmp_path: Path) -> None:
    markers = [("step 3", 0, 50), ("forward", 5, 20), ("step 4", 60, 90), ("a mark", 70, 70)]
    work = [kernel(100, 200, correlation=5)]
    timeline = timeline_of(tmp_path, work, hip=[call(1, 0, 65, 66, 5)], markers=markers)
    assert timeline.steps.step.tolist() == [3, 4]
    assert timeline.spans.step.tolist() == [4]
    assert {timeline.names[code] for code in timeline.annotations.name.tolist()} == {"step 3", "step 4", "forward"}


@pytest.mark.parametrize(
    ("calls", "op"),
    [
        (["ncclAllReduce"], "all_reduce"),
        (["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"], "send_recv"),
        (["ncclGroupStart", "ncclAllReduce", "ncclAllReduce", "ncclGroupEnd"], "all_reduce"),
        (["ncclGroupStart", "ncclAllReduce", "ncclSend", "ncclGroupEnd"], "unknown"),
        ([], "unknown"),
    ],
)
def test_calls_of_rccl_name_what_the_generic_kernel_does(tmp_path: Path, calls: list[str], op: str) -> None:
    spread = [call(3, RCCL.index(name), 10 * at, 10 * at + 8, 100 + at) for at, name in enumerate(calls, 1)]
    launch = call(1, 0, 10 * len(calls) + 2, 10 * len(calls) + 4, 5)
    timeline = timeline_of(tmp_path, [kernel(100, 200, COLLECTIVE, correlation=5)], hip=[launch], rccl=spread)
    assert [timeline.names[code] for code in timeline.collectives.op.tolist()] == [op]


def test_calls_of_hip_and_hsa_are_host_spans_whatever_they_enqueue(tmp_path: Path) -> None:
    given = process([kernel(100, 200, correlation=5)], hip=[call(1, 0, 10, 12, 5), call(1, 1, 20, 29, 6, thread=78)])
    given["buffer_records"]["hsa_api"] = [call(4, 0, 21, 28, 7, thread=78)]
    timeline = one(write(tmp_path / "x.json", given))
    host = timeline.host
    threads = [timeline.name(code) for code in timeline.lanes.label[host.lane].tolist()]
    found = zip(threads, map(timeline.name, host.name.tolist()), (host.end_ns - host.start_ns).tolist(),
                host.correlation.tolist(), strict=True)  # fmt: skip
    assert set(host.kind.tolist()) == {RUNTIME}
    assert sorted(found) == [
        ("77", "hipLaunchKernel", 2, 5),
        ("78", "hipMemcpyAsync", 9, 6),
        ("78", "hsa_amd_memory_async_copy_on_engine", 7, 7),
    ]
    assert timeline.has_host_events
    assert not timeline_of(tmp_path, [kernel(1, 2)]).has_host_events


def test_queues_stand_for_streams_that_are_not_recorded(tmp_path: Path) -> None:
    kernels = [kernel(1, 2, stream=0), kernel(3, 4, stream=0)]
    kernels[1]["dispatch_info"]["queue_id"]["handle"] = 10
    old = copy.deepcopy(kernels)
    for each in old:
        del each["stream_id"]
    for rows in (kernels, old):
        timeline = timeline_of(tmp_path, rows)
        assert sorted(timeline.spans.lane.tolist()) == [0, 1]
        assert {timeline.names[code] for code in timeline.lanes.label.tolist()} == {"queue 9", "queue 10"}


def test_the_form_before_the_list_of_processes_is_read(tmp_path: Path) -> None:
    old = process([kernel(1, 2)])
    old["buffer_records"]["kernel_dispatches"] = old["buffer_records"].pop("kernel_dispatch")
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": old}))
    assert names_of(one(path)) == [NAMES[GEMM]]


@pytest.mark.parametrize(
    "key", ["formatted_kernel_name", "demangled_kernel_name", "kernel_name", "truncated_kernel_name"]
)
def test_whatever_name_a_kernel_has_is_its_name(tmp_path: Path, key: str) -> None:
    named_process = process([kernel(1, 2)])
    named_process["kernel_symbols"] = [{"kernel_id": at, key: name} for at, name in enumerate(NAMES)]
    assert names_of(one(write(tmp_path / "x.json", named_process))) == [NAMES[GEMM]]


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", process([kernel(1, 2)]))
    path.write_bytes(path.read_bytes().replace(b"Cijk_Ailk", b"Cijk_\xff\xfe"))
    reading = read(path)
    assert names_of(reading.timelines[0]) == ["Cijk_\ufffd\ufffd_Bljk_BBS_BH"]
    assert "bytes that are no UTF-8 were replaced" in reading.source.warnings


def test_compressed_is_read_and_recognised_by_content(tmp_path: Path) -> None:
    plain = write(tmp_path / "x.json", process([kernel(1, 2)]))
    path = tmp_path / "anything"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert find_reader(read_head(path)) is rocprof.READER
    assert names_of(one(path)) == [NAMES[GEMM]]


@pytest.mark.parametrize(
    "text", ['{"traceEvents": []}', '[{"rocprofiler-sdk-tool": []}]', '{"a": 1, "rocprofiler-sdk-tool": []}', "rocprof"]
)
def test_other_files_are_not_claimed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert not rocprof.recognises(read_head(path))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"rocprofiler-sdk-tool": [', "is not complete JSON.*; copy it again, or run it again"),
        ('{"rocprofiler-sdk-tool": []}', "holds no device work; record with --kernel-trace"),
        ('{"rocprofiler-sdk-tool": [3, null, {}]}', "holds no device work"),
        ('{"rocprofiler-sdk-tool": {"agents": 5, "strings": [], "buffer_records": 7}}', "holds no device work"),
        ('{"rocprofiler-sdk-tool": [' + "[" * 100_000, "is not complete JSON"),
    ],
)
def test_what_cannot_be_used_says_why(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        read(path)


def test_an_odd_record_costs_itself_alone(tmp_path: Path) -> None:
    odd: list[Any] = [kernel(5, 3), kernel(1, 2), kernel(1, 2), kernel(1, 2), None, 7, kernel(1, 2), kernel(1, 2)]
    odd[1]["start_timestamp"] = "1"
    odd[2]["end_timestamp"] = 2**64
    odd[3]["dispatch_info"] = None
    odd[6]["start_timestamp"] = True
    odd[7]["start_timestamp"] = -1
    reading = read(write(tmp_path / "x.json", process([kernel(10, 20), *odd])))
    assert (reading.source.dropped, reading.source.repaired) == (7, 1)
    assert size(reading.timelines[0].spans) == 2


BASE = process(
    [kernel(100, 200, correlation=5), kernel(150, 260, COLLECTIVE, correlation=6, stream=3)],
    copies=[moved(300, 310, CPU, GPU0)],
    hip=[call(1, 0, 10, 12, 5), call(1, 0, 25, 26, 6)],
    rccl=[call(3, 0, 20, 30, 50)],
    markers=[("step 1", 0, 60)],
)


@pytest.mark.slow
@examples(200)
@given(document=odd_documents(BASE))
def test_any_odd_value_ends_in_a_result_or_a_located_error(document: Any) -> None:
    reading = reading_or_refusal(rocprof.READER, json.dumps({"rocprofiler-sdk-tool": [document]}).encode())
    for each in reading.timelines if reading else ():
        assert (each.spans.end_ns >= each.spans.start_ns).all()


@examples(100)
@given(content=mutations(json.dumps({"rocprofiler-sdk-tool": [BASE]}).encode()))
def test_any_damaged_byte_ends_in_a_result_or_a_located_error(content: bytes) -> None:
    reading = reading_or_refusal(rocprof.READER, content)
    assert reading is None or all(size(each.spans) > 0 for each in reading.timelines)

"""SQLite exports of Nsight Systems."""

import gzip
import re
import sqlite3
import struct
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.errors import InputError
from overlapscope.ingest.formats import nsight
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    EVENT_SYNC,
    NONE,
    OVERHEAD,
    RUNTIME,
    STREAM_SYNC,
    STREAM_WAIT_EVENT,
    SYSTEM,
    UNCLASSIFIED,
    size,
)
from overlapscope.timeline.run import UNKNOWN_RANK, RankTimeline
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.hostile import overwritten, reading_or_refusal
from tests.support.oracle import Pieces, both, merged, split, total
from tests.support.writers.nsight import (
    EPOCH_NS,
    MARK,
    START_END,
    Call,
    Copy,
    Export,
    Kernel,
    Range,
    global_pid,
    payload,
)

SAMPLE = "nsys/nsysai_mfu_2gpu_before.sqlite"
LAUNCH = "cudaLaunchKernel_v7000"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128"


def read(path: Path) -> Reading:
    """Read one file as the reader does, without giving it a rank."""
    return nsight.READER.read(path, ReadContext())


def export(tmp_path: Path, **tables: Any) -> Path:
    """Write an export with these tables."""
    return Export(**tables).write(tmp_path / "x.sqlite")


def edit(path: Path, script: str) -> Path:
    """Run statements on a database."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(script)
    db.close()
    return path


def launch(at: int, correlation: int, *, pid: int = 100) -> Call:
    return Call(name=LAUNCH, start=at, end=at + 1, pid=pid, correlation=correlation)


def only(path: Path) -> RankTimeline:
    """Return the one timeline of a file."""
    (timeline,) = read(path).timelines
    return timeline


def names_of(timeline: RankTimeline) -> list[str]:
    """Return the name of each span."""
    return [timeline.names[code] for code in timeline.spans.name.tolist()]


def launches_of(timeline: RankTimeline) -> dict[str, int | None]:
    """Return the launch of each span by its name, since the session's start."""
    times = [None if time == NONE else time - EPOCH_NS for time in timeline.spans.launch_ns.tolist()]
    return dict(zip(names_of(timeline), times, strict=True))


def ops_of(timeline: RankTimeline) -> list[str]:
    """Return the operation of each collective, in order of time."""
    order = np.argsort(timeline.collectives.start_ns)
    return [timeline.names[code] for code in timeline.collectives.op[order].tolist()]


# --- the real sample ------------------------------------------------------------------------------------------------


Sample = tuple[Reading, Analysis]


def query(sql: str) -> list[tuple[int, ...]]:
    """Return rows of the sample, by a query of its own."""
    with closing(sqlite3.connect(f"file:{shared_file(SAMPLE)}?mode=ro&immutable=1", uri=True)) as db, db:
        rows = db.execute(sql).fetchall()
    db.close()
    return rows


def sample_pieces(where: str, table: str = "KERNEL") -> Pieces:
    """Return the [start, end) of device rows."""
    join = "JOIN StringIds s ON s.id = k.demangledName" if table == "KERNEL" else ""
    rows = query(f'SELECT k.start, k."end" FROM CUPTI_ACTIVITY_KIND_{table} k {join} WHERE {where}')
    return [(start, end) for start, end in rows]


@pytest.fixture(scope="module")
def sample() -> Sample:
    path = shared_file(SAMPLE)
    return read(path), analyze(read_inputs([path]))


@pytest.mark.slow
def test_the_real_export_has_every_kernel_and_the_launches_that_a_join_in_sql_finds(sample: Sample) -> None:
    reading, _ = sample
    ((joined,),) = query(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON r.correlationId = k.correlationId AND (r.globalTid & ~16777215) = k.globalPid"
    )
    kernels = linked = 0
    for timeline in reading.timelines:
        is_kernel = np.array([not name.startswith("Mem") for name in names_of(timeline)])
        kernels += int(is_kernel.sum())
        linked += int((timeline.spans.launch_ns[is_kernel] != NONE).sum())
    assert (kernels, linked) == (4010, 3986) == (4010, joined)


@pytest.mark.parametrize("device", [0, 1])
def test_the_real_exports_figures_equal_unions_of_its_rows(sample: Sample, device: int) -> None:
    _, analysis = sample
    nccl = "s.value LIKE 'ncclDevKernel%'"
    comm = sample_pieces(f"k.deviceId = {device} AND {nccl}")
    compute = sample_pieces(f"k.deviceId = {device} AND NOT {nccl}")
    copy = sample_pieces(f"k.deviceId = {device}", "MEMCPY") + sample_pieces(f"k.deviceId = {device}", "MEMSET")
    everything = [*comm, *compute, *copy]
    window = (min(start for start, _ in everything), max(end for _, end in everything))
    expected = split(comm, compute, copy, window)
    whole = analysis.ranks[device].whole
    field = {"exposed": "exposed_comm_ns"}
    assert {name: getattr(whole, field.get(name, f"{name}_ns")) for name in expected} == expected
    assert whole.overlapped_ns == 0, "NCCL runs on the compute stream"
    assert whole.comm_ns == total(merged(comm))
    assert both(merged(comm), merged(compute)) == []


def test_the_real_exports_ranks_are_its_two_processes_and_the_assumption_is_reported(sample: Sample) -> None:
    reading, analysis = sample
    assert [timeline.rank for timeline in reading.timelines] == [0, 1]
    assert analysis.run.world_size == 2
    stated = [warning for warning in reading.source.warnings if "assumed" in warning]
    assert len(stated) == 1
    assert "device 0 (process 144), device 1 (process 145)" in stated[0]
    work = [timeline.lanes.label[np.unique(timeline.spans.lane)].tolist() for timeline in reading.timelines]
    assert [[each.names[code] for code in codes] for each, codes in zip(reading.timelines, work, strict=True)] == [
        ["stream 7"],
        ["stream 15"],
    ]


def test_the_real_exports_runtime_calls_and_ranges_are_all_host_spans(sample: Sample) -> None:
    wanted = {
        (name, thread & 0xFFFFFF): (count, duration)
        for name, thread, count, duration in query(
            'SELECT s.value, r.globalTid, count(*), sum(r."end" - r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r '
            "JOIN StringIds s ON s.id = r.nameId GROUP BY 1, 2"
        )
    }
    found: dict[tuple[Any, int], tuple[int, int]] = {}
    for timeline in sample[0].timelines:
        host = timeline.host
        calls = np.flatnonzero(host.kind == RUNTIME)
        for row in calls.tolist():
            key = (
                timeline.name(int(host.name[row])),
                int(timeline.name(int(timeline.lanes.label[host.lane[row]])) or 0),
            )
            count, duration = found.get(key, (0, 0))
            found[key] = (count + 1, duration + int(host.end_ns[row] - host.start_ns[row]))
        assert timeline.has_host_events
    assert found == wanted
    ((ranges,),) = query('SELECT count(*) FROM NVTX_EVENTS WHERE "end" IS NOT NULL AND eventType IN (59, 60)')
    others = [int((each.host.kind != RUNTIME).sum()) for each in sample[0].timelines]
    assert sum(others) == ranges


def test_the_real_exports_synchronisations_are_those_that_wait(sample: Sample) -> None:
    """CUPTI files cudaEventQuery under them; the device of its rows is 0 for both processes."""
    wanted = query(
        'SELECT y.syncType, y.globalPid >> 24 & 16777215, count(*), sum(y."end" - y.start) '
        "FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION y JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = "
        "y.correlationId AND (r.globalTid & ~16777215) = y.globalPid JOIN StringIds s ON s.id = r.nameId "
        "WHERE s.value NOT LIKE '%Query%' GROUP BY 1, 2 ORDER BY 2, 1"
    )
    kinds = {2: STREAM_WAIT_EVENT, 3: STREAM_SYNC}
    found = []
    for timeline, process in zip(sample[0].timelines, (144, 145), strict=True):
        syncs = timeline.syncs
        for number, kind in kinds.items():
            own = syncs.kind == kind
            found.append((number, process, int(own.sum()), int((syncs.end_ns - syncs.start_ns)[own].sum())))
        assert size(syncs) == sum(count for _, pid, count, _ in wanted if pid == process)
        assert np.isin(syncs.correlation, timeline.host.correlation).all()
        waits = syncs.awaited_lane[syncs.kind == STREAM_SYNC]
        assert set(waits.tolist()) <= set(timeline.spans.lane.tolist())
        assert (syncs.awaited_correlation == NONE).all(), "the export has no records of events"
    assert found == wanted


def test_the_real_exports_collectives_are_named_by_the_range_around_their_launch(sample: Sample) -> None:
    for timeline in sample[0].timelines:
        ops = ops_of(timeline)
        assert ops.count("all_to_all") == 32
        # The fixture begins behind the launch of its first kernel: only the kernel's name is left.
        assert ops.count("send_recv") == 1 == int((timeline.collectives.launch_ns == NONE).sum())


def test_the_real_exports_times_are_since_the_epoch_and_torchs_suffixes_are_cut(sample: Sample) -> None:
    for timeline in sample[0].timelines:
        assert int(timeline.spans.start_ns.min()) > EPOCH_NS + 60_000_000_000
        assert not any("op_id" in name for name in timeline.names)
        marked = {timeline.names[code] for code in timeline.annotations.name.tolist()}
        assert any(name.startswith("FSDP::pre_forward (blocks.3.") for name in marked)
        assert not any(name.startswith(("aten::", "ncclGroup")) for name in marked)
    assert sample[1].ranks[0].steps == []


# --- launches -------------------------------------------------------------------------------------------------------


def test_two_processes_that_share_correlations_keep_their_own_launches(tmp_path: Path) -> None:
    kernels = [
        Kernel(name="a", start=100, end=200, pid=1, device=0, correlation=5),
        Kernel(name="b", start=110, end=210, pid=2, device=1, correlation=5),
    ]
    path = export(tmp_path, kernels=kernels, calls=[launch(20, 5, pid=2), launch(10, 5, pid=1)])
    assert [launches_of(timeline) for timeline in read(path).timelines] == [{"a": 10}, {"b": 20}]


def test_without_processes_on_device_rows_a_shared_correlation_says_nothing(tmp_path: Path) -> None:
    kernels = [Kernel(name="a", start=100, end=200, correlation=5), Kernel(name="b", start=200, end=300, correlation=6)]
    calls = [launch(10, 5, pid=1), launch(20, 5, pid=2), launch(30, 6, pid=2)]
    reading = read(export(tmp_path, version="bare", kernels=kernels, calls=calls))
    assert launches_of(reading.timelines[0]) == {"a": None, "b": 30}
    assert any("more than one process" in warning for warning in reading.source.warnings)


def test_a_graph_gives_many_kernels_one_launch(tmp_path: Path) -> None:
    kernels = [Kernel(name=f"k{at}", start=100 + at, end=101 + at, correlation=9) for at in range(5)]
    calls = [Call(name="cudaGraphLaunch_v10000", start=50, end=60, correlation=9)]
    assert set(launches_of(only(export(tmp_path, kernels=kernels, calls=calls))).values()) == {50}


def test_a_launch_whose_kernel_is_missing_behind_the_last_marks_the_cut(tmp_path: Path) -> None:
    other = Call(name="cudaEventRecord_v3020", start=20, end=21, correlation=2)
    kernel = Kernel(name="k", start=100, end=200, correlation=1)
    path = export(tmp_path, kernels=[kernel], calls=[launch(10, 1), other, launch(30, 3)])
    assert int(only(path).recordings.lost_launch_ns[0]) == EPOCH_NS + 30


def test_launches_of_another_device_of_the_process_are_not_lost(tmp_path: Path) -> None:
    kernels = [
        Kernel(name="a", start=100, end=200, device=0, correlation=1),
        Kernel(name="b", start=100, end=200, device=1, correlation=2),
    ]
    first, second = read(export(tmp_path, kernels=kernels, calls=[launch(10, 1), launch(20, 2)])).timelines
    assert (launches_of(first), launches_of(second)) == ({"a": 10}, {"b": 20})
    assert first.recordings.lost_launch_ns[0] == second.recordings.lost_launch_ns[0] == NONE


# --- versions -------------------------------------------------------------------------------------------------------

SMALL = {
    "kernels": [
        Kernel(name=GEMM, start=1000, end=2000, correlation=1),
        Kernel(name=ALL_REDUCE, start=1500, end=2600, stream=20, correlation=2),
    ],
    "copies": [Copy(start=2700, end=2800, kind=1, correlation=3), Copy(start=2900, end=2950, kind=None)],
    "calls": [Call(name=LAUNCH, start=10 * at, end=10 * at + 5, correlation=at) for at in (1, 2, 3)],
    "ranges": [
        Range(text="train_step/3", start=5, end=40),
        Range(text="forward", start=6, end=18),
        Range(text="a mark", start=7, end=None, kind=MARK),
        Range(text="aten::mm, seq = 4, op_id = 7, sizes = [[8, 8], [8, 8]]", start=9, end=16),
    ],
}


@pytest.mark.parametrize("version", ["new", "old", "bare"])
def test_every_version_of_the_tables_gives_the_same(tmp_path: Path, version: str) -> None:
    timeline = only(export(tmp_path, **SMALL, version=version))
    assert launches_of(timeline) == {GEMM: 10, ALL_REDUCE: 20, "Memcpy HtoD": 30, "Memset": None}
    assert timeline.steps.step.tolist() == [3]
    assert timeline.steps.start_ns.tolist() == [EPOCH_NS + 5]
    assert {timeline.names[code] for code in timeline.annotations.name.tolist()} == {"train_step/3", "forward"}
    host_op = dict(zip(names_of(timeline), timeline.spans.host_op.tolist(), strict=True))
    assert timeline.names[host_op[GEMM]] == "aten::mm"
    assert ops_of(timeline) == ["all_reduce"]


@pytest.mark.parametrize("left", ["kernels", "copies"])
def test_absent_tables_are_no_error(tmp_path: Path, left: str) -> None:
    timeline = only(export(tmp_path, **{left: SMALL[left]}, epoch_ns=None))
    assert size(timeline.spans) == 2
    assert int(timeline.spans.start_ns.min()) < 3000, "without a session's start, times are since it"


@pytest.mark.parametrize(
    ("session_ns", "start", "since"),
    [
        ((900, 1000), 950, 900),  # later than the session lasted: on the system's clock
        ((900, 1000), 50, 0),
        ((40, 1000), 50, 0),  # may be either
        ((900, 1000), 1200, 0),  # may be neither
    ],
)
def test_times_on_the_systems_clock_are_told_by_when_the_session_was(
    tmp_path: Path, session_ns: tuple[int, int], start: int, since: int
) -> None:
    path = export(tmp_path, kernels=[Kernel(name="k", start=start, end=start + 4)], session_ns=session_ns)
    assert only(path).spans.start_ns.tolist() == [EPOCH_NS + start - since]


def test_normalized_times_are_not_shifted_again(tmp_path: Path) -> None:
    kernels = [Kernel(name="k", start=EPOCH_NS + 5, end=EPOCH_NS + 9)]
    path = export(tmp_path, kernels=kernels, metadata={"EXPORT_PARAM_TIME_NORMALIZE": "true"})
    assert only(path).spans.start_ns.tolist() == [EPOCH_NS + 5]


NO_PAYLOADS = {"EXPORT_PARAM_INCLUDE_BLOBS": "false", "EXPORT_PARAM_INCLUDE_JSON": "false"}


@pytest.mark.parametrize(
    ("metadata", "kernel", "said"),
    [
        (NO_PAYLOADS, ALL_REDUCE, True),
        (NO_PAYLOADS, GEMM, False),
        (NO_PAYLOADS | {"EXPORT_PARAM_INCLUDE_JSON": "true"}, ALL_REDUCE, False),
        ({}, ALL_REDUCE, False),
    ],
)
def test_an_export_without_what_nccl_said_of_its_calls_says_how_to_export_it(
    tmp_path: Path, metadata: dict[str, str], kernel: str, *, said: bool
) -> None:
    path = export(tmp_path, kernels=[Kernel(name=kernel, start=5, end=9)], metadata=metadata)
    assert any("--include-blobs=true" in each for each in read(path).source.warnings) == said


def test_an_export_without_device_work_says_how_to_record_it(tmp_path: Path) -> None:
    path = export(tmp_path, ranges=SMALL["ranges"])
    assert find_reader(read_head(path)) is nsight.READER
    with pytest.raises(InputError, match=r"holds no device work; record with --trace=cuda,nvtx"):
        read(path)


def test_graphs_recorded_as_a_whole_are_unclassified_and_reported(tmp_path: Path) -> None:
    reading = read(export(tmp_path, kernels=SMALL["kernels"], graphs=[Kernel(name="", start=3000, end=9000)]))
    spans = reading.timelines[0].spans
    graph = np.array(names_of(reading.timelines[0])) == "CUDA graph"
    assert spans.kind[graph].tolist() == [COMPUTE]
    assert spans.note[graph].tolist() == [UNCLASSIFIED]
    assert any("--cuda-graph-trace=node" in warning for warning in reading.source.warnings)


# --- ranks ----------------------------------------------------------------------------------------------------------


def ranks_of(reading: Reading) -> list[tuple[int, set[str]]]:
    return [(timeline.rank, set(names_of(timeline))) for timeline in reading.timelines]


def node(tmp_path: Path, name: str = "x.sqlite", **more: object) -> Path:
    """Write what two processes on two devices recorded."""
    kernels = [Kernel(name=f"k{at}", start=100, end=200, pid=10 + at, device=at) for at in (1, 0)]
    return Export(kernels=kernels, **more).write(tmp_path / name)  # type: ignore[arg-type]


def test_one_process_on_several_devices_is_several_ranks(tmp_path: Path) -> None:
    kernels = [Kernel(name=f"k{device}", start=1, end=9, device=device) for device in (2, 0, 1)]
    reading = read(export(tmp_path, kernels=kernels))
    assert ranks_of(reading) == [(0, {"k0"}), (1, {"k1"}), (2, {"k2"})]
    assert reading.ranks_assumed


def test_several_processes_on_one_device_are_several_ranks(tmp_path: Path) -> None:
    kernels = [Kernel(name=f"k{pid}", start=1, end=9, pid=pid) for pid in (8, 7)]
    assert ranks_of(read(export(tmp_path, kernels=kernels))) == [(0, {"k7"}), (1, {"k8"})]


def test_what_a_process_does_in_passing_on_another_ones_device_counts_with_its_own(tmp_path: Path) -> None:
    kernels = [
        Kernel(name="main0", start=100, end=900, pid=1, device=0),
        Kernel(name="main1", start=100, end=900, pid=2, device=1),
        Kernel(name="stray1", start=10, end=12, pid=2, device=0),
    ]
    copies = [Copy(start=20, end=22, pid=2, device=0), Copy(start=20, end=22, pid=3, device=0)]
    reading = read(export(tmp_path, kernels=kernels, copies=copies))
    assert ranks_of(reading) == [(0, {"main0"}), (1, {"main1", "stray1", "Memcpy DtoD"})]
    assert any(warning.startswith("1 copies of processes that run no kernel") for warning in reading.source.warnings)


@pytest.mark.parametrize(
    ("environment", "rank", "world_size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "16"}, 3, 16),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2, 4),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, 5, 8),
        ({"RANK": "1", "SLURM_PROCID": "5"}, 1, None),
        ({"MV2_COMM_WORLD_RANK": "7"}, 7, None),
        ({"RANK": "8", "WORLD_SIZE": "8"}, UNKNOWN_RANK, None),
        ({"RANK": "-1"}, UNKNOWN_RANK, None),
        ({"LOCAL_RANK": "1"}, UNKNOWN_RANK, None),
        ({}, UNKNOWN_RANK, None),
    ],
)
def test_a_rank_in_the_environment_of_one_process_is_its_rank(
    tmp_path: Path, environment: dict[str, str], rank: int, world_size: int | None
) -> None:
    reading = read(export(tmp_path, kernels=[Kernel(name="k", start=1, end=2)], environment=environment))
    assert (reading.timelines[0].rank, reading.world_size) == (rank, world_size)


def test_a_rank_in_the_environment_is_not_that_of_two_processes(tmp_path: Path) -> None:
    reading = read(node(tmp_path, environment={"RANK": "3", "WORLD_SIZE": "16"}))
    assert reading.ranks_assumed
    assert reading.world_size is None


def test_torchruns_options_say_the_first_rank_of_a_node(tmp_path: Path) -> None:
    arguments = ["--nnodes=4", "--node_rank", "2", "--nproc-per-node=2", "train.py"]
    reading = read(node(tmp_path, arguments=arguments))
    assert [timeline.rank for timeline in reading.timelines] == [4, 5]
    assert reading.world_size == 8
    assert not reading.ranks_assumed
    other = read(node(tmp_path, arguments=["--nnodes=4", "--node_rank", "2", "--nproc-per-node=8", "train.py"]))
    assert other.ranks_assumed, "not every process was recorded"


@pytest.mark.parametrize(
    ("options", "device", "rank", "world_size"),
    [
        (["--nnodes=8", "--nproc_per_node=8", "--node_rank=6"], 1, 49, 64),
        (["--nnodes=1", "--nproc_per_node=8"], 3, 3, 8),
        (["--nnodes=8", "--nproc_per_node=8", "--node_rank=6"], 9, UNKNOWN_RANK, 64),
        (["--nnodes=8", "--nproc_per_node=8"], 1, UNKNOWN_RANK, 64),
        (["--nnodes=8", "--node_rank=6"], 1, UNKNOWN_RANK, None),
    ],
)
def test_a_process_of_a_node_is_assumed_to_have_its_devices_number(
    tmp_path: Path, options: list[str], device: int, rank: int, world_size: int | None
) -> None:
    path = export(tmp_path, kernels=[Kernel(name="k", start=1, end=2, device=device)], arguments=options)
    reading = read(path)
    assert (reading.timelines[0].rank, reading.world_size) == (rank, world_size)
    assert (f"assumed to be rank {rank}: device {device}" in reading.assumption) is (rank >= 0)


def of_node_1(path: Path, device: int, *, start: int = 1, **more: object) -> Path:
    """Write what one of the 8 processes of the second of two nodes recorded."""
    kernels = [Kernel(name="k", start=start, end=start + 10, device=device)]
    options = ["--nnodes=2", "--nproc_per_node=8", "--node_rank=1"]
    return Export(kernels=kernels, arguments=options, **more).write(path)  # type: ignore[arg-type]


def ranks_and_assumed(paths: list[Path], given: dict[str, int] | None = None) -> tuple[list[int], list[str]]:
    """Return the ranks of a run, and the ranks that its warnings call assumed."""
    run = read_inputs(paths, ReadOptions(ranks=given or {}))
    warnings = " ".join(warning for source in run.sources for warning in source.warnings)
    return list(run.ranks), re.findall(r"assumed to be rank (\d+)", warnings)


def test_a_mere_assumption_gives_way_to_the_user_and_to_the_files_name(tmp_path: Path) -> None:
    paths = [of_node_1(tmp_path / "a.sqlite", 1), of_node_1(tmp_path / "b.sqlite", 2)]
    assert ranks_and_assumed(paths) == ([9, 10], ["9", "10"])
    assert ranks_and_assumed(paths, {"b.sqlite": 12}) == ([9, 12], ["9"])
    named = of_node_1(tmp_path / "rank14.sqlite", 1)
    assert ranks_and_assumed([named]) == ([14], [])
    assert ranks_and_assumed([named], {"": 12}) == ([14], []), "as of any file whose name says its rank"


def test_processes_that_each_see_device_0_are_not_taken_for_one_rank(tmp_path: Path) -> None:
    same = [of_node_1(tmp_path / name, 0) for name in ("a.sqlite", "b.sqlite")]
    with pytest.raises(InputError, match=r"none of the 2 traces says which rank it is; use ranks='by-name'"):
        read_inputs(same)
    assert ranks_and_assumed(same, {"a.sqlite": 8, "b.sqlite": 9}) == ([8, 9], [])
    assert ranks_and_assumed(same, {"b.sqlite": 9}) == ([8, 9], ["8"])
    stated = of_node_1(tmp_path / "c.sqlite", 0, environment={"RANK": "8"})
    assert ranks_and_assumed([same[0], stated]) == ([8], []), "what a file states stays"


def test_recordings_of_a_device_after_each_other_are_of_one_rank(tmp_path: Path) -> None:
    paths = [of_node_1(tmp_path / f"{start}.sqlite", 0, start=start) for start in (1, 100)]
    assert ranks_and_assumed(paths) == ([8], ["8", "8"])


def test_ranks_of_one_report_have_one_clock(tmp_path: Path) -> None:
    one, other = (only_clock(node(tmp_path, name)) for name in ("a.sqlite", "b.sqlite"))
    assert one == other, "one session"
    path = node(tmp_path, "c.sqlite")
    far = edit(path, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = globalPid + {1 << 56} WHERE deviceId = 1")
    assert [each.recorded for each in read(far).timelines] == [{}, {}], "two machines"


def only_clock(path: Path) -> object:
    (clock,) = {each.recorded["clock"] for each in read(path).timelines}
    return clock


def test_ranks_of_several_unnamed_nodes_never_fall_together(tmp_path: Path) -> None:
    paths = [node(tmp_path, f"node{at}.sqlite") for at in (0, 1)]
    with pytest.raises(InputError, match=r"or ranks=\{'node0.sqlite': 0, 'node1.sqlite': 2\}"):
        read_inputs(paths)
    run = read_inputs(paths, ReadOptions(ranks={"node0.sqlite": 0, "node1.sqlite": 2}))
    assert list(run.ranks) == [0, 1, 2, 3]
    partly = read_inputs(paths, ReadOptions(ranks={"node1.sqlite": 2}))
    assert list(partly.ranks) == [2, 3]
    assert any("use --rank node0.sqlite=FIRST" in warning for warning in partly.sources[0].warnings)


def test_an_unnamed_node_beside_a_log_keeps_its_ranks(tmp_path: Path) -> None:
    assert list(read_inputs([node(tmp_path)]).ranks) == [0, 1]
    assert list(read_inputs([node(tmp_path)], ReadOptions(ranks={"": 6})).ranks) == [6, 7]


# --- steps ----------------------------------------------------------------------------------------------------------


def steps_from(tmp_path: Path, ranges: list[Range]) -> tuple[list[int], list[str]]:
    reading = read(export(tmp_path, kernels=SMALL["kernels"], ranges=ranges))
    return reading.timelines[0].steps.step.tolist(), [each for each in reading.source.warnings if "steps are" in each]


def row(*texts: str, length: int = 90, tid: int = 100, kind: int = 59) -> list[Range]:
    """Return ranges behind each other, each 100 apart."""
    return [
        Range(text=text, start=100 * at, end=100 * at + length, tid=tid, kind=kind) for at, text in enumerate(texts, 1)
    ]


@pytest.mark.parametrize(
    "pattern",
    ["overlapscope.step#{}", "ProfilerStep#{}", "step {}", "iteration {}", "train_step/{}", "Iter: {}", "step_{}",
     "global_step={}", "Iteration {}/100", "[step {}]", "batch {}"],
)  # fmt: skip
def test_numbered_ranges_are_steps_with_their_numbers(tmp_path: Path, pattern: str) -> None:
    assert steps_from(tmp_path, row(*(pattern.format(number) for number in (7, 8, 11)))) == ([7, 8, 11], [])


def test_ranges_without_a_number_are_counted_in_order_and_that_is_reported(tmp_path: Path) -> None:
    steps, notes = steps_from(tmp_path, row("train_step", "train_step", "train_step"))
    assert (steps, len(notes)) == ([0, 1, 2], 1)


def test_numbers_that_begin_again_are_counted_in_order(tmp_path: Path) -> None:
    steps, (note,) = steps_from(tmp_path, row("epoch 0 step 8", "epoch 0 step 9", "epoch 1 step 0", "epoch 1 step 1"))
    assert steps == [0, 1, 2, 3]
    assert "do not rise" in note


@pytest.mark.parametrize(
    "ranges",
    [
        *(
            row(*(pattern.format(number) for number in (1, 2, 3)))
            for pattern in ("layer {}", "micro_step {}", "optimizer step {}", "step {} forward", "eval step {}",
                            "footstep {}", "request {}")
        ),
        row("step", "step", "step", length=20),
        row("AdamW.step", "AdamW.step", "AdamW.step"),
        row("train_step"),
        row("step 1", "step 2", "step 3", length=101),
        row("step 1", "step 2", "step 3", length=130),
    ],
    ids=lambda ranges: f"{ranges[0].text} of {ranges[0].end - 100}",
)  # fmt: skip
def test_ranges_that_mark_no_step(tmp_path: Path, ranges: list[Range]) -> None:
    assert steps_from(tmp_path, ranges) == ([], [])


def test_of_several_families_our_own_marks_come_first_then_what_covers_most(tmp_path: Path) -> None:
    inner = row("step 4", "step 5", length=40)
    outer = row("iteration 1", "iteration 2")
    assert steps_from(tmp_path, inner + outer)[0] == [1, 2]
    assert steps_from(tmp_path, [*inner, *outer, Range(text="overlapscope.step#9", start=100, end=110)])[0] == [9]


def test_steps_that_touch_are_steps(tmp_path: Path) -> None:
    assert steps_from(tmp_path, row("step 1", "step 2", "step 3", length=100)) == ([1, 2, 3], [])
    empty_between = [Range(text="step 2", start=200, end=300), Range(text="step 1", start=200, end=200)]
    assert steps_from(tmp_path, empty_between)[0] == [1, 2]


def test_steps_are_those_of_one_thread_and_of_start_end_ranges_too(tmp_path: Path) -> None:
    main = row("step 4", "step 5", "step 6", kind=START_END)
    assert steps_from(tmp_path, [*main, *row("step 4", "step 5", tid=101)])[0] == [4, 5, 6]


# --- collectives ----------------------------------------------------------------------------------------------------


def grouped(*calls: str) -> list[Range]:
    """Return NCCL's ranges of a group, whose end spans 80 to 90."""
    return [
        Range(text="ncclGroupStart", start=10, end=12, domain=1),
        *[Range(text=call, start=20 + 5 * at, end=22 + 5 * at, domain=1) for at, call in enumerate(calls)],
        Range(text="ncclGroupEnd", start=80, end=90, domain=1),
    ]


@pytest.mark.parametrize(
    ("ranges", "op"),
    [
        ([Range(text="ncclAllGather", start=80, end=90, domain=1)], "all_gather"),
        (grouped("ncclReduceScatter"), "reduce_scatter"),
        (grouped("ncclAllReduce", "ncclAllReduce"), "all_reduce"),
        (grouped("ncclSend", "ncclRecv", "ncclSend", "ncclRecv"), "send_recv"),
        (grouped("ncclSend"), "send"),
        (grouped("ncclAllReduce", "ncclAllGather"), "unknown"),
        ([Range(text="ncclGroupEnd", start=80, end=90, domain=1)], "unknown"),
        ([*grouped("ncclSend", "ncclRecv"), Range(text="nccl:all_to_all, op_id = 4", start=5, end=95)], "all_to_all"),
        ([Range(text="ncclCommInitRank", start=80, end=90, domain=1)], "unknown"),
    ],
)
def test_nccls_own_ranges_name_the_operation(tmp_path: Path, ranges: list[Range], op: str) -> None:
    # The generic kernel's name tells no operation.
    kernel = Kernel(name="ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", start=200, end=300, correlation=1)
    assert ops_of(only(export(tmp_path, kernels=[kernel], calls=[launch(85, 1)], ranges=ranges))) == [op]


def test_copies_between_devices_inside_nccls_range_communicate(tmp_path: Path) -> None:
    path = export(
        tmp_path,
        kernels=[Kernel(name=GEMM, start=100, end=400, correlation=1)],
        copies=[Copy(start=200, end=300, kind=10, correlation=2), Copy(start=310, end=320, kind=10, correlation=3)],
        calls=[Call(name="cudaMemcpyAsync_v3020", start=80 + at, end=81 + at, correlation=at) for at in (2, 30)],
        ranges=[Range(text="ncclAllGather", start=80, end=90, domain=1)],
    )
    timeline = only(path)
    assert (timeline.spans.kind == COMM).tolist() == [False, True, False]
    assert ops_of(timeline) == ["all_gather"]


COLLECTIVE, INIT = 7, 11
OF_CALL = {"NCCL communicator ID": (None, 18), "Message size [bytes]": (8, 22)}
OF_INIT = {"NCCL communicator ID": (None, 18), "No. of ranks": (8, 5), "Rank": (12, 5), "CUDA device": (16, 5)}
SCHEMAS = [(1, COLLECTIVE, 16, OF_CALL), (1, INIT, 24, OF_INIT)]


def with_payloads(tmp_path: Path, op: str, *blobs: bytes) -> tuple[Reading, dict[str, object]]:
    """Return what is read of one collective, called as often as there are blobs, on a communicator of 4."""
    init = payload(1, INIT, struct.pack("<Qiiii", 0xABCD, 4, 2, 0, 0))
    path = export(
        tmp_path,
        kernels=[Kernel(name="ncclDevKernel_Generic_1(x)", start=200, end=300, correlation=1)],
        calls=[launch(85, 1)],
        ranges=[
            Range(text="ncclCommInitRank", start=1, end=2, domain=1, blob=init),
            Range(text="ncclGroupStart", start=10, end=12, domain=1),
            *(Range(text=op, start=20 + 5 * at, end=22 + 5 * at, domain=1, blob=b) for at, b in enumerate(blobs)),
            Range(text="ncclGroupEnd", start=80, end=90, domain=1),
        ],
        schemas=SCHEMAS,
    )
    reading = read(path)
    (timeline,) = reading.timelines
    call = spelled(timeline.collectives, timeline.names)
    return reading, {name: call[name][0] for name in ("bytes", "group", "group_size")}


def blob(message: int, schema: int = COLLECTIVE) -> bytes:
    return payload(1, schema, struct.pack("<QQ", 0xABCD, message))


@pytest.mark.parametrize(
    ("op", "messages", "moved"),
    [
        ("ncclAllReduce", [1000], 1000),
        ("ncclAllReduce", [1000, 24], 1024),
        ("ncclAllGather", [1000], 4000),
        ("ncclReduceScatter", [1000], 4000),
        ("ncclAlltoAll", [1000], 4000),
        ("ncclBroadcast", [1000], 1000),
        ("ncclAllToAllv", [1000], None),
    ],
)
def test_payloads_give_sizes_as_nccl_tests_counts_them(
    tmp_path: Path, op: str, messages: list[int], moved: int | None
) -> None:
    _, stated = with_payloads(tmp_path, op, *[blob(message) for message in messages])
    assert stated == {"bytes": moved, "group": "0xabcd", "group_size": 4}


def test_payloads_of_initialisation_tell_the_members_of_communicators(tmp_path: Path) -> None:
    reading, _ = with_payloads(tmp_path, "ncclAllReduce", blob(1000))
    members = reading.facts.members
    assert size(members) == 1
    stated = [members.member, members.members, members.device, members.process]
    assert [each.tolist() for each in stated] == [[2], [4], [0], [100]]
    assert reading.facts.name(int(members.communicator[0])) == "0xabcd"
    assert members.rank.tolist() == [NONE]


@pytest.mark.parametrize(
    "damaged",
    [
        blob(1000)[:-1],
        blob(1000) + b"x",
        blob(1000, schema=99),
        payload(2, COLLECTIVE, struct.pack("<QQ", 0xABCD, 1000)),
        payload(1, COLLECTIVE, struct.pack("<QQQ", 0xABCD, 1000, 0)),
        b"\xff" * 48,
    ],
)
def test_a_payload_that_does_not_agree_with_itself_is_not_read(tmp_path: Path, damaged: bytes) -> None:
    reading, stated = with_payloads(tmp_path, "ncclAllReduce", damaged)
    assert stated["bytes"] is None
    assert any("1 NCCL payloads" in warning for warning in reading.source.warnings)


MESSAGE = "ncclDevKernel_SendRecv(x)"
SENT = '{"NCCL communicator ID": 43981, "Message size [bytes]": 4096, "Peer rank": 1}'


def with_json(tmp_path: Path, *said: str | None, op: str = "ncclSend") -> Reading:
    """Return what is read of a call in a group of its own for each payload."""
    calls = list(enumerate(said, 1))
    path = export(
        tmp_path,
        kernels=[Kernel(name=MESSAGE, start=100 * at, end=100 * at + 9, correlation=at) for at, _ in calls],
        calls=[launch(100 * at - 15, at) for at, _ in calls],
        ranges=[Range(text=op, start=100 * at - 20, end=100 * at - 9, json=text) for at, text in calls],
    )
    return read(path)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SENT, id="numbers"),
        pytest.param(SENT.replace("43981", '"43,981"'), id="a number as text"),
        pytest.param(SENT.replace("}", ', "Stream": 1.5, "more": {}}'), id="other fields"),
    ],
)
def test_payloads_as_json_give_size_communicator_and_peer(tmp_path: Path, text: str) -> None:
    reading = with_json(tmp_path, text, text)
    (timeline,) = reading.timelines
    calls = timeline.collectives
    assert ops_of(timeline) == ["send", "send"]
    assert calls.bytes.tolist() == [4096, 4096], "in the row, and as a registered string"
    assert {timeline.names[code] for code in calls.group.tolist()} == {"0xabcd"}
    assert calls.peer.tolist() == [1, 1]
    assert reading.peers_in_groups, "the peer is a rank in the communicator"


@pytest.mark.parametrize(
    "text", ["{", "[1]", "7", '{"Peer rank": -1}', '{"Peer rank": 1.5}', '{"Message size [bytes]": true}', "x" * 9999]
)
def test_json_that_is_no_payload_is_not_read_and_counted(tmp_path: Path, text: str) -> None:
    reading = with_json(tmp_path, text)
    calls = only(tmp_path / "x.sqlite").collectives
    assert (calls.bytes.tolist(), calls.peer.tolist(), calls.group.tolist()) == ([NONE], [NONE], [-1])
    assert any("1 NCCL payloads" in warning for warning in reading.source.warnings)


def test_a_blob_names_the_peer_too(tmp_path: Path) -> None:
    fields = {"NCCL communicator ID": (None, 18), "Message size [bytes]": (8, 22), "Peer rank": (16, 5)}
    body = struct.pack("<QQii", 0xABCD, 4096, 3, 0)
    path = export(
        tmp_path, kernels=[Kernel(name=MESSAGE, start=100, end=109, correlation=1)], calls=[launch(85, 1)],
        ranges=[Range(text="ncclRecv", start=80, end=91, domain=1, blob=payload(1, 9, body))],
        schemas=[(1, 9, 24, fields)],
    )  # fmt: skip
    calls = only(path).collectives
    assert (calls.bytes.tolist(), calls.peer.tolist()) == ([4096], [3])


def test_a_group_of_messages_has_a_peer_where_all_are_with_the_same(tmp_path: Path) -> None:
    def grouped(*peers: int) -> list[int]:
        said = [SENT.replace('rank": 1', f'rank": {peer}') for peer in peers]
        path = export(
            tmp_path, kernels=[Kernel(name=MESSAGE, start=100, end=109, correlation=1)], calls=[launch(85, 1)],
            ranges=[
                Range(text="ncclGroupStart", start=10, end=12),
                *(Range(text="ncclSend", start=20 + at, end=21 + at, json=text) for at, text in enumerate(said)),
                Range(text="ncclGroupEnd", start=80, end=91),
            ],
        )  # fmt: skip
        return only(path).collectives.peer.tolist()

    assert grouped(2, 2) == [2]
    assert grouped(1, 2) == [NONE]


def test_peers_of_a_job_are_its_ranks_where_both_ends_of_messages_agree(tmp_path: Path) -> None:
    """Stages 0 and 1 of two: each says of the other its rank in the communicator."""
    for rank, op in ((0, "ncclSend"), (1, "ncclRecv")):
        Export(
            kernels=[Kernel(name=MESSAGE, start=100, end=109, correlation=1)], calls=[launch(85, 1)],
            ranges=[Range(text=op, start=80, end=91, json=SENT.replace('rank": 1', f'rank": {1 - rank}'))],
            environment={"RANK": str(4 * rank), "WORLD_SIZE": "8"},
        ).write(tmp_path / f"job.{rank}.sqlite")  # fmt: skip
    run = read_inputs([tmp_path])
    assert {rank: each.collectives.peer.tolist() for rank, each in run.ranks.items()} == {0: [4], 4: [0]}
    assert [(group.name, group.ranks) for group in run.groups] == [("0xabcd", (0, 4))]
    alone = read_inputs([tmp_path / "job.1.sqlite"])
    assert alone.ranks[4].collectives.peer.tolist() == [NONE], "the other member was not recorded"


def test_a_schema_that_two_processes_describe_differently_is_not_used(tmp_path: Path) -> None:
    with_payloads(tmp_path, "ncclAllReduce", blob(1000))
    path = edit(tmp_path / "x.sqlite", "INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1, 7, 24)")
    assert only(path).collectives.bytes.tolist() == [NONE]


# --- what is no export, and hostile ones ----------------------------------------------------------------------------


def test_a_report_that_was_not_exported_gives_the_command(tmp_path: Path) -> None:
    path = tmp_path / "my.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n\x0bLocal (CLI)")
    assert find_reader(read_head(path)) is nsight.READER
    with pytest.raises(InputError, match=r"nsys export --type sqlite -o my.sqlite my.nsys-rep"):
        read_inputs([path])


def test_a_compressed_export_is_known_and_says_gunzip(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite.gz"
    path.write_bytes(gzip.compress(export(tmp_path, **SMALL).read_bytes()))
    assert find_reader(read_head(path)) is nsight.READER
    with pytest.raises(InputError, match=r"gunzip x\.sqlite\.gz"):
        read(path)


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE users (id INTEGER)",
        "CREATE TABLE StringIds (id INTEGER, value TEXT)",
        # nvprof's own database
        "CREATE TABLE StringTable (_id_ INTEGER); CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER)",
    ],
)
def test_other_databases_are_not_ours(tmp_path: Path, tables: str) -> None:
    assert find_reader(read_head(edit(tmp_path / "x.sqlite", tables))) is None


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"


def test_a_view_in_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    script = "".join(f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind};" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
    view = f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS} AS start, i + 1 AS end, 0 AS deviceId FROM n"
    with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_KERNEL is no ordinary table"):
        read(edit(export(tmp_path, **SMALL), script + view))


def test_views_and_triggers_beside_the_tables_do_nothing(tmp_path: Path) -> None:
    path = edit(
        export(tmp_path, **SMALL),
        f"CREATE VIEW StringView AS {ENDLESS} FROM n; CREATE TRIGGER t AFTER INSERT ON StringIds "
        "BEGIN DELETE FROM StringIds; END;",
    )
    assert size(only(path).spans) == 4


def test_a_generated_column_is_not_computed(tmp_path: Path) -> None:
    path = edit(
        export(tmp_path, **SMALL),
        "DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET; CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, "
        "end INTEGER AS (length(hex(zeroblob(900000)))), deviceId INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (5000, 0)",
    )
    timeline = only(path)
    assert "Memset" not in names_of(timeline)


def test_rows_of_other_types_are_counted_not_believed(tmp_path: Path) -> None:
    rows = ["'x', 5", "NULL, 5", "1.5, 9", "x'00', 5", f"{2**63 - 1}, {2**63 - 1}", f"{-(2**63)}, 5", "0, 0"]
    script = "DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET;"
    script += "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, streamId, correlationId, globalPid);"
    for values in (*(f"{each}, 0, 7, 'x'" for each in rows), "3000, 2990, NULL, NULL, NULL"):
        script += f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES ({values}, 281476654432256);"
    path = edit(export(tmp_path, **SMALL), script)
    reading = read(path)
    assert (reading.source.dropped, reading.source.repaired) == (len(rows), 1)
    sets = [name for name in names_of(reading.timelines[0]) if name == "Memset"]
    assert len(sets) == 1


def test_names_that_are_missing_or_no_text_are_distinguished_from_others(tmp_path: Path) -> None:
    path = edit(
        export(tmp_path, **SMALL),
        f"UPDATE StringIds SET value = x'FF41' WHERE value = '{GEMM}'; DELETE FROM StringIds WHERE value LIKE 'nccl%'",
    )
    assert set(names_of(only(path))) == {"\ufffdA", "unnamed kernel", "Memcpy HtoD", "Memset"}


def test_nothing_beside_the_file_is_touched_and_a_log_ahead_is_reported(tmp_path: Path) -> None:
    path = export(tmp_path, **SMALL)
    beside = path.with_name(path.name + "-wal")
    beside.write_bytes(b"not a log")

    def state() -> dict[str, tuple[bytes, int]]:
        return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in tmp_path.iterdir()}

    before, reading = state(), read(path)
    assert state() == before
    assert any("write-ahead log" in warning for warning in reading.source.warnings)


def test_a_name_with_odd_characters_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "a b?mode=rwc#100%"
    folder.mkdir()
    path = Export(**SMALL).write(folder / "größe;'\".sqlite")
    assert size(only(path).spans) == 4
    assert [each.name for each in folder.iterdir()] == [path.name]


def many(path: Path, kernels: int) -> Path:
    calls = [launch(at, at + 1) for at in range(kernels)]
    rows = [Kernel(name=f"k{at % 9}", start=10 * at + 5, end=10 * at + 9, correlation=at + 1) for at in range(kernels)]
    return Export(kernels=rows, calls=calls).write(path)


def test_a_cut_database_gives_what_is_left_and_says_so(tmp_path: Path) -> None:
    path = many(tmp_path / "x.sqlite", 3000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    reading = read(path)
    assert reading.source.truncated
    assert any("is damaged after row" in warning for warning in reading.source.warnings)
    assert 0 < size(reading.timelines[0].spans) < 3000
    assert bool(reading.timelines[0].recordings.truncated[0])


def test_a_file_whose_kernels_cannot_be_read_is_not_used_for_its_copies(tmp_path: Path) -> None:
    """Copies and calls alone would read as an idle device."""
    kernels = [Kernel(name=GEMM, start=10 * at, end=10 * at + 5) for at in range(1, 9)]
    path = Export(kernels=kernels, copies=[Copy(start=200, end=300)]).write(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as db:
        (size_bytes,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name='CUPTI_ACTIVITY_KIND_KERNEL'").fetchone()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size_bytes : root * size_bytes] = bytes(size_bytes)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"its kernels cannot be read \(table .*KERNEL is .*\): copy the file again"):
        read(path)


@pytest.mark.slow
def test_pages_that_lead_to_the_same_rows_again_and_again_are_refused(tmp_path: Path) -> None:
    """A table whose tree has the same child eight times on each of twelve levels would give 8**12 times its rows."""
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db, db:
        db.execute("PRAGMA page_size=512")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER)")
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0)", [(at, at + 1) for at in range(1, 9)])
        db.execute("CREATE TABLE filler (x BLOB)")
        db.execute("INSERT INTO filler VALUES (zeroblob(10000))")
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE '%KERNEL'").fetchone()[0]
        pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    chain = [root, *range(pages - 11, pages + 1)]
    leaf = bytes(data[(root - 1) * 512 : root * 512])
    data[(chain[-1] - 1) * 512 : chain[-1] * 512] = leaf
    for page, child in pairwise(chain):
        cells = [struct.pack(">I", child) + bytes([key]) for key in range(1, 8)]
        content = b"".join(reversed(cells))
        places = [512 - 5 * (at + 1) for at in range(len(cells))]
        header = struct.pack(">BHHHBI", 5, 0, len(cells), places[-1], 0, child)
        body = header + b"".join(struct.pack(">H", place) for place in places)
        data[(page - 1) * 512 : page * 512] = body + bytes(512 - len(body) - len(content)) + content
    path.write_bytes(bytes(data))
    with pytest.raises(
        InputError, match=r"table CUPTI_ACTIVITY_KIND_KERNEL takes more work than a sound file of this size"
    ):
        read(path)


@pytest.fixture(scope="module")
def small_export(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "x.sqlite"
    return Export(**SMALL, schemas=SCHEMAS, environment={"RANK": "0"}).write(path).read_bytes()


@pytest.mark.slow
@examples(150)
@given(data=st.data())
def test_any_damage_ends_in_a_result_or_a_located_error(small_export: bytes, data: st.DataObject) -> None:
    reading = reading_or_refusal(nsight.READER, data.draw(overwritten(small_export)), "x.sqlite")
    for each in reading.timelines if reading else ():
        assert (each.spans.end_ns >= each.spans.start_ns).all()


def test_reading_streams_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(tmp_path / "x.sqlite", 500)
    expected = launches_of(only(path))
    monkeypatch.setattr("overlapscope.ingest.parsing.sqlite.CHUNK_ROWS", 7)
    assert launches_of(only(path)) == expected


def test_progress_is_reported(tmp_path: Path) -> None:
    path = many(tmp_path / "x.sqlite", 500)
    seen: list[int] = []
    nsight.READER.read(path, ReadContext(progress=seen.append))
    assert 0 < sum(seen) <= path.stat().st_size


# --- host events ----------------------------------------------------------------------------------------------------


def with_more(path: Path, *statements: str) -> Path:
    calls = "(start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER"
    return edit(
        path,
        f"CREATE TABLE OSRT_API {calls}, returnValue INTEGER);"
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD {calls}, correlationId INTEGER, overheadType INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, deviceId INTEGER, "
        "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER, eventSyncId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
        "globalPid INTEGER, eventSyncId INTEGER);"
        "INSERT INTO StringIds VALUES (1, 'pthread_cond_wait');" + ";".join(statements),
    )


def test_calls_of_the_system_and_the_profilers_own_work_are_host_spans(tmp_path: Path) -> None:
    pid = global_pid(100)
    path = with_more(
        export(tmp_path, kernels=[Kernel(name=GEMM, start=10, end=20, correlation=5)], calls=[launch(2, 5)]),
        f"INSERT INTO OSRT_API VALUES (3, 9, {pid | 100}, 1, 0), (4, 8, {pid | 7}, 1, 0)",
        f"INSERT INTO OSRT_API VALUES (1, 2, {global_pid(101) | 100}, 1, 0)",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (5, 6, {pid | 100}, NULL, 0, 1)",
    )
    timeline = only(path)
    host = timeline.host
    threads = [timeline.name(code) for code in timeline.lanes.label[host.lane].tolist()]
    rows = zip(host.kind.tolist(), threads, [timeline.name(code) for code in host.name.tolist()], strict=True)
    assert sorted(rows) == [
        (RUNTIME, "100", LAUNCH),
        (OVERHEAD, "100", "profiler overhead"),
        (SYSTEM, "100", "pthread_cond_wait"),
        (SYSTEM, "7", "pthread_cond_wait"),
    ]


def test_an_awaited_event_names_its_stream_and_the_call_that_recorded_it(tmp_path: Path) -> None:
    pid, table = global_pid(100), "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    path = with_more(
        export(tmp_path, kernels=[Kernel(name=GEMM, start=10, end=20, correlation=5)], calls=[launch(2, 5)]),
        f"INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 7, 41, {pid}, 900), (0, 8, 42, {pid + 1}, 901)",
        f"INSERT INTO {table} VALUES (30, 31, 0, 9, 50, {pid}, 2, 900), (32, 33, 0, 4294967295, 51, {pid}, 1, 900)",
        f"INSERT INTO {table} VALUES (34, 35, 0, 9, 52, {pid}, 2, 901), (36, 37, 0, 9, 53, {pid}, 0, 900)",
        f"INSERT INTO {table} VALUES (38, NULL, 0, 9, 54, {pid}, 3, 0), ('x', 1, 0, 9, 54, {pid}, 3, 0)",
    )
    timeline = only(path)
    assert read(path).source.dropped == 2
    syncs, lanes = timeline.syncs, timeline.lanes

    def stream(lane: int) -> str | None:
        return None if lane == NONE else timeline.name(int(lanes.label[lane]))

    found = zip(
        syncs.kind.tolist(),
        syncs.correlation.tolist(),
        map(stream, syncs.lane.tolist()),
        map(stream, syncs.awaited_lane.tolist()),
        syncs.awaited_correlation.tolist(),
        strict=True,
    )
    assert list(found) == [
        (STREAM_WAIT_EVENT, 50, "stream 9", "stream 7", 41),
        (EVENT_SYNC, 51, None, "stream 7", 41),
        (STREAM_WAIT_EVENT, 52, "stream 9", None, NONE),
    ]

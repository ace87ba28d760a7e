"""Calls by which a host waits for its device, as each reader finds them."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.run import RankTimeline, Run
from tests.conftest import shared_file
from tests.support.writers import kineto, nsight
from tests.support.writers.kineto import BACKWARD, MAIN, MS, US
from tests.unit.formats import test_rocprof
from tests.unit.formats.test_nsight import SAMPLE

WATCHDOG = 990


def waits(timeline: RankTimeline) -> list[tuple[str, int, int]]:
    notes, names = timeline.annotations, timeline.names
    rows = zip(notes.name.tolist(), notes.start_ns.tolist(), notes.end_ns.tolist(), strict=True)
    return sorted(
        (names[code], start, end - start) for code, start, end in rows if WAITS_FOR_DEVICE.fullmatch(names[code])
    )


def only(run: Run) -> RankTimeline:
    (timeline,) = run.ranks.values()
    return timeline


def test_kineto_has_them_on_threads_that_launch(tmp_path: Path) -> None:
    calls = [
        kineto.launch(2 * MS, 91, name="cudaStreamSynchronize", duration_ns=3 * MS),
        kineto.launch(6 * MS, 92, name="hipDeviceSynchronize", duration_ns=7 * US, thread=BACKWARD),
        kineto.launch(3 * MS, 93, name="cudaEventSynchronize", duration_ns=9 * MS, thread=WATCHDOG),
        kineto.launch(4 * MS, 94, name="cudaEventQuery", duration_ns=9 * US),
    ]
    (tmp_path / "x.json").write_bytes(kineto.write([*kineto.training(), *calls], metadata=kineto.distributed(0)))
    timeline = only(read_inputs([tmp_path]))
    found = waits(timeline)
    assert [(name, length) for name, _, length in found] == [
        ("cudaStreamSynchronize", 3 * MS),
        ("hipDeviceSynchronize", 7 * US),
    ]
    assert found[1][1] - found[0][1] == 4 * MS
    lanes = {timeline.names[timeline.lanes.label[lane]] for lane in timeline.annotations.lane.tolist()}
    assert str(WATCHDOG) not in lanes
    assert str(MAIN) in lanes


@pytest.mark.slow
def test_real_traces_have_all_that_stand_in_their_files() -> None:
    folder = shared_file("kineto/megatron_tp8")
    run = read_inputs([folder])
    for rank, timeline in run.ranks.items():
        with gzip.open(folder / f"megatron_kineto_{rank}.json.gz") as file:
            events = json.load(file)["traceEvents"]
        expected = [(each["name"], each["dur"] * 1000) for each in events if "ynchronize" in str(each.get("name"))]
        assert sorted((name, length) for name, _, length in waits(timeline)) == sorted(expected)
        assert len(expected) == 4


def test_the_real_export_of_nsight_has_all_that_a_query_finds() -> None:
    path = shared_file(SAMPLE)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db, db:
        expected = db.execute(
            'SELECT count(*), sum(r."end" - r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s '
            "ON s.id = r.nameId WHERE s.value LIKE '%Synchronize%'"
        ).fetchone()
    db.close()
    found = [each for timeline in read_inputs([path]).ranks.values() for each in waits(timeline)]
    assert (len(found), sum(length for _, _, length in found)) == expected
    assert expected[0] == 33


def test_nsight_has_them(tmp_path: Path) -> None:
    export = nsight.Export(
        kernels=[nsight.Kernel(name="gemm", start=100, end=900, correlation=1)],
        calls=[
            nsight.Call(name="cudaLaunchKernel_v7000", start=10, end=20, correlation=1),
            nsight.Call(name="cudaDeviceSynchronize_v3020", start=30, end=950, correlation=2),
            nsight.Call(name="cudaEventQuery_v3020", start=960, end=970, correlation=3),
        ],
    )
    timeline = only(read_inputs([export.write(tmp_path / "x.sqlite")]))
    epoch = nsight.EPOCH_NS
    assert waits(timeline) == [("cudaDeviceSynchronize_v3020", epoch + 30, 920)]


def test_rocprof_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [each | {"operations": [*each["operations"], "hipStreamSynchronize"]} for each in test_rocprof.KINDS]
    monkeypatch.setattr(test_rocprof, "KINDS", kinds)
    calls = [
        test_rocprof.call(1, 0, 10, 20, 5),
        test_rocprof.call(1, 3, 30, 950, 6),
        test_rocprof.call(1, 1, 960, 970, 7),
    ]
    process = test_rocprof.process([test_rocprof.kernel(100, 900, correlation=5)], hip=calls)
    path = test_rocprof.write(tmp_path / "x.json", process)
    assert waits(only(read_inputs([path]))) == [("hipStreamSynchronize", test_rocprof.BOOT_NS + 30, 920)]


@pytest.mark.parametrize(
    ("name", "waits_for"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaStreamSynchronize_v3020", True),
        ("cudaStreamSynchronize_ptsz_v7000", True),
        ("hipEventSynchronize", True),
        ("cuCtxSynchronize", True),
        ("zeEventHostSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpy_v3020", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyWithStream", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemcpyAsync_v3020", False),
        ("cuMemcpyDtoHAsync_v2", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("cudaEventRecord", False),
        ("Synchronize", False),
        ("Optimizer.step#Adam.step", False),
    ],
)
def test_what_waits_is_known_by_its_name(name: str, waits_for: bool) -> None:
    assert (WAITS_FOR_DEVICE.fullmatch(name) is not None) is waits_for

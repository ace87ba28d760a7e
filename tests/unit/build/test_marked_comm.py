"""Our own mark of communication in traces: its time is communication, and so is device work launched in it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import overlapscope
from overlapscope.loaded_run import LoadedRun
from tests.support.writers.kineto import (
    BACKWARD,
    DIALECTS,
    GEMM,
    MS,
    NCCL_KERNEL,
    TORCH_2024,
    Dialect,
    Event,
    annotation,
    collective_args,
    distributed,
    kernel,
    launch,
    memcpy,
    op,
    write,
)

MARK = "overlapscope.comm:own transport"


def load(folder: Path, events: list[Event], dialect: Dialect = TORCH_2024, **options: Any) -> LoadedRun:
    (folder / "worker.json").write_bytes(write(events, dialect, metadata=distributed(0), **options))
    return overlapscope.load(folder / "worker.json")


def whole(run: LoadedRun) -> dict[str, Any]:
    return dict(msgspec.to_builtins(run.analysis().ranks[0].whole))


def figures(run: LoadedRun) -> list[Any]:
    names = ("window_ns", "comm_ns", "compute_ns", "copy_ns", "overlapped_ns", "exposed_comm_ns", "idle_ns")
    return [whole(run)[name] for name in names]


def device_run(mark: str = MARK) -> list[Event]:
    """Compute 0-3; a mark 4-8 with a kernel 5-6 and a copy 6-6.5; meanwhile another thread's compute 5.5-7 ms."""
    return [
        launch(0, 1),
        kernel(GEMM, 0, 3 * MS, correlation=1),
        annotation(mark, 4 * MS, 4 * MS),
        launch(4 * MS, 2),
        kernel("own_put_kernel", 5 * MS, MS, correlation=2),
        launch(5 * MS, 3, name="cudaMemcpyAsync"),
        memcpy(6 * MS, MS // 2, correlation=3),
        launch(5 * MS, 4, thread=BACKWARD),
        kernel(GEMM, 5 * MS + MS // 2, MS + MS // 2, stream=9, correlation=4),
    ]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_on_a_device_the_mark_and_what_is_launched_in_it_communicate(dialect: Dialect, tmp_path: Path) -> None:
    run = load(tmp_path, device_run(), dialect)
    half = MS // 2
    assert figures(run) == [8 * MS, 4 * MS, 4 * MS + half, 0, MS + half, 2 * MS + half, MS]
    spans = run.table("spans", 0)
    comm = spans[spans.kind == "comm"]
    assert sorted(comm.name) == ["Memcpy HtoD (Pageable -> Device)", "own transport", "own_put_kernel"]
    assert run.table("collectives", 0).empty
    assert run.analysis().unclassified.spans == 0


def test_an_annotation_of_another_name_is_no_communication(tmp_path: Path) -> None:
    run = load(tmp_path, device_run("comm:own transport"))
    assert whole(run)["comm_ns"] == 0


def test_the_users_own_pattern_comes_before_the_mark(tmp_path: Path) -> None:
    load(tmp_path, device_run())
    run = overlapscope.load(tmp_path / "worker.json", compute="own_put")
    assert whole(run)["compute_ns"] == 5 * MS  # 0-3, and 5-7 of two kernels
    spans = run.table("spans", 0)
    assert set(spans[spans.name == "own_put_kernel"].kind) == {"compute"}


def test_a_known_collective_inside_a_mark_stays_that_collective(tmp_path: Path) -> None:
    events = [
        annotation(MARK, 0, 5 * MS),
        launch(MS, 1),
        kernel(NCCL_KERNEL, 2 * MS, MS, correlation=1, args=collective_args()),
    ]
    run = load(tmp_path, events)
    assert run.table("collectives", 0).op.tolist() == ["all_reduce"]
    assert whole(run)["comm_ns"] == 5 * MS


def test_on_the_cpu_what_the_thread_runs_inside_the_mark_is_waiting(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 3 * MS),
        annotation(MARK, 4 * MS, 4 * MS),
        op("aten::copy_", 5 * MS, 5 * MS),
        op("aten::mm", 6 * MS, MS, thread=BACKWARD),
    ]
    run = load(tmp_path, events)
    # The thread computes 0-3 and 8-10, the other one 6-7; the mark communicates 4-8.
    assert figures(run) == [10 * MS, 4 * MS, 6 * MS, 0, MS, 3 * MS, MS]

"""Capture on a CUDA device: events against the profiler, NVTX, NVML, CUDA graphs, two NCCL ranks on one device."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.loaded_run import LoadedRun
from tests.conftest import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from tests.integration.jobs.training_gpu import environment  # noqa: E402 - behind the check for torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.xdist_group("gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TIMEOUT_SECONDS = 300
has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
needs_nccl = pytest.mark.skipif(torch.cuda.is_available() and not has_nccl, reason="torch has no NCCL")
both_modes = pytest.mark.parametrize("mode", ["events", "trace"])


def train(scenario: str, folder: Path, *, world: int = 1, mode: str = "events") -> list[dict[str, Any]]:
    """Run one scenario of tests/integration/jobs/training_gpu.py on `world` processes; give what each of them says."""
    processes, outs = [], []
    for rank in range(world):
        out = folder / f"out-{scenario}-{mode}-{rank}.json"
        outs.append(out)
        command = [sys.executable, "-m", "tests.integration.jobs.training_gpu", scenario, str(rank), str(world)]
        command += [str(folder / f"store-{scenario}-{mode}"), str(folder / "run"), mode, str(out)]
        log = folder / f"nccl.{rank}.log"
        processes.append(
            subprocess.Popen(
                command,
                cwd=ROOT, env=environment(rank, log=log), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    try:
        output = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, output
    return [json.loads(out.read_text(encoding="utf-8")) for out in outs]


def complete(run: LoadedRun, rank: int) -> list[Any]:
    return [step for step in run.analysis().ranks[rank].steps if step.complete]


def comm_kernels(trace: str, rank: int) -> Any:
    """The kernels of NCCL in a trace of this rank, in the order of their launches."""
    spans = overlapscope.load(trace, ranks=rank).table("spans", rank)
    return spans[(spans.kind == "comm") & spans.name.str.startswith("nccl")].sort_values("launch_ns")


def test_a_step_without_communication_takes_as_long_by_events_as_by_the_profiler(tmp_path: Path) -> None:
    (result,) = train("alone", tmp_path)
    run = overlapscope.load(tmp_path / "run")
    assert run.run.ranks[0].has_device
    assert run.run.ranks[0].recorded["failures"] == []
    assert {2, 3, 4, 5, 6} <= {step.step for step in complete(run, 0)}
    by_events = next(step for step in complete(run, 0) if step.step == 6)
    by_profiler = overlapscope.load(result["trace"], ranks=0).analysis().ranks[0].whole
    # Phases hold the gaps between kernels, too; no phase is shorter than the kernels in it.
    assert by_events.compute_ns >= 0.8 * by_profiler.compute_ns
    assert not by_events.comm_ns
    parts = (by_events.overlapped_ns, by_events.exposed_comm_ns, by_events.compute_only_ns, by_events.idle_ns)
    assert sum(part or 0 for part in parts) == by_events.window_ns


def test_events_lie_inside_the_recording_and_phases_follow_one_another(tmp_path: Path) -> None:
    train("alone", tmp_path)
    run = overlapscope.load(tmp_path / "run")
    spans = run.table("spans", 0).sort_values("start_ns")
    for step in (3, 4, 5):
        names = spans[(spans.step == step) & (spans.name != "other")].name.tolist()
        order = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
        assert order == ["forward", "backward", "optimizer"]
    window = run.table("recordings", 0)
    assert (spans.end_ns <= window.end_ns.max()).all()


def test_nvml_tells_real_values_of_this_device() -> None:
    from overlapscope.capture.host import environment as known
    from overlapscope.capture.host.telemetry import Sampler

    torch.zeros(1).cuda()
    sampler = Sampler(*known.device(0))
    sampler.open()
    try:
        sampler.sample()
        sampler.sample()
    finally:
        sampler.close()
    values = {name.partition(".")[2]: value for name, _, value in sampler.readings if name.startswith("gpu")}
    assert values, sampler.unsupported
    assert values["memory_used_bytes"] >= torch.cuda.memory_allocated()
    assert 0 <= values["utilization_percent"] <= 100
    if "power_w" in values:
        assert 1 < values["power_w"] < 3000
    if "temperature_c" in values:
        assert 0 < values["temperature_c"] < 150


def test_links_are_reported_or_nothing_but_never_raise() -> None:
    from overlapscope.capture.host import environment as known
    from overlapscope.capture.host.device_links import of_device
    from overlapscope.capture.host.doctor import device_links

    torch.zeros(1).cuda()
    found, _ = of_device(*known.device(0))
    assert all(link["a"] != link["b"] for link in found)
    assert len({link["a"] for link in found}) <= 1
    assert device_links().detail


def test_a_graph_capture_survives_and_steps_that_replay_it_are_marked_unobserved(tmp_path: Path) -> None:
    (result,) = train("graphed", tmp_path)
    assert len(result["sums"]) == 4
    assert all(value == pytest.approx(result["expected"], rel=1e-4) for value in result["sums"])
    run = overlapscope.load(tmp_path / "run")
    assert run.run.ranks[0].recorded["failures"] == []
    whole = {step.step for step in complete(run, 0)}
    assert {1, 2} <= whole
    assert not whole & {5, 6, 7, 8}
    telemetry = run.table("telemetry", 0)
    assert telemetry[telemetry.name == "graph_replays"].step.tolist() == [5, 6, 7, 8]


def test_nsight_systems_sees_our_ranges(tmp_path: Path) -> None:
    nsys = shutil.which("nsys")
    if nsys is None:
        pytest.skip("nsys (Nsight Systems) is not installed")
    command = [nsys, "profile", "-t", "nvtx", "-s", "none", "--export", "sqlite", "-o", str(tmp_path / "report")]
    command += [sys.executable, "-m", "tests.integration.jobs.training_gpu", "alone", "0", "1", str(tmp_path / "store")]
    command += [str(tmp_path / "run"), "events", str(tmp_path / "out.json")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(0), capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    if not (tmp_path / "report.sqlite").exists():
        pytest.skip(f"nsys cannot profile here: {done.stderr.strip()[-200:]}")
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as database, database:
        rows = database.execute(
            "SELECT COALESCE(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON e.textId = s.id"
        ).fetchall()
    names = {name for (name,) in rows if name}
    assert {"overlapscope.step#0", "overlapscope.step#7", "overlapscope.forward", "overlapscope.optimizer"} <= names


@needs_nccl
@both_modes
def test_two_nccl_ranks_of_ddp_show_their_buckets(mode: str, tmp_path: Path) -> None:
    results = train("ddp", tmp_path, world=2, mode=mode)
    run = overlapscope.load(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert run.run.fingerprint["backend"] == "nccl"
    for rank, result in enumerate(results):
        assert run.run.ranks[rank].has_device
        assert run.run.ranks[rank].recorded["failures"] == []
        calls = run.table("collectives", rank)
        calls = calls[calls.op == "all_reduce"].sort_values("launch_ns")
        steps = complete(run, rank)
        assert steps
        for step in steps:
            assert calls[calls.step == step.step].bytes.tolist() == result["bucket_bytes"]
            assert step.comm_ns > 0


@needs_nccl
def test_collectives_take_as_long_by_events_as_their_kernels_or_longer(tmp_path: Path) -> None:
    results = train("ddp", tmp_path, world=2)
    run = overlapscope.load(tmp_path / "run")
    for rank, result in enumerate(results):
        calls = run.table("collectives", rank)
        calls = calls[(calls.step == 6) & (calls.op == "all_reduce")].sort_values("launch_ns")
        kernels = comm_kernels(result["trace"], rank)
        assert len(calls) == len(kernels) == len(result["bucket_bytes"])
        by_events = (calls.end_ns - calls.start_ns).to_numpy()
        by_kernels = (kernels.end_ns - kernels.start_ns).to_numpy()
        # From ready to done: a kernel cannot run outside of it; the rest is waiting for the device.
        assert (by_events >= 0.9 * by_kernels).all()


@needs_nccl
@both_modes
def test_two_nccl_ranks_of_fsdp2_show_gathers_and_scatters(mode: str, tmp_path: Path) -> None:
    results = train("fsdp", tmp_path, world=2, mode=mode)
    run = overlapscope.load(tmp_path / "run")
    for rank, result in enumerate(results):
        calls = run.table("collectives", rank)
        assert {"all_gather", "reduce_scatter"} <= set(calls.op)
        assert result["layer_bytes"] in set(calls[calls.op == "all_gather"].bytes)
        assert complete(run, rank)


@needs_nccl
def test_the_log_that_nccl_writes_of_two_ranks_is_read(tmp_path: Path) -> None:
    train("ddp", tmp_path, world=2)
    logs = sorted(tmp_path.glob("nccl.*.log"))
    assert len(logs) == 2
    assert all("NCCL" in log.read_text(encoding="utf-8", errors="replace") for log in logs)
    members = overlapscope.load(*logs).analysis().told["members"].rows
    assert {row["members"] for row in members} == {2}

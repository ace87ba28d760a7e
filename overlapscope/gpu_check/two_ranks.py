"""Two ranks that share a device: are the calls, their sizes and the parameters those of the job without a recording?

NCCL refuses two ranks on one device of a host. It takes them where each has a NCCL_HOSTID of its own, and they then
meet over sockets; from NCCL 2.30 on also with NCCL_MULTI_RANK_GPU_ENABLE=1. Their kernels share the device in turn, so
durations are not those of a fabric, but order, number and sizes are.
"""

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import overlapscope
from overlapscope.capture.steps import STEP_MARK
from overlapscope.gpu_check.measurements import KEEP_FOLDER, Measurements, NotRunError, Process
from overlapscope.gpu_check.recordings import keep_marks, steps_of
from overlapscope.gpu_check.spin import device

WORLD: Final = 2
LIMIT_SECONDS: Final = 110.0
STEPS: Final = 20
WIDTH: Final = 1024
SHARED_DEVICE: Final = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
}
REFUSED: Final = "Duplicate GPU detected"


def environment(rank: int, *, log: Path | None = None) -> dict[str, str]:
    """Return what a rank's environment needs to share a device over sockets; `log` is where NCCL writes its own."""
    added = {"OMP_NUM_THREADS": "1", "NCCL_HOSTID": f"overlapscope{rank}", **SHARED_DEVICE}
    if log is not None:
        added |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,COLL,TUNING",
            "NCCL_DEBUG_FILE": str(log),
        }
    return added


# -- in the check --------------------------------------------------------------------------------------------------


def over_sockets(measured: Measurements) -> None:
    """Train with DDP over NCCL, each rank with a host id of its own."""
    device()
    logs = [measured.keep(f"nccl.rank{rank}.log") for rank in range(WORLD)]
    _same_training(measured, "nccl", [environment(rank, log=logs[rank]) for rank in range(WORLD)])


def by_permission(measured: Measurements) -> None:
    """Train with DDP over NCCL, which is asked to allow several ranks on one device."""
    device()
    allowed = {"OMP_NUM_THREADS": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", **SHARED_DEVICE}
    _same_training(measured, "nccl", [allowed] * WORLD)


def over_gloo(measured: Measurements) -> None:
    """Train and time waits with gloo and tensors of the device."""
    device()
    _same_training(measured, "gloo", [{"OMP_NUM_THREADS": "1"}] * WORLD)
    results = run_job("waits", measured.folder / "waits", "gloo", [{"OMP_NUM_THREADS": "1"}] * WORLD)
    found = [
        comm_difference_percent({each.step: each.comm_ns for each in steps_of(Path(result["run"]), rank)},
                                result["waited_ns"])
        for rank, result in enumerate(results)
    ]  # fmt: skip
    measured.figure("comm_difference_percent", max(found))


def against_profiler(measured: Measurements) -> None:
    """Record the same steps by events and by the profiler."""
    device()
    results = run_job("both", measured.folder / "both", "nccl", [environment(rank) for rank in range(WORLD)])
    windows: list[float] = []
    exposed: list[float] = []
    beyond: list[float] = []
    for rank, result in enumerate(results):
        by_events = {each.step: each for each in steps_of(Path(result["run"]), rank) if each.complete}
        by_trace = {each.step: each for each in steps_of(Path(result["trace"]), rank) if each.complete}
        for step in sorted(by_events.keys() & by_trace.keys()):
            ours, theirs = by_events[step], by_trace[step]
            if ours.window_ns and theirs.window_ns:
                windows.append(100 * abs(ours.window_ns / theirs.window_ns - 1))
                exposed.append(100 * abs((ours.exposed_ns or 0) - (theirs.exposed_ns or 0)) / theirs.window_ns)
        beyond += beyond_kernels_us(_durations(Path(result["run"]), rank), _durations(Path(result["trace"]), rank))
    measured.figure("steps_compared", len(windows))
    if windows:
        measured.figure("window_difference_median_percent", statistics.median(windows))
        measured.figure("window_difference_max_percent", max(windows))
        measured.figure("exposed_difference_median_percent", statistics.median(exposed))
        measured.figure("exposed_difference_max_percent", max(exposed))
    measured.figure("calls_compared", len(beyond))
    if beyond:
        measured.figure("beyond_kernel_median_us", statistics.median(beyond))
        measured.figure("beyond_kernel_least_us", min(beyond))
    _keep(measured, results)


def _durations(path: Path, rank: int) -> dict[int, list[int]]:
    """Return the durations of the all-reduces of each step, in the order of their calls."""
    table = overlapscope.load(path, ranks=rank if path.is_file() else None).table("collectives", rank)
    table = table[table.op == "all_reduce"].sort_values("launch_ns")
    found: dict[int, list[int]] = {}
    for step, start, end in zip(table.step.tolist(), table.start_ns.tolist(), table.end_ns.tolist(), strict=True):
        if isinstance(step, int):  # else outside of all steps
            found.setdefault(int(step), []).append(int(end) - int(start))
    return found


def _same_training(measured: Measurements, backend: str, environments: Sequence[Mapping[str, str]]) -> None:
    results = run_job("ddp", measured.folder / "ddp", backend, environments)
    for mode in ("events", "trace"):
        agreeing = [
            share_of_agreeing_steps(_bytes_of_calls(Path(result["runs"][mode]), rank), result["bucket_bytes"])
            for rank, result in enumerate(results)
        ]
        measured.figure(f"{mode}_calls_as_buckets_percent", 100 * min(agreeing))
        same = all(result["digests"][mode] == result["digests"]["bare"] for result in results)
        measured.figure(f"{mode}_parameters_identical", same)
        run = overlapscope.load(results[0]["runs"][mode])
        measured.figure(f"{mode}_failures", sum(len(each.recorded["failures"]) for each in run.run.ranks.values()))
    measured.figure("buckets", len(results[0]["bucket_bytes"]))
    _keep(measured, results)


def _keep(measured: Measurements, results: Sequence[Mapping[str, Any]]) -> None:
    """Move what each rank recorded to what is kept, once it was looked at."""
    for rank, result in enumerate(results):
        for path in map(Path, result["kept"]):
            path.rename(measured.keep(f"rank{rank}.{path.name.removeprefix(f'rank{rank}.')}"))


def _bytes_of_calls(path: Path, rank: int) -> dict[int, list[int]]:
    whole = {each.step for each in steps_of(path, rank) if each.complete}
    table = overlapscope.load(path).table("collectives", rank)
    table = table[table.op == "all_reduce"].sort_values("launch_ns")
    return {step: [int(size) for size in table[table.step == step].bytes.tolist()] for step in whole}


def run_job(
    scenario: str, folder: Path, backend: str, environments: Sequence[Mapping[str, str]], kind: str = "cuda"
) -> list[dict[str, Any]]:
    """Run a job of this module on two processes, and return what each rank wrote.

    Raises NotRunError where NCCL refuses two ranks on one device, RuntimeError with the job's last line where it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LIMIT_SECONDS
    processes = [
        Process(["-m", "overlapscope.gpu_check.two_ranks", scenario, str(rank), str(folder), backend, kind], added)
        for rank, added in enumerate(environments)
    ]
    try:
        ended = [each.wait(max(until - time.monotonic(), 1.0)) for each in processes]
    finally:
        for each in processes:
            each.stop()
    if any(each.code != 0 and REFUSED in each.output for each in ended):
        raise NotRunError(f"this NCCL refuses two ranks on one device ({REFUSED})")
    failed = [f"rank {rank} of the job {each.failure}" for rank, each in enumerate(ended) if each.failure is not None]
    if failed:
        raise RuntimeError("; ".join(failed))
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(len(processes))]


# -- in each rank --------------------------------------------------------------------------------------------------


def ddp(torch: Any, folder: Path, kind: str) -> dict[str, Any]:
    """Train the same model bare and in both modes; return digests of the parameters, and DDP's buckets."""
    torch.use_deterministic_algorithms(True)
    digests, runs, buckets = {}, {}, []
    measured = Measurements(folder / f"kept{torch.distributed.get_rank()}")
    modes: tuple[Literal["bare", "events", "trace"], ...] = ("bare", "events", "trace")
    for mode in modes:
        model = _model(torch, kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        runs[mode] = str(folder / mode)

        def step(number: int, model: Any = model, optimizer: Any = optimizer) -> None:
            model(_batch(torch, number, kind)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        if mode == "bare":
            for number in range(STEPS):
                step(number)
        else:
            with overlapscope.profile(
                runs[mode], model=model, mode=mode, warmup=3, steps=4, measure_overhead=False, wait_seconds=60
            ) as scope:
                for number in range(STEPS):
                    with scope.step():
                        step(number)
            if mode == "events":
                keep_marks(measured, "ddp", scope)
        digests[mode] = _digest(model)
        buckets = [int(part) for part in model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
    kept = [str(path) for path in sorted((measured.folder / KEEP_FOLDER).iterdir())]
    rank = torch.distributed.get_rank()
    kept += [str(path) for path in sorted(Path(runs["trace"]).rglob(f"*rank{rank}.pt.trace.json.gz"))]
    return {"digests": digests, "runs": runs, "bucket_bytes": buckets, "kept": kept}


def waits(torch: Any, folder: Path, kind: str) -> dict[str, Any]:
    """Time calls that are waited for at once by the host's own clock."""
    dist = torch.distributed
    model = torch.nn.Linear(4, 4).to(kind)
    data = torch.ones(4 << 20, device=kind)
    waited: dict[int, int] = {}
    run = folder / "run"
    with overlapscope.profile(
        run, model=model, mode="events", warmup=2, measure_overhead=False, wait_seconds=60
    ) as scope:
        for number in range(10):
            with scope.step():
                model(data[:4])
                _synchronize(torch, kind)
                waited[number] = 0
                for _ in range(4):
                    begun = time.monotonic_ns()
                    dist.all_reduce(data, async_op=True).wait()
                    _synchronize(torch, kind)
                    waited[number] += time.monotonic_ns() - begun
                data.fill_(1)
    return {"run": str(run), "waited_ns": waited}


def both(torch: Any, folder: Path, kind: str) -> dict[str, Any]:
    """Record steps by events and by the profiler at once."""
    model = _model(torch, kind, layers=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, trace = folder / "run", folder / f"rank{torch.distributed.get_rank()}.pt.trace.json"
    names = ("CPU", "CUDA") if kind == "cuda" else ("CPU",)
    activities = [getattr(torch.profiler.ProfilerActivity, name) for name in names]
    profiler = torch.profiler.profile(activities=activities)
    with overlapscope.profile(
        run, model=model, mode="events", warmup=3, measure_overhead=False, wait_seconds=60
    ) as scope:
        for number in range(STEPS + 6):
            if number == 5:
                _synchronize(torch, kind)
                profiler.start()
            with scope.step(), torch.profiler.record_function(f"{STEP_MARK}#{number}"):
                model(_batch(torch, number, kind)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        _synchronize(torch, kind)
        profiler.stop()
    profiler.export_chrome_trace(str(trace))
    measured = Measurements(folder / f"kept{torch.distributed.get_rank()}")
    keep_marks(measured, "both", scope)
    return {
        "run": str(run),
        "trace": str(trace),
        "kept": [*map(str, (measured.folder / KEEP_FOLDER).iterdir()), str(trace)],
    }


def _model(torch: Any, kind: str, layers: int = 6) -> Any:
    torch.manual_seed(7)
    width = WIDTH if kind == "cuda" else 256
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*parts).to(kind)
    ids = [torch.cuda.current_device()] if kind == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=5 if kind == "cuda" else 0.3)


def _batch(torch: Any, number: int, kind: str) -> Any:
    width, rows = (WIDTH, 512) if kind == "cuda" else (256, 32)
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(number)).to(kind)


def _digest(model: Any) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def _synchronize(torch: Any, kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run one rank of a job: SCENARIO RANK FOLDER BACKEND KIND."""
    import torch

    scenario, rank, folder, backend, kind = sys.argv[1:6]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if kind == "cuda":
        torch.cuda.set_device(0)
    dist = torch.distributed
    store = dist.FileStore(str(Path(folder) / "store"), WORLD)
    dist.init_process_group(backend, store=store, rank=int(rank), world_size=WORLD)
    result = {"ddp": ddp, "waits": waits, "both": both}[scenario](torch, Path(folder), kind)
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier(**({"device_ids": [0]} if backend == "nccl" else {}))
    dist.destroy_process_group()


# -- arithmetic ----------------------------------------------------------------------------------------------------


def share_of_agreeing_steps(calls: Mapping[int, Sequence[int]], buckets: Sequence[int]) -> float:
    """Return in what share of the steps the bytes of the calls are DDP's buckets, in order; 0 without a step."""
    return sum(list(each) == list(buckets) for each in calls.values()) / len(calls) if calls else 0.0


def comm_difference_percent(recorded: Mapping[int, int | None], timed: Mapping[str, int]) -> float:
    """Return the median difference of recorded communication from the host's own times, as a share; NaN without any."""
    found = [
        100 * abs(comm / timed[str(step)] - 1)
        for step, comm in recorded.items() if comm is not None and timed.get(str(step))
    ]  # fmt: skip
    return statistics.median(found) if found else float("nan")


def beyond_kernels_us(ours: Mapping[int, Sequence[int]], kernels: Mapping[int, Sequence[int]]) -> list[float]:
    """Return by how much each call exceeds its kernel, in microseconds, in the steps with as many calls as kernels."""
    common = [step for step in ours.keys() & kernels.keys() if len(ours[step]) == len(kernels[step])]
    return [(a - b) / 1e3 for step in sorted(common) for a, b in zip(ours[step], kernels[step], strict=True)]


if __name__ == "__main__":
    main()

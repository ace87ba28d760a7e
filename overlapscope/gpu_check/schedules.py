"""Is the schedule with a recording the schedule without it, and are its figures those that were constructed?"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import overlapscope
from overlapscope.gpu_check.measurements import Measurements, measure
from overlapscope.gpu_check.recordings import (
    failures_of,
    keep_marks,
    on_device,
    one_rank,
    size_of_copy,
    steps_of,
)
from overlapscope.gpu_check.spin import TRANSFER, Spin, device

POOL = 32
"""Streams of torch's pool."""
TRANSFER_MS = 5.0
SHARES = (0.0, 0.5, 1.5)
"""How much computation is beside a transfer, in parts of its duration."""
STEPS_A_SHARE = 8
CONNECTIONS = ("1", "8", None, "32")


# -- every kind of call --------------------------------------------------------------------------------------------


def calls(measured: Measurements) -> None:
    """Make every kind of call over NCCL with one rank, with and without a recording."""
    torch = device()
    dist = one_rank(torch)
    from torch.distributed import _functional_collectives as functional

    spin = Spin(torch)
    size = 4 << 20
    one, many = torch.ones(size, device="cuda"), torch.empty(size, device="cuda")

    def every() -> None:
        spin(200_000)
        dist.all_reduce(one)
        dist.all_reduce(one, async_op=True).wait()
        work = dist.all_gather_into_tensor(many, one, async_op=True)
        spin(500_000)
        work.wait()
        dist.reduce_scatter_tensor(many, one)
        dist.broadcast(one, 0)
        freed = torch.empty(size, device="cuda")
        dist.all_gather_into_tensor(freed, one, async_op=True).wait()
        del freed
        functional.wait_tensor(functional.all_reduce(one, "sum", dist.group.WORLD))
        for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, 0), dist.P2POp(dist.irecv, many, 0)]):
            each.wait()
        dist.barrier(device_ids=[0])

    model = on_device(torch, every)

    _loop(torch, model, 5, nullcontext)  # communicators take their streams at their first calls
    pool = [torch.cuda.Stream().cuda_stream for _ in range(POOL)]
    trace = measured.folder / "waits.json"
    bare = _observed(torch, model, nullcontext, pool, trace)
    path = measured.folder / "run"
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        recorded = _observed(torch, model, scope.step, pool, trace)
    keep_marks(measured, "calls", scope)
    measured.figure("streams_taken_more", (recorded[0] - bare[0]) % POOL)
    measured.figure("waits_without", bare[1])
    measured.figure("waits_more", recorded[1] - bare[1])
    measured.figure("peak_memory_more_mib", (recorded[2] - bare[2]) / 2**20)
    run = overlapscope.load(path)
    table = run.table("collectives", 0)
    measured.figure("calls_recorded", len(table))
    measured.figure("ended_before_ready", int((table.end_ns < table.start_ns).sum()))
    measured.figure("calls_without_end", int(run.run.ranks[0].recorded["unfinished_collectives"]))
    measured.figure("failures", len(failures_of(path)))
    measured.figure("operations", ", ".join(f"{op} {count}" for op, count in sorted(table.op.value_counts().items())))
    dist.destroy_process_group()


def _loop(torch: Any, model: Any, steps: int, step: Callable[[], Any]) -> None:
    for _ in range(steps):
        with step():
            model()
    torch.cuda.synchronize()


def _observed(
    torch: Any, model: Any, step: Callable[[], Any], pool: Sequence[int], trace: Path
) -> tuple[int, int, int]:
    """Return streams taken from the pool, waits of streams, and the peak of memory in bytes, in ten steps."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.Stream().cuda_stream
    _loop(torch, model, 10, step)
    after = torch.cuda.Stream().cuda_stream
    peak = int(torch.cuda.max_memory_allocated())
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        _loop(torch, model, 10, step)
    profiler.export_chrome_trace(str(trace))
    names = [event.get("name") for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]]
    return streams_taken(pool, before, after), names.count("cudaStreamWaitEvent"), peak


def streams_taken(pool: Sequence[int], before: int, after: int) -> int:
    """Return how many streams were taken from the pool between these two, modulo its size."""
    return (pool.index(after) - pool.index(before) - 1) % len(pool)


# -- hardware queues -----------------------------------------------------------------------------------------------


def queues(measured: Measurements) -> None:
    """Measure with each number of hardware queues what waits of foreign streams, and what a recording, hold back."""
    device()
    for connections in CONNECTIONS:
        name = connections or "unset"
        found, ended = measure(
            f"{__name__}:queue_delays",
            measured.folder / name,
            60,
            {"CUDA_DEVICE_MAX_CONNECTIONS": connections},
        )
        for figure in ("pool_waits_delay_ms", "bare_delay_ms", "recorded_delay_ms"):
            if figure in found.figures:
                measured.figure(f"{figure}_{name}", found.figures[figure])
        if {"bare_delay_ms", "recorded_delay_ms"} <= found.figures.keys():
            added = float(found.figures["recorded_delay_ms"]) - float(found.figures["bare_delay_ms"])
            measured.figure(f"added_delay_ms_{name}", added)
        else:
            measured.missing(f"added_delay_ms_{name}", found.not_run or ended.failure or "not measured")


def queue_delays(measured: Measurements) -> None:
    """Measure how much later than launched a computation ends, beside a transfer of 60 ms."""
    torch = device()
    dist = one_rank(torch)
    spin = Spin(torch)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    pool = [torch.cuda.Stream() for _ in range(POOL)]
    one, many = torch.ones(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda")

    def compute() -> None:
        for _ in range(10):
            spin(500_000)
        last.record()

    def delay() -> float:
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) - 5.0

    def with_waits_of_the_pool() -> float:
        first.record()
        with torch.cuda.stream(side):
            spin(60_000_000)
        end = torch.cuda.Event()
        end.record(side)
        for stream in pool:
            stream.wait_event(end)
            torch.cuda.Event().record(stream)
        compute()
        return delay()

    def forward() -> None:
        works = []
        with torch.cuda.stream(side):
            spin(60_000_000)
            for _ in range(16):
                works.append(dist.all_gather_into_tensor(many, one, async_op=True))
        compute()
        for work in works:
            work.wait()

    model = on_device(torch, forward)

    def bare() -> float:
        first.record()
        model()
        return delay()

    bare()
    measured.figure("pool_waits_delay_ms", float(np.median([with_waits_of_the_pool() for _ in range(5)])))
    measured.figure("bare_delay_ms", float(np.median([bare() for _ in range(5)])))
    path = measured.folder / "run"
    found = []
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for _ in range(6):
            with scope.step():
                first.record()
                model()
            found.append(delay())
    measured.figure("recorded_delay_ms", float(np.median(found[1:])))
    dist.destroy_process_group()


# -- constructed overlap -------------------------------------------------------------------------------------------


def events_truth(measured: Measurements) -> None:
    """Record transfers of a known duration beside computation of a known duration, in `events` mode."""
    torch = device()
    dist = one_rank(torch)
    spin = Spin(torch)
    size = size_of_copy(torch, TRANSFER_MS)
    one, many = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    alone = []
    for _ in range(12):
        begin.record()
        dist.all_gather_into_tensor(many, one)
        end.record()
        torch.cuda.synchronize()
        alone.append(begin.elapsed_time(end) * 1e6)
    took = float(np.median(alone[2:]))
    measured.figure("transfer_ms", took / 1e6)

    def forward(share: float) -> None:
        work = dist.all_gather_into_tensor(many, one, async_op=True)
        if share:
            spin(int(share * took))
        work.wait()
        spin(int(0.2 * took))

    model = on_device(torch, forward)
    path = measured.folder / "run"
    shares = [share for share in SHARES for _ in range(STEPS_A_SHARE)]
    with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
        for share in shares:
            with scope.step():
                model(share)
            time.sleep(0.005)
    keep_marks(measured, "constructed", scope)
    wanted = {at: expected_ns(took, share) for at, share in enumerate(shares)}
    _compare(measured, path, wanted)
    dist.destroy_process_group()


def trace_truth(measured: Measurements) -> None:
    """Record kernels that store when they ran, one named as NCCL's, in `trace` mode."""
    torch = device()
    spin = Spin(torch)
    took = TRANSFER_MS * 1e6
    side = torch.cuda.Stream()
    shares = [share for share in SHARES for _ in range(STEPS_A_SHARE)]
    times = torch.zeros((len(shares), 3, 2), dtype=torch.int64, device="cuda")

    def forward(at: int, share: float) -> None:
        address = times.data_ptr() + 48 * at
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            spin(int(took), name=TRANSFER, times=address)
        if share:
            spin(int(share * took), times=address + 16)
        torch.cuda.current_stream().wait_stream(side)
        spin(int(0.2 * took), times=address + 32)

    model = on_device(torch, forward)
    path = measured.folder / "run"
    with overlapscope.profile(
        path, model=model, mode="trace", warmup=1, steps=len(shares), measure_overhead=False
    ) as scope:
        for at in range(-2, len(shares)):
            with scope.step():
                model(max(at, 0), SHARES[0] if at < 0 else shares[at])
            torch.cuda.synchronize()
            time.sleep(0.002)
    rows = times.cpu().tolist()
    truth = [exposed_and_overlapped(row[0], [each for each in row[1:] if each[0]]) for row in rows]
    _compare(measured, path, {at + 2: each for at, each in enumerate(truth)})
    for trace in path.rglob("*.pt.trace.json.gz"):
        trace.rename(measured.keep("constructed.pt.trace.json.gz"))
    measured.keep("constructed.times.json").write_text(json.dumps(rows), encoding="utf-8")


def _compare(measured: Measurements, path: Path, wanted: Mapping[int, tuple[float, float]]) -> None:
    found = {
        each.step: (float(each.exposed_ns or 0), float(each.overlapped_ns or 0))
        for each in steps_of(path) if each.complete
    }  # fmt: skip
    exposed, overlapped, compared = differences_us(found, wanted)
    measured.figure("steps_compared", compared)
    measured.figure("exposed_error_us", exposed)
    measured.figure("overlapped_error_us", overlapped)
    measured.figure("failures", len(failures_of(path)))


def expected_ns(took_ns: float, share: float) -> tuple[float, float]:
    """Return the exposed and the overlapped time of a transfer beside computation of this share of its duration."""
    overlapped = min(share, 1.0) * took_ns
    return took_ns - overlapped, overlapped


def exposed_and_overlapped(transfer: Sequence[int], computing: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return both parts of a transfer from `(begin, end)` of it and of kernels that do not overlap each other."""
    overlapped = sum(max(min(end, transfer[1]) - max(begin, transfer[0]), 0) for begin, end in computing)
    return float(transfer[1] - transfer[0] - overlapped), float(overlapped)


def differences_us(
    found: Mapping[int, tuple[float, float]], wanted: Mapping[int, tuple[float, float]]
) -> tuple[float, float, int]:
    """Return the 90th percentile of the differences of exposed and overlapped time in microseconds, and the steps.

    NaN without a step that is in both.
    """
    common = sorted(found.keys() & wanted.keys())
    if not common:
        return float("nan"), float("nan"), 0
    wrong = np.array([np.subtract(found[step], wanted[step]) for step in common])
    exposed, overlapped = (np.quantile(np.abs(wrong), 0.9, axis=0) / 1e3).tolist()
    return exposed, overlapped, len(common)

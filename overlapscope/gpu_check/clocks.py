"""Does the device's clock show what it should, and what does a mark cost? By kernels that store their own times."""

import ctypes
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from overlapscope.capture.device_clock import DeviceClock
from overlapscope.gpu_check.measurements import Measurements
from overlapscope.gpu_check.spin import Spin, device

PAIRS = 20_000
IDLE_MARKS = 400
QUEUED_MARKS = 200
COST_MARKS = 5_000
LIVE_EVENTS = 20_000
Floats = npt.NDArray[np.float64]


def events(measured: Measurements) -> None:
    """Measure the resolution of events, and the time between two that ran in the opposite order."""
    torch = device()
    spin = Spin(torch)
    pairs = []
    for _ in range(PAIRS // 1000):
        some = [torch.cuda.Event(enable_timing=True) for _ in range(2000)]
        for event in some:
            event.record()
        torch.cuda.synchronize()
        pairs += [a.elapsed_time(b) for a, b in zip(some[::2], some[1::2], strict=True)]
    measured.figure("resolution_us", resolution_us(pairs))
    begin, anchor, beside = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    side = torch.cuda.Stream()
    begin.record()
    spin(20_000_000)
    anchor.record()
    beside.record(side)
    torch.cuda.synchronize()
    measured.figure("side_from_anchor_ms", anchor.elapsed_time(beside))
    around = begin.elapsed_time(anchor) + anchor.elapsed_time(beside) - begin.elapsed_time(beside)
    measured.figure("side_error_us", abs(around) * 1e3)


def drift(measured: Measurements) -> None:
    """Compare marks with the host times at which their kernels' results were seen, idle and with a full queue."""
    torch = device()
    spin = Spin(torch)
    clock = DeviceClock(torch.cuda, 0)
    offset = clock.epoch_ns(0)
    pinned = torch.zeros(2, dtype=torch.int64).pin_memory()
    seen = ctypes.c_uint64.from_address(pinned.data_ptr() + 8)
    rows: list[tuple[Any, int, int]] = []  # mark, when the device's own timer was read, when the host saw it

    def idle(marks: int) -> None:
        for _ in range(marks):
            clock.anchor()
            seen.value = 0
            spin(20_000, times=pinned.data_ptr())
            mark = clock.mark()
            while not seen.value:
                pass
            now = time.monotonic_ns()
            rows.append((mark, seen.value, now))
            torch.cuda.synchronize()
            clock.read(64)
            time.sleep(0.04)

    idle(IDLE_MARKS // 2)
    times = torch.zeros((QUEUED_MARKS, 2), dtype=torch.int64, device="cuda")
    queued = []
    for at in range(QUEUED_MARKS):
        if at % 10 == 0:
            clock.anchor()
        spin(10_000_000, times=times.data_ptr() + 16 * at)
        queued.append(clock.mark())
        clock.read(4)
    while not clock.read(64):
        time.sleep(0.002)
    idle(IDLE_MARKS // 2)
    own = [row[0] for row in rows] + queued
    shown = np.array([np.nan if at is None else at - offset for at in clock.times(own)])
    host = np.array([row[2] for row in rows], np.float64)
    timer = np.array([row[1] for row in rows], np.float64)
    ends = times[:, 1].cpu().numpy().astype(np.float64)
    truth = np.r_[host, host_times(ends, timer, host)]
    recorded = np.array([mark.recorded_ns for mark in own], np.float64)
    quiet, busy = errors_us(shown[: len(rows)], truth[: len(rows)]), errors_us(shown[len(rows) :], truth[len(rows) :])
    measured.figure("drift_ppm", drift_ppm(np.array([row[0].at_ns for row in rows], np.float64), host))
    measured.figure("idle_error_us", quiet[0])
    measured.figure("idle_error_max_us", quiet[1])
    measured.figure("queued_error_us", busy[0])
    measured.figure("queued_error_max_us", busy[1])
    measured.figure("before_launch", int((shown < recorded).sum()))
    with open(measured.keep("clock_marks.json"), "w", encoding="utf-8") as file:
        marks = [(mark.recorded_ns, mark.at_ns, int(at)) for mark, at in zip(own, truth, strict=True)]
        json.dump({"columns": ["recorded_ns", "device_ns", "true_host_ns"], "marks": marks}, file)


def cost(measured: Measurements) -> None:
    """Measure what marks cost the host, and what events cost memory and a stream of short kernels."""
    torch = device()
    spin = Spin(torch)
    clock = DeviceClock(torch.cuda, 0)
    taken, read = [], []
    for _ in range(COST_MARKS // 50):
        clock.anchor()
        for _ in range(50):
            begun = time.perf_counter_ns()
            clock.mark()
            taken.append(time.perf_counter_ns() - begun)
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        clock.read(51)
        read.append((time.perf_counter_ns() - begun) / 51)
    measured.figure("mark_median_us", float(np.median(taken[100:])) / 1e3)
    measured.figure("mark_p99_us", float(np.quantile(taken[100:], 0.99)) / 1e3)
    measured.figure("read_us", float(np.median(read[2:])) / 1e3)
    free, resident = torch.cuda.mem_get_info()[0], _resident_bytes()
    live = [torch.cuda.Event(enable_timing=True) for _ in range(LIVE_EVENTS)]
    for event in live:
        event.record()
    torch.cuda.synchronize()
    measured.figure("live_device_mb", max(free - torch.cuda.mem_get_info()[0], 0) / 1e6)
    measured.figure("live_host_mb", (_resident_bytes() - resident) / 1e6)
    del live
    bare: list[float] = []
    marked: list[float] = []
    for block in range(20):
        with_marks = block % 2 == 1
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        spin(2_000_000)  # the host runs ahead
        begin.record()
        for _ in range(200):
            if with_marks:
                clock.mark()
            spin(50_000)
            if with_marks:
                clock.mark()
        end.record()
        torch.cuda.synchronize()
        (marked if with_marks else bare).append(begin.elapsed_time(end))
        while not clock.read(1000):
            pass
    measured.figure("short_kernels_added_percent", 100 * added_share(marked, bare))


# -- arithmetic ----------------------------------------------------------------------------------------------------


def resolution_us(between_ms: Sequence[float]) -> float:
    """Return the smallest difference between two different times, in microseconds; NaN where all are the same."""
    gaps = np.diff(np.unique(np.asarray(between_ms, np.float64)))
    # Single precision: what differs by less than a nanosecond is the same time, rounded differently.
    gaps = gaps[gaps > 1e-6]
    return float(gaps.min()) * 1e3 if gaps.size else float("nan")


def host_times(at: Floats, timer: Floats, host: Floats) -> Floats:
    """Return the host's times of readings of the device's timer, by the readings of which both are known.

    The difference of the clocks is interpolated from its least value in groups of ten: a host may be late to see a
    result, never early.
    """
    size = timer.size // 10 * 10
    groups_timer, groups_difference = timer[:size].reshape(-1, 10), (host - timer)[:size].reshape(-1, 10)
    best = groups_difference.argmin(axis=1)[:, None]
    knots = np.take_along_axis(groups_timer, best, 1)[:, 0]
    found: Floats = at + np.interp(at, knots, np.take_along_axis(groups_difference, best, 1)[:, 0])
    return found


def errors_us(shown_ns: Floats, true_ns: Floats) -> tuple[float, float]:
    """Return the 95th percentile and the largest difference, in microseconds; NaN where a time is missing."""
    wrong = np.abs(shown_ns - true_ns) / 1e3
    return float(np.quantile(wrong, 0.95)), float(wrong.max())


def drift_ppm(device_ns: Floats, host_ns: Floats) -> float:
    """Return by how many millionths the host's clock runs faster, by the half of the pairs nearest to a line."""
    x, y = device_ns - device_ns[0], (host_ns - host_ns[0]) - (device_ns - device_ns[0])
    slope, constant = np.polyfit(x, y, 1)
    rest = y - slope * x - constant
    near = rest <= np.median(rest)
    return float(np.polyfit(x[near], y[near], 1)[0] * 1e6)


def added_share(with_us: Sequence[float], without: Sequence[float]) -> float:
    """Return by what share the median of the first exceeds that of the second."""
    return float(np.median(with_us) / np.median(without) - 1)


def _resident_bytes() -> int:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

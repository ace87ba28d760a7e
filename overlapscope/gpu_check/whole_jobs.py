"""What recording costs a job by the device's own clock, and what is left of steps that the device had not reached."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

import overlapscope
from overlapscope.gpu_check.measurements import Measurements
from overlapscope.gpu_check.recordings import StepFigures, failures_of, on_device, one_rank, size_of_copy, steps_of
from overlapscope.gpu_check.spin import Spin, device

CALLS = 60
STEP_NS = 50_000_000
BLOCKS = 16
STEPS_A_BLOCK = 20
QUEUED_STEPS = 40


def overhead(measured: Measurements) -> None:
    """Compare blocks of steps of 50 ms with 60 calls, bare and recorded by turns, from step to step on the device."""
    torch = device()
    dist = one_rank(torch)
    spin = Spin(torch)
    data = torch.ones(1 << 16, device="cuda")
    host_ns: dict[bool, list[int]] = {False: [], True: []}

    def forward(recorded: bool) -> None:
        for _ in range(CALLS):
            begun = time.perf_counter_ns()
            work = dist.all_reduce(data, async_op=True)
            spent = time.perf_counter_ns() - begun
            spin(STEP_NS // CALLS)
            begun = time.perf_counter_ns()
            work.wait()
            host_ns[recorded].append(spent + time.perf_counter_ns() - begun)

    model = on_device(torch, forward)

    def block(recorded: bool, step: Callable[[], Any]) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS_A_BLOCK + 1)]
        for mark in marks[:-1]:
            mark.record()
            with step():
                model(recorded)
        marks[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e6 for a, b in pairwise(marks)]

    block(False, nullcontext)
    bare: list[list[float]] = []
    with_us: list[list[float]] = []
    for number in range(BLOCKS):
        bare.append(block(False, nullcontext))
        path = measured.folder / f"run{number}"
        with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
            with_us.append(block(True, scope.step))
    mean, upper = added_percent(bare, with_us)
    measured.figure("step_ms", statistics.fmean(map(statistics.fmean, bare)) / 1e6)
    measured.figure("added_percent", mean)
    measured.figure("added_upper_percent", upper)
    measured.figure("longest_to_median", max(step for each in with_us for step in each) / median_step(with_us))
    added = statistics.median(host_ns[True]) - statistics.median(host_ns[False])
    measured.figure("host_us_a_call", added / 1e3)
    path = measured.folder / "own"
    with overlapscope.profile(path, model=model, mode="events", warmup=3) as scope:
        for _ in range(80):
            with scope.step():
                model(True)
    own = overlapscope.load(path).run.ranks[0].recorded["overhead"]
    if own is None:
        measured.missing("own_figure_off_percent", "the recording measured no cost of its own")
    else:
        measured.figure("own_figure_off_percent", abs(100 * own["mean_ns"] / own["step_ns"] - mean))
    dist.destroy_process_group()


def lagging_host(measured: Measurements) -> None:
    """Leave a recording with seconds of work in the device's queue, and time enough to wait for it, or not."""
    torch = device()
    dist = one_rank(torch)
    spin = Spin(torch)
    size = size_of_copy(torch, 3.0)
    one, many = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))

    def forward() -> None:
        work = dist.all_gather_into_tensor(many, one, async_op=True)
        spin(100_000_000)
        work.wait()

    model = on_device(torch, forward)
    model()
    torch.cuda.synchronize()
    for name, seconds in (("patient", 30.0), ("hurried", 0.0)):
        path = measured.folder / name
        with overlapscope.profile(
            path, model=model, mode="events", warmup=0, measure_overhead=False, wait_seconds=seconds
        ) as scope:
            for _ in range(QUEUED_STEPS):
                with scope.step():
                    model()
        steps = steps_of(path)
        whole, silent = endings(steps)
        measured.figure(f"{name}_steps", len(steps))
        measured.figure(f"{name}_whole", whole)
        measured.figure(f"{name}_whole_without_communication", silent)
        measured.figure(f"{name}_failures", len(failures_of(path)))
        torch.cuda.synchronize()
    dist.destroy_process_group()


# -- arithmetic ----------------------------------------------------------------------------------------------------


def added_percent(bare: Sequence[Sequence[float]], recorded: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return by how much the mean step of the second exceeds that of the first, and the upper end of its 95 % interval.

    Block by block, by the differences of neighbouring blocks; the first step of each is left out, in which the device
    may still be waiting for the host.
    """
    differences = [statistics.fmean(b[1:]) - statistics.fmean(a[1:]) for a, b in zip(bare, recorded, strict=True)]
    base = statistics.fmean(statistics.fmean(each[1:]) for each in bare)
    rng = np.random.default_rng(0)
    resampled = np.mean(rng.choice(differences, (2000, len(differences))), axis=1)
    return 100 * statistics.fmean(differences) / base, 100 * float(np.quantile(resampled, 0.975)) / base


def median_step(blocks: Sequence[Sequence[float]]) -> float:
    """Return the median of the steps of all blocks."""
    return statistics.median(step for each in blocks for step in each)


def endings(steps: Sequence[StepFigures]) -> tuple[int, int]:
    """Return how many steps are whole, and how many of them have no communication."""
    whole = [each for each in steps if each.complete]
    return len(whole), sum(not each.comm_ns for each in whole)

"""Do recorded steps survive CUDA graphs, and captures of graphs a recording?"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import overlapscope
from overlapscope.gpu_check.measurements import Measurements
from overlapscope.gpu_check.recordings import failures_of, on_device, one_rank, steps_of
from overlapscope.gpu_check.spin import device

CAPTURES = 20


def replays(measured: Measurements) -> None:
    """Replay a graph that only computes, and one with a collective, in recorded steps."""
    torch = device()
    dist = one_rank(torch)
    data = torch.ones(1 << 18, device="cuda")
    compute = _matmul(torch)

    def communicate_too() -> None:
        compute()
        dist.all_reduce(data)

    _warm_up(torch, communicate_too)
    for name, call, figure in (
        ("silent", compute, "whole_steps_without_collectives"),
        ("communicating", communicate_too, "whole_steps_with_collectives"),
    ):
        made: list[Any] = []

        def forward(made: list[Any] = made) -> None:
            made[0].replay()

        model = on_device(torch, forward)
        path = measured.folder / name
        with overlapscope.profile(path, model=model, mode="events", warmup=1, measure_overhead=False) as scope:
            for number in range(8):
                if number == 1:
                    made.append(_captured(torch, call))
                with scope.step():
                    if made:
                        model()
                        dist.all_reduce(data)
        measured.figure(figure, sum(each.complete for each in steps_of(path) if each.step >= 2))
        measured.figure(f"{name}_failures", len(failures_of(path)))
    dist.destroy_process_group()


def captures(measured: Measurements) -> None:
    """Capture graphs while another thread communicates, without a recording and in recorded steps."""
    torch = device()
    dist = one_rank(torch)
    group = dist.new_group([0])
    compute = _matmul(torch)
    _warm_up(torch, compute)
    model = on_device(torch, compute)
    path = measured.folder / "run"
    survived: dict[bool, int] = {}
    for recorded in (False, True):
        stop = threading.Event()

        def communicate(stop: threading.Event = stop) -> None:
            own, stream = torch.ones(1 << 18, device="cuda"), torch.cuda.Stream()
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    dist.all_reduce(own, group=group, async_op=True).wait()
                    time.sleep(0.0005)

        beside = threading.Thread(target=communicate)
        beside.start()
        try:
            if recorded:
                with overlapscope.profile(path, model=model, mode="events", warmup=0, measure_overhead=False) as scope:
                    survived[recorded] = _survivors(torch, model, scope.step)
            else:
                survived[recorded] = _survivors(torch, model, nullcontext)
        finally:
            stop.set()
            beside.join()
        torch.cuda.synchronize()
    measured.figure("captures_survived_bare", survived[False])
    measured.figure("captures_lost_by_recording", survived[False] - survived[True])
    measured.figure("failures", len(failures_of(path)))
    dist.destroy_process_group()


def _matmul(torch: Any) -> Callable[[], None]:
    weight = torch.randn(1024, 1024, device="cuda")
    out = torch.empty_like(weight)

    def compute() -> None:
        torch.matmul(weight, weight, out=out)

    return compute


def _warm_up(torch: Any, call: Callable[[], None]) -> None:
    """Call on a side stream, as torch asks for before a capture."""
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()


def _captured(torch: Any, call: Callable[[], Any]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def _survivors(torch: Any, model: Any, step: Callable[[], Any]) -> int:
    """Return how many captures survived."""
    survived = 0
    for _ in range(CAPTURES):
        with step():
            try:
                _captured(torch, model)
                survived += 1
            except RuntimeError:
                torch.cuda.synchronize()
        time.sleep(0.002)
    return survived

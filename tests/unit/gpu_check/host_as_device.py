"""Run measuring functions of the checks of a GPU without one: the host does at once what a device would do later.

    python -m tests.unit.gpu_check.host_as_device MODULE:FUNCTION FOLDER [MODULE:FUNCTION FOLDER ...]

Kernels sleep for a fraction of their time, streams do nothing, and gloo with one rank stands for NCCL. Figures mean
nothing then; what runs is the code of the checks, with the recording that they make.
"""

import ctypes
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from overlapscope.gpu_check import measurements, spin

FASTER = 100
OVERRIDDEN = {
    "clocks": {"PAIRS": 2_000, "IDLE_MARKS": 40, "QUEUED_MARKS": 20, "COST_MARKS": 300, "LIVE_EVENTS": 100},
    "whole_jobs": {"BLOCKS": 4, "STEPS_A_BLOCK": 5},
    "inventory": {"TESTS": Path("no/such/tests")},
}


class Event:
    """An event that is done as soon as it is recorded."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        del enable_timing
        self.at_ns = 0

    def record(self, stream: Any = None) -> None:
        del stream
        self.at_ns = time.monotonic_ns()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        return (end.at_ns - self.at_ns) / 1e6


_streams = count()


class Stream:
    """One of 32 streams in turn, all of which run at once."""

    device = SimpleNamespace(index=0)

    def __init__(self) -> None:
        self.cuda_stream = 1 + next(_streams) % 32

    def wait_event(self, event: Any) -> None:
        del event

    def wait_stream(self, stream: Any) -> None:
        del stream


class Graph:
    """A graph whose replay does nothing."""

    def replay(self) -> None:
        pass


DEFAULT = Stream()
CUDA = SimpleNamespace(
    Event=Event, Stream=Stream, CUDAGraph=Graph, graph=lambda graph: nullcontext(), stream=lambda stream: nullcontext(),
    synchronize=lambda *_: None, current_stream=lambda *_: DEFAULT, current_device=lambda: 0,
    device=lambda index: nullcontext(), is_current_stream_capturing=lambda: False, mem_get_info=lambda *_: (1 << 28, 1),
    reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda *_: 1000, device_count=lambda: 1,
    get_device_properties=lambda *_: SimpleNamespace(name="the host", total_memory=1 << 33),
    get_device_capability=lambda *_: (9, 0), nccl=SimpleNamespace(version=lambda: (2, 27, 3)),
    nvtx=SimpleNamespace(range_push=lambda name: 0, range_pop=lambda: 0),
)  # fmt: skip


class Torch:
    """torch, whose tensors of a device are the host's."""

    cuda = CUDA

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("ones", "empty", "zeros", "randn"):
            return found

        def on_host(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **{**kwargs, "device": "cpu"})
            return Pinned(made) if name == "zeros" else made

        return on_host


class Pinned(torch.Tensor):
    """A tensor of the host, which cannot be pinned without a device."""

    def pin_memory(self, *_: Any) -> Any:
        return self


class Spin:
    """Sleeps instead of computing, and stores when."""

    def __init__(self, _: Any) -> None:
        pass

    def __call__(self, duration_ns: int, *, name: str = "", times: int = 0) -> None:
        if times == spin.ILLEGAL_ADDRESS:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        begun = time.monotonic_ns()
        torch.ones(4).sum()  # an operation that a profiler sees
        time.sleep(duration_ns / 1e9 / FASTER)
        if times:
            stored = (ctypes.c_uint64 * 2).from_address(times)
            stored[0], stored[1] = begun, time.monotonic_ns()


def one_rank(_: Any) -> Any:
    """Return torch.distributed with a group of one rank over gloo; what gloo cannot do is left out."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    missing = {
        "reduce_scatter_tensor": lambda *_: None,
        "batch_isend_irecv": lambda operations: [],
        "barrier": lambda **_: dist.barrier(),
    }
    return SimpleNamespace(**{**vars(dist), **missing})


class Process(measurements.Process):
    """A process that runs a measuring function, or a rank of a job, on the host."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str | None] | None = None) -> None:
        words = list(words)
        if words[:2] == ["-m", "overlapscope.gpu_check"]:
            words[1] = "tests.unit.gpu_check.host_as_device"
        elif words[:2] == ["-m", "overlapscope.gpu_check.two_ranks"]:
            words[-2:] = ["gloo", "cpu"]
        super().__init__(words, environment)


@contextmanager
def the_host() -> Any:
    """Stand for a device: before the checks' own modules are imported, so that they take these."""
    spin.device, spin.Spin = Torch, Spin
    measurements.Process = Process
    recordings = vars(import_module("overlapscope.gpu_check.recordings"))
    recordings.update(one_rank=one_rank, size_of_copy=lambda *_: 1 << 16)
    for module, values in OVERRIDDEN.items():
        vars(import_module(f"overlapscope.gpu_check.{module}")).update(values)
    vars(import_module("overlapscope.gpu_check.inventory"))["_nvml_facts"] = lambda: {"driver": "none"}
    yield


def main() -> None:
    words = sys.argv[1:]
    with the_host():
        for function, folder in zip(words[::2], words[1::2], strict=True):
            module, _, name = function.partition(":")
            measured = measurements.Measurements(Path(folder))
            getattr(import_module(module), name)(measured)
            measured.end()


if __name__ == "__main__":
    main()

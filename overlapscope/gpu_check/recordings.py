"""What the checks record with, and what of a recording they look at."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import overlapscope
from overlapscope.capture.device_clock import Mark
from overlapscope.capture.records import MarkedRange
from overlapscope.gpu_check.measurements import Measurements, NotRunError

FREE_SHARE = 0.2
"""Share of the free memory of a device that a check takes at most."""


class StepFigures(NamedTuple):
    """The figures of a recorded step, in nanoseconds; None is n/a."""

    step: int
    complete: bool
    window_ns: int | None
    comm_ns: int | None
    exposed_ns: int | None
    overlapped_ns: int | None


def one_rank(torch: Any) -> Any:
    """Return torch.distributed with a group of this process alone over NCCL."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_nccl_available()):
        raise NotRunError("this torch has no NCCL")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    return dist


def on_device(torch: Any, forward: Callable[..., None]) -> Any:
    """Return a module with a parameter on the device, whose forward calls this function."""

    class Called(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, device="cuda"))

        def forward(self, *args: Any) -> None:
            forward(*args)

    return Called()


def steps_of(path: Path, rank: int = 0) -> list[StepFigures]:
    """Return the steps of a rank of a run or a trace."""
    ranks = overlapscope.load(path, ranks=rank if path.is_file() else None).analysis().ranks
    return [
        StepFigures(
            each.step, each.complete, each.window_ns, each.comm_ns, each.exposed_comm_ns, each.overlapped_ns
        )
        for info in ranks if info.rank == rank for each in info.steps
    ]  # fmt: skip


def failures_of(path: Path, rank: int = 0) -> list[str]:
    """Return what failed in the recording of a rank."""
    return list(overlapscope.load(path).run.ranks[rank].recorded["failures"])


def size_of_copy(torch: Any, milliseconds: float) -> int:
    """Return how many bytes the device copies in so long, at most FREE_SHARE of its free memory."""
    probe = 256 << 20
    source = torch.empty(probe, dtype=torch.uint8, device="cuda")
    into = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        begin.record()
        into.copy_(source)
        end.record()
    torch.cuda.synchronize()
    size = int(probe * milliseconds / begin.elapsed_time(end))
    return min(size, int(torch.cuda.mem_get_info()[0] * FREE_SHARE / 2)) // 1024 * 1024


def keep_marks(measured: Measurements, name: str, scope: Any) -> None:
    """Keep the raw marks of a recording in `events` mode, as they were read: fixtures for a simulated device."""
    steps = [
        {
            "number": record.number, "begin_ns": record.begin_ns, "end_ns": record.end_ns, "cut": record.cut,
            "phases": _ranges(record.phases), "waits": _ranges(record.waits), "regions": _ranges(record.regions),
            "calls": [
                {
                    "op": call.op, "group": call.group, "elements": call.elements, "dtype": call.dtype,
                    "entered_ns": call.entered_ns, "returned_ns": call.returned_ns, "seq": call.seq,
                    "lane": call.transfer.lane, "ready": _mark(call.transfer.ready), "done": _mark(call.transfer.done),
                    "on_host": call.transfer.on_host, "duration_ns": call.transfer.duration_ns,
                    "waited": _ranges([call.transfer.waited])[0] if call.transfer.waited is not None else None,
                }
                for call in record.calls
            ],
        }
        for record in scope.steps.records
    ]  # fmt: skip
    with gzip.open(measured.keep(f"{name}.marks.json.gz"), "wt", encoding="utf-8") as file:
        json.dump({"mark": ["host time of recording", "device time, null if not read"], "steps": steps}, file)


def _ranges(ranges: Sequence[MarkedRange]) -> list[list[Any]]:
    return [[each.name, each.begin_ns, _mark(each.begin), _mark(each.end)] for each in ranges]


def _mark(mark: Any) -> Any:
    return [mark.recorded_ns, mark.at_ns] if isinstance(mark, Mark) else mark

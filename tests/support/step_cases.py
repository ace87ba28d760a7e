"""Recordings of devices made for rules: what a step holds is given in microseconds, and every step is 1,000 us."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import to_builtins

from overlapscope.timeline.columns import HOST
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

US = 1000
STEP = 1000
STEPS = 6
H100 = {"backend": "nccl", "device": "NVIDIA H100 80GB HBM3", "nccl_version": "2.27.7", "torch_version": "2.8.0"}


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """Compute on lane 0."""

    start: float
    end: float
    launch: float | None = None
    name: str = "gemm"
    host_op: str = "aten::mm"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A collective on a lane of its own."""

    start: float
    end: float
    launch: float | None = None
    op: str = "all_reduce"
    group: str = "g"
    size_bytes: int = 1 << 20
    elements: int = 1 << 18
    dimension: str | None = None
    phase: str | None = None
    algorithm: str | None = None


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A host annotation."""

    name: str
    start: float
    end: float


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A gradient."""

    name: str
    elements: int
    at: float


Item = Kernel | Sent | Range | Ready


def made(
    step: Callable[[int], Sequence[Item]],
    *,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    fingerprint: Mapping[str, str] = H100,
    description: str | None = None,
) -> Run:
    """Return a run whose ranks all do what `step` gives for each number of a step."""
    group = Group(name="g", size=ranks, ranks=tuple(range(ranks)), description=description)
    return Run(
        world_size=ranks,
        ranks={rank: _timeline(rank, ranks, step, environment) for rank in range(ranks)},
        groups=(group,),
        fingerprint=dict(fingerprint),
    )


def _timeline(
    rank: int, ranks: int, step: Callable[[int], Sequence[Item]], environment: Mapping[str, str] | None
) -> RankTimeline:
    rows: dict[type, list[dict[str, Any]]] = {Kernel: [], Sent: [], Range: [], Ready: []}
    for number in range(STEPS):

        def at(us: float, number: int = number) -> int:
            return EPOCH_NS + round((number * STEP + us) * US)

        for each in step(number):
            row = {**to_builtins(each), "step": number}
            if isinstance(each, Ready):
                order = sum(other["step"] == number for other in rows[Ready])
                row |= {"order": order, "dtype": "float32", "ready_ns": at(each.at)}
            else:
                row |= {"start_ns": at(each.start), "end_ns": at(each.end)}
            if isinstance(each, Kernel | Sent):
                row["launch_ns"] = at(each.start - 1 if each.launch is None else each.launch)
            if isinstance(each, Sent):
                row |= {"name": "ncclDevKernel", "dtype": "float32", "bytes": each.size_bytes, "group_size": ranks,
                        "seq": len(rows[Sent])}  # fmt: skip
            rows[type(each)].append(row)
    first, last = EPOCH_NS - STEP * US, EPOCH_NS + (STEPS + 1) * STEP * US
    launches = [each["launch_ns"] for each in (*rows[Kernel], *rows[Sent])]
    return rank_timeline(
        rank,
        calls=rows[Sent],
        work=rows[Kernel],
        recordings=[{"start_ns": first, "end_ns": last, "last_launch_ns": max(launches)}],
        steps=[
            {"step": n, "start_ns": EPOCH_NS + n * STEP * US - US // 2,
             "end_ns": EPOCH_NS + (n + 1) * STEP * US - US // 2}
            for n in range(STEPS)
        ],
        lanes=[{"label": "7"}, {"label": "20"}, {"kind": HOST, "label": "training"}],
        annotations=[{**each, "lane": 2} for each in rows[Range]],
        gradients=rows[Ready],
        recorded={} if environment is None else {"settings": {"environment": dict(environment)}},
    )  # fmt: skip

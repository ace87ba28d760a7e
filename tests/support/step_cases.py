"""Recordings of devices made for rules: what a step holds is given in microseconds, and every step is 1,000 us."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    DEVICE,
    NONE,
    Annotations,
    Collectives,
    Gradients,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS

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
    names = NameTable()
    origin = EPOCH_NS

    def at(number: int, us: float) -> int:
        return origin + round((number * STEP + us) * US)

    items = [(number, each) for number in range(STEPS) for each in step(number)]
    kernels = [(n, each) for n, each in items if isinstance(each, Kernel)]
    sent = [(n, each) for n, each in items if isinstance(each, Sent)]
    notes = [(n, each) for n, each in items if isinstance(each, Range)]
    ready = [(n, each) for n, each in items if isinstance(each, Ready)]
    both = [*kernels, *sent]
    launches = [at(n, each.start - 1 if each.launch is None else each.launch) for n, each in both]
    count, calls = len(kernels), len(sent)
    recorded: dict[str, Any] = {} if environment is None else {"settings": {"environment": dict(environment)}}
    return RankTimeline(
        rank=rank,
        basis="trace",
        has_device=True,
        recordings=make(
            Recordings, 1, source=-1, start_ns=origin - STEP * US, end_ns=at(STEPS, STEP), last_launch_ns=max(launches)
        ),
        spans=make(
            Spans,
            len(both),
            recording=0,
            lane=[0] * count + [1] * calls,
            kind=[COMPUTE] * count + [COMM] * calls,
            name=[names.code(each.name if isinstance(each, Kernel) else "ncclDevKernel") for _, each in both],
            host_op=[names.code(each.host_op) if isinstance(each, Kernel) else -1 for _, each in both],
            start_ns=[at(n, each.start) for n, each in both],
            end_ns=[at(n, each.end) for n, each in both],
            launch_ns=launches,
            step=[n for n, _ in both],
            collective=[NONE] * count + list(range(calls)),
        ),
        collectives=make(
            Collectives,
            calls,
            recording=0,
            step=[n for n, _ in sent],
            group=[names.code(each.group) for _, each in sent],
            seq=np.arange(calls),
            op=[names.code(each.op) for _, each in sent],
            dtype=names.code("float32"),
            elements=[each.elements for _, each in sent],
            bytes=[each.size_bytes for _, each in sent],
            group_size=ranks,
            algorithm=[-1 if each.algorithm is None else names.code(each.algorithm) for _, each in sent],
            dimension=[-1 if each.dimension is None else names.code(each.dimension) for _, each in sent],
            launch_ns=launches[count:],
            start_ns=[at(n, each.start) for n, each in sent],
            end_ns=[at(n, each.end) for n, each in sent],
        ),
        steps=make(
            Steps,
            STEPS,
            recording=0,
            step=np.arange(STEPS),
            start_ns=[at(n, -0.5) for n in range(STEPS)],
            end_ns=[at(n + 1, -0.5) for n in range(STEPS)],
        ),
        lanes=make(Lanes, 3, kind=[DEVICE, DEVICE, 1], label=[names.code(each) for each in ("7", "20", "training")]),
        annotations=make(
            Annotations,
            len(notes),
            recording=0,
            lane=2,
            name=[names.code(each.name) for _, each in notes],
            start_ns=[at(n, each.start) for n, each in notes],
            end_ns=[at(n, each.end) for n, each in notes],
        ),
        gradients=make(
            Gradients,
            len(ready),
            step=[n for n, _ in ready],
            order=[sum(m == n for m, _ in ready[:place]) for place, (n, _) in enumerate(ready)],
            name=[names.code(each.name) for _, each in ready],
            elements=[each.elements for _, each in ready],
            dtype=names.code("float32"),
            ready_ns=[at(n, each.at) for n, each in ready],
        ),
        names=tuple(names.to_list()),
        recorded=recorded,
    )

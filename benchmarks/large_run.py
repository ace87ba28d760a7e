"""A run directory of many ranks, made from a seed: as many intervals a rank as are asked for, none touching another.

Each was launched by a call within an operation: collectives by one host thread, all else by another.
"""

from pathlib import Path

import numpy as np

from overlapscope.timeline.columns import (
    ANNOTATION,
    COMM,
    COMPUTE,
    COPY,
    DEVICE,
    HOST,
    NONE,
    OPERATION,
    RUNTIME,
    Annotations,
    Collectives,
    HostSpans,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)  # fmt: skip
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline
from overlapscope.timeline.store.rank_writer import save_job, save_rank
from overlapscope.version import __version__

EPOCH_NS = 1_700_000_000_000_000_000
STEPS = 20
LATE = 4
"""So many ranks come last in turn."""
BEFORE_NS, CALL_NS, AROUND_NS = 10_000, 3_000, 1_000
"""A call begins so long before what it launches, takes so long, and lies so far inside its operation."""
CALL_EVERY = 10
"""One interval in so many is a collective, on a lane of its own; one in as many is a copy."""


def write_run(place: Path, *, ranks: int, intervals: int, seed: int = 0) -> None:
    """Write the run: kernels of some microseconds with gaps between them, and collectives that end together."""
    rng = np.random.default_rng(seed)
    calls = intervals // CALL_EVERY
    kernels = intervals - calls
    took = rng.integers(5_000, 60_000, kernels)
    gap = rng.integers(500, 4_000, kernels)
    begin = np.cumsum(took + gap) - took
    call_begin = begin[np.linspace(0, kernels - 1, calls).astype(np.int64)]
    transfer = rng.integers(20_000, 200_000, calls)
    room = np.append(np.diff(call_begin), transfer[-1:] + 1) - 2_000
    transfer = np.minimum(transfer, np.maximum(room, 1_000))
    for rank in range(ranks):
        save_rank(_rank(rank, np.random.default_rng([seed, rank]), begin, took, call_begin, transfer), place)
    group = Group(name="0", description="default_pg", size=ranks, ranks=tuple(range(ranks)))
    save_job(place, version=__version__, world_size=ranks, groups=[group], fingerprint={}, tell_ranks=True)


def _rank(
    rank: int,
    rng: np.random.Generator,
    begin: np.ndarray[tuple[int], np.dtype[np.int64]],
    took: np.ndarray[tuple[int], np.dtype[np.int64]],
    call_begin: np.ndarray[tuple[int], np.dtype[np.int64]],
    transfer: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> RankTimeline:
    names = NameTable()
    own = EPOCH_NS + int(rng.integers(-2_000_000, 2_000_000))
    kernels, calls = begin.size, call_begin.size
    start = own + begin
    end = start + (took * rng.uniform(0.7, 1.0, kernels)).astype(np.int64)
    late = np.where(np.arange(calls) % LATE == rank, transfer // 2, rng.integers(0, np.maximum(transfer // 10, 1)))
    call_start, call_end = own + call_begin + late, own + call_begin + transfer
    kind = np.where(np.arange(kernels) % CALL_EVERY == CALL_EVERY - 1, COPY, COMPUTE)
    kernel = np.array([names.code(f"gemm_{number}") for number in range(40)])
    copy, reduce = names.code("Memcpy DtoD"), names.code("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    random = rng.integers(0, 40, kernels)
    bounds = np.linspace(begin[0], begin[-1] + took[-1], STEPS + 1).astype(np.int64) + own
    all_start, all_end = np.concatenate([start, call_start]), np.concatenate([end, call_end])
    step = np.clip(np.searchsorted(bounds, all_start, side="right") - 1, 0, STEPS - 1)
    step_start, step_end = bounds[:-1] - BEFORE_NS, bounds[1:] - BEFORE_NS
    return RankTimeline(
        rank=rank, basis="trace", has_device=True,
        recordings=make(
            Recordings, 1, source=names.code("synthetic"), start_ns=own, end_ns=int(all_end.max()),
            last_launch_ns=int(all_start.max()), host_events=True,
        ),
        spans=make(
            Spans, kernels + calls, recording=0, lane=np.repeat([0, 1], [kernels, calls]),
            kind=np.concatenate([kind, np.full(calls, COMM)]),
            name=np.concatenate([np.where(kind == COPY, copy, kernel[random]), np.full(calls, reduce)]),
            start_ns=all_start, end_ns=all_end, launch_ns=all_start - BEFORE_NS, correlation=np.arange(kernels + calls),
            step=step, collective=np.concatenate([np.full(kernels, NONE), np.arange(calls)]),
        ),
        collectives=make(
            Collectives, calls, recording=0, step=step[kernels:], group=names.code("0"), seq=np.arange(calls),
            op=names.code("all_reduce"), dtype=names.code("bfloat16"), bytes=transfer * 100, group_size=NONE,
            start_ns=call_start, end_ns=call_end, launch_ns=call_start - BEFORE_NS,
        ),
        steps=make(
            Steps, STEPS, recording=0, step=np.arange(STEPS), start_ns=step_start, end_ns=step_end
        ),
        host=_host(names, all_start - BEFORE_NS, kernels, step_start, step_end),
        lanes=make(
            Lanes, 4, kind=[DEVICE, DEVICE, HOST, HOST], process=names.code("0"),
            label=[names.code(each) for each in ("7", "20", "4711", "4712")],
        ),
        annotations=make(Annotations, 0),
        names=tuple(names.to_list()),
    )  # fmt: skip


def _host(
    names: NameTable,
    launch: np.ndarray[tuple[int], np.dtype[np.int64]],
    kernels: int,
    step_start: np.ndarray[tuple[int], np.dtype[np.int64]],
    step_end: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> HostSpans:
    number = np.arange(launch.size)
    thread = np.where(number < kernels, 2, 3)
    operation = np.array([names.code(f"aten::op_{each}") for each in range(40)])
    marks = [names.code(f"ProfilerStep#{each}") for each in range(step_start.size)]
    start = np.concatenate([step_start, launch - AROUND_NS, launch])
    end = np.concatenate([step_end, launch + CALL_NS + AROUND_NS, launch + CALL_NS])
    lane = np.concatenate([np.full(step_start.size, 2), thread, thread])
    order = np.lexsort((-end, start, lane))
    kinds = np.repeat([ANNOTATION, OPERATION, RUNTIME], [step_start.size, launch.size, launch.size])
    called = np.concatenate([marks, operation[number % 40], np.full(launch.size, names.code("cudaLaunchKernel"))])
    return make(
        HostSpans, order.size, recording=0, lane=lane[order], kind=kinds[order], name=called[order],
        start_ns=start[order], end_ns=end[order],
        correlation=np.concatenate([np.full(step_start.size + launch.size, NONE), number])[order],
    )  # fmt: skip

"""A simulated job as the columns of a run: what reading its files would give, without the files."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import (
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
    Telemetry,
    make,
    take,
)
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.property.synthetic.job import Job
from tests.property.synthetic.joined import Clock, Joined, NamedGroup, named_groups
from tests.property.synthetic.kineto import AFTER_NS, BEFORE_NS, CALLS_FROM
from tests.property.synthetic.machine import Simulated
from tests.property.synthetic.record import COPY, MAIN, Record

CLOCK_MHZ, CLOCK_JITTER = 1410.0, 0.005
DTYPES = {"BFloat16": ("bfloat16", 2), "Float": ("float32", 4)}


def run_of(simulated: Simulated) -> Run:
    """Return the recorded ranks of a job, with the telemetry that the files of torch.profiler have not."""
    ranks = {timeline.rank: timeline for timeline in timelines_of(simulated)}
    groups = recorded_groups(simulated)
    world = simulated.job.layout.world
    return Run(
        world_size=world,
        ranks=with_dimensions(dict(sorted(ranks.items())), groups, world),
        groups=groups,
        fingerprint={"backend": "nccl"},
    )


def timelines_of(simulated: Simulated, *, host_events: bool = False) -> Iterator[RankTimeline]:
    """Yield the recorded ranks one by one, stage by stage, without the dimensions of their collectives."""
    groups = named_groups(simulated.job)
    for record in simulated.records:
        if record.ranks.size:
            joined = Joined(record)
            for row, rank in enumerate(joined.ranks.tolist()):
                yield _timeline(simulated.job, record, joined, row, _own(groups, rank), host_events=host_events)


def recorded_groups(simulated: Simulated) -> tuple[Group, ...]:
    """Return the groups with a recorded member."""
    recorded = {rank for record in simulated.records for rank in record.ranks.tolist()}
    return tuple(
        Group(name=each.name, description=each.description, size=len(each.ranks), ranks=each.ranks)
        for each in named_groups(simulated.job)
        if not recorded.isdisjoint(each.ranks)
    )


def _own(groups: list[NamedGroup], rank: int) -> dict[str, NamedGroup]:
    return {each.dimension: each for each in groups if rank in each.ranks}


def _timeline(
    job: Job, record: Record, joined: Joined, row: int, groups: Mapping[str, NamedGroup], *, host_events: bool
) -> RankTimeline:
    clock = Clock(job, int(joined.ranks[row]))
    names = NameTable(joined.names)
    there = np.flatnonzero(joined.present[row])
    start, end, launch = (clock.shows(each[row, there]) for each in (joined.start, joined.end, joined.launch))
    steps = make(
        Steps, len(record.steps), recording=0, step=[number for number, _, _ in record.steps],
        start_ns=clock.shows(np.array([begun[row] for _, begun, _ in record.steps])),
        end_ns=clock.shows(np.array([ended[row] for _, _, ended in record.steps])),
    )  # fmt: skip
    step = _step_at(steps, launch)
    grid = joined.blocks[row, there].astype(np.int64)
    streams, lane = np.unique(joined.stream[there], return_inverse=True)
    call = joined.call[there]
    calls = np.flatnonzero(call >= 0)
    spans = make(
        Spans, there.size, recording=0, lane=lane, kind=joined.kind[there], name=joined.name[there],
        host_op=joined.op[there], start_ns=start, end_ns=end, launch_ns=launch,
        correlation=joined.correlation[there],
        blocks=np.where(grid > 0, grid, NONE),
        step=step, collective=np.where(call >= 0, call, NONE),
    )  # fmt: skip
    threads = np.unique(joined.thread)
    marks = [*record.marks, *((f"ProfilerStep#{number}", 0, begun, ended) for number, begun, ended in record.steps)]
    marks += [(name, 0, begun, ended) for name, begun, ended in record.waits]
    host = _host_spans(record, joined, row, there, clock, names, streams.size) if host_events else make(HostSpans, 0)
    return RankTimeline(
        rank=int(joined.ranks[row]), basis="trace", has_device=True,
        recordings=make(
            Recordings, 1, source=names.code(f"synthetic.{joined.ranks[row]}"),
            start_ns=int(min(start.min(), steps.start_ns.min())),
            end_ns=int(max(end.max(), steps.end_ns.max())), last_launch_ns=int(launch.max()), host_events=host_events,
        ),
        spans=spans,
        collectives=_collectives(job, joined, row, groups, names, step[calls], start[calls], end[calls], launch[calls]),
        steps=steps,
        lanes=make(
            Lanes, streams.size + threads.size, kind=[DEVICE] * streams.size + [HOST] * threads.size,
            process=[names.code("0")] * streams.size + [names.code("4711")] * threads.size,
            label=[names.code(str(each)) for each in (*streams.tolist(), *(4711 + threads).tolist())],
        ),
        annotations=make(
            Annotations, len(marks), recording=0, lane=streams.size, name=[names.code(name) for name, _, _, _ in marks],
            start_ns=clock.shows(np.array([begun[row] for _, _, begun, _ in marks])),
            end_ns=clock.shows(np.array([ended[row] for _, _, _, ended in marks])),
        ),
        telemetry=_telemetry(job, record, row, clock, names), host=host, names=tuple(names.to_list()),
    )  # fmt: skip


def _host_spans(
    record: Record, joined: Joined, row: int, there: npt.NDArray[np.int64], clock: Clock, names: NameTable,
    first_lane: int,
) -> HostSpans:  # fmt: skip
    """Return one operation and one call for each launch, and the calls without a span; threads follow the streams."""
    correlation = joined.correlation[there]
    first = np.flatnonzero(np.diff(correlation, prepend=-1) != 0)
    at = there[first]
    begun, ended = clock.shows(joined.launch[row, at]), clock.shows(joined.returned[row, at])
    lane = first_lane + np.searchsorted(np.unique(joined.thread), joined.thread[at])
    api = np.where(
        joined.graph[at], names.code("cudaGraphLaunch"),
        np.where(joined.kind[at] == COPY, names.code("cudaMemcpyAsync"), names.code("cudaLaunchKernel")),
    )  # fmt: skip
    others = [(name, begun, ended, NONE) for name, begun, ended in record.waits]
    others += [(name, begun, ended, number) for number, (name, begun, ended) in enumerate(record.calls, CALLS_FROM)]
    found = make(
        HostSpans, 2 * at.size + len(others), recording=0,
        lane=np.concatenate([lane, lane, np.full(len(others), first_lane + MAIN)]),
        kind=np.repeat([OPERATION, RUNTIME, RUNTIME], [at.size, at.size, len(others)]),
        name=np.concatenate([joined.op[at], api, np.array([names.code(each[0]) for each in others], np.int64)]),
        start_ns=np.concatenate(
            [begun - BEFORE_NS, begun, clock.shows(np.array([each[1][row] for each in others]))]
        ),
        end_ns=np.concatenate([ended + AFTER_NS, ended, clock.shows(np.array([each[2][row] for each in others]))]),
        correlation=np.concatenate(
            [np.full(at.size, NONE), correlation[first], np.array([each[3] for each in others], np.int64)]
        ),
    )  # fmt: skip
    return take(found, np.lexsort((-found.end_ns, found.start_ns, found.lane)))


def _collectives(
    job: Job, joined: Joined, row: int, groups: Mapping[str, NamedGroup], names: NameTable,
    step: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64],
    launch: npt.NDArray[np.int64],
) -> Collectives:  # fmt: skip
    calls = joined.calls
    item = [DTYPES[each.dtype][1] for each in calls]
    counted = [
        max(int(each.sent[row]) // one, int(each.got[row]) // one if each.op != "all_to_all" else 0)
        for each, one in zip(calls, item, strict=True)
    ]
    return make(
        Collectives, len(calls), recording=0, step=step,
        group=[names.code(groups[each.dimension].name) for each in calls],
        seq=[each.number for each in calls] if job.numbered else NONE, op=[names.code(each.op) for each in calls],
        dtype=[names.code(DTYPES[each.dtype][0]) for each in calls], elements=counted,
        bytes=[number * one for number, one in zip(counted, item, strict=True)],
        group_size=[each.group_size for each in calls], start_ns=start, end_ns=end, launch_ns=launch,
        peer=[NONE if each.peer is None else each.peer[row] for each in calls],
        received_bytes=[
            int(each.got[row]) // one * one if each.op == "all_to_all" else NONE
            for each, one in zip(calls, item, strict=True)
        ],
    )  # fmt: skip


def _step_at(steps: Steps, at_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    row = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    return np.where((row >= 0) & (at_ns < steps.end_ns[row]), steps.step[row], NONE)


def _telemetry(job: Job, record: Record, row: int, clock: Clock, names: NameTable) -> Telemetry:
    times = job.fault.stall_noted != "allocator_retries"
    noted = [
        (ended[row], job.fault.stall_noted, length[row] if times else 1.0)
        for ended, length in record.pauses
        if length[row] > 0
    ]
    if job.fault.clock_noted:
        rank = int(record.ranks[row])
        rng = np.random.default_rng([job.seed, rank, 12])
        slower = job.fault.compute_factor if rank in job.fault.culprits else 1.0
        usual = CLOCK_MHZ * np.exp(rng.normal(0, job.rank_jitter)) / slower
        noted += [
            (ends[row], "gpu0.sm_clock_mhz", usual * np.exp(rng.normal(0, CLOCK_JITTER))) for _, _, ends in record.steps
        ]
    noted.sort()
    at = np.array([when for when, _, _ in noted])
    numbers, begun = np.array([each for each, _, _ in record.steps]), [begins[row] for _, begins, _ in record.steps]
    return make(
        Telemetry, len(noted), time_ns=clock.shows(at), step=numbers[np.searchsorted(begun, at, side="right") - 1],
        name=[names.code(name) for _, name, _ in noted], value=[value for _, _, value in noted],
    )  # fmt: skip

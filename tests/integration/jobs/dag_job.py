"""A job as a graph of moments and what each waits for, with its critical path by the graph alone.

Ranks run programs: the host works, launches kernels on lanes (which may wait for kernels of other lanes), waits for
copies to it, and calls collectives of a group. Every moment is a node; an edge says that one is at least so long after
another; times are longest ways. Nothing here infers anything from times, and nothing is shared with the package.
"""

import random
from graphlib import TopologicalSorter

import msgspec
from msgspec.structs import replace

from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    COPY,
    DEVICE,
    HOST,
    NONE,
    RUNTIME,
    Annotations,
    Collectives,
    HostSpans,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run

LATENCY_NS = 4_000
"""From a launch to the earliest start."""
CALL_NS = 2_000
"""What a launch takes of the host."""
COMPUTE_LANE, SIDE_LANE, FIRST_COMM_LANE = 0, 1, 2
TO_HOST = "Memcpy DtoH (Device -> Pageable)"

Node = tuple[str, int, int]
"""What (`host`, `start`, `end`, `all arrived`), rank or call, number."""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One launch: the host works first; `waits` are numbers of earlier kernels, `call` is a collective's."""

    host_ns: int
    lane: int
    kind: int
    ns: int
    waits: tuple[int, ...] = ()
    call: int | None = None

    @property
    def to_host(self) -> bool:
        return self.kind == COPY


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Programs of all ranks, members of each call, and how far each rank's clock goes wrong."""

    ranks: tuple[tuple[Kernel, ...], ...]
    members: dict[int, tuple[int, ...]] = {}
    offsets: tuple[int, ...] = ()


def drawn(seed: int) -> Job:
    """Draw a job of two or three ranks; ranks 0 and 1 have calls of their own besides those of all."""
    dice = random.Random(seed)
    size = dice.choice((2, 3))
    programs: list[list[Kernel]] = [[] for _ in range(size)]
    members: dict[int, tuple[int, ...]] = {}
    for _ in range(dice.randint(4, 9)):
        for program in programs:
            for _ in range(dice.randint(0, 3)):
                program.append(_compute(dice, program))
            if dice.random() < 0.2 and program:
                waits = (len(program) - 1,) if dice.random() < 0.5 else ()
                program.append(Kernel(host_ns=_work(dice), lane=SIDE_LANE, kind=COPY, ns=_ns(dice), waits=waits))
        pair = size > 2 and dice.random() < 0.4
        call, ns = len(members), _ns(dice)
        members[call] = (0, 1) if pair else tuple(range(size))
        for rank in members[call]:
            program = programs[rank]
            waits = tuple(at for at in (len(program) - 1,) if at >= 0 and dice.random() < 0.8)
            lane = FIRST_COMM_LANE + pair
            program.append(Kernel(host_ns=_work(dice), lane=lane, kind=COMM, ns=ns, waits=waits, call=call))
    for program in programs:
        program.append(_compute(dice, program))
    offsets = tuple(dice.randrange(-5_000_000, 5_000_000) for _ in range(size))
    return Job(ranks=tuple(map(tuple, programs)), members=members, offsets=offsets)


def _compute(dice: random.Random, program: list[Kernel]) -> Kernel:
    others = [at for at, each in enumerate(program) if each.lane != COMPUTE_LANE]
    waits = (dice.choice(others[-3:]),) if others and dice.random() < 0.4 else ()
    return Kernel(host_ns=_work(dice), lane=COMPUTE_LANE, kind=COMPUTE, ns=_ns(dice), waits=waits)


def _work(dice: random.Random) -> int:
    return dice.randrange(1_000, 180_000) if dice.random() < 0.5 else dice.randrange(1_000, 10_000)


def _ns(dice: random.Random) -> int:
    return dice.randrange(10_000, 600_000)


def edges(job: Job) -> dict[Node, dict[Node, int]]:
    """Return what each moment waits for, with the least time between."""
    found: dict[Node, dict[Node, int]] = {}

    def after(node: Node, other: Node, ns: int) -> None:
        found.setdefault(node, {})[other] = ns

    for rank, program in enumerate(job.ranks):
        last_on: dict[int, int] = {}
        found[("host", rank, 0)] = {}
        for number, kernel in enumerate(program):
            launch, start, end = ("launch", rank, number), ("start", rank, number), ("end", rank, number)
            after(launch, ("host", rank, number), kernel.host_ns)
            after(start, launch, LATENCY_NS)
            if kernel.lane in last_on:
                after(start, ("end", rank, last_on[kernel.lane]), 0)
            for other in kernel.waits:
                after(start, ("end", rank, other), 0)
            last_on[kernel.lane] = number
            if kernel.call is None:
                after(end, start, kernel.ns)
            else:
                after(("all arrived", kernel.call, 0), start, 0)
                after(end, ("all arrived", kernel.call, 0), kernel.ns)
            after(("host", rank, number + 1), launch, CALL_NS)
            if kernel.to_host:
                after(("host", rank, number + 1), end, 0)
    return found


def times(job: Job) -> dict[Node, int]:
    """Return when each moment comes: the longest way to it."""
    graph = edges(job)
    at: dict[Node, int] = {}
    for node in TopologicalSorter(graph).static_order():
        at[node] = max((at[other] + ns for other, ns in graph.get(node, {}).items()), default=0)
    return at


def end_of(job: Job) -> int:
    """Return when the last kernel of all ranks ends."""
    return max(at for node, at in times(job).items() if node[0] == "end")


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path by the graph: nanoseconds by (part, kernel's name), from `begin` to the end on rank `rank`.

    `begin` is when the first rank begins to compute. What a rank did before its first launch is not recorded.
    """

    rank: int
    begin: int
    end: int
    parts: dict[tuple[str, str], int]
    closest: int
    """How close the second-latest of what a moment on the path waited for came to being the latest."""


def truth(job: Job) -> Truth:
    """Follow the latest edge back from the end, to the first compute of all ranks."""
    graph, at = edges(job), times(job)
    ends = sorted((time, node) for node, time in at.items() if node[0] == "end")
    node = ends[-1][1]
    of_other_ranks = [time for time, each in ends if each[1] != node[1] and each[0] == "end"]
    closest = min((ends[-1][0] - time for time in of_other_ranks[-1:]), default=1 << 40)
    rank = node[1]
    begin = min(
        at["start", each, number]
        for each, program in enumerate(job.ranks)
        for number, kernel in enumerate(program)
        if kernel.kind == COMPUTE
    )
    parts: dict[tuple[str, str], int] = {}
    while at[node] > begin:
        ranked = sorted((at[other] + ns, other) for other, ns in graph[node].items())
        if len(ranked) > 1:
            closest = min(closest, ranked[-1][0] - ranked[-2][0])
        before = ranked[-1][1]
        ns = at[node] - max(begin, at[before])
        if ns and at[before] < at[node]:
            key = _part(job, node, before)
            parts[key] = parts.get(key, 0) + ns
        node = before
    return Truth(rank=rank, begin=begin, end=ends[-1][0], parts=parts, closest=closest)


def _part(job: Job, node: Node, before: Node) -> tuple[str, str]:
    if node[0] == "end":
        kernel = job.ranks[node[1]][node[2]]
        if kernel.call is not None:
            return "transfer", op_of(kernel.call)
        return ("copy", TO_HOST) if kernel.kind == COPY else ("compute", name(node[1], node[2]))
    if node[0] == "start":
        return "launch", ""
    return ("before_recording" if before[0] == "host" and not before[2] else "host"), ""


def name(rank: int, number: int) -> str:
    return f"kernel {number} of rank {rank}"


def op_of(call: int) -> str:
    return ("all_reduce", "all_gather", "reduce_scatter")[call % 3]


def changed(job: Job, rank: int, number: int, ns: int) -> Job:
    """Return the job with one kernel (on all members of its call) `ns` longer."""
    call = job.ranks[rank][number].call
    programs = [
        tuple(
            replace(each, ns=each.ns + ns)
            if (call is not None and each.call == call) or (call is None and (own, at) == (rank, number))
            else each
            for at, each in enumerate(program)
        )
        for own, program in enumerate(job.ranks)
    ]
    return replace(job, ranks=tuple(programs))


def run_of(job: Job) -> Run:
    """Return what a profiler would have recorded: spans and launches, on each rank's own clock."""
    at = times(job)
    base = 1_700_000_000_000_000_000
    ranks = {}
    for rank, program in enumerate(job.ranks):
        names = NameTable(["source", "all", "pair", "float32", TO_HOST])
        shift = base + (job.offsets[rank] if job.offsets else 0)
        calls = [number for number, kernel in enumerate(program) if kernel.call is not None]
        thread = FIRST_COMM_LANE + 2

        def moments(what: str, numbers: list[int], rank: int = rank, shift: int = shift) -> list[int]:
            return [at[what, rank, number] + shift for number in numbers]

        every = list(range(len(program)))
        last = max(moments("end", every))
        ranks[rank] = RankTimeline(
            rank=rank,
            basis="trace",
            has_device=True,
            recordings=make(Recordings, 1, source=0, start_ns=shift - 1, end_ns=last + 1, host_events=True),
            host=make(
                HostSpans,
                len(program),
                recording=0,
                lane=thread,
                kind=RUNTIME,
                name=[names.code("cudaMemcpyAsync" if each.to_host else "cudaLaunchKernel") for each in program],
                start_ns=moments("launch", every),
                end_ns=[at["host", rank, number + 1] + shift for number in every],
                correlation=every,
            ),
            spans=make(
                Spans,
                len(program),
                recording=0,
                lane=[kernel.lane for kernel in program],
                kind=[kernel.kind for kernel in program],
                name=[4 if kernel.kind == COPY else names.code(name(rank, n)) for n, kernel in enumerate(program)],
                start_ns=moments("start", every),
                end_ns=moments("end", every),
                launch_ns=moments("launch", every),
                correlation=every,
                step=5,
                collective=[calls.index(number) if number in calls else NONE for number in every],
            ),
            collectives=make(
                Collectives,
                len(calls),
                recording=0,
                step=5,
                group=[1 if len(job.members[program[n].call or 0]) == len(job.ranks) else 2 for n in calls],
                seq=[program[number].call for number in calls],
                op=[names.code(op_of(program[number].call or 0)) for number in calls],
                dtype=3,
                bytes=1000,
                launch_ns=moments("launch", calls),
                start_ns=moments("start", calls),
                end_ns=moments("end", calls),
            ),
            steps=make(
                Steps, 1, recording=0, step=5, start_ns=shift, end_ns=at["host", rank, len(program)] + shift + 1
            ),
            lanes=make(Lanes, thread + 1, kind=[DEVICE] * thread + [HOST]),
            annotations=make(Annotations, 0),
            names=tuple(names.to_list()),
        )
    size = len(job.ranks)
    groups = (Group(name="all", size=size, ranks=tuple(range(size))), Group(name="pair", size=2, ranks=(0, 1)))
    return Run(world_size=size, ranks=ranks, groups=groups if size > 2 else groups[:1])

"""Small runs of several ranks and steps for the tests of comparisons, and a slow answer for every nanosecond."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec
from hypothesis import strategies as st

from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    COPY,
    NONE,
    Annotations,
    Collectives,
    Lanes,
    Recordings,
    Spans,
    Steps,
    make,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run

STEP_NS = 100
"""From the start of one step to that of the next."""
Kind = tuple[str, int]
"""Operation and bytes."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank does: each thing is (step that launched it, start, end, what)."""

    calls: Sequence[tuple[int, int, int, Kind]] = ()
    computes: Sequence[tuple[int, int, int, str]] = ()
    copies: Sequence[tuple[int, int, int, str]] = ()
    steps: int = 1
    cut: frozenset[int] = frozenset()
    """Steps that were not recorded whole."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job; `steps_ns` is how long the step at each place lasts."""

    ranks: Mapping[int, Rank]
    lengths: Sequence[int]
    world_size: int = 3
    group: str = "0"
    fingerprint: Mapping[str, str] = {}

    def window(self, step: int) -> tuple[int, int]:
        """Return the window of a step."""
        return step * STEP_NS, step * STEP_NS + self.lengths[step]


def run_of(job: Job, *, basis: str = "trace") -> Run:
    """Return the job as a CPU run, whose steps are the windows of their annotations."""
    return Run(
        world_size=job.world_size,
        ranks={number: _timeline(job, number, rank, basis) for number, rank in job.ranks.items()},
        groups=(Group(name=job.group, size=job.world_size, ranks=tuple(range(job.world_size))),),
        fingerprint=dict(job.fingerprint),
    )


def _timeline(job: Job, number: int, rank: Rank, basis: str) -> RankTimeline:
    names = NameTable(["nobody", job.group, "float32"])
    rows = [
        *((COMM, *each[:3], each[3][0], "") for each in rank.calls),
        *((COMPUTE, *each, "") for each in rank.computes),
        *((COPY, *each[:3], "Memcpy", each[3]) for each in rank.copies),
    ]
    end = STEP_NS * (len(job.lengths) + 2)
    return RankTimeline(
        rank=number, basis=basis, has_device=False,
        recordings=make(Recordings, 1, source=0, start_ns=0, end_ns=end),
        spans=make(
            Spans, len(rows), recording=0, lane=0, kind=[row[0] for row in rows], step=[row[1] for row in rows],
            start_ns=[row[2] for row in rows], end_ns=[row[3] for row in rows],
            launch_ns=[row[2] for row in rows], name=[names.code(row[4]) for row in rows],
            host_op=[names.code(row[5]) for row in rows],
            collective=[*range(len(rank.calls)), *[NONE] * (len(rows) - len(rank.calls))],
        ),
        collectives=make(
            Collectives, len(rank.calls), recording=0, step=[each[0] for each in rank.calls], group=1,
            seq=list(range(len(rank.calls))), op=[names.code(each[3][0]) for each in rank.calls], dtype=2,
            bytes=[each[3][1] for each in rank.calls], group_size=job.world_size,
            start_ns=[each[1] for each in rank.calls], end_ns=[each[2] for each in rank.calls],
            launch_ns=[each[1] for each in rank.calls],
        ),
        steps=make(
            Steps, rank.steps, recording=0, step=list(range(rank.steps)),
            start_ns=[job.window(step)[0] for step in range(rank.steps)],
            end_ns=[job.window(step)[1] for step in range(rank.steps)],
            cut=[step in rank.cut for step in range(rank.steps)],
        ),
        lanes=make(Lanes, 1, label=0), annotations=make(Annotations, 0), names=tuple(names.to_list()),
    )  # fmt: skip


# --- jobs made at random ----------------------------------------------------------------------------------------------

KINDS: tuple[Kind, ...] = (("all_reduce", 1000), ("all_reduce", 3000), ("all_gather", 1000), ("send", 8))


@st.composite
def things(
    draw: st.DrawFn, steps: int, what: st.SearchStrategy[object], most: int
) -> list[tuple[int, int, int, object]]:
    """Things of random steps that begin in or near their own."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        step, begin, length = draw(st.integers(0, steps - 1)), draw(st.integers(0, 90)), draw(st.integers(0, 40))
        found.append((step, step * STEP_NS + begin, step * STEP_NS + begin + length, draw(what)))
    return sorted(found, key=lambda each: each[1])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job of one to three recorded ranks of three, and one to three steps, some of them cut on some ranks."""
    steps = draw(st.integers(1, 3))
    ranks = {}
    for number in draw(st.sets(st.integers(0, 2), min_size=1)):
        ranks[number] = Rank(
            calls=draw(things(steps, st.sampled_from(KINDS), 6)),  # type: ignore[arg-type]
            computes=draw(things(steps, st.sampled_from(["gemm", "relu"]), 6)),  # type: ignore[arg-type]
            copies=draw(things(steps, st.sampled_from(["aten::item", "aten::copy_"]), 3)),  # type: ignore[arg-type]
            steps=steps,
            cut=frozenset(draw(st.sets(st.integers(0, steps - 1), max_size=1))),
        )
    return Job(ranks=ranks, lengths=draw(st.lists(st.integers(1, STEP_NS), min_size=steps, max_size=steps)))


# --- the slow answer --------------------------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one rank."""

    window: int
    compute: int
    overlapped: int
    exposed: int
    copy_only: int
    idle: int
    by_kind: Mapping[Kind, int]


def cell(job: Job, number: int, step: int) -> Cell:
    """Look at every nanosecond of a step."""
    rank = job.ranks[number]
    sums = dict.fromkeys(("compute", "overlapped", "exposed", "copy_only", "idle"), 0)
    by_kind: dict[Kind, int] = {}
    begin, end = job.window(step)
    for moment in range(begin, end):
        flying = [(row, call) for row, call in enumerate(rank.calls) if call[1] <= moment < call[2]]
        computes = any(each[1] <= moment < each[2] for each in rank.computes)
        copies = any(each[1] <= moment < each[2] for each in rank.copies)
        sums["compute"] += computes
        sums["overlapped"] += computes and bool(flying)
        sums["exposed"] += not computes and bool(flying)
        sums["copy_only"] += copies and not computes and not flying
        sums["idle"] += not computes and not flying and not copies
        if flying and not computes:
            _, owner = max(flying, key=lambda each: (each[1][2], -each[1][1], -each[0]))
            by_kind[owner[3]] = by_kind.get(owner[3], 0) + 1
    return Cell(window=end - begin, by_kind=by_kind, **sums)


def complete(job: Job, number: int) -> set[int]:
    """Return the steps of a rank that were recorded whole."""
    rank = job.ranks[number]
    return {step for step in range(rank.steps) if step not in rank.cut}


def compared_cells(job: Job, ranks: Sequence[int]) -> dict[int, dict[int, Cell]]:
    """Return by step and rank what is compared: of the steps, those that most of the ranks recorded whole."""
    members = {step: [n for n in ranks if step in complete(job, n)] for step in range(len(job.lengths))}
    most = max((len(each) for each in members.values()), default=0)
    return {
        step: {number: cell(job, number, step) for number in each}
        for step, each in members.items()
        if most and len(each) == most
    }


def mean(values: Sequence[int]) -> Fraction:
    """Return the exact mean."""
    return Fraction(sum(values), len(values))

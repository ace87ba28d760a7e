"""Small runs of several ranks and steps for the tests of comparisons, and a slow answer for every nanosecond."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import strategies as st

from overlapscope.timeline.columns import COMPUTE, COPY
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.rank_rows import rank_timeline

STEP_NS = 100
"""From the start of one step to that of the next."""
Kind = tuple[str, int]
"""Operation and bytes."""
ALL_REDUCE: Kind = ("all_reduce", 1000)


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


def reducing(size: int, lengths: Sequence[int], compute: int, until: int, *, late: int = 0) -> Job:
    """Return a job whose ranks compute from each step's begin, then all-reduce until all are done.

    Rank 1 computes `late` longer, and waits for nobody.
    """
    ranks = {}
    for number in range(size):
        arrived = compute + (late if number == 1 else 0)
        begins = [step * STEP_NS for step in range(len(lengths))]
        ranks[number] = Rank(
            computes=[(step, at, at + arrived, "gemm") for step, at in enumerate(begins)],
            calls=[(step, at + arrived, at + until, ALL_REDUCE) for step, at in enumerate(begins)],
            steps=len(lengths),
        )
    return Job(ranks=ranks, lengths=lengths, world_size=size)


def run_of(job: Job, *, basis: str = "trace") -> Run:
    """Return the job as a CPU run, whose steps are the windows of their annotations."""
    return Run(
        world_size=job.world_size,
        ranks={number: _timeline(job, number, rank, basis) for number, rank in job.ranks.items()},
        groups=(Group(name=job.group, size=job.world_size, ranks=tuple(range(job.world_size))),),
        fingerprint=dict(job.fingerprint),
    )


def _timeline(job: Job, number: int, rank: Rank, basis: str) -> RankTimeline:
    def times(step: int, start: int, end: int) -> dict[str, Any]:
        return {"step": step, "start_ns": start, "end_ns": end, "launch_ns": start, "lane": 0}

    calls = [
        {
            **times(*when), "group": job.group, "seq": seq, "op": op, "dtype": "float32", "bytes": size,
            "group_size": job.world_size, "host_op": "",
        }
        for seq, (*when, (op, size)) in enumerate(rank.calls)
    ]  # fmt: skip
    work = [{**times(*when), "kind": COMPUTE, "name": name, "host_op": ""} for *when, name in rank.computes]
    work += [{**times(*when), "kind": COPY, "name": "Memcpy", "host_op": op} for *when, op in rank.copies]
    return rank_timeline(
        number, basis=basis, has_device=False, calls=calls, work=work,
        recordings=[{"source": "nobody", "start_ns": 0, "end_ns": STEP_NS * (len(job.lengths) + 2)}],
        steps=[
            {**times(step, *job.window(step)), "cut": step in rank.cut} for step in range(rank.steps)
        ],
        lanes=[{"label": "nobody"}],
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

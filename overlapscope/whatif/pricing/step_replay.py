"""Replay a priced step: compute beside collectives, from the house's own simulator, and what its time consists of."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import WORK_KINDS, Floats
from overlapscope.whatif.pricing.constants import Constants
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import LAUNCH, WORK, Program
from overlapscope.whatif.pricing.times import Times
from overlapscope.whatif.replay.replay import Instruction, Job, Launch, Transfer, Wait, Work, replay
from overlapscope.whatif.workload.workload import Interference

SLOWED: Final = "slowed by communication"


class ReplayedStep(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A priced step; times in ns from its start."""

    step_ns: float
    compute_ns: float
    exposed_comm_ns: float
    path_ns: Mapping[str, float]
    """The compute stream's time by what it did or waited for; sums to `step_ns`."""
    row_start_ns: Floats
    """NaN for rows of other streams."""
    row_end_ns: Floats
    call_start_ns: Floats
    call_end_ns: Floats


def step_ns(program: Program, links: Links, times: Times, values: Constants) -> float:
    """Return the time of the step in ns."""
    return replay(_job(program, links, times, values)).step_ns * _stragglers(program, links, values)


def replayed(program: Program, links: Links, times: Times, values: Constants) -> ReplayedStep:
    """Return the step with what its time consists of."""
    job = _job(program, links, times, values)
    found = replay(job)
    reached = np.array(found.reached_ns[program.rank])
    lengths = np.diff(reached)
    path: dict[str, float] = defaultdict(float)
    rows = program.rows
    starts, ends = np.full(rows.work.size, np.nan), np.full(rows.work.size, np.nan)
    compute = np.where(rows.on_compute, times.rows, 0.0)
    own = np.zeros(len(WORK_KINDS))
    for (kind, number), begun, length in zip(program.instructions, reached.tolist(), lengths.tolist(), strict=False):
        if kind == WORK:
            first, last = program.segments[number]
            part = compute[first:last]
            total = float(part.sum())
            own += np.bincount(rows.work[first:last], part, len(WORK_KINDS))
            path[SLOWED] += length - total
            until = begun + np.cumsum(part) * (length / total if total else 0.0)
            ends[first:last], starts[first:last] = until, until - part * (length / total if total else 0.0)
        elif kind != LAUNCH:
            call = program.calls[number]
            path[f"exposed {call.op} ({call.dimension})" if call.dimension else f"exposed {call.op}"] += length
    starts[~rows.on_compute] = ends[~rows.on_compute] = np.nan
    path |= {WORK_KINDS[kind]: float(time) for kind, time in enumerate(own) if time}
    late = found.step_ns * (_stragglers(program, links, values) - 1)
    if late:
        path["stragglers"] = late
    begun_calls = np.array([each.get(program.rank, np.nan) for each in found.begun_ns])
    return ReplayedStep(
        step_ns=found.step_ns + late,
        compute_ns=float(own.sum()) + path[SLOWED],
        exposed_comm_ns=sum(each for name, each in path.items() if name.startswith("exposed")),
        path_ns={name: each for name, each in sorted(path.items(), key=lambda item: -item[1]) if each > 0},
        row_start_ns=starts,
        row_end_ns=ends,
        call_start_ns=begun_calls,
        call_end_ns=np.array([end for _, end in found.transferring_ns]),
    )


def _job(program: Program, links: Links, times: Times, values: Constants) -> Job:
    compute = np.where(program.rows.on_compute, times.rows, 0.0)
    total = np.concatenate([[0.0], np.cumsum(compute)])
    lengths = [float(total[last] - total[first]) for first, last in program.segments]
    programme: list[Instruction] = [
        Work(lengths[number]) if kind == WORK else Launch(number) if kind == LAUNCH else Wait(number)
        for kind, number in program.instructions
    ]
    return Job(
        programmes={program.rank: programme},
        transfers=[
            Transfer(
                ranks=(program.rank,),
                alone_ns=float(time),
                stream=call.group,
                link="inside" if links.nodes(call.ranks) == 1 else "between",
                after=call.after,
            )
            for call, time in zip(program.calls, times.calls.tolist(), strict=True)
        ],
        interference=Interference(
            compute=values["slowdown"], comm=1 + (values["slowdown"] - 1) * values["slowed_comm"]
        ),
    )


def _stragglers(program: Program, links: Links, values: Constants) -> float:
    spread = any(links.nodes(each.ranks) > 1 for each in program.calls)
    return values["stragglers"] if spread else 1.0

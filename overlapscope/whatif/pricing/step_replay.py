"""Replay a priced step, compute beside collectives, and say what its time consists of."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import WORK_KINDS, Floats
from overlapscope.whatif.pricing.constants import Constants
from overlapscope.whatif.pricing.links import Links
from overlapscope.whatif.pricing.program import LAUNCH, WORK, Program
from overlapscope.whatif.pricing.recipe import Recipe
from overlapscope.whatif.pricing.times import Times, alone_times
from overlapscope.whatif.replay.replay import Instruction, Job, Launch, Transfer, Wait, Work, replay
from overlapscope.whatif.workload.workload import Interference

SLOWED: Final = "slowed by communication"
STRAGGLERS: Final = "stragglers"
EXPOSED: Final = "exposed"


class ReplayedStep(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A priced step; times in ns from its start."""

    step_ns: float
    exposed_comm_ns: float
    path_ns: Mapping[str, float]
    """The compute stream's time by what it did or waited for, the longest first; sums to `step_ns`."""
    row_start_ns: Floats
    """NaN for rows of other streams."""
    row_end_ns: Floats
    call_start_ns: Floats
    call_end_ns: Floats


def step_ns(program: Program, links: Links, recipe: Recipe, times: Times, values: Constants) -> float:
    """Return the time of the step in ns."""
    found = replay(_job(program, links, recipe, times, values)).step_ns
    return found * _stragglers(program, links, recipe, values)


def replayed(program: Program, links: Links, recipe: Recipe, times: Times, values: Constants) -> ReplayedStep:
    """Return the step with what its time consists of."""
    found = replay(_job(program, links, recipe, times, values))
    reached = np.array(found.reached_ns[program.rank])
    compute = np.where(program.rows.on_compute, times.rows, 0.0)
    path: dict[str, float] = defaultdict(float)
    starts, ends = np.full(compute.size, np.nan), np.full(compute.size, np.nan)
    lengths = np.diff(reached).tolist()
    for (kind, number), begun, length in zip(program.instructions, reached.tolist(), lengths, strict=False):
        if kind == WORK:
            first, last = program.segments[number]
            own = compute[first:last]
            total = float(own.sum())
            path[SLOWED] += length - total
            stretched = own * (length / total if total else 0.0)
            ends[first:last] = begun + np.cumsum(stretched)
            starts[first:last] = ends[first:last] - stretched
        elif kind != LAUNCH:
            call = program.calls[number]
            path[f"{EXPOSED} {call.op}" + (f" ({call.dimension})" if call.dimension else "")] += length
    starts[~program.rows.on_compute] = ends[~program.rows.on_compute] = np.nan
    by_work = np.bincount(program.rows.work, compute, len(WORK_KINDS))
    path |= {kind: float(time) for kind, time in zip(WORK_KINDS, by_work, strict=True)}
    path[STRAGGLERS] = found.step_ns * (_stragglers(program, links, recipe, values) - 1)
    return ReplayedStep(
        step_ns=found.step_ns + path[STRAGGLERS],
        exposed_comm_ns=sum(each for name, each in path.items() if name.startswith(EXPOSED)),
        path_ns={name: each for name, each in sorted(path.items(), key=lambda item: -item[1]) if each > 0},
        row_start_ns=starts,
        row_end_ns=ends,
        call_start_ns=np.array([each.get(program.rank, np.nan) for each in found.begun_ns]),
        call_end_ns=np.array([end for _, end in found.transferring_ns]),
    )


def _job(program: Program, links: Links, recipe: Recipe, times: Times, values: Constants) -> Job:
    total = np.concatenate([[0.0], np.cumsum(np.where(program.rows.on_compute, times.rows, 0.0))])
    programme: list[Instruction] = []
    for kind, number in program.instructions:
        if kind == WORK:
            first, last = program.segments[number]
            programme.append(Work(float(total[last] - total[first])))
        else:
            programme.append(Launch(number) if kind == LAUNCH else Wait(number))
    inside = alone_times(program, links, recipe).inside.tolist()
    return Job(
        programmes={program.rank: programme},
        transfers=[
            Transfer(
                ranks=(program.rank,),
                alone_ns=time,
                stream=call.group,
                link="inside" if within else "between",
                after=call.after,
            )
            for call, time, within in zip(program.calls, times.calls.tolist(), inside, strict=True)
        ],
        interference=Interference(
            compute=values["slowdown"], comm=1 + (values["slowdown"] - 1) * values["slowed_comm"]
        ),
    )


def _stragglers(program: Program, links: Links, recipe: Recipe, values: Constants) -> float:
    """Return how much longer a step over several nodes takes; its ranks wait for the latest."""
    inside = alone_times(program, links, recipe).inside
    return 1.0 if inside.all() else values[STRAGGLERS]

"""Jobs drawn from a seed, as real ones are: changed, run again, and compared with what the graph had predicted."""

import random
from collections.abc import Callable
from functools import partial
from itertools import groupby

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.job_replay import JobReplay, job_replay
from overlapscope.analysis.graph.model import RUN_COMM, RUN_COMPUTE, Graph
from overlapscope.analysis.graph.scenarios import Change, capped_pauses, outcome
from overlapscope.timeline.columns import COMM, COMPUTE
from tests.support.graph_programs import (
    CopyBack,
    Launch,
    Operation,
    Program,
    Record,
    Simulated,
    Sync,
    Wait,
    Work,
    simulate,
)
from tests.unit.analysis.graph.graph_changes import earlier_launches, scaled_edges

US = 1_000
JOBS = 20


def job(seed: int) -> list[Operation]:
    """Return a program with streams for compute, communication and prefetch, with pauses and synchronisations."""
    draw = random.Random(seed)
    program: list[Operation] = [Launch(0, 10 * US)]
    for at in range(draw.randint(30, 80)):
        program.append(Work(int(draw.lognormvariate(3.5, 1.2)) * US))
        kind = draw.random()
        if kind < 0.55:
            program.append(Launch(draw.choice([0, 0, 0, 2]), int(draw.lognormvariate(4.5, 1)) * US))
        elif kind < 0.75:
            program += [Record(f"ready {at}", 0), Wait(f"ready {at}", 1)]
            program.append(Launch(1, int(draw.lognormvariate(5, 0.8)) * US, COMM, "nccl"))
            if draw.random() < 0.6:
                program += [Record(f"done {at}", 1), Launch(0, 80 * US), Wait(f"done {at}", 0), Launch(0, 50 * US)]
        elif kind < 0.93:
            program.append(draw.choice([Sync(), Sync(0), CopyBack(0, 5 * US)]))
        else:
            program.append(Work(draw.randint(500, 4_000) * US))
    merged: list[Operation] = []
    for is_work, run in groupby([*program, Sync()], lambda each: isinstance(each, Work)):
        each = list(run)
        merged += [Work(sum(part.ns for part in each if isinstance(part, Work)))] if is_work else each
    return merged


def with_kernels(kind: int, factor: float) -> Callable[[Program], list[Operation]]:
    def changed(program: Program) -> list[Operation]:
        return [
            replace(each, ns=int(each.ns * factor)) if isinstance(each, Launch) and each.kind == kind else each
            for each in program
        ]

    return changed


def with_pauses(cap_ns: int) -> Callable[[Program], list[Operation]]:
    return lambda program: [Work(min(each.ns, cap_ns)) if isinstance(each, Work) else each for each in program]


CHANGES: dict[str, tuple[Callable[[Graph], Change], Callable[[Program], list[Operation]]]] = {
    "no communication": (lambda graph: scaled_edges(graph, graph.edges.kind == RUN_COMM, 0), with_kernels(COMM, 0)),
    "twice the link": (lambda graph: scaled_edges(graph, graph.edges.kind == RUN_COMM, 0.5), with_kernels(COMM, 0.5)),
    "half the link": (lambda graph: scaled_edges(graph, graph.edges.kind == RUN_COMM, 2), with_kernels(COMM, 2)),
    "kernels": (lambda graph: scaled_edges(graph, graph.edges.kind == RUN_COMPUTE, 0.8), with_kernels(COMPUTE, 0.8)),
    "pauses capped": (lambda graph: capped_pauses(graph, 500 * US), with_pauses(500 * US)),
}


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a change: what the graph predicts, and what the generator takes when it runs it again."""

    predicted_ns: float
    again_ns: int
    recorded_ns: int
    answers: bool
    """Whether the graph passes its tests."""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_ns - self.again_ns) / self.again_ns


def changed_job(name: str, seed: int, *, record_syncs: bool) -> Counterfactual:
    """Return one of `CHANGES` made to the job of a seed."""
    predicted_by, run_again_by = CHANGES[name]
    program = job(seed)
    return _compared(
        simulate({0: program}, record_syncs=record_syncs), predicted_by, simulate({0: run_again_by(program)})
    )


def earlier_launch(seed: int, *, record_syncs: bool) -> Counterfactual:
    """Return the job of a seed in which the collective that the host prepares longest is launched before that work."""
    program = job(seed)
    places = [at for at in range(1, len(program)) if _is_collective(program, at) and isinstance(program[at - 1], Work)]
    at = max(places, key=lambda each: _work_ns(program[each - 1]), default=0)
    moved = [*program[: at - 1], *program[at : at + 3], program[at - 1], *program[at + 3 :]] if at else program
    before = sum(_is_collective(program, each) for each in range(at))
    by_ns = _work_ns(program[at - 1]) if at else 0

    def predicted(graph: Graph) -> Change:
        (part,) = graph.ranks
        calls = part.starts().start + np.flatnonzero(part.span_kind == COMM)
        return earlier_launches(graph, calls[before : before + 1], by_ns)

    return _compared(simulate({0: program}, record_syncs=record_syncs), predicted, simulate({0: moved}))


def _is_collective(program: Program, at: int) -> bool:
    """Return whether an event, a wait for it and a collective begin at a place."""
    return isinstance(program[at], Record) and at + 2 < len(program) and _kind(program[at + 2]) == COMM


def _kind(operation: Operation) -> int | None:
    return operation.kind if isinstance(operation, Launch) else None


def _work_ns(operation: Operation) -> int:
    return operation.ns if isinstance(operation, Work) else 0


def _compared(simulated: Simulated, change: Callable[[Graph], Change], again: Simulated) -> Counterfactual:
    graph = rank_graph(simulated.rank)
    window = whole_bounds(graph)
    assert window
    return Counterfactual(
        predicted_ns=outcome(graph, window, change(graph)).kept_ns, again_ns=again.length_ns,
        recorded_ns=simulated.length_ns,
        answers=isinstance(job_replay(simulated.run, match_and_align(simulated.run)), JobReplay),
    )  # fmt: skip


def excess_gone(seed: int, *, record_syncs: bool) -> Counterfactual:
    """Return a job of several ranks with the excess of one gone: its host and its kernels take longer than the others'.

    All ranks do the same work, a little apart; the slow one's takes up to twice as long.
    """
    draw = random.Random(seed)
    plain: list[Operation] = [Launch(0, 10 * US)]
    calls = draw.randint(4, 12)
    for call in range(calls):
        plain += [Work(int(draw.lognormvariate(4.5, 1)) * US), Launch(0, int(draw.lognormvariate(5, 1)) * US)]
        plain += [Record(f"ready {call}", 0), Wait(f"ready {call}", 1), Launch(1, 0, COMM, "nccl", f"call {call}")]
        plain += [Work(20 * US), Launch(0, 60 * US)] if draw.random() < 0.5 else []
        plain += [Record(f"done {call}", 1), Wait(f"done {call}", 0), Work(30 * US), Launch(0, 80 * US)]
        plain += [Sync()] if draw.random() < 0.3 else []
    transfers = {f"call {call}": draw.randint(30, 400) * US for call in range(calls)}
    late, slower = draw.randrange(3), (draw.uniform(1, 2), draw.uniform(1, 2))
    slow = [
        Work(int(each.ns * slower[0])) if isinstance(each, Work)
        else replace(each, ns=int(each.ns * slower[1])) if _kind(each) == COMPUTE else each
        for each in plain
    ]  # fmt: skip
    simulated = simulate(
        {rank: slow if rank == late else plain for rank in range(3)}, transfers, record_syncs=record_syncs
    )
    again = simulate(dict.fromkeys(range(3), plain), transfers)
    found = job_replay(simulated.run, match_and_align(simulated.run))
    excess = found.without_excess(late) if isinstance(found, JobReplay) else None
    share = excess.middle if excess else 1.0
    return Counterfactual(
        predicted_ns=share * simulated.length_ns, again_ns=again.length_ns, recorded_ns=simulated.length_ns,
        answers=excess is not None,
    )  # fmt: skip


COUNTERFACTUALS: dict[str, Callable[..., Counterfactual]] = {
    **{name: partial(changed_job, name) for name in CHANGES},
    "a launch earlier": earlier_launch,
    "a rank's excess gone": excess_gone,
}


def answered(name: str, jobs: int, *, record_syncs: bool) -> list[Counterfactual]:
    """Return the changed jobs of the first seeds whose graph passes its tests."""
    return [each for seed in range(jobs) if (each := COUNTERFACTUALS[name](seed, record_syncs=record_syncs)).answers]


@pytest.mark.parametrize("name", COUNTERFACTUALS)
def test_changes_are_predicted_where_synchronisations_are_recorded(name: str) -> None:
    found = answered(name, JOBS, record_syncs=True)
    assert len(found) >= 0.9 * JOBS
    assert max(each.error for each in found) < 0.001
    assert any(abs(each.again_ns / each.recorded_ns - 1) > 0.01 for each in found)


@pytest.mark.parametrize("name", COUNTERFACTUALS)
def test_changes_are_predicted_within_two_percent_where_waits_are_inferred(name: str) -> None:
    """Dependencies that did not bind in the recording are unknown: a few jobs miss by more."""
    found = np.array([each.error for each in answered(name, JOBS, record_syncs=False)])
    assert found.size >= 0.9 * JOBS
    assert np.median(found) < 0.005
    assert np.mean(found <= 0.02) >= 0.85

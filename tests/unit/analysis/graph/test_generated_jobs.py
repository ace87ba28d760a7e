"""Jobs drawn from a seed, as real ones are: changed, run again, and compared with what the graph had predicted."""

import random
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.graph.bounds import whole_bounds
from overlapscope.analysis.graph.build import rank_graph
from overlapscope.analysis.graph.model import RUN_COMM, RUN_COMPUTE, Graph
from overlapscope.analysis.graph.scenarios import Change, capped_pauses, outcome, scaled_edges
from overlapscope.timeline.columns import COMM, COMPUTE
from tests.support.graph_programs import CopyBack, Launch, Operation, Program, Record, Sync, Wait, Work, simulate

US = 1_000
JOBS = 40


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


def errors(name: str, *, record_syncs: bool) -> Sequence[float]:
    predicted_by, run_again_by = CHANGES[name]
    found = []
    for seed in range(JOBS):
        program = job(seed)
        graph = rank_graph(simulate({0: program}, record_syncs=record_syncs).rank)
        window = whole_bounds(graph)
        assert window
        predicted = outcome(graph, window, predicted_by(graph)).kept_ns
        again = simulate({0: run_again_by(program)}).length_ns
        found.append(abs(predicted - again) / again)
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_predicted_where_synchronisations_are_recorded(name: str) -> None:
    assert max(errors(name, record_syncs=True)) < 0.001


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_predicted_within_two_percent_where_waits_are_inferred(name: str) -> None:
    """Dependencies that did not bind in the recording are unknown: a few jobs miss by more."""
    found = np.array(errors(name, record_syncs=False))
    assert np.median(found) < 0.005
    assert np.mean(found <= 0.02) >= 0.85

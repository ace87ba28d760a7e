"""The bubble of pipelines against the ideal: schedules are simulated here, message by message, in plain Python."""

from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.pipeline import ideal_bubble_ns
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Recordings, Spans, Steps, make
from overlapscope.timeline.run import Group, Run
from tests.support.builders import EPOCH_NS
from tests.unit.analysis.cross_rank.test_matching import Call, job

MS = 1_000_000


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the order of a stage's work."""
    ahead = min(stages - stage - 1, microbatches)
    order = [("F", k) for k in range(ahead)]
    for k in range(microbatches - ahead):
        order += [("F", ahead + k), ("B", k)]
    return order + [("B", k) for k in range(microbatches - ahead, microbatches)]


def simulated(forward_ms: list[int], microbatches: int) -> list[list[tuple[str, int, int, int]]]:
    """Give (work, microbatch, start, end) of each stage; a backward takes twice its forward, messages take no time."""
    stages = len(forward_ms)
    done: dict[tuple[str, int, int], int] = {}
    orders = [one_forward_one_backward(stage, stages, microbatches) for stage in range(stages)]
    out: list[list[tuple[str, int, int, int]]] = [[] for _ in range(stages)]
    free = [0] * stages
    while any(orders):
        for stage in range(stages):
            while orders[stage]:
                work, k = orders[stage][0]
                needs = ("F", stage - 1, k) if work == "F" else ("B", stage + 1, k)
                inner = 0 <= needs[1] < stages
                if inner and needs not in done:
                    break
                start = max(free[stage], done[needs] if inner else 0)
                end = start + forward_ms[stage] * MS * (1 if work == "F" else 2)
                done[work, stage, k] = free[stage] = end
                out[stage].append((work, k, start, end))
                orders[stage].pop(0)
    return out


def pipeline(forward_ms: list[int], microbatches: int, *, name: str = "mesh_pp", steps: int = 3, **changes: Any) -> Run:
    """Return the run of a job of so many stages, each step as long as the slowest rank's."""
    stages = len(forward_ms)
    plan = simulated(forward_ms, microbatches)
    length = max(own[-1][3] for own in plan) + MS
    calls: dict[int, list[Call]] = {rank: [] for rank in range(stages)}
    spans: dict[int, list[tuple[int, int, int, int]]] = {rank: [] for rank in range(stages)}
    for step in range(steps):
        for rank, own in enumerate(plan):
            free = step * length
            for work, _, start, end in own:
                begun, ended = step * length + start, step * length + end
                source, target = (rank - 1, rank + 1) if work == "F" else (rank + 1, rank - 1)
                spans[rank].append((COMPUTE, begun, ended, NONE))
                for op, peer, at, lasts in (("recv", source, free, begun - free), ("send", target, ended, 0)):
                    if 0 <= peer < stages:
                        spans[rank].append((COMM, at, at + lasts, len(calls[rank])))
                        calls[rank].append(
                            Call(op=op, peer=peer, start=at, length=lasts, step=step, dimension="pipeline", **changes)
                        )
                free = ended
    run = job(calls, (Group(name="g", description=name, size=stages, ranks=tuple(range(stages))),))
    ranks = {}
    for rank, timeline in run.ranks.items():
        kind, start, end, row = (list(column) for column in zip(*spans[rank], strict=True))
        begun = [EPOCH_NS + each for each in start]
        ranks[rank] = replace(
            timeline,
            spans=make(
                Spans, len(kind), recording=0, lane=[0 if each == COMPUTE else 1 for each in kind], kind=kind,
                start_ns=begun, end_ns=[EPOCH_NS + each for each in end], collective=row,
                launch_ns=begun, step=[min(each // length, steps - 1) for each in start],
            ),
            steps=make(
                Steps, steps, recording=0, step=range(steps), start_ns=[EPOCH_NS + s * length for s in range(steps)],
                end_ns=[EPOCH_NS + (s + 1) * length for s in range(steps)],
            ),
            recordings=make(
                Recordings, 1, start_ns=EPOCH_NS - MS, end_ns=EPOCH_NS + (steps + 1) * length, lost_launch_ns=NONE
            ),
        )  # fmt: skip
    return replace(run, ranks=ranks)


def said(run: Run) -> list[Any]:
    return [each for each in analyze(run).findings if each.id.startswith("pipeline_bubble")]


@pytest.mark.parametrize("stages", [3, 4, 8])
@pytest.mark.parametrize("microbatches", [4, 16])
def test_a_balanced_pipeline_has_the_bubble_of_the_formula_and_is_no_finding(stages, microbatches):
    plan = simulated([5] * stages, microbatches)
    last = max(own[-1][3] for own in plan)
    busy = sum(end - start for _, _, start, end in plan[0])
    assert last - busy == ideal_bubble_ns(busy, stages, microbatches)
    assert said(pipeline([5] * stages, microbatches)) == []


def test_an_uneven_stage_makes_the_others_wait_for_longer_than_they_need():
    run = pipeline([5, 5, 9, 5], 8)
    (finding,) = said(run)
    assert finding.id == "pipeline_bubble:g"
    evidence = finding.evidence
    assert (evidence["stages"], evidence["activations"], evidence["stages_recorded"]) == (4, 8, 4)
    window = max(own[-1][3] for own in simulated([5, 5, 9, 5], 8)) + MS
    busy = 8 * 15 * MS
    assert evidence["bubble_ns"]["1"] == pytest.approx(window - busy, rel=0.01)
    assert evidence["excess_ns"]["1"] == pytest.approx(window - busy - busy * 3 / 8, rel=0.02)
    assert evidence["excess_ns"]["2"] < 0.05 * window
    assert min(evidence["bubble_ns"], key=evidence["bubble_ns"].get) == "2"


def test_one_recorded_stage_is_enough():
    run = pipeline([5, 5, 9, 5], 8)
    (finding,) = said(replace(run, ranks={1: run.ranks[1]}))
    assert finding.evidence["stages_recorded"] == 1


def test_nothing_is_said_where_stages_or_microbatches_are_unknown():
    uneven = [5, 5, 9, 5]
    assert said(replace(pipeline(uneven, 8), groups=())) == []
    assert said(replace(pipeline(uneven, 8), groups=(Group(name="g", size=4),))) == []
    nobody = pipeline(uneven, 8)
    bare = {
        rank: replace(each, collectives=replace(each.collectives, peer=each.collectives.peer * 0 + NONE))
        for rank, each in nobody.ranks.items()
    }
    assert said(replace(nobody, ranks=bare)) == []
    lost = pipeline(uneven, 8)
    table = lost.ranks[1].collectives
    step = table.step.copy()
    step[[row for row in range(len(step)) if table.peer[row] == 2 and step[row] == 1][:3]] = NONE
    cut = replace(lost.ranks[1], collectives=replace(table, step=step))
    assert said(replace(lost, ranks={1: cut})) == []


def test_two_stages_may_be_interleaved_and_are_given_the_larger_bubble():
    assert said(pipeline([5, 5], 4)) == []
    assert said(pipeline([5, 20], 16)) != []

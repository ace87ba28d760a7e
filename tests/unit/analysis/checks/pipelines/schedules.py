"""Schedules of pipelines, simulated message by message in plain Python."""

from typing import Any

from overlapscope.analysis.analyze import analyze
from overlapscope.timeline.run import Group, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
STEPS = 3


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the order of a stage's work."""
    ahead = min(stages - stage - 1, microbatches)
    order = [("F", k) for k in range(ahead)]
    for k in range(microbatches - ahead):
        order += [("F", ahead + k), ("B", k)]
    return order + [("B", k) for k in range(microbatches - ahead, microbatches)]


def simulated(forward_ms: list[int], microbatches: int) -> list[list[tuple[str, int, int, int]]]:
    """Return (work, microbatch, start, end) of each stage; backwards take twice their forward, messages no time."""
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


def pipeline(forward_ms: list[int], microbatches: int) -> Run:
    """Return the run of a job of so many stages, each step as long as the slowest rank's."""
    stages = len(forward_ms)
    plan = simulated(forward_ms, microbatches)
    length = max(own[-1][3] for own in plan) + MS
    ranks = {}
    for rank, own in enumerate(plan):
        calls: list[Row] = []
        work: list[Row] = []
        steps: list[Row] = []
        for step in range(STEPS):
            begin_ns = EPOCH_NS + step * length

            def at(start: int, end: int, step: int = step, begin_ns: int = begin_ns) -> Row:
                start_ns = begin_ns + start
                return {"start_ns": start_ns, "end_ns": begin_ns + end, "launch_ns": start_ns, "step": step}

            steps.append(at(0, length))
            free = 0
            for kind, _, start, end in own:
                source, target = (rank - 1, rank + 1) if kind == "F" else (rank + 1, rank - 1)
                work.append(at(start, end))
                for op, peer, begun, ended in (("recv", source, free, start), ("send", target, end, end)):
                    if 0 <= peer < stages:
                        about = {"op": op, "peer": peer, "group": "g", "dimension": "pipeline", "bytes": 1000}
                        calls.append({**about, **at(begun, ended)})
                free = end
        whole = {"start_ns": EPOCH_NS - MS, "end_ns": EPOCH_NS + (STEPS + 1) * length}
        ranks[rank] = rank_timeline(rank, calls=calls, work=work, steps=steps, recordings=[whole])
    group = Group(name="g", description="mesh_pp", size=stages, ranks=tuple(range(stages)))
    return Run(world_size=stages, ranks=ranks, groups=(group,))


def said(run: Run, kind: str = "pipeline_bubble") -> list[Any]:
    """Return the findings of a kind."""
    return [each for each in analyze(run).findings if each.id.startswith(kind)]

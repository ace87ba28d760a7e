"""The bubble of pipelines against the ideal: schedules are simulated here, message by message, in plain Python."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import _held_ns, analyze
from overlapscope.analysis.checks.pipeline import (
    PipelineStage,
    _stages,
    groups_by_rank,
    ideal_bubble_ns,
    own_stages,
    pipeline_fill,
    uneven_stages,
)
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Spans, Telemetry, concat, make, take
from overlapscope.timeline.dimensions import with_dimensions
from overlapscope.timeline.run import Group, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000


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


STEPS = 3


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


def test_of_a_cpu_run_it_is_said_how_long_an_uneven_stage_computes():
    def stages(device):
        run = pipeline([5, 5, 9, 5], 8)
        ranks = {rank: replace(each, has_device=device) for rank, each in run.ranks.items()}
        (found,) = (each for each in analyze(replace(run, ranks=ranks)).findings if each.id.startswith("uneven_stages"))
        return found.title

    assert "stage 2 (rank 2) computes 1.80 times as long as the other stages" in stages(False)


@pytest.mark.parametrize(("longer_in", "found"), [((0, 1, 2, 3), True), ((0, 1, 2), True), ((0, 3), False)])
def test_without_kernels_a_stage_computes_longer_in_most_steps_not_in_one_long_pause(longer_in, found):
    # Two stages, four steps: in total stage 0 computes a fifth longer, also where two long pauses alone do it.
    run = replace(pipeline([5, 5], 8), groups=(Group(name="g", description="mesh_pp", size=2, ranks=(0, 1)),))
    more = 400 // len(longer_in)
    took = {
        0: {step: (500 + more * (step in longer_in)) * MS for step in range(4)},
        1: dict.fromkeys(range(4), 500 * MS),
    }
    total = {rank: sum(own.values()) for rank, own in took.items()}
    work = {
        rank: RankCompute(compute_ns=each, slowness=1.0, evenness=0.0, compared=0.0, larger=0.0, usual_ns=each)
        for rank, each in total.items()
    }
    windows = dict.fromkeys(took, 4000 * MS)
    assert bool(uneven_stages(run, work, windows, took, {}, {}, {})) == found
    work[2], took[2] = work[1], {}  # the steps of one more rank of stage 1 are not known
    groups = (*run.groups, Group(name="h", description="mesh_pp", size=2, ranks=(3, 2)))
    assert bool(uneven_stages(replace(run, groups=groups), work, windows, took, {}, {}, {})) == found
    assert uneven_stages(run, work, windows, {}, {}, {}, {})  # no steps were marked


def uneven_of_two(held_ns, still_ns, usual_ns):
    """The finding on two stages of four steps without kernels, of which stage 0 computes a fifth longer in each."""
    run = replace(pipeline([5, 5], 8), groups=(Group(name="g", description="mesh_pp", size=2, ranks=(0, 1)),))
    took = {0: dict.fromkeys(range(4), 600 * MS), 1: dict.fromkeys(range(4), 500 * MS)}
    work = {
        rank: RankCompute(compute_ns=each, slowness=1.0, evenness=0.0, compared=0.0, larger=0.0, usual_ns=each)
        for rank, each in {0: 2400 * MS, 1: 2000 * MS}.items()
    }
    return uneven_stages(run, work, dict.fromkeys(took, 4000 * MS), took, held_ns, still_ns, usual_ns)


@pytest.mark.parametrize(
    ("waited", "found"),
    # With 205 ms less it computes 9.75 % longer, and that is less than 5 % of the recording.
    [({}, True), ({0: 300 * MS, 1: 0}, False), ({0: 205 * MS, 1: 0}, False), ({0: 300, 1: 300}, True)],
)
def test_without_kernels_a_stage_that_waited_for_a_core_has_no_more_work(waited, found):
    assert bool(uneven_of_two(waited, {}, {})) == found


@pytest.mark.parametrize(
    ("still", "found"),
    [
        pytest.param({0: 400 * MS, 1: 0}, False, id="but for that they compute alike"),
        pytest.param({0: 1800 * MS, 1: 1600 * MS}, True, id="the one with more work, too"),
    ],
)
def test_without_kernels_a_stage_that_stood_still_has_more_work_only_if_it_computes_longer_but_for_that(still, found):
    assert bool(uneven_of_two({}, still, {})) == found


@pytest.mark.parametrize(
    ("usual", "found"),
    [
        pytest.param({0: 600 * MS, 1: 500 * MS}, True, id="it usually computes longer"),
        pytest.param({0: 510 * MS, 1: 500 * MS}, False, id="some of its operations paused"),
        pytest.param({0: 510 * MS}, True, id="what the other one usually computes is not known"),
        pytest.param({0: 510 * MS, 1: 0.0}, True, id="its steps differ"),
    ],
)
def test_without_kernels_a_stage_has_more_work_only_if_it_usually_computes_longer(usual, found):
    assert bool(uneven_of_two({}, {}, usual)) == found


def test_a_stage_that_collected_garbage_in_its_compute_has_no_more_work():
    run = replace(pipeline([5, 5], 8), groups=(Group(name="g", description="mesh_pp", size=2, ranks=(0, 1)),))
    names = (*run.ranks[0].names, "gc_pause_ns")
    row = {"name": len(names) - 1, "time_ns": 600 * MS, "step": 0, "value": 400.0 * MS}
    noted = replace(run.ranks[0], names=names, telemetry=make(Telemetry, 1, **row))
    assert _held_ns(replace(run, ranks={**run.ranks, 0: noted})) == {0: 400 * MS, 1: 0}


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


def test_ranks_that_exchange_messages_with_all_others_are_no_stages():
    """As where each averages its parameters with one other in turn; the first computes longest."""
    run = pipeline([9, 5, 5], 8)
    around = {}
    for rank, each in run.ranks.items():
        table = each.collectives
        peer = np.where(np.arange(table.peer.size) % 2, (rank + 1) % 3, (rank + 2) % 3)
        around[rank] = replace(each, collectives=replace(table, peer=peer, dimension=np.full_like(table.dimension, -1)))
    group = Group(name="g", size=3, ranks=(0, 1, 2))
    ranks = with_dimensions(around, (group,), 3)
    assert _stages(replace(run, ranks=ranks, groups=(group,))) == {}
    in_line = with_dimensions(run.ranks, (group,), 3)
    assert _stages(replace(run, ranks=in_line, groups=(group,))) == {0: 0, 1: 1, 2: 2}


def test_of_two_ranks_that_exchange_messages_only_those_of_a_pipeline_are_stages():
    """As where two ranks add up gradients by hand: the first computes longer, and no layers can be moved."""
    run = pipeline([9, 5], 8)
    group = Group(name="g", size=2, ranks=(0, 1))
    unnamed = {
        rank: replace(
            each, collectives=replace(each.collectives, dimension=np.full_like(each.collectives.dimension, -1))
        )
        for rank, each in run.ranks.items()
    }
    by_hand = replace(run, ranks=unnamed, groups=(group,))
    assert _stages(by_hand) == {}
    found = [each.id for each in analyze(by_hand).findings]
    assert not [each for each in found if each.startswith("uneven_stages")]
    in_order = replace(by_hand, ranks=with_dimensions(unnamed, (group,), 2))
    assert _stages(in_order) == {0: 0, 1: 1}


def test_two_stages_may_be_interleaved_and_are_given_the_larger_bubble():
    assert said(pipeline([5, 5], 4)) == []
    (finding,) = said(pipeline([5, 20], 16))
    evidence, bubble_ns = finding.evidence, finding.evidence["bubble_ns"]["0"]
    assert (evidence["activations"], evidence["activations_at_most"]) == (8, 16)
    assert evidence["excess_ns"]["0"] + evidence["ideal_ns"] == bubble_ns
    least = evidence["ideal_ns"] / 2  # with twice as many activations
    excess = f"{evidence['excess_ns']['0'] / 1e6:.3f} to {(bubble_ns - least) / 1e6:.3f} ms"
    assert f"{excess} more than the" in finding.title
    needs = f"{least / 1e6:.3f} to {evidence['ideal_ns'] / 1e6:.3f} ms that 1F1B of equal stages needs"
    assert f"{needs} with 16 activations, or 8 of interleaved chunks, a stage" in finding.title


# --- stages without a device ------------------------------------------------------------------------------------------

UNEVEN = [5, 5, 9, 5]


def on_hosts(run: Run, *, device: bool, messages: str = "whole") -> Run:
    """Return the run with a device or without; messages last `whole` waits, are `short`, or `early`: received from the
    begin of a step on, beside compute."""
    ranks = {}
    for rank, each in run.ranks.items():
        spans, calls = each.spans, each.collectives
        sent = spans.kind == COMM
        begins = each.steps.start_ns[np.where(sent, spans.step, 0)]
        receives = sent & (calls.op[np.where(sent, spans.collective, 0)] == each.names.index("recv"))
        start = {
            "whole": spans.start_ns, "short": np.where(receives, spans.end_ns, spans.start_ns),
            "early": np.where(receives, begins, spans.start_ns),
        }[messages]  # fmt: skip
        ranks[rank] = replace(each, has_device=device, spans=replace(spans, start_ns=start))
    return replace(run, ranks=ranks)


def bubbles_ms(run: Run) -> list[float]:
    """Return the bubble of each stage."""
    found = []
    for rank, each in run.ranks.items():
        (stage,) = own_stages(each, groups_by_rank(run.groups)[rank], step_windows(each)).values()
        found.append(stage.bubble_ns / MS)
    return found


def by_raster(device: bool, messages: str) -> list[int]:
    """Look at each millisecond of a step: what is neither compute nor, without a device, outside of all messages."""
    plan = simulated(UNEVEN, 8)
    length, found = max(own[-1][3] for own in plan) // MS + 1, []
    for rank, own in enumerate(plan):
        busy, receiving, free = set(), set(), 0
        for kind, _, start, end in own:
            peer = rank - 1 if kind == "F" else rank + 1
            if 0 <= peer < len(plan):
                begin = {"whole": free, "short": start, "early": 0}[messages]
                receiving |= {*range(begin // MS, start // MS)}
            busy |= {*range(start // MS, end // MS)}
            free = end
        found.append(len((set(range(length)) if device else receiving) - busy))
    return found


@pytest.mark.parametrize("messages", ["whole", "short", "early"])
@pytest.mark.parametrize("device", [True, False])
def test_a_stage_without_a_device_has_a_bubble_only_while_it_is_in_its_messages_and_computes_nothing(device, messages):
    assert bubbles_ms(on_hosts(pipeline(UNEVEN, 8), device=device, messages=messages)) == by_raster(device, messages)


def test_what_a_host_idles_of_its_own_is_no_finding_and_what_a_device_idles_is():
    """Their messages take no time: the host does something between them that was not recorded."""
    assert said(on_hosts(pipeline(UNEVEN, 8), device=False, messages="short")) == []
    for device, messages in ((True, "short"), (True, "whole"), (False, "whole")):
        (finding,) = said(on_hosts(pipeline(UNEVEN, 8), device=device, messages=messages))
        assert finding.id == "pipeline_bubble:g"


def test_other_communication_of_a_host_is_no_bubble_though_it_waits_for_a_message_meanwhile():
    """A call that lasts as long as the step."""
    run = on_hosts(pipeline(UNEVEN, 8), device=False, messages="early")
    spans, steps = run.ranks[1].spans, run.ranks[1].steps
    assert bubbles_ms(run)[1] > 50
    lone = make(
        Spans, STEPS, kind=COMM, collective=NONE, start_ns=steps.start_ns, end_ns=steps.end_ns, recording=0, lane=1,
        step=np.arange(STEPS), launch_ns=steps.start_ns,
    )  # fmt: skip
    beside = replace(run.ranks[1], spans=concat([spans, lone]))
    assert bubbles_ms(replace(run, ranks={**run.ranks, 1: beside}))[1] == 0


def test_nothing_is_said_where_some_messages_name_no_peer():
    """Batches of both name none: those that do are too few microbatches."""
    run = pipeline([5, 5, 9, 5], 8)
    assert said(run)
    ranks = {}
    for rank, each in run.ranks.items():
        table, names = each.collectives, (*each.names, "send_recv")
        batches = np.isin(table.op, [names.index("send")]) & (np.arange(table.op.size) % 3 == 0)
        op = np.where(batches, len(names) - 1, table.op).astype(np.int32)
        table = replace(table, op=op, peer=np.where(batches, NONE, table.peer))
        ranks[rank] = each.with_calls(names, table)
    assert said(replace(run, ranks=ranks)) == []


def of_kind(run: Run, kind: str) -> list[Any]:
    return [each for each in analyze(run).findings if each.id.startswith(kind)]


@pytest.mark.parametrize(("microbatches", "said"), [(8, True), (64, False)])
def test_what_filling_and_draining_takes_by_the_schedule_is_said_where_it_is_much(microbatches, said):
    found = of_kind(pipeline([5, 5, 5, 5], microbatches), "pipeline_fill")
    assert bool(found) == said
    if said:
        assert found[0].title.startswith("8 micro-batches on 4 stages: ")
        assert found[0].evidence["fill_share"] == pytest.approx(3 / 11)
        assert "27.3 % of a step; with 16 it would be 15.8 %" in found[0].title


def test_nothing_is_said_of_a_schedule_whose_stages_do_not_wait():
    run = pipeline([5, 5, 5, 5], 8)
    window = {
        rank: {"g": PipelineStage(rank=rank, place=rank, window_ns=1e9, bubble_ns=1e8, activations=8, at_most=8)}
        for rank in run.ranks
    }
    assert pipeline_fill(run, window) == [], "0.1 of a step, of 0.273 by 1F1B"


@pytest.mark.parametrize(("layers", "words"), [(1, "a layer takes more (about 96.0 ms)"), (6, "move layers to them")])
def test_layers_are_moved_only_where_one_is_shorter_than_what_a_stage_has_more(layers, words):
    """A stage computes 96 ms a step in its layers, and the last one 24 ms more in something else."""
    ranks = {}
    for rank, each in pipeline([5, 5, 5, 5], 8).ranks.items():
        work: list[Row] = []
        spans = each.spans
        for row in np.flatnonzero(spans.kind == COMPUTE).tolist():
            start, end, step = (int(column[row]) for column in (spans.start_ns, spans.end_ns, spans.step))
            name = "flash_fwd_kernel" if end - start == 5 * MS else "flash_bwd_kernel"
            long = (end - start) * 4 // 5 // layers
            work += [
                {"start_ns": start + at * long, "end_ns": start + (at + 1) * long, "step": step, "name": name}
                for at in range(layers)
            ]
            if rank == 3:
                work.append({"start_ns": start + layers * long, "end_ns": end, "step": step, "name": "loss"})
        made = rank_timeline(rank, work=[{"kind": COMPUTE, **one} for one in work], names=each.names)
        joined = concat([take(spans, spans.kind != COMPUTE), made.spans])
        ranks[rank] = replace(each, spans=joined, names=made.names)
    (found,) = of_kind(replace(pipeline([5, 5, 5, 5], 8), ranks=ranks), "uneven_stages")
    assert found.title.startswith(
        "pipeline stage 3 (rank 3) has 1.25 times the work of the other stages, 24.000 ms more a"
    )
    assert words in found.title

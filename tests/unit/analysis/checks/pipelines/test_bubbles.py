"""The bubble of pipelines against the ideal."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.checks.pipelines.bubbles import ideal_bubble_ns, pipeline_bubbles, pipeline_fill
from overlapscope.analysis.checks.pipelines.stages import PipelineStage, counted_stages, groups_by_rank, own_stages
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import (
    COMM,
    COMPUTE,
    NONE,
    Annotations,
    Collectives,
    Spans,
    Steps,
    concat,
    make,
    take,
)
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.unit.analysis.checks.pipelines.schedules import MS, STEPS, pipeline, said, simulated

UNEVEN = [5, 5, 9, 5]


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
    assert evidence["busiest_stage"] == 2
    assert evidence["uneven_ns"] == pytest.approx(min(8 * 12 * MS, max(evidence["excess_ns"].values())), rel=0.02)
    assert finding.title.endswith(f"; {evidence['uneven_ns'] / 1e6:.3f} ms of it as stage 2 is busy for longer")


def test_one_recorded_stage_is_enough():
    run = pipeline([5, 5, 9, 5], 8)
    (finding,) = said(replace(run, ranks={1: run.ranks[1]}))
    assert finding.evidence["stages_recorded"] == 1
    assert "busiest_stage" not in finding.evidence


@pytest.mark.parametrize(("recorded", "uneven"), [(range(4), None), ([0], (60 * MS, 2))])
def test_of_pipelines_side_by_side_the_other_ones_say_only_what_stages_do_that_were_not_recorded(recorded, uneven):
    """Stage 2 of the first one is busy for 120 of 200 ms, all others for 60: those beside it wait for nothing of it."""
    groups = tuple(Group(name=name, size=4, ranks=ranks) for name, ranks in (("g", (0, 1, 2, 3)), ("h", (4, 5, 6, 7))))
    stages = {
        first + place: {
            name: PipelineStage(rank=first + place, place=place, window_ns=200 * MS, activations=8, at_most=8,
                                bubble_ns=(80 if (name, place) == ("g", 2) else 140) * MS)
        }
        for name, first, places in (("g", 0, range(4)), ("h", 4, recorded)) for place in places
    }  # fmt: skip
    (other,) = (
        each.evidence
        for each in pipeline_bubbles(Run(world_size=8, ranks={}, groups=groups), stages)
        if each.id.endswith(":h")
    )
    assert (other.get("uneven_ns"), other.get("busiest_stage")) == (uneven or (None, None))


@pytest.mark.parametrize(("once_ms", "busiest"), [(0, 2), (60, None)])
def test_a_stage_that_waits_in_a_call_once_a_step_is_not_busy_for_longer(once_ms: int, busiest: int | None):
    """Stage 2 has drained, and is in a collective for 60 of the 120 ms that are no bubble."""
    stages = {
        place: {
            "g": PipelineStage(rank=place, place=place, window_ns=200 * MS, activations=8, at_most=8,
                               bubble_ns=(80 if place == 2 else 140) * MS, once_ns=(once_ms if place == 2 else 0) * MS)
        }
        for place in range(4)
    }  # fmt: skip
    groups = (Group(name="g", size=4, ranks=(0, 1, 2, 3)),)
    (found,) = pipeline_bubbles(Run(world_size=4, ranks={}, groups=groups), stages)
    assert found.evidence.get("busiest_stage") == busiest
    assert ("is busy for longer" in found.title) is (busiest is not None)


def test_nothing_is_said_where_stages_or_microbatches_are_unknown():
    uneven = [5, 5, 9, 5]
    assert said(replace(pipeline(uneven, 8), groups=())) == []
    assert said(replace(pipeline(uneven, 8), groups=(Group(name="g", size=4),))) == []
    nobody = pipeline(uneven, 8)
    bare = {
        rank: replace(each, collectives=replace(each.collectives, peer=each.collectives.peer * 0 + NONE))
        for rank, each in nobody.ranks.items()
    }
    assert said(replace(nobody, ranks={rank: bare[rank] for rank in (0, 3)})) == [], "both ends"
    lost = pipeline(uneven, 8)
    table = lost.ranks[1].collectives
    step = table.step.copy()
    step[[row for row in range(len(step)) if table.peer[row] == 2 and step[row] == 1][:3]] = NONE
    cut = replace(lost.ranks[1], collectives=replace(table, step=step))
    assert said(replace(lost, ranks={1: cut})) == []


@pytest.mark.parametrize("nested", [False, True])
def test_where_no_step_was_marked_a_step_lasts_from_one_optimizer_to_the_next(nested):
    """Of three optimizers, each launches a kernel at the end of its step; a range of the user may be around each."""
    marked, ranks = pipeline([5, 5, 9, 5], 8), {}
    for rank, each in marked.ranks.items():
        ends = (each.steps.end_ns - MS // 2).tolist()
        calls, spans = (replace(of, step=of.step * 0 + NONE) for of in (each.collectives, each.spans))
        optimizer = make(
            Spans, len(ends), kind=COMPUTE, collective=NONE, start_ns=np.array(ends), end_ns=np.array(ends) + MS // 10,
            recording=0, lane=0, step=NONE, launch_ns=np.array(ends),
        )  # fmt: skip
        names = (*each.names, "optimizer", "Optimizer.step#Adam.step")
        notes = make(
            Annotations, len(ends), recording=0, lane=0, name=len(names) - 1, start_ns=np.array(ends) - 1,
            end_ns=np.array(ends) + 1,
        )  # fmt: skip
        around = replace(notes, name=notes.name - 1, start_ns=notes.start_ns - 9, end_ns=notes.end_ns + 9)
        notes = concat([notes, around]) if nested else notes
        ranks[rank] = replace(
            each, names=names, steps=make(Steps, 0), collectives=calls, spans=concat([spans, optimizer]),
            annotations=notes,
        )  # fmt: skip
    (stage,) = own_stages(ranks[1], groups_by_rank(marked.groups)[1], []).values()
    (same,) = own_stages(marked.ranks[1], groups_by_rank(marked.groups)[1], step_windows(marked.ranks[1])).values()
    assert (stage.activations, stage.place) == (same.activations, same.place) == (8, 1)
    assert stage.window_ns == pytest.approx(float(np.diff(marked.ranks[1].steps.start_ns)[0]))
    on_host = replace(ranks[1], has_device=False)
    assert own_stages(on_host, groups_by_rank(marked.groups)[1], []) == {}


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


@pytest.mark.parametrize(("microbatches", "much"), [(8, True), (64, False)])
def test_what_filling_and_draining_takes_by_the_schedule_is_said_where_it_is_much(microbatches, much):
    found = said(pipeline([5, 5, 5, 5], microbatches), "pipeline_fill")
    assert bool(found) == much
    if much:
        assert found[0].title.startswith("8 micro-batches on 4 stages: ")
        assert found[0].evidence["fill_share"] == pytest.approx(45 / 166), "of the step as measured"
        assert "27.1 % of a step; with 16 it would be 15.7 %" in found[0].title


def interleaved(microbatches: int, chunks: int) -> Run:
    """Return a pipeline of four stages with chunks: its last stage sends the first what goes on in the next chunk."""
    run = pipeline([5, 5, 5, 5], microbatches * chunks)
    wrapped = microbatches * (chunks - 1)
    ranks = dict(run.ranks)
    for rank, to in ((0, 3), (3, 0)):
        table = run.ranks[rank].collectives
        sends = np.flatnonzero(table.op == run.ranks[rank].names.index("send"))
        chosen = np.concatenate([sends[table.step[sends] == step][:wrapped] for step in range(STEPS)])
        more = take(table, chosen)
        ranks[rank] = run.ranks[rank].with_calls(
            run.ranks[rank].names, concat([table, replace(more, peer=more.peer * 0 + to)])
        )
    return replace(run, ranks=ranks)


@pytest.mark.parametrize(
    ("microbatches", "chunks", "counted"),
    [(8, 2, "8 micro-batches in 2 chunks"), (4, 3, "4 micro-batches in 3 chunks"), (12, 1, "12 micro-batches")],
)
def test_chunks_are_no_micro_batches(microbatches, chunks, counted):
    run = interleaved(microbatches, chunks)
    (found,) = said(run, "pipeline_fill")
    activations = microbatches * chunks
    ideal_ms, step_ms = 45, 15 * (activations + 3) + 1
    share, half = ideal_ms / step_ms, ideal_ms / 2 / (step_ms - ideal_ms / 2)
    assert found.title.startswith(f"{counted} on 4 stages: ")
    assert f"{100 * share:.1f} % of a step; with {2 * microbatches} it would be {100 * half:.1f} %" in found.title
    between = replace(run, ranks={1: run.ranks[1]})
    assert said(between, "pipeline_fill")[0].title.startswith(
        f"{activations} micro-batches (or fewer, in chunks) on 4 stages: "
    )


def without_receivers(run: Run, *kept: int) -> Run:
    """Return these ranks of a run, whose messages do not name the other rank."""
    ranks = {rank: run.ranks[rank] for rank in kept or run.ranks}
    unnamed = {
        rank: each.with_calls(each.names, replace(each.collectives, peer=each.collectives.peer * 0 + NONE))
        for rank, each in ranks.items()
    }
    return replace(run, ranks=unnamed)


@pytest.mark.slow
@pytest.mark.parametrize(("microbatches", "chunks"), [(8, 2), (4, 3), (12, 1)])
@pytest.mark.parametrize("kept", [(), (0, 1), (2, 3)])
def test_where_no_receiver_is_recorded_an_end_and_a_stage_between_tell_micro_batches_and_chunks(
    microbatches, chunks, kept
):
    run = interleaved(microbatches, chunks)
    (known,) = said(replace(run, ranks={rank: run.ranks[rank] for rank in kept or run.ranks}), "pipeline_fill")
    (found,) = said(without_receivers(run, *kept), "pipeline_fill")
    assert found.title == known.title
    assert found.evidence["microbatches"] == microbatches


def test_where_no_receiver_is_recorded_an_end_alone_tells_nothing_and_a_stage_between_activations():
    run = interleaved(8, 2)
    assert said(without_receivers(run, 0, 3), "pipeline_fill") == []
    (found,) = said(without_receivers(run, 1), "pipeline_fill")
    assert found.title.startswith("16 micro-batches (or fewer, in chunks) on 4 stages: ")


def test_where_no_receiver_is_recorded_an_end_that_sends_what_no_chunks_explain_is_left_out():
    run = interleaved(8, 2)
    end = {"g": PipelineStage(
        rank=0, place=0, window_ns=1e9, bubble_ns=3e8, activations=21, at_most=21, unaddressed=True)}  # fmt: skip
    between = {"g": PipelineStage(rank=1, place=1, window_ns=1e9, bubble_ns=3e8, activations=16, at_most=16)}
    assert counted_stages(run, {0: end, 1: between}) == {0: {}, 1: between}


def test_nothing_is_said_of_a_schedule_whose_stages_do_not_wait():
    run = pipeline([5, 5, 5, 5], 8)
    window = {
        rank: {"g": PipelineStage(rank=rank, place=rank, window_ns=1e9, bubble_ns=1e8, activations=8, at_most=8)}
        for rank in run.ranks
    }
    assert pipeline_fill(run, window) == [], "0.1 of a step, of 0.273 by 1F1B"


def step_ms(forward_ms: list[int], microbatches: int) -> float:
    """Return how long a step takes."""
    return max(own[-1][3] for own in simulated(forward_ms, microbatches)) / MS


@pytest.mark.parametrize("forward_ms", [[10, 10, 10, 10], [10, 10, 18, 10], [6, 10, 10, 10]])
def test_more_micro_batches_save_at_most_what_a_simulation_with_twice_as_many_does(forward_ms):
    run = pipeline(forward_ms, 8)
    (found,) = advice(run)
    gain_ms = step_ms(forward_ms, 8) - step_ms([each // 2 for each in forward_ms], 16)
    assert gain_ms * MS <= found.gain_high_ns <= 1.3 * gain_ms * MS
    even = len(set(forward_ms)) == 1
    assert found.gain_high_ns == pytest.approx(gain_ms * MS, rel=0.001) or not even
    assert found.per == "step"
    assert "with 16 instead of 8 the pipeline fills and drains for at most" in found.title


def test_a_stage_that_was_not_recorded_counts_as_the_busiest_that_was():
    run = pipeline([10, 10, 10, 10], 8)
    (whole,), (first,) = advice(run), advice(replace(run, ranks={0: run.ranks[0]}))
    assert first.gain_high_ns == pytest.approx(whole.gain_high_ns, rel=0.01)


def advice(run: Run) -> list[Recommendation]:
    """Return the recommendation to use more micro-batches, if there is one."""
    return [each for each in analyze_with_advice(run).recommendations if each.id == "more_micro_batches"]


def test_no_more_micro_batches_are_advised_where_they_are_not_known_or_little_is_gained():
    run = pipeline([10, 10, 10, 10], 8)
    assert not advice(replace(run, ranks={1: run.ranks[1]})), "a stage between others does not tell chunks"
    assert not advice(pipeline([10, 10], 8)), "nor do two stages"
    assert not advice(pipeline([1, 1, 1, 1], 128))


@pytest.mark.parametrize(("calls", "counted"), [(1, False), (8, True)], ids=["once a step", "each micro-batch"])
def test_what_a_stage_does_once_a_step_is_no_part_of_a_micro_batch(calls, counted):
    """As the wait in a collective of stages that drained, for the first one."""
    run = pipeline([10, 10, 10, 10], 8)
    waited = replace(run, ranks={rank: waiting_at_end(each, calls) for rank, each in run.ranks.items()})
    bounds = [advice(each)[0].gain_high_ns for each in (run, waited)]
    assert (bounds[1] == pytest.approx(bounds[0], rel=1e-5)) is not counted


def waiting_at_end(timeline: RankTimeline, calls: int) -> RankTimeline:
    """Return a rank that is in so many collectives from its last work or message of each step to the end of that."""
    table, spans = timeline.collectives, timeline.spans
    ends = timeline.steps.end_ns
    starts = np.array([max(of.end_ns[of.step == step].max() for of in (table, spans)) for step in range(STEPS)])
    cuts = np.linspace(starts, ends, calls + 1).astype(np.int64)
    about = {"start_ns": cuts[:-1].ravel(), "end_ns": cuts[1:].ravel(), "step": np.tile(np.arange(STEPS), calls)}
    names = (*timeline.names, "all_reduce")
    more = make(Collectives, STEPS * calls, op=len(timeline.names), bytes=8, recording=0, **about)
    which = table.op.size + np.arange(STEPS * calls)
    shown = make(Spans, STEPS * calls, kind=COMM, collective=which, lane=1, recording=0, **about)
    return replace(timeline.with_calls(names, concat([table, more])), spans=concat([spans, shown]))

"""Stages of pipelines that have more work than the others."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.uneven_stages import uneven_stages as advice
from overlapscope.analysis.all_findings import _held_ns
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.pipelines.uneven_stages import uneven_stages
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.per_rank.kernels import RankCompute
from overlapscope.timeline.columns import COMPUTE, Telemetry, concat, make, take
from overlapscope.timeline.run import Group
from tests.support.rank_rows import Row, rank_timeline
from tests.unit.analysis.checks.pipelines.schedules import MS, pipeline, said


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


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        pytest.param(1, "a layer takes more (about 96.0 ms)", id="another stage would be the slowest"),
        pytest.param(6, "moving whole layers (about 16.0 ms each) would gain 8.0 ms of it; what it has", id="few"),
        pytest.param(12, "move layers to them (2, of about 8.0 ms each)", id="16 of the 18 ms of equal stages"),
    ],
)
def test_layers_are_moved_only_where_whole_ones_gain_most_of_what_a_stage_has_more(layers, words):
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
    (found,) = said(replace(pipeline([5, 5, 5, 5], 8), ranks=ranks), "uneven_stages")
    assert found.title.startswith(
        "pipeline stage 3 (rank 3) has 1.25 times the work of the other stages, 24.000 ms more a"
    )
    assert words in found.title


@pytest.mark.slow
def test_a_stage_with_more_work_is_to_be_evened_out_by_at_most_what_it_has_more_than_the_mean():
    """Of eight micro-batches of 15 ms, but the third stage's of 27 ms: 216 ms a step, in the mean of all stages 144 ms.
    Of three steps the kernels say it of each, hosts of all."""

    def advised(forward_ms, steps=None):
        run = pipeline(forward_ms, 8)
        hosts = {rank: replace(each, has_device=False) for rank, each in run.ranks.items()}
        analysis = analyze(replace(run, ranks=hosts))
        findings = [replace(each, evidence=each.evidence | (steps or {})) for each in analysis.findings]
        return advice(RuleInput.of(run, replace(analysis, findings=findings), match_and_align(run)))

    found = advised([5, 5, 9, 5])
    assert "stage 2 (rank 2) computes for 648 ms a recording, 288 ms more than the other stages" in found.title
    assert (found.gain_low_ns, found.gain_high_ns, found.per) == (0, 3 * 72 * MS, "recording")
    assert found.apply["torch"].startswith("# move layers to them")
    of_step = {"more_step_ns": 96 * MS, "step_work_ns": {"0": 120 * MS, "1": 120 * MS, "2": 216 * MS, "3": 120 * MS}}
    found = advised([5, 5, 9, 5], of_step)
    assert "computes for 216 ms a step, 96 ms more" in found.title
    assert (found.gain_high_ns, found.per) == (72 * MS, "step")
    faster = {"step_computed_ns": {"0": 130 * MS, "1": 130 * MS, "2": 250 * MS, "3": 130 * MS}}
    found = advised([5, 5, 9, 5], of_step | faster)
    assert (
        "computes for 250 ms a step, 96 ms more than the other stages, at the usual speed of its kernels" in found.title
    )
    assert found.gain_high_ns == 90 * MS, "what it computes more than the mean bounds the gain, too"
    layers = of_step | {"layer_step_ns": 40 * MS}
    found = advised([5, 5, 9, 5], layers)
    assert found.gain_high_ns == 56 * MS, "of 216 ms two layers move: two stages have 160 ms then"
    assert found.apply["torch"] == "# move layers to them (2, of about 40.0 ms each)"
    assert "as a whole" in found.assumed[0]
    assert advised([5, 5, 9, 5], of_step | {"layer_step_ns": 80 * MS}).gain_high_ns == 72 * MS, "finer parts gain more"
    assert advised([5, 5, 5, 5]) is None
    little = {"more_step_ns": 6 * MS, "step_work_ns": {"0": 120 * MS, "1": 120 * MS, "2": 126 * MS, "3": 120 * MS}}
    assert advised([5, 5, 9, 5], little) is None, "4.5 ms of a step of 253 ms"

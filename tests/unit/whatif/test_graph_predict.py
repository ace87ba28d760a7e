"""Recordings of FSDP2, tensor and pipeline parallelism: extracted, replayed, and changed, against what is known."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.advice.replayed_settings import for_fsdp1, fsdp_advice, with_best_of_fsdp1
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats.json import schema as schema_of
from overlapscope.report.text import whatif as whatif_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.calibrate import Fit
from overlapscope.whatif.parallelism import parallelism_of
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.replay.graph import Graph, MutualSlowdown, graph_job
from overlapscope.whatif.replay.replay import Instruction, Launch, Wait, Work, replay
from overlapscope.whatif.result import Best, Scenario, WhatIf
from overlapscope.whatif.step_graph import graph_predict
from overlapscope.whatif.step_graph.fsdp_changes import fsdp_graph_changes
from overlapscope.whatif.step_graph.graph_case import GraphCase, graph_case, slowed_beside
from overlapscope.whatif.step_graph.graph_changes import GraphChange
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions, bounds_of, predict_graph_case, predict_graph_run
from overlapscope.whatif.step_graph.recorded_graph import recorded_graphs
from tests.conftest import shared_file
from tests.property.synthetic import Fault, Job, Layout
from tests.support.commands import stdout_of
from tests.support.graph_cases import UNIT_NS, Made, MadeCall, faster, fsdp, recorded, step_ns
from tests.unit.analysis.graph.test_removal import read as read_synthetic

QUIET = Fit(slowdown=1.0, low=1.0, high=1.0, identified=True, reason="")
"""What a simulation without interference has: a recording of back-to-back kernels does not show it."""


def case_of(made: Made, *, on_host: bool = False) -> GraphCase:
    run = recorded(made, on_host=on_host)
    case = graph_case(run, match_and_align(run))
    free = {"comm_share": 0.0, "transfer_beside_compute": 1.0, "latency_us": 0.0, "host_share": 0.0}
    known = tuple(
        replace(each, **dict.fromkeys(("value", "low", "high"), free[each.name])) if each.name in free else each
        for each in case.assumptions
    )
    return replace(case, slowdown_fit=QUIET, assumptions=known)


def answered(made: Made, *speeds: float) -> WhatIf:
    return predict_graph_case(case_of(made), recorded(made), ReplayOptions(link_speeds=speeds))


def scenario(answer: WhatIf, **knobs: object) -> Scenario:
    return next(each for each in answer.scenarios if each.knobs == knobs)


def replayed_ns(graph: Graph, speed: float = 1.0) -> float:
    return replay(graph_job(graph, MutualSlowdown(), transfer_time=1 / speed)).step_ns


# --- FSDP2 ----------------------------------------------------------------------------------------------------------

SHAPES = [
    {},
    {"gather": 30.0, "scatter": 25.0},
    {"gather": 5.0, "scatter": 60.0},
    {"ahead": 1, "gather": 25.0},
    {"backward_ahead": 0},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_recorded_step_of_fsdp_is_met_by_its_replay(shape: dict[str, float]) -> None:
    made = fsdp(**shape)
    graphs = recorded_graphs(recorded(made), match_and_align(recorded(made))).graphs
    assert len(graphs) == 4
    for each in graphs:
        assert each.measured_ns == pytest.approx(step_ns(made), rel=1e-3)
        assert replayed_ns(each) == pytest.approx(step_ns(made), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_changes_of_fsdp_are_predicted_as_the_changed_job_takes(shape: dict[str, float]) -> None:
    answer = answered(fsdp(**shape), 0.5, 2.0)
    truth = {
        "reshard_after_forward": (False, fsdp(**shape, reshard=False)),
        "forward_prefetch": (1, fsdp(**{**shape, "ahead": 1})),
        "backward_prefetch": (2, fsdp(**{**shape, "backward_ahead": 2})),
        "modules_per_group": (2, fsdp(**shape, many=2)),
    }
    for knob, (value, changed) in truth.items():
        row = scenario(answer, **{knob: value})
        assert row.predicted_step_ns == pytest.approx(step_ns(changed), rel=0.03), knob
    both = scenario(answer, forward_prefetch=1, backward_prefetch=1)
    ahead = fsdp(**{**shape, "ahead": 1, "backward_ahead": 1})
    assert both.predicted_step_ns == pytest.approx(step_ns(ahead), rel=0.03)
    for speed in (0.5, 2.0):
        row = scenario(answer, link_speed=speed)
        assert row.predicted_step_ns == pytest.approx(step_ns(faster(fsdp(**shape), speed)), rel=0.03)
        assert row.hypothetical


def test_where_nothing_is_replayed_bounds_are_the_parts_of_the_recorded_step_and_said_to_be() -> None:
    run = recorded(fsdp())
    case = replace(graph_case(run, match_and_align(run)), abstains="its graph is wrong")
    answer, step = predict_graph_case(case, run), StepMedians.of(run, match_and_align(run))
    assert step is not None
    assert step.overlapped_ns > 0
    measured_ns, bounds = answer.baseline.measured_step_ns or 0, answer.bounds
    assert bounds.no_comm_ns == pytest.approx(measured_ns - step.exposed_comm_ns, rel=0.01)
    assert bounds.no_overlap_ns == pytest.approx(measured_ns + step.overlapped_ns, rel=0.01)
    assert answer.scenarios[0].exposed_comm_ns == step.exposed_comm_ns
    assert "Bounds by replay: n/a, as nothing is predicted." in whatif_text.render(answer, recorded=True)


def test_more_ranks_are_shown_as_a_factor_not_as_a_number() -> None:
    text = whatif_text.render(answered(fsdp()), recorded=True)
    assert "ranks x2" in text
    assert "ranks=" not in text


def test_what_is_kept_gathered_and_what_is_gathered_ahead_takes_memory() -> None:
    answer = answered(fsdp(modules=6), 2.0)
    assert scenario(answer, reshard_after_forward=False).memory_bytes == 6 << 20
    assert scenario(answer, forward_prefetch=2).memory_bytes == 2 << 20
    assert scenario(answer, backward_prefetch=0).memory_bytes == -1 << 20
    assert scenario(answer, modules_per_group=2).memory_bytes == 1 << 20
    assert scenario(answer, reduce_dtype="16-bit").changes_numerics
    assert answer.kind == "fsdp"
    assert answer.verdict == "change"
    best = min((each for each in answer.scenarios if not each.hypothetical and not each.changes_numerics),
               key=lambda each: each.predicted_step_ns)  # fmt: skip
    assert answer.best.knobs == best.knobs != {}


def test_what_fsdp_would_gain_is_recommended_in_its_own_calls() -> None:
    answer = answered(fsdp(modules=6), 2.0)
    first = fsdp_advice(answer)[0]
    (knob, value), *others = answer.best.knobs.items()
    assert (first.id, first.verdict) == ("fsdp_gathers", "change")
    assert f"{knob}={value}" in first.title
    assert first.predicted_gain_ns == round(
        scenario(answer, **answer.best.knobs).gain * answer.baseline.measured_step_ns
    )
    assert not others
    calls = {
        "reshard_after_forward": "reshard_after_forward=False",
        "forward_prefetch": "set_modules_to_forward_prefetch",
        "backward_prefetch": "set_modules_to_backward_prefetch",
        "modules_per_group": "fully_shard([",
    }
    assert calls[knob] in first.apply["fsdp2"]
    trials = [each for each in fsdp_advice(answer) if each.changes_numerics]
    assert [each.verdict for each in trials] == ["trial"] * len(trials)
    assert all("MixedPrecisionPolicy(reduce_dtype=" in each.apply["fsdp2"] for each in trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "title", "code"),
    [
        ({"reshard_after_forward": False}, "sharding_strategy=SHARD_GRAD_OP",
         "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"),
        ({"backward_prefetch": 1}, "backward_prefetch=BACKWARD_PRE", "backward_prefetch=BackwardPrefetch.BACKWARD_PRE"),
        ({"forward_prefetch": 1}, "forward_prefetch=True", "forward_prefetch=True"),
        ({"forward_prefetch": 1, "backward_prefetch": 1}, "forward_prefetch=True, backward_prefetch=BACKWARD_PRE",
         "forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE"),
    ],
)  # fmt: skip
def test_the_first_version_of_fsdp_is_given_its_own_setting(knobs: dict[str, object], title: str, code: str) -> None:
    advice = replace(fsdp_advice(answered(fsdp(modules=6), 2.0))[0], knobs=knobs, apply={"fsdp2": "fully_shard(...)"})
    assert for_fsdp1(advice) == replace(
        advice, title=f"Set {title}", apply={"torch": f"FullyShardedDataParallel(module, {code})"}
    )


def test_the_first_version_of_fsdp_is_given_no_code_where_it_has_none_and_the_best_that_it_has() -> None:
    answer = answered(fsdp(modules=6), 2.0)
    (advice, *_) = fsdp_advice(answer)
    deep = replace(advice, knobs={"forward_prefetch": 2}, apply={"fsdp2": "fully_shard(...)"})
    assert for_fsdp1(deep) == replace(deep, apply={})
    own = with_best_of_fsdp1(replace(answer, best=Best(knobs={"forward_prefetch": 2}))).best.knobs
    assert scenario(answer, **own).gain == max(
        each.gain for each in answer.scenarios
        if each.knobs in ({"reshard_after_forward": False}, {"backward_prefetch": 1}, {"forward_prefetch": 1},
                          {"forward_prefetch": 1, "backward_prefetch": 1})
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("low", [-0.01, 0.0005])
def test_without_a_setting_that_surely_gains_more_than_recordings_differ_the_first_version_of_fsdp_is_left_alone(
    low: float,
) -> None:
    answer = answered(fsdp(modules=6), 2.0)
    rows = [
        replace(each, gain=low + 0.01, gain_low=low) if each.knobs != {"forward_prefetch": 2} else each
        for each in answer.scenarios
    ]
    own = with_best_of_fsdp1(replace(answer, scenarios=rows, best=Best(knobs={"forward_prefetch": 2})))
    assert own.verdict == "no_change"
    assert own.reasons[0].startswith("no setting of FullyShardedDataParallel surely gains")
    assert fsdp_advice(own) == []


def test_a_step_that_computes_for_long_is_left_alone_and_so_is_one_where_nothing_is_sharded() -> None:
    answer = answered(fsdp(forward=400.0, backward=800.0, gather=2.0, scatter=2.0), 2.0)
    assert answer.verdict == "no_change"
    assert answer.best.knobs == {}
    assert fsdp_advice(answer) == fsdp_advice(answered(tensor(), 2.0)) == []


def test_parameters_that_stay_gathered_are_not_offered_to() -> None:
    answer = answered(fsdp(reshard=False), 2.0)
    assert not any("reshard_after_forward" in each.knobs for each in answer.scenarios)
    assert any("stay gathered" in each for each in answer.reasons)


def test_gathers_without_sizes_are_the_reason_why_no_setting_is_replayed() -> None:
    run = recorded(fsdp())
    unsized = {rank: np.full(each.collectives.bytes.size, NONE).tolist() for rank, each in run.ranks.items()}
    for rank, bytes_ in unsized.items():
        run = changed(run, rank, bytes=bytes_)
    answer = predict_graph_case(graph_case(run, match_and_align(run)), run)
    assert all(each.hypothetical for each in answer.scenarios[1:])
    assert "no setting was replayed" in answer.reasons
    (why,) = (each for each in answer.reasons if "sizes" in each)
    assert "record_shapes=True" in why
    assert whatif_text.render(answer, recorded=True).startswith("No setting was replayed: a step takes ")


@pytest.mark.slow
@pytest.mark.parametrize("slow", [1.2, 1.6])
def test_what_a_late_rank_costs_is_what_the_job_takes_without_it(slow: float) -> None:
    run = recorded(fsdp(slow=slow))
    row = scenario(answered(fsdp(slow=slow)), straggler_removed=1)
    assert row.predicted_step_ns == pytest.approx(step_ns(fsdp()), rel=0.01)
    row = scenario(predict_graph_run(run, match_and_align(run)), straggler_removed=1)
    assert row.low_ns <= step_ns(fsdp()) <= row.high_ns
    assert row.gain_low <= row.gain <= row.gain_high


@pytest.mark.parametrize("longer", [0.0, 60.0])
def test_what_calls_take_more_than_their_bytes_explain_is_no_latency_beyond_any(longer: float) -> None:
    made = fsdp()
    sizes = {"all_gather": 1, "reduce_scatter": 8}
    calls = [
        replace(each, op="all_gather", bytes=sizes[each.op] << 20, units=sizes[each.op] * 2.0 + longer)
        for each in made.calls
    ]
    run = recorded(replace(made, calls=calls))
    (latency,) = (each for each in graph_case(run, match_and_align(run)).assumptions if each.name == "latency_us")
    if longer:
        assert (latency.low, latency.value, latency.high) == (5, 30, 100)
        assert "3,000 us more than their bytes explain, which is waiting" in latency.known_from
    else:
        assert latency.known_from == "measured: calls of different sizes"
    half = replace(run, world_size=4)
    (latency,) = (each for each in graph_case(half, match_and_align(half)).assumptions if each.name == "latency_us")
    assert not latency.known_from.startswith("measured"), "ranks are missing"


@pytest.mark.parametrize("partly", [0.5, 1.0])
def test_how_compute_slows_transfers_is_measured_on_like_calls(partly: float) -> None:
    graph = recorded_graphs(recorded(fsdp()), match_and_align(recorded(fsdp()))).graphs[0]
    gather = graph.calls[0]
    free = [replace(gather, own_ns=ns, beside=0.0) for ns in (99.0, 100.0, 100.0, 101.0)]
    beside = [replace(gather, own_ns=100.0 * (1 + 0.2 * partly), beside=partly)] * 4
    mean, low, high = slowed_beside([*free, *beside]) or (0.0, 0.0, 0.0)
    assert mean == pytest.approx(1.2)
    assert 1.15 < low < mean < high < 1.25
    assert slowed_beside([*free, *beside[1:]]) is None, "too few"
    assert slowed_beside([*free, *(replace(each, bytes=1 << 10) for each in beside)]) is None, "of another size"


def test_transfers_that_take_as_long_beside_compute_are_not_slowed_by_it() -> None:
    for world_size in (2, 4):
        run = replace(recorded(fsdp(ahead=1)), world_size=world_size)
        case = graph_case(run, match_and_align(run))
        beside = next(each for each in case.assumptions if each.name == "transfer_beside_compute")
        most = 1.0 if world_size == 2 else case.slowdown_fit.high
        assert (beside.value, beside.low, beside.high) == (1.0, 1.0, most), "a range where ranks are missing"


def test_what_is_measured_of_transfers_does_not_depend_on_an_assumed_slowdown_of_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = recorded(fsdp(ahead=1))
    assert not graph_case(run, match_and_align(run)).slowdown_fit.identified
    name = "overlapscope.whatif.step_graph.graph_case.slowed_beside"
    monkeypatch.setattr(name, lambda calls: (1.15, 1.1, 1.2))
    case = graph_case(run, match_and_align(run))
    (beside,) = (each for each in case.assumptions if each.name == "transfer_beside_compute")
    assert (beside.low, beside.value, beside.high) == (1.1, 1.15, 1.2)
    assert "comm_share" not in {each.name for each in case.assumptions}


@pytest.mark.slow
def test_a_shifted_clock_changes_no_prediction() -> None:
    made = fsdp(slow=1.2)
    runs = [recorded(made, shift_ns=(0, shift)) for shift in (0, 7_000_000)]
    first, second = (predict_recording(run, [], ReplayOptions(), search=False) for run in runs)
    for one, other in zip(first.scenarios, second.scenarios, strict=True):
        assert one.predicted_step_ns == pytest.approx(other.predicted_step_ns, rel=1e-3)


def test_on_threads_what_is_waited_for_at_once_is_predicted_and_prefetch_is_not_offered() -> None:
    made = fsdp(at_once=True, slow=1.1)
    case = case_of(made, on_host=True)
    answer = predict_graph_case(case, recorded(made, on_host=True), ReplayOptions(link_speeds=(0.5, 2.0)))
    assert answer.baseline.replay_error == pytest.approx(0, abs=0.005)
    assert not any("prefetch" in knob for each in answer.scenarios for knob in each.knobs)
    assert any("prefetching" in each for each in answer.reasons)
    row = scenario(answer, reshard_after_forward=False)
    assert row.predicted_step_ns == pytest.approx(step_ns(fsdp(at_once=True, slow=1.1, reshard=False)), rel=0.02)
    for speed in (0.5, 2.0):
        truth = step_ns(faster(made, speed))
        assert scenario(answer, link_speed=speed).predicted_step_ns == pytest.approx(truth, rel=0.02)


def test_ends_that_one_rank_sees_late_go_with_the_link_by_the_share_assumed() -> None:
    made = fsdp(at_once=True)
    run = recorded(made, on_host=True)
    late = 5 * UNIT_NS
    # Rank 1 sees every gather end later, and computes so much later.
    calls, spans = run.ranks[1].collectives, run.ranks[1].spans
    gathers = calls.op == run.ranks[1].names.index("all_gather")
    ends = np.where(gathers, calls.end_ns + late, calls.end_ns)
    begins = np.where(
        (spans.kind == 0) & np.isin(spans.start_ns, calls.end_ns[gathers]), spans.start_ns + late, spans.start_ns
    )
    seen = replace(run.ranks[1], collectives=replace(calls, end_ns=ends), spans=replace(spans, start_ns=begins))
    changed_run = replace(run, ranks={**run.ranks, 1: seen})
    graph = recorded_graphs(changed_run, match_and_align(changed_run)).graphs[0]
    fixed, moving = (
        replay(graph_job(graph, MutualSlowdown(), transfer_time=2.0, late_share=share)).ended_ns[1]
        for share in (0.0, 1.0)
    )
    assert moving > fixed
    assert replayed_ns(graph) == pytest.approx(step_ns(made), rel=0.01)


def with_waits_swapped(graph: Graph, first: int, second: int) -> Graph:
    """Rank 1 waits for two gathers in the other order: it runs so as recorded, and no longer where waits decide."""
    swapped = {first: second, second: first}
    items = tuple(
        Wait(swapped.get(each.collective, each.collective)) if isinstance(each, Wait) else each
        for each in graph.programmes[1]
    )
    return replace(graph, programmes={**graph.programmes, 1: items})


@pytest.mark.slow
@pytest.mark.parametrize("at", range(4))
def test_gathers_ahead_keep_the_order_of_launches_where_one_rank_seems_to_wait_in_another(at: int) -> None:
    made = fsdp(ahead=2)
    plain = case_of(made)
    graphs = list(plain.graphs)
    graphs[at] = with_waits_swapped(graphs[at], 1, 2)
    odd = replace(plain, graphs=tuple(graphs))
    whole, swapped = (
        predict_graph_case(each, recorded(made), ReplayOptions(link_speeds=(2.0,))) for each in (plain, odd)
    )
    assert [each.knobs for each in whole.scenarios] == [each.knobs for each in swapped.scenarios]
    for knobs in ({"forward_prefetch": 1}, {"reshard_after_forward": False}):
        assert scenario(swapped, **knobs).gain == pytest.approx(scenario(whole, **knobs).gain, abs=0.01)


@pytest.mark.parametrize(("noise", "doubt"), [(None, "may be zero: its interval begins"), (0.5, "is within the noise")])
def test_a_setting_that_may_gain_nothing_is_named(
    noise: float | None, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gains 3.1 % of a step, to which the replay's own error is 3.2 %."""
    case = case_of(fsdp())
    case = case if noise is None else replace(case, noise=noise)
    known = [each for each in fsdp_graph_changes(case.graphs[0])[0] if each.knobs == {"reshard_after_forward": False}]
    monkeypatch.setattr(graph_predict, "fsdp_graph_changes", lambda _: (known, []))
    reason = predict_graph_case(case, recorded(fsdp()), ReplayOptions()).reasons[0]
    assert "reshard_after_forward=False" in reason
    assert doubt in reason


def test_a_trial_whose_replay_does_not_end_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(graph: Graph, _: object) -> Graph:
        return with_waits_swapped(graph, 1, 2) if graph is case.graphs[0] else graph

    case = case_of(fsdp())
    one, two = {"forward_prefetch": 1}, {"backward_prefetch": 2}
    trials = [GraphChange(knobs=knobs, change=stuck) for knobs in (one, {"forward_prefetch": 2}, one | two)]
    monkeypatch.setattr(graph_predict, "fsdp_graph_changes", lambda _: (trials, []))
    answer = predict_graph_case(case, recorded(fsdp()), ReplayOptions(link_speeds=(2.0,)))
    why = (
        "forward_prefetch=1 or 2; forward_prefetch=1, backward_prefetch=2 could not be replayed: a limit of the replay"
    )
    assert [each.startswith(why) for each in answer.reasons if "could not be replayed" in each] == [True], "one line"
    assert [each.knobs for each in answer.scenarios] == [{}, {"link_speed": 2.0}]


def test_a_recorded_step_that_cannot_end_is_left_out_and_all_of_them_are_refused() -> None:
    made = fsdp()
    plain = case_of(made)
    bad = with_waits_swapped(plain.graphs[0], 1, 2)
    answer = predict_graph_case(replace(plain, graphs=(bad, *plain.graphs[1:])), recorded(made))
    assert "1 recorded steps are left out: their replay does not end" in answer.reasons
    assert answer.verdict == "change"
    with pytest.raises(InputError, match="does not end"):
        predict_graph_case(replace(plain, graphs=(bad,)), recorded(made))


def test_a_step_of_another_run_may_differ_as_much_as_recorded_steps_do_and_a_gain_may_not() -> None:
    case = replace(case_of(fsdp()), noise=0.01, drift=0.01)
    scattered = replace(case, drift=0.08)
    calm, wild = (
        scenario(predict_graph_case(each, recorded(fsdp())), forward_prefetch=1) for each in (case, scattered)
    )
    assert (wild.gain_low, wild.gain_high) == (calm.gain_low, calm.gain_high)
    base = case.measured_ns
    narrow, wide = ((each.high_ns - each.low_ns) / 2 / base for each in (calm, wild))
    assert wide**2 - narrow**2 == pytest.approx(0.08**2 - 0.01**2, rel=1e-3)
    assert graph_case(recorded(fsdp()), match_and_align(recorded(fsdp()))).drift == 0.01  # steps that are all alike


def test_what_is_the_hosts_of_a_transfer_over_sockets_does_not_go_with_its_link() -> None:
    """All is waited for at once: twelve gathers of 15 units and six scatters of 15 are 270 units of link."""
    case = case_of(fsdp(at_once=True), on_host=True)
    asked = ReplayOptions(link_speeds=(0.5, 2.0))
    shared = tuple(
        replace(each, value=0.2, low=0.0, high=0.3) if each.name == "host_share" else each for each in case.assumptions
    )
    run = recorded(fsdp(at_once=True), on_host=True)
    plain, less_link = (predict_graph_case(each, run, asked) for each in (case, replace(case, assumptions=shared)))
    for speed, less in ((0.5, 0.2 * 270), (2.0, -0.2 * 270 / 2)):
        steps = [scenario(each, link_speed=speed).predicted_step_ns for each in (plain, less_link)]
        assert steps[0] - steps[1] == pytest.approx(less * UNIT_NS, rel=0.02)
    names = {each.name for each in graph_case(run, match_and_align(run)).assumptions}
    on_device = recorded(fsdp())
    assert "host_share" in names
    assert "host_share" not in {each.name for each in graph_case(on_device, match_and_align(on_device)).assumptions}


# --- tensor and pipeline parallelism --------------------------------------------------------------------------------


def tensor(layers: int = 5, units: float = 12.0, slow: float = 1.0) -> Made:
    calls = [
        MadeCall(units=units, phase=phase) for phase in ("forward", "backward") for _ in range(layers)
    ]  # fmt: skip
    programmes = {}
    for rank, factor in ((0, 1.0), (1, slow)):
        mine: list[Instruction] = []
        for number in range(len(calls)):
            mine += [Work(20.0 * factor), Launch(number), Wait(number)]
        programmes[rank] = [*mine, Work(15.0)]
    return Made(programmes=programmes, calls=calls)


def pipeline(batches: int = 4, message: float = 6.0) -> Made:
    """Two stages, all forward first (GPipe)."""
    calls = [MadeCall(op="message", units=message, ranks=(0, 1)) for _ in range(batches)]
    calls += [MadeCall(op="message", units=message, ranks=(1, 0)) for _ in range(batches)]
    first: list[Instruction] = []
    second: list[Instruction] = []
    for number in range(batches):
        first += [Work(20.0), Launch(number)]
        second += [Launch(number), Wait(number), Work(20.0)]
    for number in range(batches, 2 * batches):
        second += [Work(40.0), Launch(number)]
        first += [Launch(number), Wait(number), Work(40.0)]
    return Made(programmes={0: [*first, Work(9.0)], 1: [*second, Work(9.0)]}, calls=calls)


@pytest.mark.parametrize(
    ("made", "kind"), [(tensor(), "tensor"), (tensor(slow=1.3), "tensor"), (pipeline(), "pipeline")]
)
def test_other_kinds_are_met_and_predicted_over_other_links(made: Made, kind: str) -> None:
    answer = answered(made, 0.5, 2.0)
    assert answer.kind == kind
    assert answer.baseline.replay_error == pytest.approx(0, abs=0.005)
    for speed in (0.5, 2.0):
        truth = step_ns(faster(made, speed))
        assert scenario(answer, link_speed=speed).predicted_step_ns == pytest.approx(truth, rel=0.03)
    assert scenario(answer, traffic_dtype="16-bit").changes_numerics
    assert answer.verdict == "no_change"


def test_formulas_of_other_algorithms_are_trials_that_no_setting_brings_about() -> None:
    case = case_of(tensor())
    answer = predict_graph_case(case, recorded(tensor()), ReplayOptions(algorithms=("double_binary_tree",)))
    row = scenario(answer, algorithm="double_binary_tree")
    # A ring of two sends the size in each of its halves, half of it each; both trees send all of it up and down.
    assert row.predicted_step_ns > answer.scenarios[0].predicted_step_ns
    assert row.hypothetical


# --- any graph ------------------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> Made:
    ranks = draw(st.integers(2, 3))
    count = draw(st.integers(2, 6))
    everyone = tuple(range(ranks))
    calls = [
        MadeCall(units=float(draw(st.integers(2, 40))), ranks=everyone, bytes=(number + 1) << 18)
        for number in range(count)
    ]
    programmes = {}
    waits = [draw(st.integers(number, count - 1)) for number in range(count)]
    for rank in everyone:
        mine: list[Instruction] = []
        for number in range(count):
            mine += [Work(float(draw(st.integers(1, 50)))), Launch(number)]
            mine += [Wait(each) for each in range(number + 1) if waits[each] == number]
        programmes[rank] = [*mine, Work(float(draw(st.integers(1, 30))))]
    return Made(programmes=programmes, calls=calls)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(made=jobs())
def test_any_recorded_step_is_met_and_keeps_within_its_bounds(made: Made) -> None:
    run = recorded(made)
    graphs = recorded_graphs(run, match_and_align(run)).graphs
    for each in graphs[:1]:
        assert replayed_ns(each) == pytest.approx(step_ns(made), rel=0.01)
        bounds = bounds_of(each)
        for speed in (0.5, 2.0, 8.0):
            assert bounds.no_comm_ns <= replayed_ns(each, speed) + 1
        assert replayed_ns(each) <= bounds.no_overlap_ns + UNIT_NS
        # What was never seen to be waited for may be needed earlier than it was, which shows over slower links only.
        truth = step_ns(faster(made, 2.0))
        assert replayed_ns(each, 2.0) >= truth * 0.97


# --- what is refused ------------------------------------------------------------------------------------------------


def changed(run: Run, rank: int, **columns: Sequence[int]) -> Run:
    timeline = run.ranks[rank]
    calls = replace(timeline.collectives, **{name: np.array(value) for name, value in columns.items()})
    return replace(run, ranks={**run.ranks, rank: replace(timeline, collectives=calls)})


def test_calls_that_cannot_be_paired_are_a_reason_to_abstain() -> None:
    run = recorded(fsdp())
    sizes = run.ranks[1].collectives.bytes.copy()
    sizes[::3] += 4
    with pytest.raises(InputError, match="could not be matched with those of other ranks"):
        predict_recording(changed(run, 1, bytes=sizes), [], ReplayOptions(), search=False)


def test_steps_that_differ_are_a_reason_to_abstain() -> None:
    run = recorded(fsdp())
    steps = run.ranks[0].collectives.step
    for rank in run.ranks:
        sizes = np.where(steps == 2, 2, np.where(steps == 4, 3, np.where(steps == 6, 5, 7))) << 18
        run = changed(run, rank, bytes=sizes)
    with pytest.raises(InputError, match="its steps differ: fewer than half have the same collectives"):
        recorded_graphs(run, match_and_align(run))


def test_a_job_that_splits_in_several_ways_gets_no_setting() -> None:
    made = fsdp()
    extra = MadeCall(units=4.0, op="message", ranks=(0, 1), group="pipe")
    number = len(made.calls)
    programmes = {0: [Launch(number), *made.programmes[0]], 1: [Launch(number), Wait(number), *made.programmes[1]]}
    run = recorded(Made(programmes=programmes, calls=[*made.calls, extra]))
    assert parallelism_of(run) == "mixed"
    answer = predict_recording(run, [], ReplayOptions(), search=False)
    assert answer.verdict == "no_change"
    assert all(each.hypothetical for each in answer.scenarios[1:])
    assert any("several kinds of parallelism" in each for each in answer.reasons)


def test_a_replay_that_misses_gives_no_advice() -> None:
    case = case_of(fsdp())
    wrong = tuple(replace(each, measured_ns=each.measured_ns * 1.1) for each in case.graphs)
    answer = predict_graph_case(replace(case, graphs=wrong), recorded(fsdp()))
    assert answer.verdict == "insufficient_data"
    assert "misses the measured step" in answer.reasons[0]
    assert answer.best.knobs == {}


@pytest.mark.parametrize("column", ["bytes", "start_ns", "end_ns", "launch_ns", "step", "seq", "group_size"])
@pytest.mark.parametrize("value", [NONE, 0, 2**62])
def test_damaged_calls_are_answered_or_refused(column: str, value: int) -> None:
    run = recorded(fsdp(modules=2))
    table = run.ranks[1].collectives
    for rows in (slice(None), slice(5, 6)):
        wrong = getattr(table, column).copy()
        wrong[rows] = value
        try:
            answer = predict_recording(changed(run, 1, **{column: wrong}), [], ReplayOptions(), search=False)
        except InputError:
            continue
        assert answer.scenarios[0].predicted_step_ns > 0


# --- real recordings ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_answers_a_real_recording_of_fsdp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(shared_file("gloo_torch2.13"))
    file = tmp_path / "whatif.json"
    assert main(["whatif", folder, "--json", "-o", str(file), "--link-speed", "0.5,2"]) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema_of("whatif")).validate(document)
    assert document["kind"] == "fsdp"
    assert abs(document["baseline"]["replay_error"]) <= 0.03
    bounds = document["bounds"]
    by_knobs = {json.dumps(each["knobs"]): each["predicted_step_ns"] for each in document["scenarios"]}
    assert bounds["no_comm_ns"] <= by_knobs['{"reshard_after_forward": false}'] <= bounds["no_overlap_ns"] * 1.01
    assert by_knobs['{"link_speed": 2.0}'] < by_knobs["{}"] < by_knobs['{"link_speed": 0.5}']
    said = stdout_of(capsys, "whatif", folder)
    assert "reshard_after_forward=False" in said
    assert re.search(r"reshard_after_forward=False .*[+]\d[\d.]* [KM]iB", said)
    assert "kind of this recording: fsdp" in stdout_of(capsys, "whatif", folder, "--list")
    assert main(["whatif", folder, "--link-speed", "fast"]) == 2
    assert main(["whatif", folder, "--algorithm", "magic"]) == 2


@pytest.mark.slow
def test_waiting_that_dominates_is_said_and_no_rank_is_a_straggler_that_is_none() -> None:
    """Hosts of all ranks pause: with pauses capped at 3 ms the step takes 288 ms by an independent simulation."""
    run = read_inputs([shared_file("kineto/megatron_tp8")])
    answer = predict_recording(run, [], ReplayOptions(), search=False)
    assert answer.verdict == "no_change"
    assert answer.waiting
    assert answer.baseline.replay_error is not None
    assert abs(answer.baseline.replay_error) <= 0.001
    assert "no single rank causes it" in answer.reasons[0]
    assert abs(scenario(answer, straggler_removed=0).gain) < 0.03
    assert scenario(answer, host_pauses_ms=3.0).predicted_step_ns == pytest.approx(288e6, rel=0.01)
    assert not any("straggler is fixed" in each for each in answer.reasons)


def test_waiting_in_steps_that_no_row_replays_is_said_to_be_there() -> None:
    """The host of rank 1 pauses for 60 ms in one step of six, which is left out: no row holds what that costs."""
    fault = Fault(kind="stall", culprits=(1,), stall_ns=60e6, stall_every=6)
    job = Job(layout=Layout(dp=2), steps=6, first_step=0, layer_ns=1e6, interference=1.0, fault=fault)
    run = read_synthetic(job)
    case = graph_case(run, match_and_align(run))
    assert case.left_out
    assert (case.left_out.steps, case.left_out.longest_ns) == (1, pytest.approx(64.7e6, rel=0.02))
    assert case.left_out.of_waiting > 0.95
    assert case.left_out.waited_besides < 0.1
    (reason, *_) = predict_graph_run(run, match_and_align(run), ReplayOptions()).reasons
    assert "% of it in a step of 64." in reason
    assert "what it costs is no row's gain" in reason
    assert "no single rank causes it" not in reason

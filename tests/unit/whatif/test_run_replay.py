"""The run's dependency graph answers what other durations are worth; where it may not, nothing is predicted."""

import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import whatif as whatif_text
from overlapscope.timeline.run import Run
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.result import Bounds, Scenario, WhatIf
from overlapscope.whatif.run_replay.answers import RunReplay, not_beyond, run_replay
from overlapscope.whatif.step_graph.graph_case import OLDER
from overlapscope.whatif.step_graph.graph_changes import TimeParts, in_16_bits, more_ranks, other_algorithm
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions
from tests.conftest import shared_file
from tests.unit.analysis.graph.test_real_traces import run_of


def answered(run: Run, *speeds: float) -> WhatIf:
    return predict_recording(run, [], ReplayOptions(link_speeds=speeds or (2.0,)), search=False)


def row(answer: WhatIf, **knobs: object) -> Scenario:
    return next(each for each in answer.scenarios if knobs.items() <= each.knobs.items())


def test_a_job_whose_host_is_late_gains_nothing_from_links_and_is_told_why() -> None:
    answer = answered(run_of("a100_ddp"), 2.0, 1000.0)
    bounds, base = answer.bounds, answer.baseline
    assert bounds.no_comm_ns == bounds.perfect_overlap_ns == base.measured_step_ns == 219_732_155
    for speed in (2.0, 1000.0):
        assert row(answer, link_speed=speed).gain == 0
    assert any("waits for the host" in each for each in answer.reasons)
    paused = row(answer, host_pauses_ms=3.0)
    assert paused.predicted_step_ns < 0.9 * (base.measured_step_ns or 0)
    assert paused.hypothetical


def test_the_error_bar_of_a_scenario_is_that_of_alike_steps() -> None:
    run = run_of("a100_ddp")
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    bar = replay.error_bar()
    faster = row(answered(run), link_speed=2.0)
    assert bar == pytest.approx(0.0317, abs=0.0005)
    assert (faster.gain_low, faster.gain_high) == (-bar, bar)
    assert faster.high_ns - faster.low_ns == pytest.approx(2 * bar * faster.predicted_step_ns, rel=1e-6)


@pytest.mark.parametrize("name", ["a100_ddp", "a100_rank3of8", "megatron_tp8", "b200", "mi300", "v100_2020"])
def test_nothing_that_changes_communication_beats_the_step_without_any(name: str) -> None:
    answer = answered(run_of(name), 0.5, 2.0, 1000.0)
    bounds = answer.bounds
    measured = answer.baseline.measured_step_ns or 0
    assert bounds.no_comm_ns <= bounds.perfect_overlap_ns <= measured <= bounds.no_overlap_ns
    of_links = [each for each in answer.scenarios if not {"host_pauses_ms", "straggler_removed"} & each.knobs.keys()]
    assert len(of_links) > 1
    for each in of_links:
        assert each.predicted_step_ns >= bounds.no_comm_ns
        assert each.low_ns <= each.predicted_step_ns <= each.high_ns
        assert each.gain_low <= each.gain <= each.gain_high


def test_of_a_ddp_job_whose_buckets_cannot_be_replayed_the_rest_is_answered() -> None:
    answer = answered(run_of("a100_rank3of8"))
    assert answer.kind == "ddp"
    assert answer.verdict == "insufficient_data"
    assert answer.reasons[0].startswith("its buckets are not replayed: ")
    assert row(answer, link_speed=2.0).gain == pytest.approx(1 - 450.069 / 464.594, abs=0.002)
    assert "buckets" not in whatif_text.render(answer, recorded=True).splitlines()[2]


def test_a_graph_that_fails_its_tests_predicts_nothing() -> None:
    answer = answered(read_inputs([shared_file("ascend/msinsight_text_level0")]))
    assert answer.verdict == "insufficient_data"
    assert "nothing is predicted" in answer.reasons[0]
    assert [each.knobs for each in answer.scenarios] == [{}]
    assert answer.bounds.no_comm_ns < (answer.baseline.measured_step_ns or 0) < answer.bounds.no_overlap_ns


def test_an_older_recording_without_host_events_is_answered_as_before_and_says_so() -> None:
    run = run_of("a100_ddp")
    (timeline,) = run.ranks.values()
    older = replace(timeline.recordings, host_events=timeline.recordings.host_events & False)
    answer = answered(replace(run, ranks={0: replace(timeline, recordings=older)}))
    assert OLDER in answer.reasons
    assert OLDER not in answered(run).reasons
    assert row(answer, link_speed=2.0)
    assert not any("host_pauses_ms" in each.knobs for each in answer.scenarios)


def test_a_job_without_communication_is_asked_about_its_host_alone() -> None:
    answer = answered(run_of("resnet50"))
    assert [each.knobs for each in answer.scenarios] == [{}, {"host_pauses_ms": 3.0}]
    assert answer.bounds.no_comm_ns == answer.baseline.measured_step_ns


def test_sizes_and_ranks_change_the_calls_they_concern() -> None:
    """Half of the bytes, twice the ranks and trees: of transfers on the path, and bounded by instant ones."""
    run = run_of("mi300")
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    assert "all_reduce" in {shape.op for shape, _ in replay.transfer_times()}
    shares = []
    for change in (in_16_bits("traffic_dtype", lambda shape: shape.op == "all_reduce"), more_ranks(2)):
        times = change.transfers
        assert times is not None

        def took(shape, own_ns, times=times):  # type: ignore[no-untyped-def]
            return times(shape, own_ns, TimeParts())

        shares.append(replay.of_transfers(took, {}, least_transfer=1.0, slowdown=1.0).share)
    assert replay.limits.no_comm < shares[0] < 1 < shares[1]
    assert other_algorithm("double_binary_tree").transfers is not None


def test_a_scenario_below_its_bound_is_lifted_to_it() -> None:
    base = row(answered(run_of("a100_ddp")), host_pauses_ms=3.0)
    bounds = Bounds(no_comm_ns=90, perfect_overlap_ns=95, no_overlap_ns=120)
    measured = replace(base, predicted_step_ns=100)
    below = replace(base, predicted_step_ns=80, low_ns=70, high_ns=85, gain=0.2, gain_low=0.15, gain_high=0.3)
    lifted = not_beyond(below, bounds, measured)
    assert (lifted.predicted_step_ns, lifted.low_ns, lifted.high_ns) == (90, 70, 90)
    assert (round(lifted.gain, 3), round(lifted.gain_low, 3)) == (0.1, 0.1)
    assert not_beyond(measured, bounds, measured) is measured

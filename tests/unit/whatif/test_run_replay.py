"""The run's dependency graph answers what other durations are worth; where it may not, nothing is predicted."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.building.build import rank_graph
from overlapscope.analysis.graph.job_replay import JobReplay
from overlapscope.analysis.graph.removal import Removal
from overlapscope.analysis.graph.replay import run_edges
from overlapscope.analysis.graph.scenarios import Change
from overlapscope.analysis.job_step.step_medians import StepMedians
from overlapscope.analysis.stragglers.stragglers import late_ranks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import whatif as whatif_text
from overlapscope.timeline.columns import COMM, NONE, Steps, make
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.listing import replayable_settings
from overlapscope.whatif.parallelism import no_ddp_settings
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.result import Bounds, Scenario, WhatIf, knob_words, recorded_bounds, with_recorded_exposed
from overlapscope.whatif.run_replay.answers import RunReplay, not_beyond, nothing_to_gain, only_shorter, run_replay
from overlapscope.whatif.run_replay.transfers import computing_share, retimed
from overlapscope.whatif.step_graph.graph_case import OLDER, _notes_on_steps
from overlapscope.whatif.step_graph.graph_changes import TimeParts, in_16_bits, more_ranks, other_algorithm
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions
from tests.conftest import shared_file
from tests.support.graph_programs import Launch, Operation, Record, Sync, Wait, Work, simulate
from tests.unit.analysis.graph.test_real_traces import TRACES, run_of
from tests.unit.analysis.graph.test_removal import graph_of, late_pair

MS = 1_000_000
TIMES = (10, 2, 2, 4)


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
    assert any("critical path: host 100.0 %" in each for each in answer.reasons)
    paused = row(answer, host_pauses_ms=3.0)
    assert paused.predicted_step_ns < 0.9 * (base.measured_step_ns or 0)
    assert paused.hypothetical


def present(step_ms: int, exposed_ms: int, **knobs: object) -> Scenario:
    took_ns = step_ms * MS
    return Scenario(
        knobs=dict(knobs), predicted_step_ns=took_ns, low_ns=took_ns, high_ns=took_ns, gain=0, gain_low=0, gain_high=0,
        exposed_comm_ns=exposed_ms * MS, memory_bytes=0, buckets=0, changes_numerics=False, hypothetical=False,
        known_from="measured",
    )  # fmt: skip


def test_of_exposed_time_that_nothing_shortens_is_said_what_decides_instead() -> None:
    bounds = Bounds(no_comm_ns=98 * MS, perfect_overlap_ns=98 * MS, no_overlap_ns=100 * MS)
    path = {"host": 0.7, "compute": 0.2, "transfer": 0.07, "idle": 0.03}
    (words,) = nothing_to_gain(present(100, 10), bounds, path)
    assert words.startswith(
        "of 10.000 ms exposed communication only 2.000 ms would be gained if transfers took no time"
    )
    assert "(critical path: host 70.0 %, compute 20.0 %; " in words
    assert nothing_to_gain(present(100, 10), replace(bounds, no_comm_ns=94 * MS), path) == []


def test_the_first_row_has_the_exposed_time_of_the_headline_and_the_others_change_it() -> None:
    step = StepMedians(step_ns=100 * MS, exposed_comm_ns=6 * MS, overlapped_ns=MS)
    rows = [present(100, 10), present(95, 5, link_speed=2.0)]
    assert [each.exposed_comm_ns for each in with_recorded_exposed(rows, step)] == [6 * MS, 3 * MS]
    assert with_recorded_exposed(rows, None) == rows
    long = [present(100, 2), present(95, 40, link_speed=0.5)]
    assert [each.exposed_comm_ns for each in with_recorded_exposed(long, step)] == [6 * MS, 95 * MS], "at most a step"
    none = [present(100, 0), present(95, 1, link_speed=0.5)]
    assert [each.exposed_comm_ns for each in with_recorded_exposed(none, step)] == [6 * MS, 7 * MS]


def test_where_nothing_is_replayed_the_parts_of_the_recorded_step_are_bounds() -> None:
    step = StepMedians(step_ns=100 * MS, exposed_comm_ns=70 * MS, overlapped_ns=4 * MS)
    bounds = recorded_bounds(step, 200 * MS)
    assert (bounds.no_comm_ns, bounds.perfect_overlap_ns, bounds.no_overlap_ns) == (60 * MS, 148 * MS, 208 * MS)
    assert bounds.known_from == "recorded"


def test_a_removed_straggler_is_named_by_its_rank() -> None:
    assert knob_words("straggler_removed", 0) == "straggler removed: rank 0"
    assert knob_words("straggler_removed", "3+7") == "straggler removed: ranks 3, 7"


def test_a_job_in_which_ddp_is_seen_is_not_said_to_be_no_ddp() -> None:
    run = run_of("a100_ddp")
    listed = replayable_settings(run, {})
    assert whatif_text.render_list(listed).startswith(
        "This recording is recognised as DDP, but no bucket is replayed: it holds no gradients with sizes"
    )
    assert listed.refused["--bucket-cap-mb"] == "its buckets cannot be replayed"
    assert no_ddp_settings(run) == "recognised as DDP, but none of its settings is replayed"


def test_the_error_bar_of_a_scenario_is_that_of_alike_steps() -> None:
    run = run_of("a100_ddp")
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    bar = replay.error_bar()
    faster = row(answered(run), link_speed=2.0)
    assert bar == pytest.approx(0.0317, abs=0.0005)
    assert (faster.gain_low, faster.gain_high) == (0, bar), "a faster link loses nothing"
    slower = row(answered(run, 0.5), link_speed=0.5)
    assert slower.gain_low < slower.gain - bar / 2 < 0, "a slower one does"
    assert faster.high_ns - faster.low_ns == pytest.approx(2 * bar * faster.predicted_step_ns, rel=1e-6)


@pytest.mark.slow
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


@pytest.mark.slow
def test_ranks_that_are_late_together_are_removed_together_as_in_the_analysis() -> None:
    run, culprits, _ = late_pair(0)
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    innocent = next(rank for rank in run.ranks if rank not in culprits)
    assert [replay.late_with(rank) for rank in (*culprits, innocent)] == [culprits, culprits, (innocent,)]
    both, one = (replay.without_excess(ranks) for ranks in (culprits, culprits[:1]))
    assert both
    assert one
    assert 1 - one.share < 0.1 * (1 - both.share)
    recording = late_ranks(run, graph_of(run))
    assert isinstance(recording, Removal)
    assert both.share == pytest.approx(1 - recording.gain_ns / recording.aligned_ns, abs=0.01)


@pytest.mark.slow
def test_ranks_that_are_late_in_few_steps_are_no_straggler_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    run, culprits, _ = late_pair(0)
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    steps = iter([{*culprits}, set(), {culprits[0]}, {*culprits}, set()] * 20)
    monkeypatch.setattr("overlapscope.whatif.run_replay.answers.late_in_step", lambda graph, window: next(steps))
    monkeypatch.setattr("overlapscope.whatif.run_replay.answers.LEAST_STEPS", 1)
    assert replay.late_with(culprits[0]) == (), f"rank {culprits[1]} is late in two of five steps"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_job_without_communication_is_asked_about_its_host_alone() -> None:
    answer = answered(run_of("resnet50"))
    assert [each.knobs for each in answer.scenarios] == [{}, {"host_pauses_ms": 3.0}]
    assert answer.bounds.no_comm_ns == answer.baseline.measured_step_ns


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a100_rank3of8", "mi300"])
def test_sizes_and_ranks_change_the_calls_they_concern(name: str) -> None:
    """Gradients of 32 bits are halved, those of 16 are not; the size of a group must be known for more ranks."""
    run = run_of(name)
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    shares = []
    for change in (in_16_bits("traffic_dtype", lambda _: True), more_ranks(2)):
        times = change.transfers
        assert times is not None
        found = replay.of_transfers(
            lambda shape, own_ns, times=times: times(shape, own_ns, TimeParts()),  # type: ignore[misc]
            {}, least_transfer=1.0, slowdown=1.0,
        )  # fmt: skip
        shares.append(found.share)
    if name == "mi300":
        assert replay.limits.no_comm < shares[0] == 1 < shares[1]
    else:
        assert replay.limits.no_comm < shares[0] < 1 == shares[1]
    assert other_algorithm("double_binary_tree").transfers is not None


@pytest.mark.slow
def test_a_step_that_took_much_longer_distorts_nothing(tmp_path: Path) -> None:
    """The host stops for a second between its third and fourth step, as for a checkpoint."""
    trace = json.loads(gzip.decompress(shared_file(TRACES["a100_rank3of8"]).read_bytes()))
    starts = sorted(each["ts"] for each in trace["traceEvents"] if str(each.get("name")).startswith("ProfilerStep#"))
    pause = starts[len(starts) // 2]
    for each in trace["traceEvents"]:
        if each.get("ts", 0) >= pause:
            each["ts"] += 1_000_000
    path = tmp_path / "rank3.pt.trace.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    paused, plain = answered(read_inputs([path])), answered(run_of("a100_rank3of8"))
    assert any("took much longer or shorter" in each for each in paused.reasons)
    for knobs in ({"link_speed": 2.0}, {"host_pauses_ms": 3.0}):
        one, other = row(paused, **knobs), row(plain, **knobs)
        assert one.gain == pytest.approx(other.gain, abs=0.01)
        assert one.high_ns - one.low_ns < 2 * (other.high_ns - other.low_ns)


def in_steps(run: Run, spans_a_step: int) -> Run:
    """Return a run of one rank with a step for each so many spans, which begins as the first of them is launched."""
    (rank,) = run.ranks.values()
    number = np.argsort(np.argsort(rank.spans.launch_ns, kind="stable"), kind="stable") // spans_a_step
    begins = np.array([rank.spans.launch_ns[number == each].min() for each in range(int(number.max()) + 1)])
    ends = np.append(begins[1:], rank.recordings.end_ns)
    steps = make(Steps, begins.size, recording=0, step=np.arange(begins.size), start_ns=begins, end_ns=ends)
    return replace(run, ranks={0: replace(rank, steps=steps, spans=replace(rank.spans, step=number))})


@pytest.mark.parametrize(("steps", "left_out"), [(5, 1), (4, 1), (3, 0)])
def test_a_last_step_without_what_the_others_end_with_is_no_sample_of_a_change(steps: int, left_out: int) -> None:
    """Each step computes and sends for 18 ms, then the host pauses for 8 ms: the window of the last one lacks that. Of
    two others nobody knows how steps scatter: then it stays."""
    step: list[Operation] = [Launch(0, 15 * MS), Launch(1, 18 * MS, COMM, "nccl"), Sync(), Work(8 * MS)]
    run = in_steps(simulate({0: (step * steps)[:-1]}).run, 2)
    answer, replay = answered(run), run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    assert (replay.job.cut_short, replay.job.steps_ns.size) == (left_out, steps), "the measured step is of all"
    said = "the last step ends early (no step follows it): no change is replayed on it; the measured median includes it"
    assert (said in answer.reasons) == bool(left_out)
    paused, faster = row(answer, host_pauses_ms=3.0), row(answer, link_speed=2.0)
    assert paused.gain == pytest.approx(5 / 26 if left_out else 10 / 70, rel=0.02)
    assert min(paused.gain_low, faster.gain_low) >= 0
    assert (paused.gain_high - paused.gain < 0.05) == bool(left_out)


def test_last_steps_of_several_recordings_are_told_as_such() -> None:
    replay = run_replay(run_of("a100_ddp"), match_and_align(run_of("a100_ddp")))
    assert isinstance(replay, RunReplay)
    two = replace(replay, job=replace(replay.job, cut_short=2))
    assert (
        "the last steps of 2 recordings end early (no step follows them): no change is replayed on them; the measured "
        "median includes them"
    ) in _notes_on_steps(5, two, of_calls=False)


def test_the_gain_of_a_scenario_that_only_removes_time_begins_at_0_or_at_what_is_predicted() -> None:
    base = row(answered(run_of("a100_ddp")), host_pauses_ms=3.0)
    for gain, low, clamped in ((0.2, -0.1, 0.0), (0.2, 0.1, 0.1), (-0.01, -0.05, -0.01)):
        given = replace(base, gain=gain, gain_low=low)
        assert only_shorter(given) == replace(given, gain_low=clamped)


def test_a_scenario_below_its_bound_is_lifted_to_it() -> None:
    base = row(answered(run_of("a100_ddp")), host_pauses_ms=3.0)
    bounds = Bounds(no_comm_ns=90, perfect_overlap_ns=95, no_overlap_ns=120)
    measured = replace(base, predicted_step_ns=100)
    below = replace(base, predicted_step_ns=80, low_ns=70, high_ns=85, gain=0.2, gain_low=0.15, gain_high=0.3)
    lifted = not_beyond(below, bounds, measured)
    assert (lifted.predicted_step_ns, lifted.low_ns, lifted.high_ns) == (90, 70, 90)
    assert (round(lifted.gain, 3), round(lifted.gain_low, 3)) == (0.1, 0.1)
    assert not_beyond(measured, bounds, measured) is measured


@pytest.mark.parametrize("slowdown", [1.0, 1.3])
def test_without_communication_no_compute_is_slowed_by_transfers_beside_it(slowdown: float) -> None:
    run = run_of("a100_rank3of8")
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    bounds, as_recorded = replay.bounds(1e9, slowdown), replay.limits
    assert (bounds.no_comm_ns < round(1e9 * as_recorded.no_comm)) == (slowdown > 1)
    assert bounds.perfect_overlap_ns == round(1e9 * as_recorded.perfect_overlap), "beside transfers it stays slowed"
    assert bounds.no_overlap_ns == round(1e9 * as_recorded.no_overlap)


def test_no_step_without_communication_is_shorter_than_what_the_busiest_stream_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of ranks begin apart, so a rank that no longer waits may end before another one began."""
    programs: dict[int, list[Operation]] = {
        0: [Launch(0, 3 * MS), Launch(1, kind=COMM, name="nccl", call="a"), Launch(2, 4 * MS)],
        1: [Launch(0, 2 * MS), Launch(0, 5 * MS), Launch(1, kind=COMM, name="nccl", call="a")],
    }
    run = simulate(programs, {"a": 9 * MS}).run
    replay = run_replay(run, match_and_align(run))
    assert isinstance(replay, RunReplay)
    share = computing_share(replay.job, Change.none)
    assert share * replay.job.recorded_ns == pytest.approx(7 * MS)
    monkeypatch.setattr(JobReplay, "share", lambda *_, **__: 0.01)
    assert replay.bounds(replay.job.recorded_ns, 1.0).no_comm_ns == pytest.approx(7 * MS)


def test_where_calls_have_no_match_transfers_may_hold_waiting() -> None:
    run = simulate({rank: [Launch(1, kind=COMM, name="nccl", call=f"{at}") for at in range(5)] for rank in (0, 1)},
                   {f"{at}": MS for at in range(5)}).run  # fmt: skip

    def assumed(run: Run) -> list[str]:
        answer = answered(run)
        return [each.name for each in answer.assumptions]

    def receiving(timeline: RankTimeline) -> RankTimeline:
        """Return the rank with its last two calls as receives whose sends were not recorded."""
        op = timeline.collectives.op.copy()
        op[-2:] = len(timeline.names)
        return timeline.with_calls((*timeline.names, "recv"), replace(timeline.collectives, op=op))

    assert "transfer_time" not in assumed(run)
    assert "transfer_time" in assumed(replace(run, ranks={rank: receiving(each) for rank, each in run.ranks.items()}))


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(("op", "left_ms"), [("recv", 14.0), ("all_reduce", 9.0)])
def test_a_message_that_waited_for_a_peer_without_a_recording_moves_data_as_long_as_its_like(
    op: str, left_ms: float, sized: bool
) -> None:
    """Calls of one size take 10, 2, 2 and 4 ms: of messages 8 of the first and 2 of the last are waiting."""
    program: list[Operation] = []
    for at, took in enumerate(TIMES):
        program += [Launch(1, took * MS, COMM, "nccl", f"call{at}"), Record(f"done{at}", 1), Wait(f"done{at}", 0)]
        program.append(Launch(0, MS))
    (rank,) = simulate({0: program}, {f"call{at}": took * MS for at, took in enumerate(TIMES)}).run.ranks.values()
    named = replace(rank, names=tuple(op if name == "all_reduce" else name for name in rank.names))
    if not sized:
        named = replace(
            named, collectives=replace(named.collectives, bytes=np.full_like(named.collectives.bytes, NONE))
        )
    graph = rank_graph(named)
    twice = retimed({0: named}, lambda _, moved_ns: moved_ns / 2)(graph)
    edges = run_edges(graph, graph.ranks[0])[graph.ranks[0].span_kind == COMM]
    assert twice.lag_ns is not None
    assert twice.lag_ns[edges].sum() / MS == pytest.approx(left_ms)

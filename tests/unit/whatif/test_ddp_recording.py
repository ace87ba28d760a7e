"""A workload from a recording: what a simulation of its own recorded is found again, and predicts what that gives."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats.json import schema as schema_of
from overlapscope.timeline.columns import COMPUTE, NONE, Spans
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.whatif.cost.link_fit import fit_line, link_times, transfer_curve
from overlapscope.whatif.ddp.calibrate import SLOWDOWN
from overlapscope.whatif.ddp.ddp_predict import predict_ddp, predict_settings
from overlapscope.whatif.ddp.ddp_recording import (
    BESIDE_COMPUTE,
    _copy_and_optimizer,
    _waiting_message,
    ddp_case_of_run,
    time_beside_compute,
)
from overlapscope.whatif.ddp.recorded_settings import recorded_settings
from overlapscope.whatif.ddp.recorded_steps import recorded_steps, worker_starts
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.result import largest_gain
from tests.conftest import ROOT, shared_file
from tests.support.ddp_cases import IN_PAIRS, TICK_NS, recorded, step_ns
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
TRACES = ROOT / "traces"
IRREGULAR = replace(IN_PAIRS, ready=(600, 700, 1000, 1050, 1400, 1500, 1890, 1900))


@cache
def six() -> Run:
    return recorded(IN_PAIRS)


def test_a_transfer_takes_beside_compute_as_measured_or_its_share_of_the_slowdown() -> None:
    assert time_beside_compute({SLOWDOWN: 1.4, "comm_share": 0.5}) == pytest.approx(1.2)
    assert time_beside_compute({SLOWDOWN: 1.4, "comm_share": 0.5, BESIDE_COMPUTE: 1.3}) == 1.3


def test_a_pipeline_alone_is_not_asked_for_the_shapes_of_gradients() -> None:
    def with_sends(timeline: RankTimeline) -> RankTimeline:
        calls = timeline.collectives
        sends = replace(calls, op=np.full_like(calls.op, len(timeline.names)))
        return replace(timeline, names=(*timeline.names, "send"), collectives=sends)

    run = replace(six(), ranks={rank: with_sends(each) for rank, each in six().ranks.items()})
    with pytest.raises(InputError, match="only send and receive: no collective reduces gradients"):
        ddp_case_of_run(run)


def test_calls_of_integers_carry_no_gradients() -> None:
    """As the map of used parameters that DDP reduces with find_unused_parameters=True."""

    def last_as_int32(timeline: RankTimeline) -> RankTimeline:
        calls = timeline.collectives
        last = np.append(np.diff(calls.step) > 0, True)
        dtype = np.where(last, len(timeline.names), calls.dtype).astype(calls.dtype.dtype)
        return replace(timeline, names=(*timeline.names, "int32"), collectives=replace(calls, dtype=dtype))

    run = replace(six(), ranks={rank: last_as_int32(each) for rank, each in six().ranks.items()})
    assert recorded_steps(six(), match_and_align(six())).bytes.size
    with pytest.raises(InputError):
        recorded_steps(run, match_and_align(run))


@pytest.mark.slow
@pytest.mark.parametrize("slowdown", [1.0, 1.3, 1.8])
def test_a_made_workload_is_found_again_freed_of_interference(slowdown: float) -> None:
    made = replace(IN_PAIRS, slowdown=slowdown)
    found = ddp_case_of_run(recorded(made))
    assert found.slowdown_fit.identified
    assert found.slowdown_fit.slowdown == pytest.approx(slowdown, rel=0.02)
    workload = found.build({**found._nominal(), "per_bucket_us": 0.0, "latency_us": 0.0})
    assert workload.gradients.ready_ns == pytest.approx(np.array(IN_PAIRS.ready) * TICK_NS, rel=0.02)
    assert workload.gradients.names == tuple(f"layer{each}.weight" for each in range(8))
    assert workload.gradients.sizes_bytes.tolist() == [2**20] * 8
    assert workload.optimizer_ns == pytest.approx(made.optimizer * TICK_NS, rel=0.1)
    assert float(workload.curves[0].at(2 * 2**20)) == pytest.approx(400 * TICK_NS, rel=0.03)
    assert found.baseline.ddp.bucket_cap_mb == 2
    assert found.measured[0].step_ns == pytest.approx(step_ns(made), rel=0.01)


def test_where_no_cap_is_recorded_the_note_names_the_settings_that_make_the_buckets() -> None:
    for buckets, words in (
        (((0,), tuple(range(1, 8))), "torch's default (bucket_cap_mb=None: 25 MiB after a first bucket of 1 MiB)"),
        (IN_PAIRS.buckets, "bucket_cap_mb=2"),
    ):
        run = recorded(replace(IN_PAIRS, buckets=buckets))
        ranks = {rank: replace(each, recorded={}) for rank, each in run.ranks.items()}
        unnamed = replace(run, ranks=ranks)
        _, notes = recorded_settings(unnamed, recorded_steps(unnamed, match_and_align(unnamed)))
        assert notes == [f"no cap is recorded; {words} makes the recorded buckets"]


@pytest.mark.parametrize("slowdown", [pytest.param(1.0, marks=pytest.mark.slow), 1.5])
@pytest.mark.parametrize("ticks_per_mb", [60, pytest.param(200, marks=pytest.mark.slow), 500])
def test_other_caps_are_predicted_as_a_simulation_of_its_own_has_them(slowdown: float, ticks_per_mb: float) -> None:
    made = replace(IN_PAIRS, slowdown=slowdown, ticks_per_mb=ticks_per_mb)
    found = ddp_case_of_run(recorded(made))
    others = {1.0: [[each] for each in range(8)], 4.0: [(0, 1, 2, 3), (4, 5, 6, 7)], 100.0: [tuple(range(8))]}
    settings = [with_cap(found.baseline, cap) for cap in others]
    predicted = {each.knobs["bucket_cap_mb"]: each for each in predict_settings(found, settings)}
    for cap, buckets in others.items():
        truth = step_ns(replace(made, buckets=buckets))
        # Where no layer is beside a transfer all the time, a prior stands for how much it slows.
        assert predicted[cap].predicted_step_ns == pytest.approx(
            truth, rel=0.03 if found.slowdown_fit.identified else 0.06
        )
        assert predicted[cap].low_ns <= truth <= predicted[cap].high_ns


@pytest.mark.slow
def test_without_freeing_recorded_times_a_single_bucket_is_predicted_too_late() -> None:
    made = replace(IN_PAIRS, slowdown=1.8, ticks_per_mb=300)
    found = ddp_case_of_run(recorded(made))
    truth = step_ns(replace(made, buckets=[tuple(range(8))]))
    stretched = replace(found, slowdown_fit=replace(found.slowdown_fit, slowdown=1.0))
    one = with_cap(found.baseline, 100.0)
    wrong, right = (predict_settings(each, [one])[1].predicted_step_ns for each in (stretched, found))
    assert right == pytest.approx(truth, rel=0.03)
    assert wrong > 1.05 * truth


@pytest.mark.slow
def test_a_shifted_clock_changes_no_prediction() -> None:
    results = [predict_ddp(ddp_case_of_run(recorded(IN_PAIRS, shift_ns=(0, shift)))) for shift in (0, 7_000_000)]
    assert results[0].scenarios == results[1].scenarios


def test_a_late_rank_is_kept_apart_from_the_work_of_all() -> None:
    found = ddp_case_of_run(recorded(replace(IN_PAIRS, late=(0, 900))))
    assert found.lateness_ns == pytest.approx((0.0, 900 * TICK_NS), rel=0.05)
    assert found.workload().gradients.ready_ns[-1] == pytest.approx(IN_PAIRS.ready[-1] * TICK_NS, rel=0.05)


def test_layers_of_one_shape_that_do_other_work_tell_nothing_but_what_the_scheduler_counts() -> None:
    made = replace(IRREGULAR, slowdown=1.2)
    found = ddp_case_of_run(recorded(made)).slowdown_fit
    assert not found.identified
    assert found.low == pytest.approx(1.2, rel=0.02)
    assert found.slowdown == 1.3
    without = ddp_case_of_run(recorded(made, thread_times=False)).slowdown_fit
    assert (without.identified, without.low, without.high) == (False, 1.0, 1.6)


def test_the_rank_that_slows_most_is_the_one_that_counts() -> None:
    found = ddp_case_of_run(recorded(replace(IN_PAIRS, slowdown=1.5)))
    assert found.shares == pytest.approx((1.0, 1.0), abs=0.01)


def test_passes_without_a_reduction_are_found_and_show_what_the_same_piece_takes_free() -> None:
    """Work that is no layer's shape is freed of it all the same: every piece has run free of transfers before."""
    made = replace(IRREGULAR, passes=2, slowdown=1.6, ticks_per_mb=700)
    found = ddp_case_of_run(recorded(made))
    assert (found.baseline.accumulation, found.baseline.no_sync) == (2, True)
    assert found.slowdown_fit.identified
    assert found.slowdown_fit.slowdown == pytest.approx(1.6, rel=0.03)
    one = replace(found.baseline, accumulation=1, no_sync=False)
    (scenario,) = predict_settings(found, [one])[1:]
    assert scenario.predicted_step_ns == pytest.approx(step_ns(replace(made, passes=1)), rel=0.03)


def test_where_nothing_tells_how_compute_slows_a_prior_stands_and_is_said_to() -> None:
    result = predict_ddp(ddp_case_of_run(recorded(IRREGULAR, thread_times=False)), [1.0, 4.0], search=False)
    assert not result.interference.identified
    assert (result.interference.low, result.interference.high) == (1.0, 1.6)
    assert any("could not be measured; assumed 1.3x" in each for each in result.reasons)


def test_a_replay_that_misses_the_recorded_step_gives_no_advice() -> None:
    found = ddp_case_of_run(six())
    (measured,) = found.measured
    result = predict_ddp(replace(found, measured=(replace(measured, step_ns=measured.step_ns * 1.05),)))
    assert result.verdict == "insufficient_data"


@pytest.mark.parametrize(
    ("drop", "said"), [("gradients", "no gradients with sizes"), ("collectives", "carry the gradients")]
)
def test_a_run_without_what_is_needed_says_what_and_how_to_record_it(drop: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        ddp_case_of_run(recorded(IN_PAIRS, drop=drop))
    assert "overlapscope.profile" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("drop", "dtype", "said"),
    [
        ("collectives", "float32", "DistributedDataParallel is not seen in it"),
        ("gradients", "int32", "DistributedDataParallel is not seen in it"),
        ("gradients", "float32", "of its all-reduces, which may be buckets, it is not known which gradients they hold"),
    ],
)
def test_a_job_in_which_ddp_is_not_seen_is_not_asked_for_what_ddp_lacks(drop: str, dtype: str, said: str) -> None:
    run = recorded(IN_PAIRS, drop=drop)
    ranks = {
        rank: replace(each, recorded={}, names=[dtype if name == "float32" else name for name in each.names])
        for rank, each in run.ranks.items()
    }
    with pytest.raises(InputError, match=said):
        ddp_case_of_run(replace(run, ranks=ranks))


def test_a_job_whose_capture_noted_no_ddp_is_not_asked_to_record_it() -> None:
    run = recorded(IN_PAIRS, drop="collectives")
    other = replace(run, ranks={rank: replace(each, recorded={"ddp": {}}) for rank, each in run.ranks.items()})
    with pytest.raises(InputError, match="the recorded model is not wrapped in DistributedDataParallel") as error:
        ddp_case_of_run(other)
    assert "overlapscope.profile" not in str(error.value)


def test_a_capture_without_a_model_does_not_know_whether_ddp_is_used() -> None:
    run = recorded(IN_PAIRS, drop="gradients")
    other = replace(run, ranks={rank: replace(each, recorded={"ddp": {}}) for rank, each in run.ranks.items()})
    with pytest.raises(InputError, match="no range of DistributedDataParallel was recorded"):
        ddp_case_of_run(other)


def test_no_rank_at_all_says_so() -> None:
    with pytest.raises(InputError, match="no rank"):
        ddp_case_of_run(Run(world_size=2, ranks={}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kineto/sampled_pair", "rocprof", "nccl_log"])
def test_real_recordings_that_cannot_be_replayed_are_answered_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["whatif", str(shared_file(name))])
    said = capsys.readouterr()
    assert code in (2, 3)
    assert not said.out
    assert said.err.strip().splitlines()[-1].startswith("overlapscope whatif: ")
    assert "Traceback" not in said.err


@pytest.mark.slow
def test_a_run_that_mostly_waits_gets_no_bucket_advice_and_no_false_straggler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["whatif", str(shared_file("kineto/megatron_tp8"))]) == 0
    said = capsys.readouterr().out
    assert said.startswith("No setting was replayed: a step takes 630.662 ms (measured).\n")
    assert "The rows below are what-ifs that no setting makes.\nThe largest gain is that of host_pauses_ms=3 " in said
    assert "(no setting does this): 341.809 ms " in said
    assert "no single rank causes it" in said
    assert "straggler is fixed" not in said
    assert "no setting of communication is recommended before it is less" in said
    assert "bucket_cap_mb" not in said
    assert "- one complete step was recorded: too few to measure how much steps vary" in said
    assert "waiting is 88.0 % of the time in its collectives" in said, "percentages as everywhere else"


def waiting(sends_ms: int = 0, dimension: str | None = None) -> str:
    """Return the start of the message on a run in which rank 0 waits for rank 1 nine tenths of its two all-reduces."""
    ranks = {}
    for rank, late in ((0, 0), (1, 9)):
        calls: list[Row] = [
            {
                "op": "all_reduce", "group": "0", "bytes": 4, "group_size": 2, "dimension": dimension,
                "start_ns": (at + late) * MS, "end_ns": (at + 10) * MS,
            }
            for at in (0, 20)
        ]  # fmt: skip
        send = {"op": "send", "group": "0", "bytes": 4, "start_ns": 40 * MS, "end_ns": (40 + sends_ms) * MS}
        ranks[rank] = rank_timeline(rank, calls=[*calls, send] if sends_ms else calls)
    run = Run(world_size=2, ranks=ranks, groups=(Group(name="0", size=2, ranks=(0, 1)),))
    return _waiting_message(run, match_and_align(run))


def test_waiting_is_said_to_dominate_where_most_calls_are_matched_and_no_stages_come_one_after_the_other() -> None:
    assert waiting().startswith("waiting is ")
    assert waiting(sends_ms=1).startswith("waiting is ")
    assert waiting(sends_ms=60) == "", "most of the time is in messages, as in a pipeline"
    assert waiting(dimension="pipeline") == ""


def test_a_replay_that_does_not_fit_the_recording_says_nothing_of_the_largest_gain() -> None:
    found = predict_ddp(ddp_case_of_run(read_inputs([TRACES / "baseline"])), [4.0], search=False)
    gains = replace(found.scenarios[0], gain=0.2, gain_low=0.1, hypothetical=True)
    for verdict, most in (("no_change", gains), ("insufficient_data", None), ("change", None)):
        assert largest_gain(replace(found, verdict=verdict, scenarios=[found.scenarios[0], gains])) == most


@pytest.mark.slow
def test_a_plain_trace_tells_what_our_own_recording_of_the_same_steps_does() -> None:
    """The trace files kept in the recording know neither names nor a cap: shapes and their order do."""
    own = predict_ddp(ddp_case_of_run(read_inputs([TRACES / "baseline"])), [1.0, 10.0, 1000.0], search=False)
    plain = predict_ddp(
        ddp_case_of_run(read_inputs(sorted(TRACES.glob("baseline/*/*.json.gz")))), [1.0, 10.0, 1000.0], search=False
    )
    assert plain.baseline.knobs["bucket_cap_mb"] == own.baseline.knobs["bucket_cap_mb"] == 4
    for a, b in zip(own.scenarios, plain.scenarios, strict=True):
        assert a.predicted_step_ns == pytest.approx(b.predicted_step_ns, rel=0.002)


@pytest.mark.slow
def test_one_real_recording_predicts_the_other() -> None:
    """`traces/` holds one job under two caps, recorded one after the other."""
    caps = {"baseline": 4.0, "regressed": 1000.0}
    cases = {name: ddp_case_of_run(read_inputs([TRACES / name])) for name in caps}
    for name, other in (("baseline", "regressed"), ("regressed", "baseline")):
        truth = cases[other].measured[0].step_ns
        (scenario,) = predict_settings(cases[name], [with_cap(cases[name].baseline, caps[other])])[1:]
        assert scenario.predicted_step_ns == pytest.approx(truth, rel=0.1)


def test_two_calls_on_one_link_count_its_time_once() -> None:
    begun, done = np.array([[0.0, 0.0, 300.0]]), np.array([[200.0, 200.0, 400.0]])
    found = link_times(np.array([10, 10, 10]), begun, done, np.array([250.0]))
    assert found.own_ns.tolist() == [100.0, 100.0, 100.0]
    assert found.beside.tolist() == [1.0, 1.0, 0.0]


def test_a_small_call_in_the_queue_of_a_large_one_tells_no_latency() -> None:
    """With 100 ns and 1 ns a byte the small one takes 4.2 us alone; beside a large one it is under way for 30."""
    small, large = 4096, 100_000
    begun, done = np.array([[0.0, 0.0]]), np.array([[30_000.0, 104_296.0]])
    mixed = link_times(np.array([small, large]), begun, done, np.array([0.0]))
    assert mixed.own_ns.sum() == pytest.approx(mixed.by_bytes_ns.sum()) == pytest.approx(104_296)
    assert mixed.reliable_sizes.tolist() == [large]
    curve = transfer_curve(mixed, 1.0, 100.0, ranks=2, source="here")
    assert curve.at(small) == pytest.approx(4196, rel=0.01)
    begun, done = np.array([[0.0, 4196.0]]), np.array([[4196.0, 104_296.0]])
    alone = link_times(np.array([small, large]), begun, done, np.array([0.0]))
    assert alone.reliable_sizes.tolist() == [small, large]


def test_calls_wait_for_a_worker_in_order() -> None:
    begun = worker_starts(np.array([[0, 1, 2, 50]]), np.array([[10, 20, 30, 60]]), 2)
    assert begun.tolist() == [[0, 1, 10, 50]]


def test_sizes_apart_tell_latency_and_bandwidth() -> None:
    sizes = np.array([1000, 10_000, 100_000])
    assert fit_line(sizes, 500 + 2.0 * sizes, 9e9) == pytest.approx((500, 2.0))
    assert fit_line(np.array([1000]), np.array([2500.0]), 500) == pytest.approx((500, 2.0))


@pytest.mark.slow
def test_the_command_prints_the_published_json_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "whatif.json"
    caps = ["--bucket-cap-mb", "1,8", "--no-search"]
    assert main(["whatif", str(TRACES / "baseline"), *caps, "--json", "-o", str(file)]) == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema_of("whatif")).validate(document)
    assert [each["knobs"].get("bucket_cap_mb") for each in document["scenarios"][:3]] == [4.0, 1.0, 8.0]
    assert document["baseline"]["measured_step_ns"] > 0
    assert main(["whatif", str(TRACES / "baseline"), *caps]) == 0
    said = capsys.readouterr().out
    assert "Record a run with" not in said, "no setting is surely faster"
    assert main(["whatif", str(TRACES / "baseline"), "--bucket-cap-mb", "none"]) == 2
    assert main(["whatif", str(tmp_path / "nothing")]) == 3


@pytest.mark.parametrize(
    ("rank", "name", "column"),
    [
        *((1, "gradients", each) for each in ("elements", "ready_ns", "order", "dtype", "name", "step")),
        *((0, "collectives", each) for each in ("elements", "bytes", "start_ns", "end_ns", "launch_ns", "dtype", "op")),
        *((0, "collectives", each) for each in ("seq", "step")),
    ],
)
@pytest.mark.parametrize("value", [NONE, 0, 2**62])
def test_damaged_tables_are_answered_or_refused(rank: int, name: str, column: str, value: int) -> None:
    run = six()
    timeline = run.ranks[rank]
    table = getattr(timeline, name)
    wrong = np.full(len(table.step), value).astype(getattr(table, column).dtype)
    if column in ("dtype", "name", "op"):
        wrong = np.clip(wrong, -1, len(timeline.names) - 1)  # a reader gives no other codes
    for rows in (slice(None), slice(5, 6)):
        changed = getattr(table, column).copy()
        changed[rows] = wrong[rows]
        damaged = replace(timeline, **{name: replace(table, **{column: changed})})
        with suppress(InputError):
            assert ddp_case_of_run(replace(run, ranks={**run.ranks, rank: damaged})).workload().compute_ns > 0


@pytest.mark.parametrize("second_ms", [0, 20])
def test_the_copies_of_buckets_are_in_their_own_backward(second_ms: int) -> None:
    """Two milliseconds after the last gradient; another model's backward, later in the step, copies nothing of it."""
    run = read_inputs([ROOT / "traces" / "baseline"])
    seen = recorded_steps(run, match_and_align(run))
    ranks = {}
    for rank, timeline in run.ranks.items():
        names = NameTable(timeline.names)
        rows = []
        for step in seen.steps:
            last = int(timeline.gradients.ready_ns[timeline.gradients.step == step].max())
            second = last + 10 * MS
            for start, lasts_ms, launch in ((last, 0, last), (last + 1, 2, last), (second, second_ms, second)):
                rows.append(
                    {"kind": COMPUTE, "name": "backward", "step": step, "start_ns": start, "launch_ns": launch,
                     "end_ns": start + lasts_ms * MS}
                )  # fmt: skip
        spans = fact_table(Spans, [{"recording": 0, "lane": 0, **row} for row in rows], names)
        ranks[rank] = replace(timeline.at_hand(), basis="events", spans=spans, names=tuple(names.to_list()))
    plain, _ = recorded_settings(run, seen)
    per_byte, _ = _copy_and_optimizer(replace(run, ranks=ranks), seen, plain)
    assert not plain.gradient_as_bucket_view
    assert per_byte * float(seen.grad_bytes.sum()) == pytest.approx(2 * MS)

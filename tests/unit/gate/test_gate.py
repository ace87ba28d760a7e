"""The gate's judgement of runs made by hand: every verdict, its reason, and what never passes silently."""

import msgspec
import numpy as np
import pytest

from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.metrics import METRICS
from overlapscope.errors import InputError, UsageError
from overlapscope.gate.calibrate import LEAST_RUNS, NoiseFloor, calibrate
from overlapscope.gate.judge import MetricVerdict
from overlapscope.gate.policy import JUDGED, Policy, policy_of
from overlapscope.gate.verdict import Gate, judge
from tests.support.simulated_runs import JOB, MS, run_of_steps

WOBBLE = (0.0, 0.2, -0.2, 0.1, -0.1, 0.05, -0.05, 0.0)


def run(step_ms: float, exposed_ms: float | None = 10.0, **identity: str) -> MeasuredRun:
    figures = {"window_ns": [step_ms + each for each in WOBBLE]}
    if exposed_ms is not None:
        figures["exposed_comm_ns"] = [exposed_ms + each for each in WOBBLE]
    return run_of_steps(figures, identity={**JOB, **identity})


def verdict(gate: Gate, name: str = "step_time_ns") -> MetricVerdict:
    return next(each for each in gate.metrics if each.name == name)


def test_few_runs_regress_past_the_minimum_and_the_floor_only() -> None:
    verdicts = {}
    for step_ms in (100.0, 102.0, 104.5, 112.0):
        each = verdict(judge([run(100)], [run(step_ms)], Policy()))
        verdicts[step_ms] = each.verdict, each.reason
        assert each.test == "bootstrap"
        assert each.minimum == 3 * MS
        assert each.floor == pytest.approx(1.95996 * 2 * MS * 2**0.5, rel=1e-3)  # 97.5 % of 2 % of 100 ms, two runs
    assert verdicts == {
        100.0: ("unchanged", "within_minimum"),
        102.0: ("unchanged", "within_minimum"),
        104.5: ("inconclusive", "within_noise"),
        112.0: ("regressed", "told"),
    }
    assert verdict(judge([run(100)], [run(88)], Policy())).verdict == "improved"


def test_four_runs_a_side_tell_for_themselves_below_the_default_floor() -> None:
    base, candidate = [[run(middle + at / 10) for at in range(4)] for middle in (100, 104.5)]
    gate = judge(base, candidate, Policy(metrics=("step_time_ns",)))
    each = verdict(gate)
    assert (each.verdict, each.test, each.floor, each.calibrated) == ("regressed", "permutation", None, None)
    assert each.probability == pytest.approx(1 / 70)
    assert each.low is not None
    assert each.low <= 4.5 * MS <= (each.high or 0)
    mixed = [run(at) for at in (99.0, 104.9, 104.8, 104.7)]
    other = verdict(judge(base, mixed, Policy(metrics=("step_time_ns",))))
    assert (other.verdict, other.reason) == ("inconclusive", "not_significant")


def test_a_difference_of_exactly_the_minimum_counts() -> None:
    for candidate_ms, found in ((103.0, ("regressed", "told")), (102.999, ("unchanged", "within_minimum"))):
        each = verdict(judge([run(100)] * 4, [run(candidate_ms)] * 4, Policy(metrics=("step_time_ns",))))
        assert each.minimum == 3 * MS  # 3 % of 100 ms
        assert (each.verdict, each.reason) == found


def test_a_difference_of_exactly_the_noise_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.gate.judge.noise_bound", lambda *_: 7.0 * MS)
    for candidate_ms, reason in ((107.0, "within_noise"), (107.001, "told")):
        assert verdict(judge([run(100)], [run(candidate_ms)], Policy())).reason == reason


def test_the_interval_over_steps_leaves_out_five_percent_of_the_draws_at_each_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlapscope.gate.judge.bootstrap", lambda *_: np.arange(2_000.0))
    each = verdict(judge([run(100)], [run(150)], Policy()))
    assert (each.low, each.high) == (100, 1_899)


def test_holm_counts_the_metrics_that_gate_and_says_when_runs_cannot_do() -> None:
    base, candidate = [[run(middle + at / 10, middle / 10) for at in range(4)] for middle in (100, 120)]
    two = judge(base, candidate, Policy())
    assert verdict(two).probability == pytest.approx(2 / 70)
    assert two.verdict == "regressed"
    four = Policy(metrics=("step_time_ns", "exposed_comm_ns", "exposed_comm_worst_ns", "comm_ns"))
    gate = judge(base, candidate, four)
    assert verdict(gate).reason == "too_few_runs"
    assert gate.verdict == "inconclusive"


def test_both_minimums_must_be_reached() -> None:
    small = [[run(middle + at / 100, 1.0) for at in range(5)] for middle in (5.0, 5.4)]  # 8 %, but 0.4 ms
    assert verdict(judge(*small, Policy())).verdict == "unchanged"
    large = [[run(middle + at / 10, 1.0) for at in range(5)] for middle in (1000, 1010)]  # 10 ms, but 1 %
    assert verdict(judge(*large, Policy())).verdict == "unchanged"
    assert verdict(judge(*large, Policy(min_relative=0.005))).verdict == "regressed"


def test_what_one_side_lacks_does_not_pass() -> None:
    gate = judge([run(100)], [run(100, None)], Policy())
    each = verdict(gate, "exposed_comm_ns")
    assert (each.verdict, each.reason) == ("not_applicable", "missing_in_candidate")
    assert (gate.verdict, gate.exit_code) == ("missing", 3)
    assert verdict(judge([run(100, None)], [run(100)], Policy()), "exposed_comm_ns").reason == "missing_in_base"


def test_what_neither_side_has_is_not_applicable_and_fails_where_asked() -> None:
    sides = [run(100, None)], [run(100, None)]
    gate = judge(*sides, Policy())
    assert verdict(gate, "exposed_comm_ns").reason == "missing"
    assert (gate.verdict, gate.exit_code) == ("passed", 0)
    assert judge(*sides, Policy(fail_on=("inconclusive",))).exit_code == 4
    assert judge(*sides, Policy(metrics=("exposed_comm_ns",))).exit_code == 3


def test_a_regression_outranks_what_is_missing() -> None:
    assert judge([run(100)], [run(150, None)], Policy()).exit_code == 1


def test_few_steps_cannot_tell_a_difference_but_see_none() -> None:
    def brief(step_ms: float) -> list[MeasuredRun]:
        return [run_of_steps({"window_ns": [step_ms] * 3, "exposed_comm_ns": [1.0] * 3})]

    assert verdict(judge(brief(100), brief(150), Policy())).reason == "too_few_steps"
    assert judge(brief(100), brief(150), Policy(fail_on=("inconclusive",))).exit_code == 4
    assert judge(brief(100), brief(100), Policy()).verdict == "passed"


@pytest.mark.parametrize(
    ("key", "value"), [("world_size", "16"), ("device", "other"), ("dtype", "float32"), ("parameters", "7"),
                       ("parallelism", "tensor 8"), ("recording.mode", "events")],
)  # fmt: skip
def test_another_job_is_not_comparable_unless_allowed_key_by_key(key: str, value: str) -> None:
    base, candidate = [run(100, **{"recording.mode": "trace"})], [run(150, **{"recording.mode": "trace", key: value})]
    gate = judge(base, candidate, Policy())
    assert (gate.verdict, gate.exit_code, gate.metrics) == ("not_comparable", 3, [])
    assert [(each.key, each.allowed) for each in gate.mismatches] == [(key, False)]
    other = "device" if key != "device" else "dtype"
    assert judge(base, candidate, Policy(allow_mismatch=(other,))).exit_code == 3
    assert judge(base, candidate, Policy(allow_mismatch=(key,))).exit_code == 1


def test_other_software_and_settings_are_reported_and_judged() -> None:
    gate = judge([run(100, torch_version="2.4")], [run(100, torch_version="2.5", nccl_version="2.2")], Policy())
    assert gate.verdict == "passed"
    assert "differs_software:torch_version" in {each.id for each in gate.comparison.findings}


def test_ranks_without_any_in_common_are_not_comparable() -> None:
    other = run_of_steps({"window_ns": [1.0] * 5, "exposed_comm_ns": [0.5] * 5}, rank=1)
    gate = judge([run(100)], [other], Policy())
    assert [each.key for each in gate.mismatches] == ["ranks"]
    assert gate.exit_code == 3


def test_what_only_one_side_knows_of_the_job_is_reported() -> None:
    unknown = run_of_steps({"window_ns": [100.0] * 5, "exposed_comm_ns": [5.0] * 5}, identity={"dtype": "bfloat16"})
    assert judge([run(100)], [unknown], Policy()).unknown_keys == ["world_size", "device", "parameters", "parallelism"]


def test_budgets_are_absolute_and_missing_ones_do_not_pass() -> None:
    side = [run(100)]
    assert judge(side, side, Policy(budgets={"step_time_ns": 101 * MS})).exit_code == 0
    over = judge(side, side, Policy(budgets={"step_time_ns": 99 * MS, "exposed_comm_ns": 11 * MS}))
    assert (over.verdict, [each.kept for each in over.budgets]) == ("regressed", [False, True])
    assert judge(side, side, Policy(budgets={"compute_ns": 1.0})).exit_code == 3
    # Of the efficiency more is better, so the budget is a least value; here nothing overlaps.
    lacking = run_of_steps({"window_ns": [9.0], "exposed_comm_ns": [1.0], "overlapped_ns": [0.0]})
    budget = judge([lacking], [lacking], Policy(budgets={"overlap_efficiency": 0.5})).budgets[0]
    assert (budget.at_least, budget.kept) == (True, False)
    assert judge(side, side, Policy(metrics=(), budgets={"step_time_ns": 101 * MS})).verdict == "passed"


def test_the_floor_is_measured_from_runs_of_unchanged_code() -> None:
    runs = [run(100 + at) for at in (0.0, 2.0, -2.0, 1.0, -1.0)]
    floor = calibrate(runs)
    noise = next(each for each in floor.metrics if each.name == "step_time_ns")
    assert (noise.median, noise.runs) == (100 * MS, 5)
    assert noise.deviation == pytest.approx(2.5**0.5 * MS, rel=1e-6)  # (4 + 4 + 1 + 1) / 4
    gate = judge([run(100)], [run(109)], Policy(), floor)
    each = verdict(gate)
    assert each.floor == pytest.approx(2.776445 * 2.5**0.5 * 2**0.5 * MS, rel=1e-3)  # Student, 4 degrees, 97.5 %
    assert (each.calibrated, each.verdict, gate.floor_runs) == (True, "regressed", 5)
    assert verdict(judge([run(100)], [run(106)], Policy(), floor)).reason == "within_noise"
    assert msgspec.json.decode(msgspec.json.encode(floor), type=NoiseFloor) == floor


def test_runs_that_differ_more_than_the_default_raise_the_floor_themselves() -> None:
    base, candidate = [[run(middle + at) for at in (-20.0, 0.0, 20.0)] for middle in (100, 140)]
    each = verdict(judge(base, candidate, Policy()))
    # Student, 4 degrees, 97.5 %; the deviation of each side is 20 ms; medians of three runs.
    assert each.floor == pytest.approx(2.776445 * 20 * MS * 0.6698 * 2**0.5, rel=1e-3)
    assert (each.verdict, each.reason, each.calibrated) == ("inconclusive", "within_noise", False)
    calm = [[run(middle + at / 100) for at in (-1, 0, 1)] for middle in (100, 140)]
    assert verdict(judge(*calm, Policy())).floor == pytest.approx(1.95996 * 2 * MS * 0.6698 * 2**0.5, rel=1e-3)


def test_a_floor_of_another_job_is_reported() -> None:
    floor = calibrate([run(100, device="other") for _ in range(LEAST_RUNS)])
    assert judge([run(100)], [run(100)], Policy(), floor).floor_differs == ["device"]


def test_runs_of_several_jobs_are_no_calibration() -> None:
    with pytest.raises(InputError, match="differ in device"):
        calibrate([*[run(100)] * LEAST_RUNS, run(100, device="other")])


def test_too_few_runs_are_no_calibration() -> None:
    with pytest.raises(InputError, match="record at least 4"):
        calibrate([run(100)] * (LEAST_RUNS - 1))


def test_where_runs_were_calibrated_their_own_spread_raises_no_floor() -> None:
    floor = calibrate([run(100 + at) for at in (0.0, 2.0, -2.0, 1.0, -1.0)])
    base, candidate = [[run(middle + at) for at in (-20.0, 0.0, 20.0)] for middle in (100, 140)]
    each = verdict(judge(base, candidate, Policy(), floor))
    assert each.floor == pytest.approx(2.776445 * 2.5**0.5 * MS * 0.6698 * 2**0.5, rel=1e-3)


def test_a_floor_of_other_metrics_calibrates_nothing() -> None:
    floor = calibrate([run(100 + at, None) for at in (0.0, 2.0, -2.0, 1.0, -1.0)])
    gate = judge([run(100)], [run(120)], Policy(), floor)
    assert (verdict(gate).calibrated, verdict(gate, "exposed_comm_ns").calibrated) == (True, False)


def test_without_step_times_no_default_noise_is_known_and_nothing_is_decided() -> None:
    sides = [[run_of_steps({"exposed_comm_ns": [of_ms] * 8})] for of_ms in (10.0, 90.0)]
    each = verdict(judge(*sides, Policy()), "exposed_comm_ns")
    assert (each.verdict, each.reason, each.floor) == ("inconclusive", "within_noise", None)


def test_a_verdict_shows_what_it_rests_on() -> None:
    each = verdict(judge([run(100)], [run(112 + at / 1000) for at in (-1, 0, 1)], Policy()))
    assert (each.name, each.unit, each.better, each.gates) == ("step_time_ns", "ns", "lower", True)
    assert (each.base, each.candidate, each.difference) == (100 * MS, 112 * MS, 12 * MS)
    assert (each.relative, each.base_runs, each.candidate_runs) == (pytest.approx(0.12), 1, 3)
    one_and_three = (1 + 0.6698**2) ** 0.5
    assert each.floor == pytest.approx(1.95996 * 2 * MS * one_and_three, rel=1e-3)


@pytest.mark.parametrize(
    ("base_ms", "candidate_ms", "found"),
    [(8.0, 6.0, "regressed"), (6.0, 8.0, "improved"), (8.0, 7.9, "unchanged"), (0.1, 0.2, "unchanged")],
)
def test_of_the_efficiency_more_is_better(base_ms: float, candidate_ms: float, found: str) -> None:
    """Of 10 ms of communication so much is overlapped; 1 % is more than 3 % of 1 %, but not two in a hundred."""
    sides = [
        [run_of_steps({"window_ns": [100.0] * 8, "exposed_comm_ns": [10.0] * 8, "overlapped_ns": [of_ms] * 8})] * 4
        for of_ms in (base_ms, candidate_ms)
    ]
    each = verdict(judge(*sides, Policy(metrics=("overlap_efficiency",))), "overlap_efficiency")
    assert (each.verdict, each.better, each.probability) == (found, "higher", pytest.approx(1 / 70))
    assert each.minimum == pytest.approx(max(0.03 * base_ms / 10, 0.02), rel=1e-6)


def test_where_every_difference_counts_one_nanosecond_does_and_none_does_not() -> None:
    every = Policy(metrics=("step_time_ns",), min_relative=0, min_absolute_ns=0)
    one_more = [run_of_steps({"window_ns": [100.000001] * 8})] * 4
    base = [run_of_steps({"window_ns": [100.0] * 8})] * 4
    assert verdict(judge(base, one_more, every)).verdict == "regressed"
    assert verdict(judge(one_more, base, every)).verdict == "improved"
    assert verdict(judge(base, base, every)).reason == "within_minimum"


def test_a_probability_of_exactly_alpha_decides_and_so_many_runs_are_not_too_few() -> None:
    exactly = Policy(metrics=("step_time_ns",), alpha=1 / 70)
    base, faster = [[run(middle + at / 10) for at in range(4)] for middle in (100, 90)]
    each = verdict(judge(base, faster, exactly))
    assert (each.verdict, each.probability) == ("improved", pytest.approx(1 / 70))
    mixed = [run(at) for at in (99.0, 104.9, 104.8, 104.7)]
    assert verdict(judge(base, mixed, exactly)).reason == "not_significant"


def test_a_gating_metric_that_could_not_be_tested_counts_among_those_that_were() -> None:
    def brief(step_ms: float, exposed: bool) -> MeasuredRun:
        figures = {"window_ns": [step_ms] * 3}
        return run_of_steps(figures | {"exposed_comm_ns": [1.0 * step_ms] * 3} if exposed else figures)

    sides = [[brief(step_ms, True), *[brief(step_ms, False)] * 3] for step_ms in (100, 120)]
    gate = judge(*sides, Policy())
    other = verdict(gate, "exposed_comm_ns")
    assert (other.test, other.reason) == ("bootstrap", "too_few_steps")
    assert verdict(gate).probability == pytest.approx(2 / 70)
    faster = verdict(judge(*sides[::-1], Policy()))
    assert (faster.verdict, faster.probability) == ("improved", pytest.approx(2 / 70))


def test_same_input_same_bytes() -> None:
    first, second = (msgspec.json.encode(judge([run(100)], [run(106)], Policy())) for _ in range(2))
    assert first == second
    assert msgspec.json.decode(first, type=Gate) == judge([run(100)], [run(106)], Policy())


def test_every_metric_that_can_be_better_or_worse_has_a_verdict_gating_ones_first() -> None:
    gate = judge([run(100)], [run(100)], Policy())
    assert {each.name for each in gate.metrics} == {each.name for each in METRICS if each.better} == set(JUDGED)
    assert [each.name for each in gate.metrics if each.gates] == [each.name for each in gate.metrics[:2]]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"metrcs": []}, "did you mean 'metrics'"),
        ({"metrics": ["step_time"]}, "did you mean 'step_time_ns'"),
        ({"metrics": ["comm_comp_ratio"]}, "neither better nor worse"),
        ({"metrics": "step_time_ns"}, "list of strings"),
        ({"budgets": {"exposed_com_ns": 1}}, "did you mean 'exposed_comm_ns'"),
        ({"budgets": {"exposed_comm_ns": "1 ms"}}, "budgets.exposed_comm_ns must be a number"),
        ({"budgets": 5}, "table of limits"),
        ({"allow_mismatch": ["worldsize"]}, "did you mean 'world_size'"),
        ({"fail_on": ["inconclusiv"]}, "did you mean 'inconclusive'"),
        ({"alpha": 0.9}, "between 0 and 0.5"),
        ({"min_relative": -1}, "0 or more"),
        ({"min_relative": float("nan")}, "must be a number"),
        ({"min_absolute_ns": 0.5}, "whole number"),
        ({"seed": True}, "whole number"),
        ({"floor": 5}, "name of a file"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_the_nearest_key(table: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        policy_of(table)


def test_a_policy_is_its_table() -> None:
    table = {
        "metrics": ["idle_ns"], "min_relative": 0.1, "min_absolute_ns": 7, "min_absolute_ratio": 0.5, "alpha": 0.01,
        "budgets": {"idle_ns": 5}, "allow_mismatch": ["device"], "fail_on": ["inconclusive"], "floor": "f.json",
        "seed": 3,
    }  # fmt: skip
    assert policy_of(table) == Policy(
        metrics=("idle_ns",), min_relative=0.1, min_absolute_ns=7, min_absolute_ratio=0.5, alpha=0.01,
        budgets={"idle_ns": 5}, allow_mismatch=("device",), fail_on=("inconclusive",), floor="f.json", seed=3,
    )  # fmt: skip

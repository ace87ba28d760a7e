"""How often the gate is wrong, and how small a loss it sees: on simulated runs, with every trial drawn anew."""

import os

import numpy as np
import pytest

from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.job_step.metrics import metrics
from overlapscope.gate.calibrate import NoiseFloor, calibrate, noise_bound, noise_of
from overlapscope.gate.judge import MetricVerdict, judge_metrics
from overlapscope.gate.policy import GATING, JUDGED, Policy
from tests.support.simulated_runs import MS, noisy_runs

TRIALS = int(os.environ.get("OVERLAPSCOPE_GATE_TRIALS", "40"))
"""More of them for a closer look: 150 give the same answers."""
CALIBRATION_RUNS = 12


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the bootstrap samples, as what they decide here is not close; and only the metrics that gate."""
    gating = {name: JUDGED[name] for name in GATING}
    monkeypatch.setattr("overlapscope.gate.statistics.DRAWS", 199)
    monkeypatch.setattr("overlapscope.analysis.job_step.metrics.METRICS", tuple(gating.values()))
    monkeypatch.setattr("overlapscope.gate.judge.JUDGED", gating)


def judged(
    base: list[MeasuredRun], candidate: list[MeasuredRun], floor: NoiseFloor | None = None
) -> list[MetricVerdict]:
    chosen = common_steps(base, candidate)
    found = metrics(*chosen.tables, of_steps=True)
    return [each for each in judge_metrics(found, chosen.tables, Policy(), floor) if each.gates]


def share_regressed(seed: int, runs: int, *, longer_ms: float | None = 0.0, calibrated: bool = True) -> float:
    """Return the share of trials that fail; None is a loss of twice the floor of the trial's own calibration."""
    generator = np.random.default_rng(seed)
    failed = 0
    for _ in range(TRIALS):
        floor = calibrate(noisy_runs(generator, CALIBRATION_RUNS)) if calibrated else None
        base = noisy_runs(generator, runs)
        loss = 2 * floor_ms(base, floor, runs) if longer_ms is None else longer_ms
        verdicts = judged(base, noisy_runs(generator, runs, longer_ms=loss), floor)
        failed += any(each.verdict == "regressed" for each in verdicts)
    return failed / TRIALS


def floor_ms(base: list[MeasuredRun], floor: NoiseFloor | None, runs: int) -> float:
    tables = [run.steps for run in base]
    by_name = {each.name: each for each in metrics(tables, tables, of_steps=True)}
    known = noise_of(by_name["step_time_ns"], by_name, floor)
    assert known is not None
    return noise_bound(*known, runs, runs, Policy().alpha / 2) / MS


@pytest.mark.parametrize(("runs", "calibrated"), [(1, True), (3, True), (1, False), (5, False)])
def test_unchanged_code_fails_in_at_most_one_of_twenty(runs: int, calibrated: bool) -> None:
    assert share_regressed(10 + runs, runs, calibrated=calibrated) <= 0.05


@pytest.mark.parametrize("runs", [1, 3])
def test_a_loss_of_twice_the_calibrated_floor_is_caught(runs: int) -> None:
    assert share_regressed(20 + runs, runs, longer_ms=None) >= 0.9


@pytest.mark.slow
def test_more_runs_see_a_loss_that_few_cannot() -> None:
    shares = [share_regressed(30 + runs, runs, longer_ms=4.0) for runs in (1, 6)]
    assert shares[0] < 0.75
    assert shares[1] >= 0.9


@pytest.mark.slow
def test_without_the_floor_steps_alone_would_cry_wolf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the noise floor is there: the steps of one run do not tell how much runs differ."""
    assert share_regressed(40, 1) <= 0.05
    monkeypatch.setattr("overlapscope.gate.judge.noise_bound", lambda *_: 0.0)
    assert share_regressed(40, 1) > 0.05


def test_the_floor_is_what_unchanged_code_exceeds_one_time_in_forty() -> None:
    """The prediction bound, from a few calibration runs, against drawn differences of medians."""
    generator = np.random.default_rng(50)
    for freedom, runs in ((3, 1), (7, 3)):
        calibration = generator.normal(0, 1, (60_000, freedom + 1)).std(axis=1, ddof=1)
        sides = [np.median(generator.normal(0, 1, (60_000, runs)), axis=1) for _ in range(2)]
        past = sides[1] - sides[0] > calibration * noise_bound(1.0, freedom, runs, runs, 0.025)
        assert past.mean() == pytest.approx(0.025, abs=0.003)

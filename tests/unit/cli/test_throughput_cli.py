"""What the user states about a run on the command line, and where the figures that follow are shown."""

import json
from pathlib import Path

import pytest

from overlapscope.cli import analysis_cache
from overlapscope.cli.main import main
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.timeline.store.load_save import save_run
from tests.support.commands import failed, stdout_of
from tests.unit.analysis.figures.test_throughput import H100, STEPS, rank_of

STATED = ("--tokens-per-step", "8200", "--flops-per-step", "8.2e12", "--dtype", "bf16", "--price", "2.5")


def saved(folder: Path, *ranks: RankTimeline, device: str = H100) -> Path:
    run = Run(world_size=2, ranks={each.rank: each for each in ranks}, fingerprint={"device": device})
    save_run(run, folder, version="0.0.0")
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a run of two devices in 3 steps of 41 ms together, which recorded no amounts."""
    return saved(tmp_path / "job", rank_of(0, STEPS, device=True), rank_of(1, STEPS, device=True))


def test_analyze_shows_what_follows_from_what_is_stated(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 24,600 tokens and 24.6 TFLOP in 41 ms on 2 devices; 12 / 41 exposed and 5 / 41 idle of 48 hours.

    Of the median step, of 12 ms, 3 ms are exposed and 2 ms idle.
    """
    shown = stdout_of(capsys, "analyze", job, *STATED)
    assert max(map(len, shown.splitlines()[:8])) <= 120
    assert (
        "600,000 tokens/s: 8,200 a step (as stated); 300 TFLOP/s a device (as stated), "
        "MFU 30.3 % of 989 TFLOP/s (bf16, published). "
    ) in " ".join(shown.split())
    day = (
        "A day on 2 GPUs: 14.0 GPU-hours exposed{}, 5.9 GPU-hours idle{}, over all 3 steps; the median step, which "
        "milliseconds are of, gives 12.0 and 8.0."
    )
    assert day.format(" (35.12)", " (14.63)") in " ".join(shown.split())
    assert "40.000 of 43.000 ms recorded lie in complete steps: goodput 93.0 %" in shown
    plain = stdout_of(capsys, "analyze", job)
    assert day.format("", "") in " ".join(plain.split())
    assert "tokens/s" not in plain
    assert "MFU" not in plain
    document = json.loads(stdout_of(capsys, "analyze", job, "--json", *STATED))["throughput"]
    assert document["tokens"] == {
        "per_step": 8200.0, "per_second": pytest.approx(600_000), "known_from": "option", "extrapolated": False
    }  # fmt: skip
    assert document["mfu"] == pytest.approx(300 / 989.4)
    assert (document["dtype"], document["peak_from"], document["price_per_gpu_hour"]) == ("bf16", "published", 2.5)


def test_a_stored_analysis_is_shown_with_what_is_stated_and_stays_as_it_was(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_cache, "MIN_SPANS", 1)
    fresh = stdout_of(capsys, "analyze", job, *STATED)
    assert not (job / analysis_cache.CACHE_NAME).exists()
    plain = stdout_of(capsys, "analyze", job)
    assert (job / analysis_cache.CACHE_NAME).exists()
    assert stdout_of(capsys, "analyze", job, *STATED) == fresh
    assert stdout_of(capsys, "analyze", job) == plain


def test_what_a_run_recorded_comes_before_what_is_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", *(rank_of(rank, STEPS, {"tokens": [100] * 3}, device=True) for rank in (0, 1)))
    assert main(["analyze", str(run), "--tokens-per-step", "7"]) == 0
    printed = capsys.readouterr()
    assert "200 a step." in printed.out
    assert "--tokens-per-step is not used: the run knows it (recorded)" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--tokens-per-step", "--flops-per-step", "--peak-tflops", "--price"])
@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "many"])
def test_a_value_that_is_no_number_above_0_is_refused(
    option: str, value: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(job), f"{option}={value}"])
    assert ended.value.code == 2
    assert "is not a number above 0" in capsys.readouterr().err


def test_reports_hold_the_same_sentences_and_gauges(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for format_ in ("md", "html"):
        shown = stdout_of(capsys, "report", job, "--format", format_, *STATED)
        assert "600,000 tokens/s" in shown
        assert "14.0 GPU-hours exposed (35.12)" in shown
    gauges = stdout_of(capsys, "report", job, "--format", "openmetrics", *STATED).splitlines()
    values = dict(line.split(" ") for line in gauges if not line.startswith("#") and "{" not in line)
    assert float(values["overlapscope_tokens_per_second"]) == pytest.approx(600_000)
    assert float(values["overlapscope_mfu_ratio"]) == pytest.approx(300 / 989.4)
    assert float(values["overlapscope_exposed_gpu_hours_a_day"]) == pytest.approx(12 / 41 * 48)
    assert float(values["overlapscope_idle_gpu_hours_a_day"]) == pytest.approx(5 / 41 * 48)
    assert "overlapscope_samples_per_second" not in values
    hidden = json.loads(stdout_of(capsys, "report", job, "--json", "--redact", *STATED))["throughput"]
    assert (hidden["device"], hidden["reasons"]) == (H100, {})


def test_what_is_stated_about_one_run_is_refused_for_two(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "are for one run" in failed(capsys, 2, "report", job, job, "--price", "2")


@pytest.mark.slow
def test_compare_shows_tokens_a_second_where_both_sides_know_them(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: 200 and 250 tokens a step, 3 steps in 41 ms."""
    base, candidate = (
        saved(tmp_path / name, *(rank_of(rank, STEPS, {"tokens": [each] * 3}, device=True) for rank in (0, 1)))
        for name, each in (("base", 100), ("candidate", 125))
    )
    row = next(line for line in stdout_of(capsys, "compare", base, candidate).splitlines() if "tokens/s" in line)
    assert row.split() == ["tokens/s", "14,634.1", "18,292.7", "+3,658.5", "+25.0", "%"]
    found = json.loads(stdout_of(capsys, "compare", base, candidate, "--json"))["tokens_per_s"]
    assert found == {
        "base": pytest.approx(600 / 0.041), "candidate": pytest.approx(750 / 0.041),
        "difference": pytest.approx(150 / 0.041), "relative": pytest.approx(0.25),
    }  # fmt: skip
    gauges = stdout_of(capsys, "report", base, candidate, "--format", "openmetrics")
    assert 'overlapscope_tokens_per_second{side="candidate"} 1829' in gauges
    assert "tokens/s" in stdout_of(capsys, "report", base, candidate, "--format", "md")
    assert "tokens/s" not in stdout_of(capsys, "compare", base, job)
    assert json.loads(stdout_of(capsys, "compare", base, job, "--json"))["tokens_per_s"] is None


def test_what_some_ranks_of_a_job_show_of_all_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", rank_of(0, STEPS, {"tokens": [5] * 3}, device=True))
    shown = stdout_of(capsys, "analyze", run)
    assert "10 a step (taken from 1 of 2 ranks)." in shown
    assert "A day on 2 GPUs, if all are as the 1 recorded rank: " in shown


def test_without_a_complete_step_it_is_said_why_there_is_no_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path / "run", *(rank_of(rank, STEPS, device=True, cut=[0, 1, 2]) for rank in (0, 1)))
    shown = stdout_of(capsys, "analyze", run, *STATED)
    assert "tokens/s n/a: no complete step was recorded; MFU n/a: no complete step was recorded.\n" in shown
    assert "A day on 2 GPUs: " in shown


def test_a_cpu_run_shows_no_gpu_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [rank_of(rank, STEPS, {"tokens": [5] * 3}) for rank in (0, 1)]
    run = saved(tmp_path / "run", *ranks, device="cpu")
    assert main(["analyze", str(run), "--price", "1"]) == 0
    shown, said = capsys.readouterr()
    assert "750 tokens/s: 10 a step.\n" in shown
    assert "GPU-hours" not in shown
    assert said.count("analyze: warning: --price is not used: a run without GPUs spends no GPU-hours\n") == 1
    assert main(["analyze", str(run), "--peak-tflops", "1"]) == 0
    assert "--price" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_price_that_is_used_is_not_remarked_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", *(rank_of(rank, STEPS, device=True) for rank in (0, 1)))
    assert main(["analyze", str(run), "--price", "1"]) == 0
    shown, said = capsys.readouterr()
    assert "GPU-hours" in shown
    assert "--price" not in said

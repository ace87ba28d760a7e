"""Recordings that go on for long: killed at any moment, in parts, sampled, and the last minutes alone."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.analysis.result import RecordedSteps
from overlapscope.report.formatting import ms, percent
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text.analysis import headline

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from overlapscope.capture.records import StepRecord  # noqa: E402 - behind the check for torch
from overlapscope.capture.sampling import Sampling  # noqa: E402
from tests.integration.jobs.long_job import FLUSH_SECONDS  # noqa: E402
from tests.support.fork_server import start  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
MINUTE_OVER_FLUSH = 2
"""A minute holds two flushes of 30 seconds."""


def profiled(path: Path, **options: Any) -> Any:
    return overlapscope.profile(path, **{"mode": "events", "warmup": 0, "wait_seconds": 1, **options})


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write often, and begin parts often, as hours of a recording do."""
    monkeypatch.setattr("overlapscope.capture.steps.FLUSH_NOTES", 200)
    monkeypatch.setattr("overlapscope.capture.parts.PART_BYTES", 20_000)


def waiting(scope: Any) -> None:
    """Wait for the thread that writes: a test's steps are shorter than a write."""
    writing = scope.parts._writing
    if writing is not None:
        while writing.ident is None:  # another thread is starting it
            time.sleep(0.001)
        writing.join()


def parts_of(run: Path) -> list[Path]:
    return sorted((run / "rank_00000").glob("part_*"))


def warnings_of(run: Path) -> str:
    return " ".join(text for source in overlapscope.load(run).sources for text in source.warnings)


@pytest.mark.slow
@pytest.mark.parametrize("tries", [4, pytest.param(20, marks=pytest.mark.long)])
def test_a_recording_killed_at_any_moment_lacks_at_most_the_last_minute(tries: int, tmp_path: Path) -> None:
    chosen = random.Random()
    seconds = [f"{chosen.uniform(1.9, 4) * FLUSH_SECONDS:.3f}" for _ in range(tries)]
    (done,) = start([["-m", "tests.integration.jobs.long_job", str(tmp_path), *seconds]]).wait(120)
    assert done.code == 0, done.output
    for number, lasted in enumerate(seconds):
        run = tmp_path / f"run{number}"
        steps = [line.split() for line in run.with_suffix(".steps").read_text().splitlines()]
        killed_ns = int(steps[-1][1])
        needed = [int(step) for step, at in steps if killed_ns - int(at) > MINUTE_OVER_FLUSH * FLUSH_SECONDS * 1e9]
        if not needed and not run.exists():
            continue  # killed in the first minute, before anything was written
        loaded = overlapscope.load(run)
        recorded = loaded.table("steps", 0).step.tolist()
        assert recorded == list(range(len(recorded))), lasted
        assert set(needed) <= set(recorded), lasted
        assert not any(loaded.table("steps", 0).cut), lasted
        assert "recording was cut off at" in warnings_of(run), lasted
        assert len(loaded.table("collectives", 0)) == 4 * len(recorded), lasted


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_recording_of_many_parts_is_one_recording(tmp_path: Path) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for number in range(300):
            with scope.step(tokens=number), scope.region("data"):
                pass
            waiting(scope)
            assert len(scope.steps.records) < 100
            assert scope.steps._notes >= len(scope.steps.records)
    loaded = overlapscope.load(tmp_path / "run")
    assert len(parts_of(tmp_path / "run")) > 3
    assert max(sum(file.stat().st_size for file in part.iterdir()) for part in parts_of(tmp_path / "run")) < 60_000
    assert loaded.table("steps", 0).step.tolist() == list(range(300))
    assert len(loaded.table("recordings", 0)) == 1
    assert len(loaded.table("annotations", 0)) == 300
    telemetry = loaded.table("telemetry", 0)
    assert telemetry[telemetry.name == "tokens"].value.tolist() == list(range(300))
    assert telemetry[telemetry.name == "step_time_ns"].step.tolist() == list(range(300))
    assert warnings_of(tmp_path / "run") == ""
    assert (tmp_path / "run" / "rank_00000" / "rank.json").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_the_summary_of_many_parts_has_the_figures_of_analyze(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for number in range(200):
            with scope.step(), scope.comm("own transport"):
                time.sleep(0.0002 if number < 150 else 0.003)
            waiting(scope)
    summary = capsys.readouterr().out
    assert len(parts_of(tmp_path / "run")) > 3
    analysis = overlapscope.load(tmp_path / "run").analysis()
    own = ms(rank_figures(analysis.ranks[0])["exposed_comm_ns"])
    share = percent(analysis.headline.exposed_fraction)
    assert f"Medians of {analysis.headline.steps} steps\n" in summary
    assert f"{ms(analysis.headline.exposed_comm_ns)} ms   {share} of the step; most on rank 0: {own} ms" in summary


def test_what_became_columns_counts_once_though_a_signal_ended_the_flush(tmp_path: Path) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for number in range(30):
            with scope.step():
                pass
            if number == 20:  # as by SIGTERM, before the steps are forgotten
                scope.parts.flush(lambda: scope.steps.take(ending=False))
    loaded = overlapscope.load(tmp_path / "run")
    telemetry = loaded.table("telemetry", 0)
    assert loaded.table("steps", 0).step.tolist() == list(range(30))
    assert telemetry[telemetry.name == "step_time_ns"].step.tolist() == list(range(30))


@pytest.mark.usefixtures("small_parts")
def test_a_damaged_part_costs_that_part(tmp_path: Path) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for _ in range(200):
            with scope.step():
                pass
            waiting(scope)
    damaged = parts_of(tmp_path / "run")[1]
    (damaged / "spans.parquet").write_bytes(b"damaged")
    steps = overlapscope.load(tmp_path / "run").table("steps", 0).step.tolist()
    assert f"parts left out: {damaged.name}" in warnings_of(tmp_path / "run")
    missing = sorted(set(range(200)) - set(steps))
    assert 0 < len(missing) < 150
    assert missing == list(range(missing[0], missing[-1] + 1))


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_a_part_of_a_run_names_the_run_to_analyze(tmp_path: Path) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for _ in range(200):
            with scope.step():
                pass
            waiting(scope)
    part = parts_of(tmp_path / "run")[0]
    for inside in (part, part / "spans.parquet", part.parent, part / "rank.json"):
        with pytest.raises(overlapscope.InputError, match="is a part of the run"):
            overlapscope.load(inside)


@pytest.mark.slow
def test_the_last_moments_are_kept_as_a_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.capture.parts.PARTS_KEPT", 4)
    begun_ns = []
    with profiled(tmp_path / "run", events_every=1, keep="0.4s", flush_seconds=0.05) as scope:
        for _ in range(150):
            begun_ns.append(time.time_ns())
            with scope.step():
                time.sleep(0.01)
            waiting(scope)
    steps = overlapscope.load(tmp_path / "run").table("steps", 0)
    assert steps.step.tolist() == list(range(steps.step.iloc[0], 150))
    late = [step for step, begin_ns in enumerate(begun_ns) if begin_ns >= steps.end_ns.iloc[-1] - 0.4e9]
    assert steps.step.iloc[0] <= late[0]  # all that began in the last 0.4 s ...
    assert steps.step.iloc[0] > 10  # ... and not what came first


def test_unrecorded_steps_have_no_hook_and_every_step_has_its_time(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    backward, wait = torch.autograd.backward, torch.distributed.Work.wait
    hooked = []
    with profiled(tmp_path / "run", model=model, events_every=5) as scope:
        for _ in range(60):
            with scope.step():
                model(torch.ones(4)).sum().backward()
                hooked.append(
                    (
                        torch.autograd.backward is not backward,
                        torch.distributed.Work.wait is not wait,
                        bool(model._forward_pre_hooks),
                        bool(model.weight._post_accumulate_grad_hooks),
                    )
                )
    sampling = Sampling(since_step=0, every=5)
    recorded = [step for step in range(60) if sampling.records(step)]
    assert len(recorded) == 12
    assert [set(each) for each in hooked] == [{step in recorded} for step in range(60)]
    loaded = overlapscope.load(tmp_path / "run")
    assert loaded.table("steps", 0).step.tolist() == recorded
    assert loaded.run.ranks[0].recorded["sampled"] == [{"since_step": 0, "every": 5}]
    telemetry = loaded.table("telemetry", 0)
    took = telemetry[telemetry.name == "step_time_ns"].set_index("step").value
    assert loaded.analysis().run.recorded_steps == RecordedSteps(
        recorded=12, of=60, every=5, mean_ns=pytest.approx(took.mean()),
        recorded_mean_ns=pytest.approx(took[recorded].mean()),
    )  # fmt: skip
    assert "12 of 60 steps recorded, at last one in 5" in headline(loaded.analysis())
    assert took.index.tolist() == list(range(60))
    assert sorted(set(loaded.table("gradients", 0).step)) == recorded


def test_a_job_whose_steps_cannot_bear_the_cost_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.capture.session.AHEAD_SECONDS", 0.01)
    with profiled(tmp_path / "run") as scope:
        for _ in range(400):
            with scope.step():
                for _ in range(20):
                    with scope.region("costs more than the step"):
                        pass
            if scope.steps.count == 66:
                _wait_until(lambda: len(scope.steps.sampled) > 2)
    first, until_agreed, second = scope.steps.sampled[:3]
    assert first == Sampling(since_step=0, every=1)
    assert until_agreed == Sampling(since_step=66, every=16)
    assert second.every > 1
    steps = overlapscope.load(tmp_path / "run").table("steps", 0).step
    later = [step for step in steps if second.since_step <= step < min(400, *_since(scope.steps.sampled[3:]))]
    assert later == [step for step in range(second.since_step, 400) if second.records(step)][: len(later)]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "every"), [(66, 1), (90, 16)])
def test_steps_between_the_measuring_and_the_agreement_are_few(
    steps: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a job with short steps agree hundreds of steps later."""
    monkeypatch.setattr("overlapscope.capture.session.AHEAD_SECONDS", 1e6)
    with profiled(tmp_path / "run") as scope:
        for _ in range(steps):
            with scope.step():
                pass
    loaded = overlapscope.load(tmp_path / "run")
    recorded = loaded.table("steps", 0).step
    assert (recorded >= 66).sum() <= 2
    assert (recorded < 18).sum() == 14
    assert (recorded < 66).sum() == 26
    assert loaded.run.ranks[0].recorded["sampled"][-1]["every"] == every


def test_every_step_can_be_forced(tmp_path: Path) -> None:
    with profiled(tmp_path / "run", events_every=1) as scope:
        for _ in range(100):
            with scope.step():
                pass
    loaded = overlapscope.load(tmp_path / "run")
    assert loaded.table("steps", 0).step.tolist() == list(range(100))
    assert loaded.analysis().run.recorded_steps is None
    assert "100 steps" in headline(loaded.analysis())


def test_a_listener_is_called_with_each_step_and_its_record(tmp_path: Path) -> None:
    heard: list[tuple[int, int, StepRecord | None]] = []
    with profiled(tmp_path / "run", events_every=4) as scope:
        scope.steps.listeners.append(lambda *step: heard.append(step))
        for _ in range(20):
            with scope.step(), scope.region("data"):
                pass
    assert [number for number, _, _ in heard] == list(range(20))
    assert all(lasted_ns > 0 for _, lasted_ns, _ in heard)
    recorded = overlapscope.load(tmp_path / "run").table("steps", 0).step.tolist()
    assert [number for number, _, record in heard if record is not None] == recorded
    assert all(len(record.regions) == 1 for _, _, record in heard if record is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "ten minutes"}, "give a time such as '10m'"),
        ({"events_every": 0}, "events_every >= 1"),
        ({"flush_seconds": 0}, "flush_seconds > 0"),
        ({"mode": "trace", "keep": "10m"}, "are of mode='events'"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(overlapscope.UsageError, match=message):
        profiled(tmp_path / "run", **options)


@pytest.mark.long
def test_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    script = "from tests.integration.jobs.long_job import many; import sys; many(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"], check=True, capture_output=True, text=True, timeout=1200
    )
    grown_bytes = int(ended.stdout.splitlines()[0])
    assert grown_bytes < 20e6
    steps = overlapscope.load(tmp_path / "run").table("steps", 0).step
    assert steps.tolist() == list(range(200_000))


def _since(sampled: list[Sampling]) -> list[int]:
    return [each.since_step for each in sampled] or [1 << 60]


def _wait_until(what: Any) -> None:
    end = time.monotonic() + 30
    while not what() and time.monotonic() < end:
        time.sleep(0.01)

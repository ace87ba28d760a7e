"""A trace is recorded where a running job becomes slower, or where somebody asks for one."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import overlapscope
from overlapscope.analysis.result import TriggeredTrace
from overlapscope.capture.lifecycle.guard import CaptureWarning
from overlapscope.capture.sampling import Sampling
from overlapscope.report.text.analysis import render

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from tests.integration.test_capture import passed, train
from tests.support.fork_server import start

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
TRAINING = "tests.integration.jobs.training_trigger"


@pytest.mark.long  # which rank is slower shows on quiet cores
def test_a_slower_rank_is_recorded_and_the_trace_says_why(tmp_path: Path) -> None:
    results = passed(train("soon", tmp_path, module=TRAINING, whole_end=True)).results
    assert [each["failures"] for each in results if each] == [[], []]
    written = [Path(file) for each in results if each for file in each["written"]]
    assert [file.name for file in written] == ["rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]
    assert len({file.parent for file in written}) == 1
    assert written[0].parent.parent == tmp_path / "run" / "triggered"
    run = overlapscope.load(written[0].parent)
    assert run.ranks == [0, 1]
    for rank in run.ranks:
        reason = run.run.ranks[rank].recorded["trigger"]
        assert "rank 1: own work a step took" in reason
        assert len([step for step in run.analysis().ranks[rank].steps if step.complete]) == 2
    assert [each.reason for each in run.analysis().run.triggers] == [reason]
    beside = overlapscope.load(tmp_path / "run")  # the recording by events goes on
    assert beside.ranks == [0, 1]
    folder = f"triggered/{written[0].parent.name}"
    assert beside.analysis().run.triggers == [TriggeredTrace(reason=reason, trace=folder)]


@pytest.mark.slow
def test_a_trace_that_a_trigger_records_has_the_transfers_of_a_communication_hook(tmp_path: Path) -> None:
    results = passed(train("hook", tmp_path, module=TRAINING)).results
    (result, other) = [each for each in results if each]
    assert result["failures"] == other["failures"] == []
    run = overlapscope.load(Path(result["written"][0]).parent)
    for rank in run.ranks:
        calls, steps = run.table("collectives", rank), run.table("steps", rank).step
        assert len(steps) == 3
        for step in steps:
            sent = calls[(calls.step == step) & (calls.bytes > 4)].sort_values("launch_ns").bytes.tolist()
            assert sent == [each for each in result["bucket_bytes"] for _ in range(2)]
    every_fourth = Sampling(since_step=2, every=4)  # the recording beside it is as if no trace had been recorded
    beside = overlapscope.load(tmp_path / "run").table("steps", 0).step.tolist()
    assert beside == [step for step in range(max(beside) + 1) if step >= 2 and every_fourth.records(step)]


def asked(how: str, ask: Callable[[int], None], folder: Path) -> str:
    """Run a job of one process, ask for a trace once it has said that it trains, and return the reason in its trace.

    `ask` gets the process's id, or the port where it listens.
    """
    run = folder / "run"
    training = folder / "run.training"
    job = start([["-m", "tests.integration.exits.asked_for_trace", str(run), how]], whole_end=True)
    job.wait_for(training, 60)
    try:
        ask(job.pids[0] if how == "signal" else int(training.read_text(encoding="utf-8")))
    except OSError as error:  # the job ended, or does not answer
        raise AssertionError(job.wait(120)) from error
    (done,) = job.wait(120)
    assert done.code == 0, done.output
    (trace,) = (run / "triggered").glob("*/rank0.pt.trace.json.gz")
    analysis = overlapscope.load(trace).analysis()
    (found,) = analysis.run.triggers
    reason = found.reason
    assert found.trace is None
    assert render(analysis).splitlines()[1] == f"Recorded by a trigger: {reason}"
    assert not any(source.warnings for source in analysis.sources)
    beside = overlapscope.load(run).analysis()
    assert beside.run.triggers == [TriggeredTrace(reason=reason, trace=f"triggered/{trace.parent.name}")]
    assert render(beside).splitlines()[1] == f"A trigger recorded triggered/{trace.parent.name}: {reason}"
    return reason + ("; handled" if "handled before" in done.output else "")


@pytest.mark.slow
def test_a_signal_asks_for_a_trace_and_the_handler_before_it_is_called_too(tmp_path: Path) -> None:
    reason = asked("signal", lambda pid: os.kill(pid, signal.SIGUSR2), tmp_path)
    assert reason == "signal SIGUSR2 asked for it; handled"


def test_a_trace_that_is_asked_for_just_before_the_job_ends_is_said_to_be_missing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 4)
    trigger = overlapscope.Trigger(signal=signal.SIGUSR2)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with (  # noqa: PT031 - the warning comes at the end of the recording
            pytest.warns(CaptureWarning, match="a trace that was asked for was not recorded: the job ended before"),
            overlapscope.profile(tmp_path / "run", model=model, mode="events", warmup=0, trigger=trigger) as scope,
        ):
            for _ in range(3):
                with scope.step():
                    model(torch.randn(2, 4)).sum().backward()
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.slow
def test_a_request_over_http_asks_for_a_trace_and_strangers_names_are_refused(tmp_path: Path) -> None:
    answers = []

    def ask(port: int) -> None:
        for path, host in (("/record", "elsewhere.example"), ("/other", None), ("/record", None)):
            url, headers = f"http://127.0.0.1:{port}{path}", {"Host": host} if host else {}
            request = urllib.request.Request(url, method="POST", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answers.append((answer.status, json.load(answer)["status"]))
            except urllib.error.HTTPError as error:
                with error:
                    answers.append((error.code, json.load(error)["status"]))

    assert asked("http", ask, tmp_path) == "HTTP request of 127.0.0.1 asked for it"
    assert [status for status, _ in answers] == [403, 404, 202]

"""What a recording states of itself beside its figures."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import CaptureCost, RecordedSteps, RunInfo, TriggeredTrace, has_others
from overlapscope.report.text.analysis import render, sampling_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from tests.conftest import ROOT
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline


def run_info(folder: Path, **recorded: Any) -> tuple[RunInfo, str]:
    """Return the facts and the text of a run of two ranks, each of which states `recorded` of itself."""
    overlapscope.write_run(ROOT / "traces" / "baseline", to=folder / "run")
    for file in (folder / "run").glob("rank_*/rank.json"):
        entry = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(entry | {"recorded": entry.get("recorded", {}) | recorded}), encoding="utf-8")
    analysis = overlapscope.load(folder / "run").analysis()
    return analysis.run, render(analysis)


def test_a_reason_that_all_ranks_state_is_one_and_many_traces_are_counted(tmp_path: Path) -> None:
    traces = [{"trace": f"triggered/{number}", "reason": "rank 1: slower"} for number in range(5)]
    run, text = run_info(tmp_path, triggered=traces)
    assert run.triggers == [TriggeredTrace(**each) for each in traces]
    lines = text.splitlines()[1:5]
    assert lines[:3] == [f"A trigger recorded triggered/{number}: rank 1: slower" for number in range(3)]
    assert lines[3] == "2 more traces of triggers"
    shutil.rmtree(tmp_path / "run")
    run, text = run_info(tmp_path, trigger="signal SIGUSR2\nasked for it")
    assert run.triggers == [TriggeredTrace(reason="signal SIGUSR2\nasked for it")]
    assert text.splitlines()[1] == r"Recorded by a trigger: signal SIGUSR2\x0aasked for it"


def test_what_recording_cost_is_known_where_ranks_agree(tmp_path: Path) -> None:
    cost = {"median_ns": 2e6, "low_ns": 1e6, "high_ns": 3e6, "step_ns": 100e6}
    run, text = run_info(tmp_path, overhead=cost)
    assert run.capture_cost == CaptureCost(rank=0, **cost)
    assert "Recording itself took" not in text, "for 1 % of a step"
    entry = tmp_path / "run" / "rank_00001" / "rank.json"
    stated = json.loads(entry.read_text(encoding="utf-8"))
    for low_ms, known in ((-0.5, True), (-1.5, False)):  # in the mean of both ranks 0.25 ms at least, or not known
        stated["recorded"]["overhead"] = cost | {"median_ns": 0.0, "low_ns": low_ms * 1e6}
        entry.write_text(json.dumps(stated), encoding="utf-8")
        assert (overlapscope.load(tmp_path / "run").analysis().run.capture_cost is not None) is known


@pytest.mark.parametrize(("recorded_ms", "said"), [(42.5, True), (57.0, False), (70.0, True), (None, False)])
def test_where_recorded_steps_are_not_like_all_steps_it_is_said(recorded_ms: float | None, *, said: bool) -> None:
    mean_ns = None if recorded_ms is None else recorded_ms * 1e6
    (*lines,) = sampling_text(RecordedSteps(recorded=34, of=1097, every=262, mean_ns=57.6e6, recorded_mean_ns=mean_ns))
    assert lines == said * [
        f"Recorded steps took {recorded_ms or 0:.3f} ms in the mean, all 1,097 steps 57.600 ms: what follows is of the "
        "recorded ones. profile(events_every=1) records every step."
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recorded", [{"trigger": 3}, {"triggered": "x"}, {"triggered": [{"trace": 1}]}, {"sampled": [{"every": "x"}]}]
)
def test_what_is_no_such_statement_is_none(recorded: dict[str, Any], tmp_path: Path) -> None:
    run, _ = run_info(tmp_path, **recorded)
    assert (run.triggers, run.recorded_steps) == ([], None)


@pytest.mark.parametrize(
    ("rank", "call_ns", "size", "world_size", "others"),
    [
        pytest.param(10, 1_000, NONE, None, True, id="rank 10"),
        pytest.param(0, 1_000, NONE, None, False, id="rank 0"),
        pytest.param(0, 2_000_000, NONE, None, True, id="rank 0 with long calls"),
        pytest.param(0, 2_000_000, 1, None, False, id="of a group of one"),
        pytest.param(0, 2_000_000, NONE, 1, False, id="in a job of one"),
    ],
)
def test_a_rank_number_or_long_calls_show_other_ranks(
    rank: int, call_ns: int, size: int, world_size: int | None, *, others: bool
) -> None:
    call = {"op": "all_reduce", "start_ns": EPOCH_NS, "end_ns": EPOCH_NS + call_ns, "group_size": size}
    timeline = rank_timeline(
        rank, calls=[call], work=[{"start_ns": EPOCH_NS + call_ns, "end_ns": EPOCH_NS + 9_000_000}]
    )
    assert has_others(analyze(Run(world_size=world_size, ranks={rank: timeline}))) == others

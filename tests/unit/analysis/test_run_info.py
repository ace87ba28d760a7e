"""What a recording states of itself beside its figures."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.analysis.result import RunInfo, TriggeredTrace
from overlapscope.report.text.analysis import render
from tests.conftest import ROOT


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


@pytest.mark.parametrize(
    "recorded", [{"trigger": 3}, {"triggered": "x"}, {"triggered": [{"trace": 1}]}, {"sampled": [{"every": "x"}]}]
)
def test_what_is_no_such_statement_is_none(recorded: dict[str, Any], tmp_path: Path) -> None:
    run, _ = run_info(tmp_path, **recorded)
    assert (run.triggers, run.recorded_steps) == ([], None)

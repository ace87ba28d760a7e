"""A history: every run's figures are those of a comparison, in the order given, in every format."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from overlapscope.analysis.compare.compare import compare
from overlapscope.analysis.compare.history import history
from overlapscope.cli.main import main
from overlapscope.report.formats.json import schema
from overlapscope.report.sheet.history import charts_of_history, sheet_of_history
from tests.conftest import ROOT
from tests.unit.report.test_report import small

BASE, CANDIDATE = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["report", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_three_runs_are_a_history_with_the_figures_of_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, BASE, CANDIDATE, BASE)
    jsonschema.Draft202012Validator(schema("history")).validate(document)
    assert main(["compare", BASE, CANDIDATE, "--json"]) == 0
    compared = {each["name"]: each for each in json.loads(capsys.readouterr().out)["metrics"]}
    for run, side in zip(document["runs"], ("base", "candidate", "base"), strict=True):
        assert run["values"] == {name: each[side]["value"] for name, each in compared.items()}
        assert run["steps"] == 6
    changed = [{each["key"] for each in run["changes"]} for run in document["runs"]]
    assert changed[0] == set()
    assert "ddp.bucket_cap_bytes" in changed[1]
    assert changed[1] == changed[2]


@pytest.mark.slow
def test_two_runs_are_a_history_only_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, BASE, CANDIDATE)["schema"] == "overlapscope.comparison/1"
    assert answer(capsys, BASE, CANDIDATE, "--history")["schema"] == "overlapscope.history/1"


def test_a_folder_of_runs_is_a_history_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, source in (("b", CANDIDATE), ("a", BASE), ("c", BASE)):
        shutil.copytree(source, tmp_path / name)
    document = answer(capsys, str(tmp_path))
    assert [Path(each["name"]).name for each in document["runs"]] == ["a", "b", "c"]


def test_the_largest_growth_is_named() -> None:
    runs = [*small("a", 40), *small("b", 90), *small("c", 60)]
    exposed = [compare([each], [each]).metrics[1].base.value for each in runs]
    grew = (exposed[1] or 0) - (exposed[0] or 0)
    assert grew > 0
    sheet = sheet_of_history(history(runs))
    assert any(f"{grew / 1e6:,.3f} ms, from a to b" in line for line in sheet.lead)
    assert [row[0] for row in sheet.tables[0].rows] == ["a", "b", "c"]


def test_a_run_that_does_not_know_a_figure_is_a_gap_and_is_named() -> None:
    runs = [*small("a", 40), *small("b", 90)]
    document = history(runs)
    lacking = msgspec.structs.replace(document.runs[1], values=dict.fromkeys(document.runs[1].values))
    torn = msgspec.structs.replace(document, runs=[document.runs[0], lacking, document.runs[0]])
    sheet = sheet_of_history(torn)
    assert any("not known in b" in each for each in sheet.warnings)
    assert sheet.tables[0].rows[1][2:4] == ("n/a", "n/a")
    assert [chart.series[0].values[1] for chart in charts_of_history(torn)] == [None, None]


def test_long_histories_stay_bounded() -> None:
    one = history(small("a", 40))
    long = msgspec.structs.replace(one, runs=one.runs * 5_000)
    sheet = sheet_of_history(long)
    assert len(sheet.tables[0].rows) == 200
    assert "4800 earlier runs not shown" in sheet.tables[0].note
    assert all(len(each.categories) <= 1_000 for each in charts_of_history(long))

"""`overlapscope gate`: an exit code each, policies and floors in files, the text."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlapscope.cli.main import main
from overlapscope.gate.policy import Policy, policy_of
from overlapscope.report.formats.json import schema as schema_of
from tests.conftest import ROOT
from tests.support.commands import failed, stdout_of

BASE, CANDIDATE = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pyproject.toml and no CI service around."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def gated(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> dict[str, Any]:
    assert main(["gate", *map(str, arguments), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


def other_world(tmp_path: Path) -> Path:
    target = tmp_path / "other"
    shutil.copytree(BASE, target)
    facts = json.loads((target / "run.json").read_text(encoding="utf-8"))
    facts["fingerprint"]["device"] = "imagined"
    (target / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    return target


def test_the_baseline_against_itself_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    document = gated(capsys, 0, BASE, BASE)
    assert document["verdict"] == "passed"
    assert {each["verdict"] for each in document["metrics"] if each["gates"]} == {"unchanged"}


def calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    for name in "abcd":
        shutil.copytree(BASE, tmp_path / "runs" / name)
    shown = stdout_of(capsys, "gate", "--calibrate", tmp_path / "runs", "-o", "floor.json")
    assert "next: overlapscope gate BASE CAND --floor floor.json" in shown
    return json.loads((tmp_path / "floor.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_calibrated_floor_is_valid_used_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft202012Validator(schema_of("floor")).validate(calibrated(tmp_path, capsys))
    document = gated(capsys, 1, BASE, CANDIDATE, "--floor", "floor.json")
    assert document["floor_runs"] == 4
    assert document["metrics"][0]["floor"] == 0  # four copies of one run do not differ
    assert "not calibrated" not in stdout_of(capsys, "gate", BASE, CANDIDATE, "--floor", "floor.json", code=1)


def test_exit_code_2_usage_and_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "BASE and CAND" in failed(capsys, 2, "gate", BASE)
    assert "no BASE" in failed(capsys, 2, "gate", BASE, CANDIDATE, "--calibrate", BASE)
    assert "'world_size'" in failed(capsys, 2, "gate", BASE, CANDIDATE, "--allow-mismatch", "worldsize")
    assert "'inconclusive'" in failed(capsys, 2, "gate", BASE, CANDIDATE, "--fail-on", "inconclusve")
    assert "cannot be read" in failed(capsys, 2, "gate", BASE, CANDIDATE, "--policy", "nowhere.toml")
    assert "cannot be read" in failed(capsys, 2, "gate", BASE, CANDIDATE, "--floor", "nowhere.json")
    policy = tmp_path / "policy.toml"
    for content, words in (
        ("min_relativ = 0.1", "did you mean 'min_relative'"),
        ("= 1", "not TOML"),
        ("\udcff", "not TOML"),
        ("a = " + "[" * 5000, "not TOML"),
    ):
        policy.write_text(content, encoding="utf-8", errors="surrogateescape")
        message = failed(capsys, 2, "gate", BASE, CANDIDATE, "--policy", policy)
        assert words in message
        assert "policy.toml" in message
    for content in ("{", "[]", '{"schema": "overlapscope.floor/2"}', '{"schema": "overlapscope.analysis/1"}'):
        (tmp_path / "floor.json").write_text(content, encoding="utf-8")
        assert "not a noise floor written by `gate --calibrate" in failed(
            capsys, 2, "gate", BASE, CANDIDATE, "--floor", "floor.json"
        )


def test_exit_code_3_nothing_usable_or_not_comparable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed(capsys, 3, "gate", BASE, tmp_path / "nothing_here")
    (tmp_path / "text.json").write_text("no trace", encoding="utf-8")
    failed(capsys, 3, "gate", BASE, tmp_path / "text.json")
    assert "record at least 4" in failed(capsys, 3, "gate", "--calibrate", BASE)
    other = other_world(tmp_path)
    shown = stdout_of(capsys, "gate", BASE, other, code=3)
    assert shown.startswith("NOT COMPARABLE: device cpu became imagined")
    assert "--allow-mismatch device" in shown
    assert gated(capsys, 3, BASE, other)["metrics"] == []
    assert gated(capsys, 0, BASE, other, "--allow-mismatch", "device")["mismatches"][0]["allowed"] is True


@pytest.mark.slow
def test_exit_code_4_only_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.toml").write_text('metrics = ["hidden_wait_ns"]', encoding="utf-8")
    given = (CANDIDATE, BASE, "--policy", "policy.toml")
    assert gated(capsys, 0, *given)["verdict"] == "inconclusive"
    assert gated(capsys, 4, *given, "--fail-on", "inconclusive")["verdict"] == "inconclusive"


@pytest.mark.slow
def test_the_policy_of_pyproject_is_found_and_its_budget_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text("[tool.overlapscope.gate.budgets]\nexposed_comm_ns = 5_000_000\n", encoding="utf-8")
    assert "exposed 6.960 ms is over its budget of 5.000 ms" in stdout_of(capsys, "gate", BASE, BASE, code=1)
    pyproject.write_text("[tool.overlapscope.gat]\n", encoding="utf-8")
    assert "did you mean 'gate'" in failed(capsys, 2, "gate", BASE, BASE)
    pyproject.write_text("[tool.other]\n", encoding="utf-8")
    gated(capsys, 0, BASE, BASE)
    assert "no table" in failed(capsys, 2, "gate", BASE, BASE, "--policy", "pyproject.toml")


def test_the_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n\$ overlapscope gate (.*)\n((?:.*\n)*?)\$ echo \$\?\n(\d)\n```", page)
    assert shown
    monkeypatch.chdir(ROOT)
    assert main(["gate", *shown[1].split()]) == int(shown[3])
    assert capsys.readouterr().out == shown[2]


def test_the_page_shows_the_defaults_of_the_policy() -> None:
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert shown
    assert policy_of(tomllib.loads(shown[1])) == Policy()
    with_all = re.sub(r"^# (?=\w+ = )", "", shown[1], flags=re.MULTILINE)
    assert set(policy_of(tomllib.loads(with_all)).budgets) == {"exposed_comm_ns", "overlap_efficiency"}


@pytest.mark.slow
def test_github_gets_at_most_five_annotations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["gate", BASE, CANDIDATE, "--json"]) == 1
    shown = capsys.readouterr()
    json.loads(shown.out)
    lines = shown.err.splitlines()
    assert 1 <= len(lines) <= 5
    assert all(line.startswith("::error title=OverlapScope::") for line in lines)
    assert "all_reduce 18.02 MiB" in lines[0]
    assert main(["gate", BASE, BASE]) == 0
    assert capsys.readouterr().err == ""


def test_a_rank_whose_steps_are_cut_off_is_left_out_on_both_sides_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise one side's mean would be over both ranks, the other's over the rank that is left."""
    cut = tmp_path / "cut"
    cut.mkdir()
    for rank in range(2):
        (trace,) = (ROOT / "traces" / "baseline" / f"rank_0000{rank}").glob("*.json.gz")
        content = trace.read_bytes()
        (cut / trace.name).write_bytes(content if rank == 0 else content[:30_000])
    gate = json.loads(stdout_of(capsys, "gate", BASE, cut, "--json"))
    comparison = gate["comparison"]
    assert comparison["ranks"] == [0]
    assert {each["difference"] for each in gate["metrics"] if each["gates"]} == {0}
    findings = {each["id"]: each["title"] for each in comparison["findings"] if each["severity"] == "warning"}
    assert findings["ranks_differ"] == "compared: rank 0; not recorded whole in all runs: rank 1"
    assert any(
        "truncated, the rest is missing" in title
        for id_, title in findings.items()
        if id_.startswith("damaged_source:candidate:")
    )
    saved = tmp_path / "gate.json"
    saved.write_text(json.dumps(gate), encoding="utf-8")
    assert "not recorded whole in all runs: rank 1" in stdout_of(capsys, "report", saved)


@pytest.mark.slow
def test_a_run_that_cannot_be_read_is_named_in_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        shutil.copytree(ROOT / "traces" / "baseline", tmp_path / "runs" / str(number))
    (tmp_path / "runs" / "1" / "run.json").write_text('{"schema', encoding="utf-8")
    assert main(["gate", BASE, str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr()
    assert "! candidate: 1 of 3 runs could not be read: " in shown.out
    assert "left out: " in shown.err

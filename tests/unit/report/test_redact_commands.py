"""`gate --redact` and `report --redact` as commands: no byte that they print or write tells where the runs are."""

import argparse
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.cli.main import main
from overlapscope.cli.output import MESSAGE_LEFT_OUT, message_for_stderr
from overlapscope.cli.prediction_file import add_noted
from tests.conftest import ROOT
from tests.support.commands import stdout_of
from tests.unit.analysis.compare.test_prediction_check import prediction
from tests.unit.cli.test_gate_cli import other_world

TOKEN = re.compile(r"(?i)zqv|acme")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder of three runs of which one is broken, beside a file that is none; and a run that keeps predictions."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "home" / "acme corp" / "zqv"
    for name in ("first-zqv", "second-zqv", "third-zqv"):
        shutil.copytree(ROOT / "traces" / "regressed", place / "new" / name)
    (place / "new" / "second-zqv" / "run.json").write_text('{"schema', encoding="utf-8")
    (place / "new" / "notes-zqv.txt").write_text("none", encoding="utf-8")
    shutil.copytree(ROOT / "traces" / "baseline", place / "old")
    other_job = msgspec.structs.replace(prediction(4.0, 90, 110), gradient_bytes=1)
    add_noted(place / "old", [other_job])
    return place / "old", place / "new"


def output_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> tuple[str, str]:
    assert main([*map(str, arguments)]) == code
    shown = capsys.readouterr()
    assert not TOKEN.search(shown.out)
    assert not TOKEN.search(shown.err)
    return shown.out, shown.err


@pytest.mark.slow
def test_the_verdict_and_what_is_said_beside_it(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = runs
    assert main(["gate", str(base), str(candidate)]) == 1
    plain = capsys.readouterr()
    assert len(TOKEN.findall(plain.out)) > 2, "a test that cannot fail"
    out, err = output_of(capsys, 1, "gate", base, candidate, "--redact")
    assert out.endswith("next: overlapscope compare BASE CAND --all\n")
    assert len(err.splitlines()) == len(plain.err.splitlines())
    assert f"warning: CAND: {MESSAGE_LEFT_OUT}\n" in err
    assert f"predictions: CAND: {MESSAGE_LEFT_OUT}\n" in err
    for name, extra in (("gate.txt", []), ("gate.json", ["--json"])):
        assert output_of(capsys, 1, "gate", base, candidate, "--redact", "-o", name, *extra)[0] == ""
        assert not TOKEN.search((tmp_path / name).read_text(encoding="utf-8"))
    out, _ = output_of(capsys, 3, "gate", base, other_world(base.parent), "--redact")
    assert out.endswith("next: overlapscope compare BASE CAND\n")


@pytest.mark.slow
@pytest.mark.parametrize("style", ["md", "json", "html", "junit", "openmetrics"])
def test_reports_and_what_is_said_beside_them(
    style: str, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = runs
    for inputs in ([base], [base, candidate], [candidate]):
        name = f"{len(inputs)}{inputs[0].name}.{style}"
        output_of(capsys, 0, "report", *inputs, "--redact", "--format", style, "-o", name)
        assert not TOKEN.search((tmp_path / name).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_errors(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, candidate = runs
    broken = candidate / "second-zqv"
    assert output_of(capsys, 3, "gate", base, broken, "--redact")[1].startswith("overlapscope gate: ")
    assert "CAND" in output_of(capsys, 3, "gate", base, base / "acme", "--redact")[1]
    assert "INPUT" in output_of(capsys, 3, "report", base / "acme", "--redact")[1]
    policy = base / "acme.toml"
    assert "FILE" in output_of(capsys, 2, "gate", base, base, "--policy", policy, "--redact")[1]
    assert "a noise floor has to name its runs" in output_of(capsys, 2, "gate", "--calibrate", candidate, "--redact")[1]
    output = base / "report.html"
    output.touch()
    assert "FILE exists already" in output_of(capsys, 2, "report", base, "--redact", "-o", output)[1]


@given(st.text())
def test_no_word_of_a_message_passes(words: str) -> None:
    args = argparse.Namespace(redact=True, base=Path("zqv/old"), candidate=Path("zqv/new"))
    allowed = {MESSAGE_LEFT_OUT, f"BASE: {MESSAGE_LEFT_OUT}", f"CAND: {MESSAGE_LEFT_OUT}"}
    assert {message_for_stderr(each, args) for each in (words, f"zqv/old: {words}", f"{words}; zqv/new")} <= allowed
    assert message_for_stderr("cannot read zqv/new/trace.json", args) == f"CAND: {MESSAGE_LEFT_OUT}"


@pytest.mark.slow
def test_without_it_the_next_command_can_be_typed(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, candidate = runs
    shown = stdout_of(capsys, "gate", base, candidate, code=1)
    assert f"next: overlapscope compare '{base}' '{candidate}' --all" in shown

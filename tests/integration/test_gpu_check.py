"""`overlapscope doctor --gpu` from the command line: all of it on a device, without one a line and an exit code."""

import json
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from overlapscope.gpu_check.checks import CHECKS
from overlapscope.gpu_check.document import GpuCheck
from overlapscope.gpu_check.table import as_markdown
from tests.conftest import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("gpu")]
without_a_device = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_check_of_this_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # C1 runs the other tests of this kind.
    chosen = [word for check in CHECKS if check.name != "C1" for word in ("--check", check.name)]
    code = main(["doctor", "--gpu", "-o", str(tmp_path / "report"), *chosen])
    said = json.loads((tmp_path / "report" / "gpu_check.json").read_text(encoding="utf-8"))
    refused = {each["name"]: each["reason"] for each in said["checks"] if each["verdict"] == "refused"}
    assert not refused
    assert code == 0
    assert sum(path.stat().st_size for path in (tmp_path / "report" / "recordings").iterdir()) < 3_000_000
    assert "accepted" in capsys.readouterr().out


@pytest.mark.slow
@without_a_device
def test_without_a_device_there_is_one_line_and_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "-o", str(tmp_path / "report")]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "torch finds no CUDA device; doctor --gpu needs an NVIDIA GPU" in said.err
    assert not list((tmp_path / "report").iterdir())


def test_a_report_replaces_nothing_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert main(["doctor", "--gpu", "-o", str(tmp_path)]) == 2
    assert "is not empty; choose another name, or write into it with -f" in capsys.readouterr().err
    assert main(["doctor", "--gpu", "-o", str(tmp_path / "mine.txt")]) == 2
    assert "is a file; --gpu writes a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--gpu", "--check", "C99"], "there is no check C99; checks are C1, "),
        (["--check", "C2a"], "--check names a check of --gpu"),
    ],
)
def test_a_wrong_call_says_what_would_be_right(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert line in capsys.readouterr().err


def test_the_page_names_every_check_with_what_it_guards_against() -> None:
    page = (ROOT / "docs" / "gpu_check.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| C")]
    assert [row[0].removeprefix("| ") for row in rows] == ["C0", *(check.name for check in CHECKS), "C15"]
    shown = {row[0].removeprefix("| "): row[1:] for row in rows}
    for check in CHECKS:
        assert shown[check.name][0] == check.shows.rstrip(".")
        assert shown[check.name][1].removesuffix(" |") == check.guards.rstrip(".")


def test_the_kept_table_is_of_a_device_or_says_that_there_was_none() -> None:
    page = (ROOT / "benchmarks" / "GPU.md").read_text(encoding="utf-8")
    head = as_markdown(GpuCheck(overlapscope="", date="", checks=())).splitlines()[:3]
    assert page.splitlines()[:3] == head or "has never run" in page

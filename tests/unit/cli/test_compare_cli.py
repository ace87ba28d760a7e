"""`overlapscope compare`: what a side may be, exit codes, names that are hostile."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import overlapscope
from overlapscope.cli.main import main
from tests.conftest import ROOT
from tests.support.commands import failed, stdout_of
from tests.support.writers.kineto import (
    COMM_STREAM,
    GEMM,
    MS,
    collective_args,
    distributed,
    kernel,
    step,
    training,
    write,
)

BASE, CANDIDATE = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")


def compared(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(stdout_of(capsys, "compare", *map(str, arguments), "--json"))
    return document


def by_name(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in document["metrics"] if each["name"] == name)


def traces(folder: Path, ranks: int = 2, steps: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_bytes(write(training(steps), metadata=distributed(rank)))
    return folder


@pytest.mark.slow
def test_the_readme_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.search(r"```text\n(base .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    monkeypatch.chdir(ROOT)
    printed = stdout_of(capsys, "compare", "traces/baseline", "traces/regressed")
    assert printed.startswith(shown[1])
    assert printed.endswith("next: overlapscope compare traces/baseline traces/regressed --all\n")


@pytest.mark.parametrize("run", [BASE, CANDIDATE])
def test_a_sample_run_has_the_collectives_that_reading_its_traces_gives(run: str) -> None:
    """Otherwise it was recorded before something was read, and is compared as another kind of run."""
    kept, anew = overlapscope.load(run), overlapscope.load(*sorted(Path(run).rglob("*.json.gz")))
    for rank in (0, 1):
        pd.testing.assert_frame_equal(kept.table("collectives", rank), anew.table("collectives", rank))


def test_a_trace_and_a_folder_of_traces_are_one_run_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = compared(capsys, traces(tmp_path / "base"), traces(tmp_path / "candidate"))
    assert [len(document[side]) for side in ("base", "candidate")] == [1, 1]
    assert by_name(document, "exposed_comm_ns")["base"]["value"] == MS
    assert by_name(document, "step_time_ns")["difference"] == 0
    alone = compared(capsys, tmp_path / "base" / "rank0.json", tmp_path / "candidate")
    assert alone["ranks"] == [0]
    assert by_name(alone, "exposed_comm_ns")["difference"] == 0


@pytest.mark.slow
def test_a_folder_of_runs_is_several_and_a_link_to_one_of_them_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        shutil.copytree(BASE, tmp_path / "runs" / name)
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "runs" / "b")
    (tmp_path / "runs" / ".hidden").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("of the runs", encoding="utf-8")
    assert main(["compare", str(tmp_path / "runs"), CANDIDATE, "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert [Path(run["name"]).name for run in document["base"]] == ["a", "b"]
    assert "notes.txt" in shown.err
    base = by_name(document, "step_time_ns")["base"]
    assert base["by_run"] == [base["value"]] * 2
    assert (base["low"], base["high"], base["steps"]) == (base["value"], base["value"], 12)
    assert "single_runs" in {each["id"] for each in document["findings"]}  # of the candidate


def test_a_broken_run_of_several_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BASE, tmp_path / "runs" / "good")
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{", encoding="utf-8")
    assert main(["compare", str(tmp_path / "runs"), CANDIDATE, "--json"]) == 0
    shown = capsys.readouterr()
    assert [Path(run["name"]).name for run in json.loads(shown.out)["base"]] == ["good"]
    assert "left out" in shown.err
    shutil.rmtree(tmp_path / "runs" / "good")
    assert "run.json" in failed(capsys, 3, "compare", tmp_path / "runs", CANDIDATE)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "text.json").write_text("no trace", encoding="utf-8")
    failed(capsys, 3, "compare", BASE, tmp_path / "nothing_here")
    failed(capsys, 3, "compare", empty, BASE)
    failed(capsys, 3, "compare", BASE, tmp_path / "text.json")
    failed(capsys, 2, "compare", BASE, CANDIDATE, "--comm", "mine")
    assert "BASE and CAND" in failed(capsys, 2, "compare", BASE)
    target = tmp_path / "out.json"
    assert main(["compare", BASE, CANDIDATE, "--json", "-o", str(target)]) == 0
    assert json.loads(target.read_text(encoding="utf-8"))["schema"] == "overlapscope.comparison/1"
    failed(capsys, 2, "compare", BASE, CANDIDATE, "-o", target)
    assert main(["compare", BASE, CANDIDATE, "-o", str(target), "-f"]) == 0
    assert target.read_text(encoding="utf-8").startswith("base ")


def test_a_source_without_times_is_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "horovod.log"
    log.write_text("node1:42:42 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n", encoding="utf-8")
    assert "no" in failed(capsys, 3, "compare", BASE, log)


def test_a_job_of_another_size_is_compared_and_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank0.json").write_bytes(write(training(3), metadata=distributed(0, 4)))
    shown = stdout_of(capsys, "compare", traces(tmp_path / "base", ranks=1), other)
    assert "! not the same job: world_size 2 became 4" in shown


def test_hostile_names_reach_terminal_and_file_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x07\r\n\u202e::error::evil"
    metadata = distributed(0)
    metadata["deviceProperties"] = [{"name": evil}]
    events = [
        step(0, 0, 9 * MS),
        kernel(evil, 0, MS),
        kernel(GEMM, 5 * MS, 2 * MS),
        kernel("ncclDevKernel_" + evil, 0, 4 * MS, stream=COMM_STREAM, args=collective_args(group=evil)),
        kernel(evil, 3 * MS, 2 * MS, stream=31, sort=evil),
    ]
    path = tmp_path / "worker.json"
    path.write_bytes(write(events, metadata=metadata))
    words = ["compare", str(traces(tmp_path / "base", ranks=1)), str(path), "--all"]
    target = tmp_path / "out.txt"
    texts = [stdout_of(capsys, *words), stdout_of(capsys, "analyze", path, "--all")]
    assert main([*words, "-o", str(target)]) == 0
    texts.append(target.read_text(encoding="utf-8"))
    for text in texts:
        assert "evil" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
        assert not re.search(r"^\s*::", text, re.MULTILINE)

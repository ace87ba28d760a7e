"""`overlapscope baseline`: what is kept gives the same figures as what it was made of, is small, and is whole."""

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from overlapscope.cli.main import main
from overlapscope.timeline.columns import make
from overlapscope.timeline.facts import Facts, Messages
from overlapscope.timeline.run import Source
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import ROOT, shared_file
from tests.support.commands import failed

BASE, CANDIDATE = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def saved(*arguments: str) -> None:
    assert main(["baseline", "save", *arguments]) == 0


def gated(capsys: pytest.CaptureFixture[str], base: str, candidate: str, code: int) -> Any:
    capsys.readouterr()
    assert main(["gate", base, candidate, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_gate_says_the_same_of_a_baseline_as_of_the_run_it_was_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    saved("main", BASE)
    run = gated(capsys, BASE, CANDIDATE, 1)
    kept = gated(capsys, "baselines/main", CANDIDATE, 1)
    for each in (run, kept):
        for one in each["comparison"]["base"]:
            one["name"] = ""
    assert kept == run


@pytest.mark.slow
def test_the_report_says_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    saved("main", BASE)
    shown = []
    for path in (BASE, "baselines/main"):
        capsys.readouterr()
        assert main(["report", path, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        del document["sources"]
        shown.append(document)
    assert shown[0] == shown[1]


@pytest.mark.slow
def test_names_of_hosts_and_addresses_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(Path(BASE))
    stated = {
        rank: {**timeline.recorded, "settings": {"host": f"node{rank}.lab", "environment": {"NCCL_X": f"node{rank}"}}}
        for rank, timeline in run.ranks.items()
    }
    named = replace(
        run,
        ranks={
            rank: replace(
                copy(timeline), recorded=stated[rank], names=(*timeline.names, "tcp 10.1.2.3", "tcp 10.1.2.4")
            )
            for rank, timeline in run.ranks.items()
        },
        sources=(Source(path="/home/someone/node0.json", warnings=("node1 is slow",)),),
        facts=Facts(
            names=("node1.lab: link down", "node10 is another host", "10.1.2.3 to 10.1.2.4, and 10.1.2.3"),
            messages=replace(make(Messages, 3), text=np.arange(3, dtype=np.int32)),
        ),
    )
    save_run(named, tmp_path / "run", version="0")
    saved("named", "run")
    saved("main", "run", "--without-hosts")
    kept = load_run(tmp_path / "baselines" / "main")
    assert [kept.ranks[rank].recorded["settings"] for rank in (0, 1)] == [
        {"host": "host-1", "environment": {"NCCL_X": "host-1"}},
        {"host": "host-2", "environment": {"NCCL_X": "host-2"}},
    ]
    assert [(each.path, each.warnings) for each in kept.sources] == [("host-1.json", ())]
    texts = {"host-2: link down", "node10 is another host", "address-1 to address-2, and address-1"}
    assert texts <= set(kept.facts.names)
    everything = b"".join(
        each.read_bytes() if each.suffix == ".json" else str(pq.read_table(each).to_pydict()).encode()
        for each in (tmp_path / "baselines" / "main").rglob("*")
        if each.is_file()
    )
    for name in (b"node0", b"node1.", b".lab", b"10.1.2", b"someone"):
        assert name not in everything
    answers = [gated(capsys, f"baselines/{name}", CANDIDATE, 1) for name in ("named", "main")]
    for each in answers:
        for one in each["comparison"]["base"]:
            one["name"] = ""
    assert answers[0]["metrics"] == answers[1]["metrics"]
    assert answers[0]["verdict"] == answers[1]["verdict"] == "regressed"


def test_it_is_columns_only_and_small(tmp_path: Path) -> None:
    saved("main", BASE)
    files = [each for each in (tmp_path / "baselines").rglob("*") if each.is_file()]
    assert {each.suffix for each in files} <= {".parquet", ".json"}
    assert sum(each.stat().st_size for each in files) < 150_000
    assert [each.name for each in (tmp_path / "baselines").iterdir()] == ["main"]


@pytest.mark.slow
def test_a_baseline_of_eight_ranks_of_a_real_job_is_some_hundred_kilobytes(tmp_path: Path) -> None:
    saved("megatron", str(shared_file("kineto/megatron_tp8")))
    total = sum(each.stat().st_size for each in (tmp_path / "baselines").rglob("*") if each.is_file())
    assert total < 600_000  # half of it are host spans


@pytest.mark.slow
def test_several_runs_are_one_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        shutil.copytree(BASE, tmp_path / "runs" / name)
    saved("pair", "runs", "--folder", "kept")
    document = gated(capsys, "kept/pair", CANDIDATE, 1)
    assert len(document["comparison"]["base"]) == 2
    assert main(["baseline", "list", "--folder", "kept", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["schema"] == "overlapscope.baselines/1"
    assert [(each["name"], each["runs"], each["ranks"], each["steps"]) for each in listed["baselines"]] == [
        ("pair", 2, 2, 6)
    ]


def test_list_and_show_are_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    assert main(["baseline", "list"]) == 0
    assert "no baseline here yet" in capsys.readouterr().out
    saved("main", BASE)
    assert "next: overlapscope gate baselines/main CAND" in capsys.readouterr().out
    (tmp_path / "baselines" / "notes").mkdir()
    shutil.copytree(tmp_path / "baselines" / "main", tmp_path / "baselines" / "torn")
    (tmp_path / "baselines" / "torn" / "run.json").write_text("{", encoding="utf-8")
    assert main(["baseline", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["baseline", "main", "torn"]
    assert "1 run, 2 ranks of 2, 6 steps, cpu" in lines[1]
    assert "cannot be read" in lines[2]
    assert main(["baseline", "show", "main"]) == 0
    assert "6.960 ms of a 124.179 ms step is exposed" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_replaced_unasked_and_nothing_else_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved("main", BASE)
    capsys.readouterr()
    assert "exists already" in failed(capsys, 2, "baseline", "save", "main", CANDIDATE)
    saved("main", CANDIDATE, "-f")
    assert gated(capsys, "baselines/main", CANDIDATE, 0)["verdict"] == "passed"
    (tmp_path / "baselines" / "notes").mkdir()
    (tmp_path / "baselines" / "notes" / "mine.txt").write_text("mine", encoding="utf-8")
    capsys.readouterr()
    assert "contains no run, so it is not replaced" in failed(capsys, 2, "baseline", "save", "notes", BASE, "-f")
    assert (tmp_path / "baselines" / "notes" / "mine.txt").exists()
    for name in ("../out", "a/b", ".hidden", "", "x" * 101):
        assert "is not a baseline name" in failed(capsys, 2, "baseline", "save", name, BASE)


def test_files_of_others_in_a_baseline_and_inputs_are_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("main", BASE)
    shutil.copytree(tmp_path / "baselines" / "main", tmp_path / "runs" / "1")
    shutil.copytree(tmp_path / "baselines" / "main", tmp_path / "runs" / "2")
    saved("several", "runs")
    capsys.readouterr()
    for place in ("main", "several", "several/run-01"):
        (tmp_path / "baselines" / place / "README").write_text("why", encoding="utf-8")
        name = place.split("/")[0]
        assert "README would be deleted with it" in failed(capsys, 2, "baseline", "save", name, CANDIDATE, "-f")
        (tmp_path / "baselines" / place / "README").unlink()
    one, itself = "baselines/several/run-01", "baselines/several"
    assert f"is inside {itself}" in failed(capsys, 2, "baseline", "save", "several", one, "-f")
    assert "is the same place" in failed(capsys, 2, "baseline", "save", "several", f"{itself}/.", "-f")
    assert len(list((tmp_path / "baselines" / "several").iterdir())) == 2


def test_runs_that_are_not_the_baselines_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("exps/all/exp_a", "exps/all/exp_b", "kept/run-01", "kept/run-01/run-01"):
        shutil.copytree(BASE, tmp_path / place, dirs_exist_ok=True)
    assert "exp_a, exp_b would be deleted" in failed(
        capsys, 2, "baseline", "save", "all", BASE, "--folder", "exps", "-f"
    )
    assert "run-01 would be deleted" in failed(capsys, 2, "baseline", "save", "run-01", BASE, "--folder", "kept", "-f")
    places = [tmp_path / "exps" / "all" / "exp_a", tmp_path / "exps" / "all" / "exp_b", tmp_path / "kept/run-01/run-01"]
    assert all((each / "run.json").is_file() for each in places)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in failed(capsys, 3, "baseline", "list", "--folder", "nowhere")
    (tmp_path / "baselines").mkdir()
    assert "the folder contains none" in failed(capsys, 3, "baseline", "show", "main")
    failed(capsys, 3, "baseline", "save", "main", "nowhere")
    assert list((tmp_path / "baselines").iterdir()) == []
    with pytest.raises(SystemExit) as usage:
        main(["baseline"])
    assert usage.value.code == 2

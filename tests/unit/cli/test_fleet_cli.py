"""`compare --fleet`: table and JSON, the host that is named, what is left out, and what is refused."""

import json
from pathlib import Path

import jsonschema
import pytest

from overlapscope.cli.main import main
from overlapscope.report.formats.json import schema
from overlapscope.timeline.store.load_save import save_run
from tests.conftest import ROOT
from tests.property.synthetic import Job, Layout, plant, run_of, simulate
from tests.property.synthetic.fleets import on_hosts
from tests.support.builders import flip_bit
from tests.support.dashboard_runs import copy_run
from tests.support.writers.kineto import write_job

HOSTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs of two ranks on each of four hosts; where `bad` is one of them, its first rank is slow."""
    place = tmp_path_factory.mktemp("fleet")
    for at in range(8):
        hosts = [f"node{(at + each) % HOSTS}" for each in range(3)]
        hosts.insert(at % 4, "bad")
        job = Job(layout=Layout(dp=8, ranks_per_host=2), seed=at)
        job = plant(job, "slow_compute", share=0.2, culprit=2 * (at % 4), seed=at)
        save_run(on_hosts(run_of(simulate(job)), hosts, gpus=2), place / f"job-{at}", version="test")
    (place / "broken").mkdir()
    (place / "broken" / "run.json").write_text("{", encoding="utf-8")
    return place


def test_the_table_names_host_job_and_worst_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--fleet", str(folder)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Fleet of 8 runs of 1 job\nThe worst run is job-")
    assert "Host bad straggles beyond chance." in told.out
    assert "Host bad: its ranks are stragglers in 8 of 8 runs (2.0 expected by chance, p < 0.0001)." in told.out
    assert "slower_compute" in told.out
    assert "hosts: 9 compared, in 8 runs" in told.out
    warning = [line for line in told.err.splitlines() if line]
    assert len(warning) == 1
    assert warning[0].startswith("overlapscope compare: warning: left out: ")
    assert "broken/run.json" in warning[0]


@pytest.mark.slow
def test_the_json_is_of_the_published_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--fleet", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    published = json.loads((ROOT / "docs" / "overlapscope.fleet-1.schema.json").read_text(encoding="utf-8"))
    assert published == schema("fleet")
    jsonschema.Draft202012Validator(published).validate(document)
    assert document["schema"] == "overlapscope.fleet/1"
    costs = [run["exposed_gpu_hours_a_day"] for run in document["runs"]]
    assert costs == sorted(costs, reverse=True)
    assert [each["host"] for each in document["hosts"]["straggling"]] == ["bad"]
    assert sorted(document["jobs"][0]["runs"]) == [f"job-{at}" for at in range(8)]
    assert len(document["left_out"]) == 1


@pytest.mark.slow
def test_runs_whose_host_events_are_damaged_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where that is seen at once, where it is seen when they are read, and where the run's analysis was stored."""
    for name in ("whole", "late", "at_once", "stored"):
        assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", str(tmp_path / "fleet" / name)]) == 0
    hosts = {name: tmp_path / "fleet" / name / "rank_00001" / "host.parquet" for name in ("late", "at_once", "stored")}
    flip_bit(hosts["late"])
    flip_bit(hosts["stored"])
    hosts["at_once"].unlink()
    assert main(["analyze", str(tmp_path / "fleet" / "stored")]) == 0
    capsys.readouterr()
    assert main(["compare", "--fleet", str(tmp_path / "fleet")]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "host events" in each]
    assert "host events cannot be read in " in line
    assert all(name in line for name in hosts)
    assert "whole" not in line
    assert main(["compare", "--fleet", str(tmp_path / "fleet"), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["name"]: run["damaged_hosts"] for run in runs} == {"whole": [], **{name: [1] for name in hosts}}


def test_runs_without_known_hosts_are_compared_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(tmp_path / "a")
    assert main(["compare", "--fleet", str(tmp_path), "--all"]) == 0
    told = capsys.readouterr().out
    assert "hosts: n/a in 1 run: fewer than two known hosts" in told
    assert "trends: n/a, no job has 5 runs with known figures at one world size" in told
    assert not (tmp_path / ".fleet.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--fleet", "--scale", "x"], 2, "cannot be used together"),
        (["--fleet", "--record", "x"], 2, "cannot be used together"),
        (["--fleet", "x", "y"], 2, "one folder"),
        (["--fleet", "--comm", "x", "y"], 2, "how to read traces"),
        (["x", "y", "--workers", "2"], 2, "--workers is for --fleet"),
        (["--fleet", "missing"], 3, "is no folder"),
    ],
)
def test_what_makes_no_fleet_is_refused(
    arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == code
    assert why in capsys.readouterr().err


@pytest.mark.slow
def test_a_saved_fleet_is_no_input_of_a_report_and_is_refused_by_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "fleet.json"
    assert main(["compare", "--fleet", str(folder), "--json", "-o", str(saved)]) == 0
    capsys.readouterr()
    assert main(["report", str(saved)]) == 3
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1
    assert "is overlapscope.fleet/1, of which no report is made" in refused


def test_a_folder_of_broken_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{", encoding="utf-8")
    assert main(["compare", "--fleet", str(tmp_path)]) == 3
    assert "none of its 1 runs can be read" in capsys.readouterr().err

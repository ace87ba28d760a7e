"""Figures are those of `compare` and `analyze`; a broken run costs itself; what is known is not read again."""

import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.fleet import FleetRun
from overlapscope.analysis.compare.measured_run import measure_run
from overlapscope.analysis.job_step.metrics import metrics
from overlapscope.cli.analysis_cache import checksum_line, load_document, state_of
from overlapscope.fleet import read
from overlapscope.fleet.figure_cache import CACHE_NAME, run_state
from overlapscope.fleet.find import runs_below
from overlapscope.fleet.measure import measure, measure_analyzed
from overlapscope.fleet.read import StoredAnalysis, read_fleet
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import json
from overlapscope.timeline.columns import make
from overlapscope.timeline.facts import Facts, Members
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import save_run
from tests.conftest import ROOT
from tests.property.synthetic import Job, Layout, plant, run_of, simulate
from tests.property.synthetic.fleets import on_hosts
from tests.unit.fleet.stored_analyses import dying, without_memory

SMALL = Layout(dp=4, ranks_per_host=2)


def late(seed: int) -> Run:
    job = plant(Job(layout=SMALL, seed=seed), "slow_compute", share=0.2, culprit=2, seed=seed)
    return on_hosts(run_of(simulate(job)), ["node0", "node1"], gpus=2)


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    samples = {name: read_inputs([ROOT / "traces" / name]) for name in ("baseline", "regressed")}
    pipeline = run_of(simulate(Job(layout=Layout(tp=2, pp=2, dp=2), microbatches=3)))
    return {**samples, "late": late(1), "pipeline": pipeline}


def test_figures_are_those_of_compare_and_stragglers_those_of_analyze(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        found = measure(run, name, name)
        own = measure_run(run)
        table = own.steps.alike(own.steps.ranks)
        values = {each.name: each.base.value for each in metrics([table], [table], of_steps=True)}
        assert common_steps([own], [own]).window == "step"
        assert found.step_ns == values["step_time_ns"]
        assert found.exposed_ns == values["exposed_comm_ns"]
        analysis = analyze(run)
        assert [(each.rank, each.held_by) for each in found.stragglers] == [
            (each.rank, each.held_by) for each in analysis.skew.stragglers
        ]
        assert measure_analyzed(run, name, name, analysis) == found


def test_gpu_hours_are_the_exposed_share_of_a_day_of_all_gpus(runs: dict[str, Run]) -> None:
    assert measure(runs["baseline"], "cpu", "cpu").exposed_gpu_hours_a_day is None
    run = replace(runs["late"], world_size=1000)
    infos = analyze(run).ranks
    steps = [step for info in infos for step in info.steps if step.complete]
    exposed, time = (sum(getattr(step, name) for step in steps) for name in ("exposed_comm_ns", "window_ns"))
    assert measure(run, "late", "late").exposed_gpu_hours_a_day == pytest.approx(exposed / time * 24_000)


def test_the_cost_of_a_straggler_is_its_blame_a_recorded_step(runs: dict[str, Run]) -> None:
    found = measure(runs["late"], "late", "late")
    assert [(each.rank, each.host) for each in found.stragglers] == [(2, "node1")]
    blame = analyze(runs["late"]).skew.stragglers[0].blame_ns
    assert found.stragglers[0].step_ns == round(blame / 6)


def test_hosts_come_from_capture_then_traces_then_logs_and_localhost_is_none(runs: dict[str, Run]) -> None:
    run = runs["late"]
    recorded = ({"settings": {"host": "a"}}, {"host": "b"}, {"host": "localhost"}, {})
    timelines = {rank: replace(each, recorded=recorded[rank]) for rank, each in run.ranks.items()}
    members = make(Members, 2, rank=[3, 0], host=[0, 0])
    found = ranks_of_hosts(replace(run, ranks=timelines, facts=Facts(names=("c",), members=members)))
    assert found == {"a": [0], "b": [1], "c": [3]}


def test_a_recording_whose_clock_counts_from_the_machines_start_has_no_time(runs: dict[str, Run]) -> None:
    run = runs["late"]
    early = {rank: replace(each, recordings=replace(each.recordings, start_ns=np.array([10**15])))
             for rank, each in run.ranks.items()}  # fmt: skip
    assert measure(run, "late", "late").started_ns is not None
    assert measure(replace(run, ranks=early), "late", "late").started_ns is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet")
    for seed in range(17):
        save_run(late(seed), place / f"job-{seed:02d}", version="test")
    return place


def names(found: list[FleetRun]) -> list[str]:
    return [each.name for each in found]


@pytest.mark.slow
def test_a_run_that_cannot_be_read_costs_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fine").symlink_to(folder / "job-00")
    for name, content in (("damaged", "{"), ("newer", '{"schema": "overlapscope.run/99"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content, encoding="utf-8")
    save_run(late(0), tmp_path / "good", version="test")
    found = read_fleet(tmp_path, runs_below(tmp_path))
    assert names(found.runs) == ["good"]
    assert len(found.left_out) == 2
    assert "damaged" in found.left_out[0]
    assert "newer OverlapScope" in found.left_out[1]
    assert all("\n" not in each for each in found.left_out)


@pytest.mark.slow
def test_by_several_processes_figures_are_the_same(folder: Path) -> None:
    places = runs_below(folder)
    calls: list[tuple[int, int]] = []
    alone = read_fleet(folder, places, workers=1, progress=lambda done, runs, _: calls.append((done, runs)), keep=False)
    assert calls == [(done, 17) for done in range(1, 18)]
    assert read_fleet(folder, places, workers=2, keep=False) == alone
    assert alone.read == 17


@pytest.mark.slow
def test_a_dead_worker_leaves_its_runs_to_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, count: int) -> None:
            raise OSError("no more processes")

    monkeypatch.setattr(read, "WorkerPool", Broken)
    assert read_fleet(folder, runs_below(folder), workers=2, keep=False).read == 17


@pytest.mark.slow
def test_only_new_and_changed_runs_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "KEPT_FROM_SECONDS", 0.0)
    places = runs_below(folder)
    first = read_fleet(folder, places, workers=1)
    assert (folder / CACHE_NAME).is_file()
    again = read_fleet(folder, places, workers=1)
    assert (again.runs, again.read) == (first.runs, 0)
    save_run(late(99), folder / "job-03", version="test", force=True)
    save_run(late(98), folder / "job-17", version="test")
    third = read_fleet(folder, runs_below(folder), workers=1)
    assert third.read == 2
    assert third.runs[3] != first.runs[3]
    assert third.runs[4:17] == first.runs[4:]
    (folder / CACHE_NAME).write_bytes(b"\0")
    assert read_fleet(folder, runs_below(folder), workers=1) == replace(third, read=18)


@pytest.mark.slow
def test_a_stored_analysis_is_used_in_place_of_the_tables(folder: Path, tmp_path: Path) -> None:
    save_run(late(0), tmp_path / "other", version="test")
    document = json.render(analyze(late(5))).encode()
    found = read_fleet(tmp_path, runs_below(tmp_path), stored=lambda _: document)
    expected = measure(late(5), "other", "other")
    assert found.runs[0] == replace(expected, started_ns=found.runs[0].started_ns)


def test_a_run_with_folders_too_deep_to_list_has_no_state(tmp_path: Path) -> None:
    deep, top = 1_500, os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(deep):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(tmp_path)
        assert run_state(tmp_path) is None
        assert state_of(tmp_path) is None
        (tmp_path / ".analysis.json").write_bytes(checksum_line(b"0 0 0\n") + b"0 0 0\n")
        assert load_document(tmp_path) is None
    finally:
        for _ in range(deep):
            os.chdir("d")
        for _ in range(deep):
            os.chdir("..")
            os.rmdir("d")
        os.chdir(top)


@pytest.mark.slow
@pytest.mark.parametrize(("stored", "why"), [(dying, "SIGKILL"), (without_memory, "memory")])
def test_a_run_whose_reader_dies_or_lacks_memory_costs_itself(folder: Path, stored: StoredAnalysis, why: str) -> None:
    (folder / CACHE_NAME).unlink(missing_ok=True)
    places = runs_below(folder)
    found = read_fleet(folder, places, workers=2, keep=False, stored=stored)
    assert names(found.runs) == [each.name for each in places if each.path.name != "job-04"]
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith(f"{folder / 'job-04'}: ")
    assert why in found.left_out[0]


@pytest.mark.slow
def test_runs_whose_names_look_the_same_keep_their_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "KEPT_FROM_SECONDS", 0.0)
    paths = [tmp_path / os.fsdecode(name) for name in (b"x\xfe-1", b"x\xff-1", b"x\\xff-1")]
    try:
        for seed, path in enumerate(paths):
            save_run(late(seed), path, version="test")
    except OSError:
        pytest.skip("this file system has no such names")
    first = read_fleet(tmp_path, runs_below(tmp_path))
    again = read_fleet(tmp_path, runs_below(tmp_path))
    assert (first.read, again.read) == (3, 0)
    assert again.runs == first.runs
    assert len(set(names(first.runs))) == 3
    assert sorted(each.step_ns or 0 for each in first.runs) == sorted(
        measure(late(seed), "", "").step_ns or 0 for seed in range(3)
    )

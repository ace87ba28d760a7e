"""The rows of the first page: the figures of analyze and gate, found in the background; a bad run costs itself."""

import gzip
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.job_step.headline import Headline
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import judge
from overlapscope.ingest.options import ReadOptions
from overlapscope.report.formatting import ms, percent, signed_ms
from overlapscope_dashboards.runs import run_list
from overlapscope_dashboards.runs.catalog import CatalogEntry, RunLocations, describe_run, find_runs
from overlapscope_dashboards.runs.run_list import ListedRun, ListedRuns, RunList
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.server import listing
from overlapscope_dashboards.server.app import SITE, create_app
from overlapscope_dashboards.views.runs import LEAST_SPREAD, MOST_POINTS, largest_loss, parts_of, tags_of, trend
from tests.conftest import ROOT
from tests.support.dashboard_runs import copy_run, first_page, folder_of_runs, ids
from tests.support.writers.flight_recorder import Entry, dump, write_pickle
from tests.unit.merge.test_several_jobs import record

NOW_NS = 2_000_000_000 * 10**9
MS = 1_000_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site([folder_of_runs(tmp_path / "runs")])
    yield made
    made.listed.close()


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in rows}


def test_a_row_shows_the_figures_of_analyze_and_the_verdict_of_the_gate(site: Site) -> None:
    known = ids(site)
    rows = by_name(first_page(site, known["baseline"]))
    for name, row in rows.items():
        head = site.run(known[name]).analysis.headline
        assert (row["step"], row["exposed"]) == (ms(head.step_ns), ms(head.exposed_comm_ns))
        assert row["share"] == percent(head.exposed_fraction)
        assert row["numbers"]["step"] == head.step_ns
        assert len(row["trend"]) == head.steps
        assert row["unit"] == f"median of {head.steps} steps", (
            "of what the step is, beside the recording's length elsewhere"
        )
        assert row["state"] == "ready"
    gate = judge([site.run(known["baseline"]).replicate], [site.run(known["regressed"]).replicate], Policy())
    step = next(each for each in gate.metrics if each.name == "step_time_ns")
    assert rows["regressed"]["verdict"]["words"] == "regressed"
    assert rows["regressed"]["verdict"]["moved"] == f"{signed_ms(step.difference or 0)} ms (+13.2 %)"
    assert rows["regressed"]["verdict"]["tone"] == "bad"
    assert rows["baseline"]["verdict"] is None
    assert rows["regressed"]["loss"]["words"].startswith("the next compute waited for it: 12.5")
    assert rows["regressed"]["loss"]["href"] == f"/runs/{known['regressed']}/timeline?chain=longest-dependency"
    assert rows["baseline"]["calm"] == "no single loss above 5\N{NO-BREAK SPACE}%"
    assert rows["regressed"]["calm"] == ""
    assert rows["baseline"]["tags"] == ["bucket 4 MiB"], "tags that all runs share are not repeated"


@pytest.mark.slow
def test_the_small_bar_is_to_scale_within_one_pixel(site: Site) -> None:
    for row in first_page(site):
        head = site.run(row["id"]).analysis.headline
        exact = [head.compute_only_ns, head.overlapped_ns, head.exposed_comm_ns, head.copy_only_ns, head.idle_ns,
                 head.outside_ns, head.start_of_recording_ns]  # fmt: skip
        whole = sum(each or 0 for each in exact)
        shares = {}
        for part in row["parts"]:
            shares[part["kind"]] = shares.get(part["kind"], 0) + part["share"]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        for width in (92, 130, 1920):
            exposed = shares["exposed"] + shares["waiting"]
            assert abs(exposed - (head.exposed_comm_ns or 0) / whole) * width <= 1
            assert abs(shares["compute"] - (head.compute_only_ns or 0) / whole) * width <= 1


def test_the_largest_loss_is_the_largest_of_exposed_and_idle_causes() -> None:
    head = Headline(window="step", step_ns=100 * MS, causes={"tail": 30 * MS, "start_of_recording": 60 * MS},
                    idle_causes={"launch_bound": 40 * MS})  # fmt: skip
    found = largest_loss(head, on_cpu=False)
    assert found is not None
    words = "idle: late launch by the host: 40.0 %"
    assert (found.words, found.kind, found.chain) == (words, "idle-launch_bound", "longest-idle")
    smaller = replace(head, idle_causes={"launch_bound": 4 * MS}, causes={"tail": 4 * MS})
    assert largest_loss(smaller, on_cpu=False) is None
    assert largest_loss(Headline(), on_cpu=False) is None
    outside = largest_loss(replace(smaller, outside_ns=50 * MS, copy_only_ns=20 * MS), on_cpu=False)
    assert outside is not None
    assert (outside.words, outside.chain) == ("outside the ranks' own steps: 50.0 %", "")
    idle = largest_loss(replace(smaller, idle_causes={}, idle_ns=40 * MS), on_cpu=False)
    assert idle is not None
    assert (idle.words, idle.chain) == ("idle: 40.0 %", "longest-idle")
    cause_unknown = largest_loss(replace(head, causes={"unknown": 50 * MS}), on_cpu=False)
    assert cause_unknown is not None
    assert cause_unknown.words == "exposed, cause unknown: 50.0 %"


def test_exposed_time_that_is_not_separated_is_one_part() -> None:
    head = Headline(window="recording", step_ns=10, exposed_comm_ns=4, compute_only_ns=6, causes={"dependency": 4})
    assert [(each.name, each.ns) for each in parts_of(head)] == [("compute only", 6), ("exposed", 4)]


def test_a_trend_shows_outliers_and_draws_noise_small() -> None:
    assert trend([5]) == []
    lengths = [100, 102, 98, 101]
    spread = max(y for _, y in trend(lengths)) - min(y for _, y in trend(lengths))
    assert spread == pytest.approx(4 / (LEAST_SPREAD * 101), abs=1e-3)
    many = [100] * 1_000
    many[537] = 300
    points = trend(many)
    assert len(points) <= MOST_POINTS
    assert [y for _, y in points].count(1.0) == 1
    assert (points[0][0], points[-1][0]) == (0, 1)


@pytest.mark.slow
def test_a_run_without_times_is_not_called_calm(tmp_path: Path) -> None:
    written = dump([Entry(), Entry(op="broadcast")], groups={"0": ("default_pg", [0, 1])})
    write_pickle(tmp_path / "nccl_trace_rank_0", written)
    (row,) = first_page(Site([tmp_path]))
    assert (row["step"], row["calm"], row["loss"]) == ("n/a", "no times recorded", None)


def test_tags_are_what_tells_runs_apart() -> None:
    known = {"parallelism": "data 2, tensor 4", "ddp.bucket_cap_bytes": "26214400", "dtype": "bfloat16",
             "torch_version": "2.9"}  # fmt: skip
    assert tags_of(known, is_dry=True) == ("dry run", "data 2", "tensor 4", "bucket 25 MiB", "bfloat16", "torch 2.9")
    assert tags_of({}, is_dry=False) == ()


@pytest.mark.slow
def test_a_broken_run_costs_its_row_and_tells_no_path(site: Site) -> None:
    root = site.roots[0]
    (root / "regressed" / "rank_00000" / "spans.parquet").write_bytes(b"no table")
    (root / "regressed" / "rank_00001" / "spans.parquet").write_bytes(b"no table")
    copy_run(root / "third")
    (root / "third" / "run.json").write_text("{", encoding="utf-8")
    rows = by_name(first_page(site))
    assert rows["third"]["state"] == rows["regressed"]["state"] == "problem"
    assert "run.json: damaged" in rows["third"]["problem"]
    assert "spans.parquet" in rows["regressed"]["problem"]
    assert rows["baseline"]["step"] == "124.179"
    assert str(root) not in str(rows)


@pytest.mark.slow
def test_recordings_of_several_jobs_are_several_rows(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank)
        record(tmp_path / f"b{rank}.json", rank, world=4, process=7)
    site = Site([tmp_path])
    rows = first_page(site)
    while len(rows) == 1:  # the folder is looked at again after it was read
        rows = first_page(site)
    assert ["a0.json" in rows[0]["name"], "b0.json" in rows[1]["name"]] == [True, True]
    assert [row["what"] for row in rows] == ["2 ranks · nccl", "2 of 4 ranks · nccl"]
    for row in rows:
        assert site.run(row["id"]).analysis.headline.step_ns == row["numbers"]["step"]
    for rank in range(2):
        (tmp_path / f"b{rank}.json").unlink()
    until = time.monotonic() + 30
    while len(rows) > 1 and time.monotonic() < until:
        rows = first_page(site)
    assert len(rows) == 1
    site.listed.close()


@pytest.mark.slow
def test_a_run_that_changes_keeps_its_figures_until_the_new_ones_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "LOOK_S", 0.1)
    monkeypatch.setattr(run_list, "LOOK_SHARE", 1.0)
    whole, run = copy_run(tmp_path / "whole"), copy_run(tmp_path / "runs" / "job")
    shutil.rmtree(run / "rank_00001")
    site = Site([tmp_path / "runs"])
    (row,) = first_page(site)
    assert (row["what"], row["step"], row["live"]) == ("1 of 2 ranks · cpu · gloo", "123.541", False)
    shutil.copytree(whole / "rank_00001", run / "rank_00001")
    seen = {row["step"]}
    until = time.monotonic() + 30
    while seen != {"123.541", "124.179"} and time.monotonic() < until:
        found = site.listed.look(10.0)
        assert found is not None
        seen |= {each["step"] for each in listing.answer(found, NOW_NS)["rows"]}
    assert seen == {"123.541", "124.179"}, "never without figures"
    site.listed.close()


def test_a_run_is_recording_while_its_files_are_new_and_ranks_are_missing(tmp_path: Path) -> None:
    (place,) = find_runs([copy_run(tmp_path / "run")]).runs
    entry = replace(describe_run(place), changed_ns=NOW_NS - 10**9, began_ns=NOW_NS - 10**12, ranks=1, world_size=2)

    def live(**changes: Any) -> bool:
        return bool(listing.row(ListedRun(entry=replace(entry, **changes), state="waiting"), NOW_NS)["live"])

    assert live()
    assert live(ranks=0, began_ns=None)
    assert not live(ranks=2)
    assert not live(changed_ns=NOW_NS - 10**12)
    assert not live(began_ns=NOW_NS - 10**16), "copied now, recorded long ago"


def test_a_run_of_an_impossible_year_is_listed(tmp_path: Path) -> None:
    (place,) = find_runs([copy_run(tmp_path / "run")]).runs
    entry = CatalogEntry(location=place, changed_ns=400_000_000_000 * 10**9)
    row = listing.row(ListedRun(entry=entry, state="waiting"), NOW_NS)
    assert (row["name"], row["date"], row["loss"]) == ("run", "n/a", None)
    assert listing.answer(RunList(runs=(), notes=(), done=0), NOW_NS)["status"] == "0 runs"


def task(work: Any, *given: Any) -> run_list._Task:
    return run_list._Task(key=("verdict", "b", "1", "r", "r", "2"), run="", weight=1, work=work, given=given)


def alone() -> ListedRuns:
    return ListedRuns(lambda: RunLocations(runs=()), {}, ReadOptions(), lambda: False)


def settled(runs: ListedRuns, given: run_list._Task) -> object:
    assert given.key not in runs._results, "an earlier task's result would be taken for this one's"
    until = time.monotonic() + 60
    runs._work([given])
    while given.key not in runs._results and time.monotonic() < until:
        runs._work([])
    return runs._results[given.key]


@pytest.mark.slow
def test_a_worker_that_dies_or_fails_costs_its_run() -> None:
    runs = alone()
    assert "was killed" in str(settled(runs, task(os.abort)))
    runs._results.clear()
    assert settled(runs, task(int, "one")) == "ValueError: invalid literal for int() with base 10: 'one'"
    runs._results.clear()
    assert settled(runs, task(divmod, 7, 2)) == (3, 1)
    runs.close()


def test_stopping_the_server_does_not_wait_for_a_run_that_is_read() -> None:
    runs = alone()
    runs._work([task(time.sleep, 120)])
    began = time.monotonic()
    runs.close()
    assert time.monotonic() - began < 30
    assert runs.look(0.1) is None


def test_runs_and_folders_of_runs_can_be_named_together(tmp_path: Path) -> None:
    folder_of_runs(tmp_path / "one")
    folder_of_runs(tmp_path / "other")
    trace = tmp_path / "recording0.rank0.pt.trace.json.gz"
    shutil.copy(ROOT / "traces" / "baseline" / "rank_00000" / trace.name, trace)
    roots = [tmp_path / "one", tmp_path / "other" / "baseline", tmp_path / "one" / "baseline", trace]
    found = find_runs(roots)
    assert [each.name for each in found.runs] == ["baseline", "baseline (2)", trace.name, "regressed"]
    assert len({each.id for each in found.runs}) == 4
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("one", "other", trace.name):
        shutil.move(tmp_path / name, moved / name)
    again = find_runs([moved / each.relative_to(tmp_path) for each in roots])
    assert [each.id for each in again.runs] == [each.id for each in found.runs]


@pytest.mark.slow
def test_a_large_run_is_not_read_beside_a_page_that_reads_one() -> None:
    reading = [True]
    runs = ListedRuns(lambda: RunLocations(runs=()), {}, ReadOptions(), lambda: reading[0])
    large = task(divmod, 7, 2)
    large.weight = run_list.MAX_WORKERS
    for _ in range(3):
        runs._work([large])
    assert (runs._begun, runs._results) == ({}, {})
    reading.clear()
    reading.append(False)
    assert settled(runs, large) == (3, 1)
    runs.close()


@pytest.mark.slow
def test_the_list_is_encoded_once_while_nothing_changes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "LOOK_S", 600.0)
    app = create_app(site.roots).server
    own = app.extensions[SITE]
    first_page(own)
    encoded = []
    plain = listing.answer
    monkeypatch.setattr(listing, "answer", lambda *given: encoded.append(1) or plain(*given))
    client = app.test_client()
    first = client.get("/runs.json")
    assert client.get("/runs.json").data == first.data
    again = client.get("/runs.json", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert encoded == [1]
    packed = client.get("/runs.json", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.data) == first.data
    pinned = client.get("/runs.json", query_string={"pin": ids(own)["baseline"]})
    assert pinned.status_code == 200
    assert client.get("/runs.json", headers={"Host": "elsewhere.example"}).status_code == 400
    own.listed.close()

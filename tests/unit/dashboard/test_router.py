"""Pages by address, without a browser."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from overlapscope.timeline.run import EARLIEST_NS
from overlapscope_dashboards.pages import pages
from overlapscope_dashboards.runs import catalog as runs
from overlapscope_dashboards.runs.catalog import MAX_RUNS, find_runs, list_newest_first, run_revision
from overlapscope_dashboards.runs.site import Site, parse_query, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.server.app import create_app
from tests.conftest import ROOT
from tests.support.dashboard_runs import copy_run, exact_words, first_page, folder_of_runs, ids, words
from tests.unit.merge.test_several_jobs import record


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site([folder_of_runs(tmp_path / "runs")])


@pytest.mark.slow
def test_the_first_page_lists_the_runs_newest_first(site: Site) -> None:
    newer = site.roots[0] / "baseline" / "run.json"
    os.utime(newer, (2e9, 2e9))
    rows = first_page(site)
    assert [each["name"] for each in rows] == ["regressed", "baseline"]  # recorded later, whatever their files' times
    assert [each["what"] for each in rows] == ["2 ranks · cpu · gloo"] * 2
    assert all(each["date"].startswith("2026-11-21") for each in rows)
    assert router.show(site, "/", {}).title == "Runs"


def test_the_only_run_is_opened_at_once_and_several_are_listed(site: Site) -> None:
    (run,) = Site([site.roots[0] / "baseline"]).find_runs().runs
    answer = create_app([site.roots[0] / "baseline"]).server.test_client().get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, run_address(run.id))
    assert create_app(site.roots).server.test_client().get("/").status_code == 200


def test_ids_tell_no_path_and_last_when_the_folder_moves(site: Site, tmp_path: Path) -> None:
    before = ids(site)
    assert str(tmp_path) not in str(before)
    moved = tmp_path / "elsewhere"
    shutil.move(site.roots[0], moved)
    assert ids(Site([moved])) == before


def test_an_overview_says_what_analyze_says(site: Site) -> None:
    shown = router.show(site, run_address(ids(site)["baseline"]), {})
    said = exact_words(shown.content)
    assert shown.title == "Overview · baseline"
    assert "6.96 ms of a 124 ms step is exposed communication (5.5 %)" in words(shown.content).replace("  ", " ")
    assert "6.960 ms of a 124.179 ms step is exposed communication (5.5 %)" in said
    assert shown.status == 200


def test_every_page_opens_on_every_run_and_has_one_heading(site: Site) -> None:
    for run in ids(site).values():
        for name in pages():
            shown = router.show(site, run_address(run, name), {})
            assert shown.status == 200, name
            assert shown.title.startswith(pages()[name].TITLE)
            assert "cannot be read" not in words(shown.content)


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/elsewhere", "All runs"),
        ("/runs/0123456789ab", "baseline"),
        ("/runs/..%2f..%2fetc", "regressed"),
        ("/runs/../../etc/passwd", "All runs"),
        ("/runs", "All runs"),
    ],
)
def test_an_unknown_address_says_what_exists(site: Site, path: str, there: str) -> None:
    shown = router.show(site, path, {})
    assert shown.status == 404
    assert there in words(shown.content)
    assert not router.exists(site, path)


def test_an_unknown_page_names_the_pages_that_there_are(site: Site) -> None:
    path = run_address(ids(site)["baseline"], "elsewhere")
    shown = router.show(site, path, {})
    assert shown.status == 404
    assert all(each.TITLE in words(shown.content) for each in pages().values())
    assert not router.exists(site, path)


def test_a_broken_run_says_why_and_the_others_still_open(site: Site) -> None:
    root = site.roots[0]
    (root / "regressed" / "run.json").write_text("{", encoding="utf-8")
    broken = router.show(site, run_address(ids(site)["regressed"]), {})
    assert "run.json: damaged" in words(broken.content)
    assert str(root) not in words(broken.content)
    assert "124.179 ms" in words(router.show(site, run_address(ids(site)["baseline"]), {}).content)


def test_a_run_that_grows_is_read_again(tmp_path: Path) -> None:
    whole = copy_run(tmp_path / "whole")
    run = tmp_path / "runs" / "job"
    run.mkdir(parents=True)
    shutil.copy(whole / "run.json", run)
    site = Site([tmp_path / "runs"])
    assert first_page(site)[0]["problem"] == "no rank is recorded yet"
    shutil.copytree(whole / "rank_00000", run / "rank_00000")
    path = run_address(ids(site)["job"])
    before = router.show(site, path, {})
    assert before.growing
    assert router.show(site, path, {}).revision == before.revision
    shutil.copytree(whole / "rank_00001", run / "rank_00001")
    after = router.show(site, path, {})
    assert after.revision != before.revision
    assert not after.growing
    assert "means over 2 ranks" in words(after.content)


def test_a_run_is_read_once_while_its_files_stay_as_they_are(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from overlapscope_dashboards.runs import open_run as opened  # noqa: PLC0415

    read = []
    plain = opened.read_jobs
    monkeypatch.setattr(opened, "read_jobs", lambda *args, **more: read.append(args) or plain(*args, **more))
    path = run_address(ids(site)["baseline"])
    for _ in range(3):
        router.show(site, path, {})
    assert len(read) == 1


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    outside = copy_run(tmp_path / "outside" / "secret")
    root = folder_of_runs(tmp_path / "runs")
    (root / "link").symlink_to(outside)
    (root / "upward").symlink_to(tmp_path)
    found = find_runs([root])
    assert [each.name for each in found.runs] == ["baseline", "regressed"]
    assert found.notes == ("links that point outside the folder are not followed: 2",)


def test_a_run_with_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    outside = copy_run(tmp_path / "outside")
    root = folder_of_runs(tmp_path / "runs")
    shutil.rmtree(root / "baseline" / "rank_00001")
    (root / "baseline" / "rank_00001").symlink_to(outside / "rank_00001")
    (root / "regressed" / "rank_00000" / "spans.parquet").unlink()
    (root / "regressed" / "rank_00000" / "spans.parquet").symlink_to(outside / "rank_00000" / "spans.parquet")
    site = Site([root])
    for name in ("baseline", "regressed"):
        shown = router.show(site, run_address(ids(site)[name]), {})
        assert "points outside the served folder" in words(shown.content), name
        assert "ms step" not in words(shown.content)


def test_a_link_in_a_circle_comes_to_an_end(tmp_path: Path) -> None:
    root = folder_of_runs(tmp_path / "runs")
    (root / "again").symlink_to(root)
    (root / "latest").symlink_to(root / "regressed")
    assert [each.name for each in find_runs([root]).runs] == ["baseline", "regressed"]


@pytest.mark.slow
def test_links_that_lead_nowhere_cost_their_run_and_no_other(tmp_path: Path) -> None:
    root = folder_of_runs(tmp_path / "runs")
    copy_run(root / "third")
    (root / "around").symlink_to(root / "around")
    (root / "baseline" / "circle").symlink_to(root / "baseline" / "circle")
    (root / "regressed" / "gone").symlink_to(root / "nothing")
    site = Site([root])
    rows = {each["name"]: each for each in first_page(site)}
    assert rows["third"]["state"] == "ready"
    assert str(root) not in str(rows)
    for name, file in (("baseline", "circle"), ("regressed", "gone")):
        shown = words(router.show(site, run_address(ids(site)[name]), {}).content)
        assert "This run cannot be read" in shown
        assert f"{name}/{file}: " in shown
        assert str(root) not in shown


def test_a_file_that_vanishes_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place,) = find_runs([copy_run(tmp_path / "run")]).runs
    before = run_revision(place)
    plain, gone = os.scandir, Mock(is_dir=lambda **_: False, stat=Mock(side_effect=FileNotFoundError))
    gone.name = "vanished"

    @contextmanager
    def scandir(folder: str) -> Iterator[list[Any]]:
        with plain(folder) as inside:
            yield [*inside, gone]

    monkeypatch.setattr(runs.os, "scandir", scandir)
    assert run_revision(place) == before
    assert gone.stat.called


def test_a_copied_run_is_listed_by_when_it_was_recorded(tmp_path: Path) -> None:
    root = folder_of_runs(tmp_path / "runs")
    os.utime(root / "baseline" / "run.json", ns=(2 * 10**18, 2 * 10**18))  # as if copied last
    entries = list_newest_first(find_runs([root]).runs)
    began = {each.location.name: each.began_ns or 0 for each in entries}
    assert [each.location.name for each in entries] == sorted(began, key=lambda name: -began[name])
    assert min(began.values()) > EARLIEST_NS
    assert max(entries, key=lambda each: each.changed_ns).location.name == "baseline"
    newest = {each.location.name: each.when_ns for each in entries}
    assert newest == began


@pytest.mark.slow
def test_one_run_a_folder_of_traces_and_single_traces_are_one_run_each(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    assert [each.name for each in find_runs([run]).runs] == ["run"]
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        name = f"recording0.rank{rank}.pt.trace.json.gz"
        shutil.copy(ROOT / "traces" / "baseline" / f"rank_0000{rank}" / name, traces)
    for roots in ([traces], sorted(traces.iterdir())):
        site = Site(roots)
        (place,) = site.find_runs().runs
        assert "124.179 ms" in words(router.show(site, run_address(place.id), {}).content)


@pytest.mark.slow
def test_recordings_of_several_jobs_are_listed_as_one_run_each(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank)
        record(tmp_path / f"b{rank}.json", rank, world=4, process=7)
    site = Site([tmp_path])
    (place,) = site.find_runs().runs
    for _ in range(2):  # the list of all runs stands in the place of what is several
        assert router.show(site, run_address(place.id), {}).title == "Runs"
    places = site.find_runs().runs
    assert ["a0.json" in places[0].name, "b0.json" in places[1].name] == [True, True]
    assert [site.run(each.id).run.world_size for each in places] == [2, 4]
    for each in places:
        assert router.show(site, run_address(each.id), {}).title.startswith("Overview")
    for rank in range(2):
        (tmp_path / f"b{rank}.json").unlink()
    assert "only 1 job left" in words(router.show(site, run_address(places[1].id), {}).content)


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    site = Site([tmp_path])
    assert "no run in this folder yet" in words(router.show(site, "/", {}).content)
    assert first_page(site) == []


@pytest.mark.slow
def test_many_runs_are_listed_up_to_a_limit(tmp_path: Path) -> None:
    for number in range(MAX_RUNS + 2):
        folder = tmp_path / f"{number:04d}"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"schema": "overlapscope.run/1"}), encoding="utf-8")
    found = find_runs([tmp_path])
    assert len(found.runs) == MAX_RUNS
    assert len(found.notes) == 1


def test_a_query_keeps_the_first_value_and_a_bounded_length() -> None:
    assert parse_query("?a=1&b=x%20y&a=2") == {"a": "1", "b": "x y"}
    assert parse_query(None) == {}
    assert len(parse_query("?" + "&".join(f"k{n}=1" for n in range(10_000)))) < 1_000


def test_commands_name_the_run_as_the_folder_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_runs(tmp_path / "my runs")
    monkeypatch.chdir(tmp_path)
    site = Site([Path("my runs")])
    opened = site.run(ids(site)["baseline"])
    assert opened.command("compare RUN NEW_RUN") == "compare 'my runs/baseline' NEW_RUN"
    traces = [*(ROOT / "traces" / "baseline").glob("rank_*/*.json.gz")]
    assert Site(traces).find_runs().runs[0].quoted_path == ""

"""The fleet page: the figures of `compare --fleet`, links to runs, broken runs named, nothing written."""

from pathlib import Path

import pytest

from overlapscope.analysis.compare.fleet import fleet
from overlapscope.fleet.find import runs_below
from overlapscope.fleet.read import read_fleet
from overlapscope_dashboards.compare.fleet import layout
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.server import listing, router
from overlapscope_dashboards.views.fleet import MAX_DRAWN, charts, view
from tests.support.dashboard_runs import folder_of_runs, ids, words
from tests.unit.analysis.compare.test_fleet import HOSTS, fleet_of, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of_runs(tmp_path)


def test_the_page_shows_what_compare_fleet_prints(folder: Path) -> None:
    site = Site([folder])
    page = router.show(site, "/fleet", {})
    said = words(page.content)
    assert (page.status, page.title) == (200, "Fleet")
    assert "The worst run is regressed: 28.093 ms of a step of 140.533 ms is exposed communication" in said
    assert "; of the time of all its steps and ranks it is 20.7 %." in said
    measured = read_fleet(folder, runs_below(folder), keep=False)
    for _, cells in view(fleet(measured.runs)).runs:
        assert " ".join(filter(None, cells)) in " ".join(said.split())
    assert ids(site)["regressed"] in str(page.content)
    assert "word bad" not in str(page.content), "a run of that name is no verdict"
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []


def test_a_broken_run_is_named_without_the_place_of_the_folder_and_costs_itself(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{", encoding="utf-8")
    (folder / "linked").mkdir()
    (folder / "linked" / "run.json").symlink_to("/etc/hostname")
    page = router.show(Site([folder]), "/fleet", {})
    said = words(page.content)
    assert "left out: broken/run.json: damaged" in said
    assert "points outside the served folder" in said
    assert str(folder) not in said.partition("The same in a terminal")[0]
    assert page.growing


def test_the_figures_are_kept_until_a_run_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site([folder])
    first = router.show(site, "/fleet", {})
    monkeypatch.setattr("overlapscope_dashboards.runs.fleet.read_fleet", lambda *_, **__: pytest.fail("read again"))
    assert router.show(site, "/fleet", {}).revision == first.revision


def test_the_list_of_runs_leads_to_the_fleet(folder: Path) -> None:
    site = Site([folder])
    assert "href='/fleet'" in str(listing.layout())
    assert router.exists(site, "/fleet")
    assert router.busy(site, "/fleet", {}).title == "Fleet"


def test_a_folder_without_readable_runs_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{", encoding="utf-8")
    assert "No run in this folder can be read." in words(router.show(Site([tmp_path]), "/fleet", {}).content)


def test_without_runs_the_page_says_what_it_needs(tmp_path: Path) -> None:
    assert "This page needs run directories." in words(router.show(Site([tmp_path]), "/fleet", {}).content)


def test_runs_that_were_named_one_by_one_are_a_fleet(folder: Path) -> None:
    said = words(router.show(Site([folder / "baseline", folder / "regressed"]), "/fleet", {}).content)
    assert "The worst run is regressed" in said
    assert "compare --fleet" not in said


def test_straggling_hosts_are_sentences_and_rows() -> None:
    shown = view(fleet(fleet_of(["a" if "a" in hosts else "" for hosts in HOSTS], HOSTS)))
    assert shown.hosts[0][:2] == ("a", "earlier")
    assert shown.host_sentences[0].startswith("Host a: its ranks are stragglers in 8 of 8 runs")


def test_growing_jobs_are_drawn_first() -> None:
    runs = [
        run(f"{job}-{at}", job=job, began=at, exposed=10 + at * (job == "grows"), step=100)
        for job in ("steady", "grows", *(f"job{each}" for each in range(MAX_DRAWN)))
        for at in range(8 if job == "grows" else 9)
    ]
    found = fleet(runs)
    assert str(layout(found, {}, "runs")).count("Graph(") == MAX_DRAWN
    drawn = charts(found)
    assert len(drawn) == MAX_DRAWN
    assert drawn[0].title.startswith("grows")
    assert drawn[0].series[0].values == tuple((10 + at) / 1e6 for at in range(8))

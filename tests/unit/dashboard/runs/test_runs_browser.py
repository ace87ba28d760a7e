"""The list of runs and the comparison in a browser, as a new user goes: which is worst, compare two, share a link."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope_dashboards.runs import run_list
from overlapscope_dashboards.runs.site import Site
from tests.conftest import ROOT
from tests.support.axe import axe_script
from tests.support.browser import watched
from tests.support.dashboard_runs import copy_run, hostile_traces, ids, served
from tests.unit.dashboard.test_browser import EVIL, STANDS
from tests.unit.dashboard.test_pages_browser import PATIENCE_MS, Visit

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("dashboard-pages")]
ROWS = """(number) => document.querySelectorAll(".runs tbody tr").length == number
  && !document.querySelector(".runs-wait") && !document.body.innerText.includes("still to be")"""
NAMES = "[...document.querySelectorAll('.runs tbody .runs-open')].map((each) => each.textContent)"
CUT = """() => [document.documentElement,
  ...document.querySelectorAll("main .wide, main .chips, main .grid > *, #runs > *")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.className || each.id || each.tagName)"""
PARTS = """() => [...document.querySelectorAll(".runs-bar")].flatMap((bar) => [...bar.children].map((part) =>
  [part.getBoundingClientRect().width, parseFloat(part.style.width) / 100 * bar.getBoundingClientRect().width]))"""
"""Pixels of each part as drawn, and by its exact share."""
WATERFALLS = """() => [...document.querySelectorAll("table.waterfall")].map((table) =>
  [...table.tBodies[0].rows].map((row) => {
    const bar = row.querySelector("div.bar").getBoundingClientRect();
    const cell = row.querySelector("td.bar").getBoundingClientRect();
    const figures = [...row.cells].slice(2).map((each) => parseFloat(each.textContent.replace(",", "")));
    return [bar.left - cell.left, bar.width, cell.width, ...figures];
  }))"""
"""Of each row, pixels of its bar as drawn, and its figures in ms."""
DOTS = """[...document.querySelectorAll(".runs-chart circle")].map(
  (each) => [+each.getAttribute("cy"), +each.dataset.ns])"""
WIDTHS = (800, 1280, 1920)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of four runs, one of which cannot be read."""
    place = tmp_path_factory.mktemp("listed")
    for name, run in (("first", "baseline"), ("second", "regressed"), ("third", "baseline"), ("broken", "baseline")):
        copy_run(place / name, ROOT / "traces" / run)
    (place / "broken" / "run.json").write_text("{", encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def visit(browser: Any, folder: Path) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    address = served([folder]).rstrip("/")
    yield Visit(page=page, address=address, ids=ids(Site([folder])), wrong=watched(page, address))
    context.close()


def opened(visit: Visit, query: str = "", number: int = 4) -> Any:
    """Open the list and wait until every run is analysed."""
    visit.page.goto(f"{visit.address}/{query}")
    visit.page.wait_for_function(ROWS, arg=number)
    return visit.page


def names(visit: Visit) -> list[str]:
    return list(visit.page.evaluate(NAMES))


def test_which_run_is_worst_and_the_order_is_in_the_address(visit: Visit) -> None:
    page = opened(visit)
    page.get_by_role("button", name="exposed, ms").click()
    assert names(visit)[0] == "second"
    assert names(visit)[-1] == "broken", "what is not known comes last"
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("exposed, ms")
    page.get_by_role("button", name="exposed, ms").click()
    assert names(visit)[2:] == ["second", "broken"], "also the other way round"
    page.reload()
    page.wait_for_function(ROWS, arg=4)
    assert names(visit)[2:] == ["second", "broken"]
    page.get_by_role("button", name="run", exact=True).click()
    assert names(visit) == ["broken", "first", "second", "third"]
    assert page.evaluate("location.search") == "?sort=name"
    row = page.locator("tr", has_text="second")
    assert "140.533" in row.inner_text()
    assert "the next compute waited for it" in row.inner_text()
    row.get_by_role("link", name="the next compute waited for it").click()
    page.wait_for_function("() => location.pathname.endsWith('/timeline') && location.search.includes('longest-dep')")
    page.go_back()
    page.wait_for_function(ROWS, arg=4)
    assert names(visit) == ["broken", "first", "second", "third"]
    assert visit.wrong == []


@pytest.mark.slow
def test_a_filter_takes_words_and_limits(visit: Visit) -> None:
    page = opened(visit)
    for text, found in (
        ("second", ["second"]),
        ("exposed>20%", ["second"]),
        ("exposed > 20 %", ["second"]),
        ("step<130ms gloo", ["first", "third"]),
        ("bucket", ["first", "second", "third"]),
        ("damaged", ["broken"]),
        ("nothing", []),
        ("share:<=6%", ["first", "third"]),
        ("[.*", []),
    ):
        page.locator("#runs-filter").fill(text)
        assert sorted(names(visit)) == found, text
    assert "No run matches this filter." in page.inner_text("main")
    page.locator("#runs-filter").fill("exposed>20%")
    assert page.evaluate("location.search") == "?q=exposed%3E20%25"
    page.reload()
    page.wait_for_function(ROWS, arg=1)
    assert names(visit) == ["second"]
    assert visit.wrong == []


@pytest.mark.slow
def test_two_runs_are_compared_with_one_click_and_the_choice_can_be_shared(visit: Visit, browser: Any) -> None:
    page = opened(visit, "?sort=name")
    assert page.get_by_role("checkbox", name="Choose broken to compare").is_disabled()
    page.get_by_role("checkbox", name="Choose first to compare").check()
    assert "choose a second run" in page.inner_text("#runs-dock")
    page.get_by_role("checkbox", name="Choose second to compare").check()
    assert "+16.354 ms a step" in page.inner_text("#runs-dock")
    page.get_by_role("button", name="Swap base and candidate").click()
    assert "-16.354 ms a step" in page.inner_text("#runs-dock")
    page.get_by_role("button", name="Swap base and candidate").click()
    page.get_by_role("button", name="Baseline: third").click()
    page.wait_for_selector("tr:has-text('regressed +16.354 ms (+13.2 %)')")
    assert "pinned baseline" in page.inner_text("tr:has-text('third')")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_selector("button.copy-link:has-text('Copied')")
    shared = page.evaluate("navigator.clipboard.readText()")
    other = browser.new_page()
    other.goto(shared)
    other.wait_for_function(ROWS, arg=4)
    assert other.get_by_role("checkbox", checked=True).count() == 2
    assert other.locator("[aria-pressed=true]").get_attribute("aria-label") == "Baseline: third"
    assert "+16.354 ms" in other.inner_text("#runs-dock")
    other.close()
    page.locator("#runs-compare").click()
    page.wait_for_selector("text=Regressed: a step takes 16.354 ms more, 124.179 → 140.533 ms (+13.2 %)")
    visit.stands()
    assert page.evaluate("document.querySelector('main .card h2').textContent") == "The same step in both runs"
    assert page.locator("details[open]").count() == 0
    assert page.get_by_text("ddp.bucket_cap_bytes 4194304 → 1048576000").is_visible()
    page.get_by_role("link", name="swap").click()
    page.wait_for_selector("text=a step takes 16.354 ms less")
    assert visit.wrong == []


@pytest.mark.slow
def test_the_keyboard_alone_filters_sorts_pins_chooses_and_opens(visit: Visit) -> None:
    page = opened(visit, "?sort=name")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("step>1")
    page.wait_for_function(ROWS, arg=3)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "first"
    page.keyboard.press("b")
    page.wait_for_selector("tr:has-text('first') >> text=pinned baseline")
    assert page.evaluate("document.activeElement.textContent") == "first", "the focus stays where it was"
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.get_by_role("checkbox", name="Choose second to compare").is_checked()
    page.locator("[data-sort=step]").focus()
    page.keyboard.press("Enter")
    assert names(visit)[0] == "second"
    assert page.evaluate("document.activeElement.dataset.sort") == "step"
    page.keyboard.press("c")
    page.wait_for_selector("text=Regressed: a step takes 16.354 ms more")
    page.go_back()
    page.wait_for_function(ROWS, arg=3)
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.pathname.startsWith('/runs/')")
    page.wait_for_selector("text=Where a step goes")
    assert visit.wrong == []


@pytest.mark.slow
def test_a_run_that_is_recorded_appears_and_fills_in_by_itself(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "LOOK_S", 0.2)
    whole = copy_run(tmp_path / "whole")
    runs = tmp_path / "runs"
    runs.mkdir()
    address = served([runs])
    visit.page.goto(address)
    visit.page.wait_for_selector("text=There is no run in this folder yet")
    (runs / "job").mkdir()
    shutil.copy(whole / "run.json", runs / "job")
    visit.page.wait_for_selector("tr:has-text('no rank is recorded yet')")
    assert "recording" in visit.page.inner_text(".runs")
    for rank, step in (("rank_00000", "123.541"), ("rank_00001", "124.179")):
        shutil.copytree(whole / rank, runs / "job" / rank)
        visit.page.wait_for_selector(f"tr:has-text('{step}')")
    assert visit.wrong == [] or all(each.startswith(address) for each in visit.wrong)
    leave(visit)


@pytest.mark.slow
def test_the_history_of_the_filtered_runs_is_drawn_to_scale(visit: Visit) -> None:
    page = opened(visit, f"?sort=name&pin={visit.ids['first']}")
    assert page.locator("#runs-history").is_hidden()
    page.get_by_role("button", name="History").click()
    assert page.evaluate("location.search").endswith("&history=1")
    dots = page.evaluate(DOTS)
    assert len(dots) == 6, "two of each run that can be read"
    (high, top_ns), *_ = sorted(dots, key=lambda each: -each[1])
    foot = max(page.evaluate("[...document.querySelectorAll('.grid-line')].map((each) => +each.getAttribute('y1'))"))
    assert all(abs((foot - y) - ns / top_ns * (foot - high)) <= 1 for y, ns in dots)
    page.locator("#runs-filter").fill("exposed>20%")
    assert page.locator("#runs-history").is_hidden(), "one run is no history"
    page.locator("#runs-filter").fill("")
    page.reload()
    page.wait_for_selector(".dot-step")
    page.locator(".dot-exposed").first.click()
    page.wait_for_function("() => location.pathname.startsWith('/runs/')")
    assert visit.wrong == []


@pytest.mark.slow
def test_names_of_runs_stay_text(tmp_path: Path, visit: Visit) -> None:
    for at in range(2):
        hostile_traces(tmp_path / f"traces{at}", EVIL)
        arguments = [str(tmp_path / f"traces{at}"), "-o", str(tmp_path / "runs" / f"{EVIL.replace('/', '')}{at}")]
        assert main(["ingest", *arguments]) == 0
    address = served([tmp_path / "runs"])
    visit.page.goto(address)
    visit.page.wait_for_function(ROWS, arg=2)
    assert visit.page.inner_text(".runs").count(EVIL.replace("/", "")) == 2
    assert visit.page.locator("img").count() == 0
    assert visit.wrong == [] or all(each.startswith(address) for each in visit.wrong)
    leave(visit)


@pytest.mark.slow
def test_bars_are_to_scale_within_one_pixel(visit: Visit) -> None:
    known = visit.ids
    page = opened(visit)
    drawn = page.evaluate(PARTS)
    assert len(drawn) >= 15
    assert all(abs(width - exact) <= 1 for width, exact in drawn)
    page.goto(f"{visit.address}/compare?base={known['first']}&candidate={known['second']}")
    visit.stands()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    rows = page.evaluate(WATERFALLS)
    assert len(rows) == 3
    for table in rows:
        at = base = table[0][3]
        top = max(base, *(base + sum(row[5] for row in table[1:end]) for end in range(2, len(table))))
        for left, width, whole, _, _, moved in table[1:-1]:
            start, end = sorted((at, at + moved))
            assert abs(left - start / top * whole) <= 1
            assert abs(width - (end - start) / top * whole) <= 1
            at += moved
    assert visit.wrong == []


def leave(visit: Visit) -> None:
    """Leave a page of another server, which asks that one again every while, and forget what it asked."""
    visit.page.goto("about:blank")
    visit.wrong.clear()


def overflows(page: Any) -> list[str]:
    """Return what is wider than its place once charts have followed the width of the window."""
    found: list[str] = []
    for _ in range(50):
        found = page.evaluate(CUT)
        if not found:
            break
        page.wait_for_timeout(100)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_nothing_is_cut_and_axe_finds_nothing_at_any_width(visit: Visit, scheme: str) -> None:
    known, script = visit.ids, axe_script()
    pages = (
        f"/?pin={known['first']}&pick={known['first']},{known['second']}&sort=-exposed&history=1",
        f"/compare?base={known['first']}&candidate={known['second']}",
    )
    visit.page.emulate_media(color_scheme=scheme)
    found = []
    for path in pages:
        visit.page.goto(visit.address + path)
        visit.page.wait_for_function(ROWS if path.startswith("/?") else STANDS, arg=4)
        visit.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        visit.page.evaluate(f"{script};0")
        for width in WIDTHS:
            visit.page.set_viewport_size({"width": width, "height": 900})
            cut = overflows(visit.page)
            broken = visit.page.evaluate("axe.run({}).then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
            found += [(path[:9], width, each) for each in (*cut, *broken)]
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.page.emulate_media(color_scheme="light")
    assert found == []
    assert visit.wrong == []

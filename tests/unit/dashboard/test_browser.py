"""The dashboard in a browser, with mouse, keyboard and assistive technology."""

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overlapscope_dashboards.pages import pages
from overlapscope_dashboards.runs.site import Site, run_address
from tests.conftest import ROOT
from tests.support.axe import axe_script
from tests.support.browser import watched
from tests.support.dashboard_runs import copy_run, hostile_traces, ids, served

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("dashboard-browser")]
EVIL = "<img src=x onerror=alert(1)>"
PATIENCE_MS = 60_000


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """An open page, and what it did wrong."""

    page: Any
    wrong: list[str]


Visitor = Callable[..., Visit]


@pytest.fixture(scope="module")
def address(root: Path, browser: Any) -> str:
    return served([root]).rstrip("/")


@pytest.fixture(scope="module")
def usual(browser: Any) -> Iterator[Any]:
    """Yield a browser context shared by most tests, so that scripts are loaded once."""
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def visit(browser: Any, usual: Any) -> Iterator[Visitor]:
    opened = []

    def open_page(url: str, **settings: Any) -> Visit:
        context = browser.new_context(**settings) if settings else usual
        page = context.new_page()
        opened.append(context if settings else page)
        own = url.split("/runs/", maxsplit=1)[0].split("?", maxsplit=1)[0].rstrip("/")
        seen = Visit(page=page, wrong=watched(page, own))
        page.goto(url)
        arrived(seen)
        return seen

    yield open_page
    for each in opened:
        each.close()


SHOWN, SHOWN_HEIGHT, MAX_SHOWN_BYTES = ROOT / "docs" / "dashboard.png", 760, 150_000
STANDS = """() => document.querySelector("main[aria-busy=false] h1")
  && !document.querySelector("[data-dash-is-loading=true], .later .note")
  && !document.body.innerText.includes("appears when it is ready")
  && !document.body.innerText.includes("Looking for runs")
  && [...document.querySelectorAll(".chart")].every((each) => each.querySelector(".main-svg, canvas"))"""


def arrived(seen: Visit) -> None:
    """Wait until a page is complete: nothing is being computed, every chart is drawn."""
    seen.page.wait_for_function(STANDS, timeout=PATIENCE_MS)


def text(seen: Visit) -> str:
    return str(seen.page.inner_text("body"))


def paths_of(known: dict[str, str]) -> list[str]:
    """Return the addresses of all pages of one run, and of its comparison with the other."""
    base, candidate = known["baseline"], known["regressed"]
    return [*(run_address(candidate, each) for each in pages()), f"/compare?base={base}&candidate={candidate}"]


LEVELS = "[...document.querySelectorAll('h1, h2, h3')].map((each) => +each.tagName[1])"
FITS = "document.documentElement.scrollWidth <= innerWidth"
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture
def tour(root: Path, address: str, usual: Any) -> Iterator[Callable[[], Iterator[tuple[str, Visit]]]]:
    """Return a function that opens the pages one after the other, and yields each with its path."""
    known = ids(Site([root]))
    page = usual.new_page()
    seen = Visit(page=page, wrong=watched(page, address))

    def pages_in_turn() -> Iterator[tuple[str, Visit]]:
        for path in ("/", *paths_of(known)):
            page.goto(address + path)
            arrived(seen)
            yield path, seen
        page.wait_for_timeout(500)  # what goes wrong late on the last page

    yield pages_in_turn
    page.close()


def test_every_page_opens_without_an_error_and_asks_nobody_else(tour: Callable[..., Any]) -> None:
    for path, seen in tour():
        assert ("2 runs" in text(seen)) if path == "/" else ("cannot be" not in text(seen)), path
        levels = seen.page.evaluate(LEVELS)
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in pairwise(levels)), path
        charts = seen.page.locator(".chart:not(.tl-chart)").count()
        assert seen.page.locator(".chart + details table").count() >= charts, path
        assert seen.page.evaluate(FITS), f"{path} is too wide"
        seen.page.evaluate(OPEN)
    assert seen.wrong == []


@pytest.mark.slow
def test_axe_finds_nothing_in_light_and_dark(tour: Callable[..., Any]) -> None:
    script, broken = axe_script(), []
    for path, seen in tour():
        seen.page.evaluate(OPEN)
        seen.page.evaluate(f"{script};0")
        for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
            seen.page.emulate_media(color_scheme=scheme)
            faults = seen.page.evaluate(f"axe.run({rules}).then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
            broken += [(path, scheme, *each) for each in faults]
        seen.page.emulate_media(color_scheme="light")
    assert broken == []
    assert seen.wrong == []


@pytest.mark.slow
def test_a_run_that_grows_is_read_again_by_itself(
    tmp_path: Path, visit: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy_run(tmp_path / "whole")
    run = copy_run(tmp_path / "runs" / "job")
    shutil.rmtree(run / "rank_00001")
    monkeypatch.setattr("overlapscope_dashboards.server.shell.POLL_MS", 300)
    own = served([tmp_path / "runs"]).rstrip("/")
    seen = visit(own + run_address(ids(Site([tmp_path / "runs"]))["job"]))
    assert "123.541 ms" in text(seen)  # rank 0 alone
    shutil.copytree(whole / "rank_00001", run / "rank_00001")
    seen.page.wait_for_selector("text=means over 2 ranks", timeout=PATIENCE_MS)
    assert seen.wrong == []


def paper(seen: Visit) -> int:
    colour = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(each) for each in colour.removeprefix("rgb(").rstrip(")").split(","))


@pytest.mark.slow
def test_dark_and_light_follow_the_system_and_the_switch_is_kept(address: str, visit: Visitor) -> None:
    assert paper(visit(f"{address}/", color_scheme="dark")) < 150
    seen = visit(f"{address}/", color_scheme="light")
    assert paper(seen) > 600
    seen.page.get_by_role("button", name="Show in dark colours").click()
    assert paper(seen) < 150
    seen.page.reload()
    arrived(seen)
    assert paper(seen) < 150
    seen.page.get_by_role("button", name="Show in light colours").click()
    assert paper(seen) > 600
    seen.page.emulate_media(color_scheme="dark")
    assert paper(seen) < 150, "the system's own theme is not stored as a choice"


@pytest.mark.slow
def test_names_in_traces_stay_text(tmp_path: Path, visit: Visitor) -> None:
    folder = tmp_path / EVIL.replace("/", "")
    hostile_traces(folder, EVIL)
    own = served([folder]).rstrip("/")
    (run,) = ids(Site([folder])).values()
    seen = visit(f"{own}/")
    assert EVIL in text(seen)
    for each in pages():
        seen.page.goto(own + run_address(run, each))
        arrived(seen)
        assert EVIL in text(seen)
        for at in range(seen.page.locator("summary").count()):
            seen.page.locator("summary").nth(at).click()
        assert seen.page.locator("img[src=x]").count() == 0
    assert seen.wrong == []


@pytest.mark.slow
def test_the_keyboard_goes_through_a_page_in_the_order_that_it_is_read(
    root: Path, address: str, visit: Visitor
) -> None:
    seen = visit(address + run_address(ids(Site([root]))["baseline"]))
    seen.page.evaluate("document.activeElement.blur()")
    order = []
    for _ in range(len(pages()) + 6):
        seen.page.keyboard.press("Tab")
        order.append(seen.page.evaluate(
            "(e => e.id || e.className || e.closest('nav,main,header')?.id || e.tagName)(document.activeElement)"
        ))  # fmt: skip
    assert order[0] == "skip"
    assert seen.page.evaluate("!!document.activeElement.closest('main')"), order
    tops = seen.page.evaluate("[...document.querySelectorAll('a[href],button,summary')].map(e => !!e.closest('main'))")
    assert tops == sorted(tops), "what is in the header comes before the page"
    seen.page.evaluate("document.querySelector('.skip').focus()")
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.slow
def test_the_documentation_shows_the_overview(
    visit: Visitor, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    own = served([Path("traces")]).rstrip("/")
    seen = visit(own + run_address(ids(Site([Path("traces")]))["baseline"]))
    assert "How to apply and verify it" in text(seen)
    picture = seen.page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": SHOWN_HEIGHT})
    if request.config.getoption("--update-golden"):
        SHOWN.write_bytes(picture)
    kept = SHOWN.read_bytes()
    for each in (picture, kept):
        assert each.startswith(b"\x89PNG")
        assert len(each) <= MAX_SHOWN_BYTES
        assert (int.from_bytes(each[16:20]), int.from_bytes(each[20:24])) == (1280, SHOWN_HEIGHT)
    assert f"]({SHOWN.name})" in (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")

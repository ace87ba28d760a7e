"""Collectives, Ranks, What-if and Recommendations in a browser."""

from typing import Any

import msgspec
import pytest

from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server import app
from tests.support.browser import watched
from tests.support.dashboard_runs import ids, served
from tests.unit.dashboard.test_browser import STANDS

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("dashboard-pages")]
PATIENCE_MS = 30_000
CUT = """() => [...document.querySelectorAll('main p, main h2, main dd, main td, main th, main pre, main li')]
  .filter((each) => each.offsetParent && !each.closest('.unseen, .wide, details:not([open])'))
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != 'inline')
  .map((each) => each.innerText.slice(0, 60))"""
"""Text that is wider than the room it has."""
OFF_SCALE = """() => [...document.querySelectorAll('.segment, div.bar, .gain-bar .left, .gain-bar .saved')]
  .filter((each) => each.style.width)
  .map((each) => Math.abs(each.getBoundingClientRect().width - parseFloat(each.style.width) / 100
    * each.parentElement.clientWidth))"""
"""By how many pixels each bar misses its share of what holds it."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """An open page, and the errors it caused."""

    page: Any
    address: str
    ids: dict[str, str]
    wrong: list[str]

    def go(self, run: str, page: str, query: dict[str, str] | None = None) -> None:
        self.page.goto(self.address + run_address(self.ids[run], page, query))
        self.stands()

    def stands(self) -> None:
        self.page.wait_for_function(STANDS, timeout=PATIENCE_MS)

    def lead(self) -> str:
        return str(self.page.inner_text(".lead"))


@pytest.fixture(scope="module")
def visit(browser: Any, site: Site) -> Visit:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    address = served(site.roots).rstrip("/")
    return Visit(page=page, address=address, ids=ids(site), wrong=watched(page, address))


@pytest.mark.slow
def test_it_opens_on_the_best_and_a_choice_changes_the_address_and_the_figures(visit: Visit) -> None:
    visit.go("regressed", "what-if")
    words = "A step would take 130 ms instead of 141 ms (measured): that saves 10.8 ms, 7.7 %"
    assert visit.lead().startswith(words)
    assert visit.page.locator(".lead .time").first.get_attribute("title") == "129.717 ms"
    assert visit.page.locator(".forest tr.selected th a").inner_text() == "bucket_cap_mb=10"
    visit.page.get_by_role("link", name="As recorded", exact=True).click()
    visit.page.wait_for_function("() => location.search == '?set=recorded'")
    visit.page.wait_for_selector("text=A step takes")
    visit.stands()
    before = visit.lead()
    visit.page.get_by_role("navigation", name="sent with").get_by_text("16 bits").click()
    visit.page.wait_for_function("() => location.search.includes('hook=16-bit')")
    visit.page.wait_for_function("was => document.querySelector('.lead')?.innerText != was", arg=before)
    visit.stands()
    revision = visit.lead()
    assert "129 ms instead of 141 ms" in revision
    assert "bf16_compress_hook" in visit.page.inner_text(".code pre")
    visit.page.reload()
    visit.stands()
    assert visit.lead() == revision
    visit.page.go_back()
    visit.page.wait_for_function("was => document.querySelector('.lead')?.innerText == was", arg=before)
    visit.page.locator(".forest").get_by_role("link", name="bucket_cap_mb=5", exact=True).click()
    visit.page.wait_for_function("() => location.search == '?cap=5'")
    assert visit.wrong == []


@pytest.mark.slow
def test_the_slider_is_moved_with_the_keyboard_and_keeps_its_focus(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While a page takes longer, a placeholder is shown, which has no slider.
    monkeypatch.setattr(app, "PATIENCE_S", PATIENCE_MS / 1e3)
    visit.go("regressed", "what-if", {"cap": "1", "late": "none"})
    before = visit.lead()
    slider = visit.page.get_by_role("slider").first
    slider.focus()
    slider.evaluate("slider => { slider.dataset.before = '' }")
    slider.press("ArrowRight")
    visit.page.wait_for_function("() => location.search.includes('cap=2')")
    assert "late=none" in visit.page.url
    visit.page.wait_for_function("() => !document.querySelector('[role=slider]')?.matches('[data-before]')")
    visit.stands()
    visit.page.wait_for_function("() => document.querySelector('[role=slider]')?.getAttribute('aria-valuetext') == '2'")
    visit.page.wait_for_function("() => document.activeElement.getAttribute('role') == 'slider'")
    assert "DistributedDataParallel" not in before
    assert visit.wrong == []


@pytest.mark.slow
def test_ranks_that_are_typed_stand_in_the_address(visit: Visit) -> None:
    visit.go("baseline", "ranks")
    field = visit.page.locator("#ranks-chosen")
    assert field.input_value() == "0,1"
    field.fill("1")
    field.press("Enter")
    visit.page.wait_for_function("() => location.search == '?ranks=1'")
    visit.stands()
    assert visit.page.locator("#ranks-chosen").input_value() == "1"
    visit.page.reload()
    visit.stands()
    assert visit.page.locator("#ranks-chosen").input_value() == "1"
    assert visit.wrong == []


@pytest.mark.slow
def test_a_step_that_is_chosen_in_a_comparison_stands_in_the_address(visit: Visit) -> None:
    known = visit.ids
    visit.page.goto(f"{visit.address}/compare?base={known['baseline']}&candidate={known['regressed']}")
    visit.stands()
    field = visit.page.locator("#compare-step")
    assert field.input_value() == "4"
    field.fill("7")
    field.press("Enter")
    visit.page.wait_for_function("() => location.search.includes('step=7&rank=0')")
    visit.page.wait_for_selector("text=Step 7 of rank 0 lasts")
    visit.page.get_by_role("link", name="step before").click()
    visit.page.wait_for_selector("text=Step 6 of rank 0 lasts")
    visit.stands()
    assert visit.page.locator("#compare-step").input_value() == "6"
    visit.page.reload()
    visit.page.wait_for_selector("text=Step 6 of rank 0 lasts")
    visit.stands()
    card = visit.page.locator(".card", has=visit.page.locator("#compare-timelines"))
    assert card.locator("summary").count() == 1
    visit.page.wait_for_function("() => document.querySelectorAll('#compare-timelines .shapelayer path').length >= 5")
    card.get_by_role("link", name="regressed").click()
    visit.page.wait_for_function("() => location.pathname.endsWith('/timeline') && location.search.includes('ranks=0')")
    visit.page.wait_for_selector("#timeline-figure .main-svg")
    assert visit.wrong == []


@pytest.mark.slow
def test_code_is_copied_and_the_button_says_so(visit: Visit) -> None:
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.go("regressed", "recommendations")
    card = visit.page.locator("#advice-bucket_cap")
    assert card.locator("pre").first.inner_text() == "DistributedDataParallel(model, bucket_cap_mb=10)"
    card.locator("summary", has_text="Also for DeepSpeed, Horovod").click()
    card.get_by_role("button", name="Horovod").click()
    visit.page.wait_for_function(
        "() => [...document.querySelectorAll('button.copy')].some(e => e.textContent == 'Copied')"
    )
    assert visit.page.evaluate("navigator.clipboard.readText()") == "HOROVOD_FUSION_THRESHOLD=10485760"
    assert visit.wrong == []


@pytest.mark.slow
def test_from_a_recommendation_to_its_chain_and_to_what_if_with_the_keyboard(visit: Visit) -> None:
    visit.go("regressed", "overview")
    visit.page.get_by_role("link", name="How to apply and verify it").first.focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("#advice-bucket_cap")
    visit.stands()
    visit.page.locator("#advice-bucket_cap .chain-link").focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector(".tl-steps .tl-step")
    visit.page.go_back()
    visit.page.wait_for_selector("#advice-bucket_cap")
    visit.stands()
    visit.page.locator("#advice-bucket_cap").get_by_role("link", name="Try it in What-if").focus()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function("() => location.search == '?cap=10'")
    visit.page.wait_for_selector("text=that saves")
    assert visit.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [800, pytest.param(1280, marks=pytest.mark.long), 1920])
def test_cards_are_to_scale_and_nothing_is_cut(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    for name in ("overview", "recommendations", "what-if", "collectives"):
        visit.go("regressed", name)
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        wider = "[...document.querySelectorAll('.wide')].filter((each) => each.scrollWidth > each.clientWidth).length"
        assert visit.page.evaluate(wider) == 0, name
        assert visit.page.evaluate(CUT) == [], name
        off = visit.page.evaluate(OFF_SCALE)
        assert all(each <= 1 for each in off), (name, off)
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    assert visit.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [800, 1920])
def test_names_in_bars_of_a_comparison_fit_and_the_keyboard_reaches_them_whole(visit: Visit, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.page.goto(f"{visit.address}/compare?base={visit.ids['baseline']}&candidate={visit.ids['regressed']}")
    visit.page.wait_for_selector("#compare-timelines .bartext")
    visit.stands()
    wider = """() => [...document.querySelectorAll('#compare-timelines .bartext')].filter((each) => {
      const [name, bar] = [each, each.parentElement.querySelector('path')].map((one) => one.getBoundingClientRect());
      return each.textContent && name.width > bar.width + 8; })"""
    visit.page.wait_for_function(f"() => !({wider})().length")
    assert visit.page.locator("#compare-timelines .bartext", has_text="…").count() > 0
    summary = visit.page.locator(".card", has=visit.page.locator("#compare-timelines")).locator("summary").first
    summary.focus()
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.press("Tab")
    region = visit.page.get_by_role("region", name="Spans of the step")
    assert "gloo:all_reduce" in region.inner_text()
    assert "host operations" in region.inner_text()
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visit.page.evaluate(CUT) == []
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    assert visit.wrong == []

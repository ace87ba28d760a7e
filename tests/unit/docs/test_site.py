"""The built site: every link leads somewhere, nothing is loaded from elsewhere, and it is served under /docs."""

import json
import posixpath
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from flask import Flask

from docs.site import build as site_build
from docs.site.build import Problems, collect, size_of
from overlapscope_dashboards.server import documentation
from overlapscope_dashboards.server.app import create_app
from overlapscope_dashboards.theme import COLOURS
from tests.conftest import ROOT
from tests.support.axe import axe_script
from tests.support.browser import watched
from tests.support.dashboard_runs import folder_of_runs, served
from tests.unit.docs.html import Page

pytestmark = pytest.mark.xdist_group("docs")  # the site is built once
MAX_BYTES = 5_000_000
OWN_COLOURS = {name: re.compile(rf"var\(--c-{name}, (#[0-9a-f]{{6}})\)") for name in COLOURS}


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {each.relative_to(site).as_posix(): Page.of(each) for each in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[str, Page]) -> None:
    assert len(pages) > 120
    dead = []
    for name, page in pages.items():
        for address in [*page.hrefs, *page.loaded]:
            if re.match(r"https?://|mailto:|data:", address) or (address == "/" and name):
                continue
            path, _, fragment = unquote(address).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if not (site / target).is_file() or (fragment and fragment not in pages[target].ids):
                dead.append((name, address))
    assert dead == []


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere_and_are_well_made(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert [each for each in page.loaded if re.match(r"[a-z]+:|//", each) and each != "data:,"] == [], name
        assert (page.handlers, page.without_alt) == ([], 0), name
        assert len(page.ids) == len(set(page.ids)), name
        levels = [each.level for each in page.headings if each.title != "On this page"]
        assert levels.count(1) == 1, name
        assert all(after - before <= 1 for before, after in pairwise(levels)), name
    for file in site.rglob("*.[cj]s*"):
        assert not re.search(r"@import|url\(\s*['\"]?(?!data:)", file.read_text(encoding="utf-8")), file.name
    assert sum(each.stat().st_size for each in site.rglob("*") if each.is_file()) < MAX_BYTES


def test_a_fault_in_the_sources_is_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text(
        "# One\n[a](gone.md) [b](#nowhere) [c](two.md#nor-here) ![](gone.png)\n", encoding="utf-8"
    )
    (docs / "two.md").write_text("# Two\n[one](README.md#one)\n", encoding="utf-8")
    monkeypatch.setattr(site_build, "ROOT", tmp_path)
    monkeypatch.setattr(site_build, "navigation", lambda: {"Start": ["docs/README.md"]})
    site_build.text_of.cache_clear()
    problems = Problems()
    found = collect(problems)
    site_build.text_of.cache_clear()
    assert set(found) == {"docs/README.md", "docs/two.md"}
    assert sorted([*problems, *site_build.dead_links(found)]) == [
        "docs/README.md: the anchor #nowhere leads nowhere",
        "docs/README.md: the anchor two.html#nor-here leads nowhere",
        "docs/README.md: the link gone.md leads nowhere",
        "docs/README.md: the picture gone.png has no description",
    ]


@pytest.mark.slow
def test_a_page_that_is_not_in_the_navigation_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = site_build.navigation()
    known["Start"].remove("docs/concepts.md")
    monkeypatch.setattr(site_build, "navigation", lambda: known)
    assert "docs/concepts.md: name it in docs/site/navigation.toml" in site_build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    assert site_build.build(tmp_path) == [f"{tmp_path}: holds something else than a site; name another folder"]
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_size_of_a_picture_is_read_from_it() -> None:
    assert size_of((ROOT / "docs" / "dashboard.png").read_bytes()) == (1280, 760)
    assert {size_of(each.read_bytes())[0] for each in (ROOT / "docs" / "pictures").glob("*.webp")} == {1200}


def test_drawings_have_the_colours_of_the_dashboard() -> None:
    drawings = sorted((ROOT / "docs" / "drawings").glob("*.svg"))
    assert len(drawings) == 4
    for drawing in drawings:
        text = drawing.read_text(encoding="utf-8")
        for name, pattern in OWN_COLOURS.items():
            assert set(pattern.findall(text)) <= {COLOURS[name]}, f"{drawing.name}: --c-{name}"
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_gallery_shows_the_computed_step_to_scale(site: Path) -> None:
    text = (site / "gallery.html").read_text(encoding="utf-8")
    bars = re.findall(r'<div class="stepbar".*?</div>', text)
    assert len(bars) == 2
    assert "<!-- computed" not in text
    for bar, exposed in zip(bars, (20.0, 5.6), strict=True):
        widths = [(css, float(width)) for css, width in re.findall(r'class="([\w-]+)" style="width:([\d.]+)%"', bar)]
        assert 96 < sum(width for _, width in widths) <= 100.001
        assert sum(width for css, width in widths if css.startswith("k-")) == pytest.approx(exposed, abs=0.1)


def test_the_search_knows_every_page(site: Path, pages: dict[str, Page]) -> None:
    script = (site / "search.js").read_text(encoding="utf-8")
    sections = json.loads(script.removeprefix("window.overlapscopeSearch=").removesuffix(";"))
    addresses = {address.partition("#")[0] for _, _, address, _ in sections}
    assert {each for each in pages if not each.startswith("project/")} <= addresses
    for _, title, address, _ in sections:
        path, _, fragment = address.partition("#")
        assert (not title and not fragment) or fragment in pages[path].ids


def test_the_dashboard_serves_the_site_under_docs(site: Path, tmp_path: Path) -> None:
    server = Flask("documented")
    documentation.register(server, site)
    client = server.test_client()
    assert client.get("/docs").headers["Location"] == "/docs/"
    assert b"<h1" in client.get("/docs/", buffered=True).data
    assert client.get("/docs/findings/straggler.html", buffered=True).status_code == 200
    assert client.get("/docs/site.css", buffered=True).mimetype == "text/css"
    assert client.get("/docs/site.js", buffered=True).mimetype in ("text/javascript", "application/javascript")
    for path in ("gone.html", "../app.py", "%2e%2e/app.py", "..%2f..%2fpyproject.toml"):
        assert client.get(f"/docs/{path}").status_code == 404, path


def test_where_no_site_was_built_docs_says_how(tmp_path: Path) -> None:
    server = Flask("bare")
    documentation.register(server, tmp_path / "none")
    for path in ("/docs/", "/docs/findings/straggler.html"):
        answer = server.test_client().get(path)
        assert answer.status_code == 404
        assert "make docs" in answer.text


def test_the_dashboard_answers_docs_with_its_own_rules(tmp_path: Path) -> None:
    client = create_app([folder_of_runs(tmp_path)]).server.test_client()
    answer = client.get("/docs/", headers={"Host": "localhost"}, buffered=True)
    assert answer.status_code in (200, 404)
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert client.get("/docs/", headers={"Host": "elsewhere.example"}).status_code == 400


@pytest.mark.slow
@pytest.mark.browser
def test_the_site_in_a_browser(site: Path, tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = documentation.register
    monkeypatch.setattr(documentation, "register", lambda server: plain(server, site))
    address = served([folder_of_runs(tmp_path / "runs")]).rstrip("/")
    context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    wrong = watched(page, address)
    page.goto(f"{address}/docs/")
    page.keyboard.press("/")
    page.keyboard.type("removal value")
    page.wait_for_selector("#site-hits li")
    assert "Glossary" in page.inner_text("#site-hits") or "removal" in page.inner_text("#site-hits").lower()
    page.keyboard.type(" zzzz")
    page.wait_for_function("document.querySelector('#site-count').textContent === 'Nothing found'")
    page.fill("#site-query", "straggler")
    page.wait_for_selector("#site-hits li[aria-selected]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/findings/straggler.html")
    page.click("#site-theme")
    assert page.evaluate("document.documentElement.style.colorScheme") == "dark"
    page.goto(f"{address}/docs/gallery.html")
    assert page.evaluate("document.documentElement.style.colorScheme") == "dark"
    page.click("#site-dashboard")
    page.wait_for_selector("text=All runs")
    assert page.evaluate("document.documentElement.style.colorScheme") == "dark"
    page.get_by_role("link", name="Docs", exact=True).click()
    page.wait_for_url("**/docs/")
    script = axe_script()
    for path in ("index", "tutorial", "concepts", "gallery", "reference/commands", "findings/straggler"):
        page.goto(f"{address}/docs/{path}.html")
        page.evaluate(f"{script};0")
        for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
            page.evaluate(f"document.documentElement.style.colorScheme = '{scheme}'")
            broken = page.evaluate(f"axe.run({rules}).then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
            assert broken == [], (path, scheme)
        for width in (800, 420):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
        page.set_viewport_size({"width": 1280, "height": 900})
    assert wrong == []
    context.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_a_folder_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "advice" / "bucket_cap.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("noise floor")
    page.wait_for_selector("#site-hits li[aria-selected]")
    page.keyboard.press("Enter")
    page.wait_for_function("!location.href.includes('bucket_cap')")
    assert page.url.startswith("file://")
    page.close()

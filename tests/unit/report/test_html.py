"""The HTML report: whole in one file, figures that are those of the document, usable without sight, mouse or script."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.cli.output import printable
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import html
from overlapscope.report.formats import json as as_json
from overlapscope.report.formats.svg import svg, ticks
from overlapscope.report.model import Chart, Series
from overlapscope.report.sheet.charts import PARTS, charts_of
from overlapscope.report.sheet.document import Document, decoded
from tests.conftest import ROOT
from tests.unit.report.test_report import EVIL, documents, hostile, tells

VOID = {"meta", "link"}
ELEMENTS = {
    "html", "head", "body", "title", "style", "script", "header", "main", "footer", "section", "h1", "h2", "p", "ul",
    "ol", "li", "code", "figure", "figcaption", "button", "svg", "defs", "pattern", "g", "desc", "text", "details",
    "summary", "rect", "line", "path", "circle", "polyline", "div", "table", "thead", "tbody", "tr", "th", "td",
    "a", "nav", *VOID,
}  # fmt: skip

TOLD = ("data-tip", "aria-label")
"""Attributes that hold text to be read."""


class Seen(HTMLParser):
    """What is in a page; closes what it opens, or fails."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.inside.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.inside[tag][-1] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def pages() -> dict[str, tuple[Document, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return {kind: (document, html.render(document)) for kind, document in documents().items()}


def check_whole(text: str) -> Seen:
    """One file: nothing is loaded, only our own script and style may act, and each is what its hash says."""
    seen = Seen(text)
    assert {tag for tag, _ in seen.elements} <= ELEMENTS
    for tag, attributes in seen.elements:
        assert not any(name.startswith("on") or name in ("style", "src", "srcset", "action") for name in attributes)
        if "href" in attributes:
            target = str(attributes["href"])
            assert target == "data:," or f'id="{target.removeprefix("#")}"' in text, tag
    links = [
        value for _, own in seen.elements for name, value in own.items() if name not in TOLD and "//" in (value or "")
    ]
    assert set(links) <= {"http://www.w3.org/2000/svg"}
    script, style = seen.inside["script"], seen.inside["style"]
    assert len(script) == len(style) == 1
    rules = next(str(each["content"]) for each in seen.of("meta") if each.get("http-equiv"))
    for directive, content in (("script-src", script[0]), ("style-src", style[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in rules
    assert rules.startswith("default-src 'none'")
    assert "url(http" not in style[0]
    assert "@import" not in style[0]
    assert not re.search(r"innerHTML|eval|fetch|XMLHttp|document\.write", script[0])
    return seen


def test_a_page_is_whole_and_small(pages: dict[str, tuple[Document, str]]) -> None:
    for _, text in pages.values():
        check_whole(text)
        assert printable(text) == text  # what `report` writes is what was hashed
        assert len(text.encode()) < 100_000
        assert "prefers-color-scheme: dark" in text


def test_a_page_can_be_used_without_sight_or_mouse(pages: dict[str, tuple[Document, str]]) -> None:
    for _, text in pages.values():
        seen = Seen(text)
        assert seen.of("html")[0]["lang"] == "en"
        assert len(seen.of("h1")) == 1
        assert {"main", "header", "footer"} <= {tag for tag, _ in seen.elements}
        figures = re.findall(r"<figure>(.*?)</figure>", text, re.DOTALL)
        assert figures
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(set(ids)) == len(ids)
        for figure in figures:
            chart = re.search(r'<svg role="img" aria-labelledby="(\S+) (\S+)"', figure)
            assert chart
            words = [re.search(rf'id="{each}">([^<]+)<', figure) for each in chart.groups()]
            assert all(each and each[1].strip() for each in words)
            assert "<details><summary>As a table</summary>" in figure
            assert "<table>" in figure
        assert all(each["type"] == "button" for each in seen.of("button"))
        assert all(each.get("scope") == "col" for each in seen.of("th"))


def test_a_page_answers_how_much_why_and_what_to_do_in_this_order(pages: dict[str, tuple[Document, str]]) -> None:
    for kind, (_, text) in pages.items():
        titles = re.findall(r"<h2[^>]*>([^<]+)</h2>", text)
        order = ["How much", "Why", "Warnings", "What to do next", "Figures", "Notes"]
        assert titles == [each for each in order if each in titles]
        assert {"How much", "What to do next", "Figures"} <= set(titles)
        assert "Why" in titles or kind == "history"
        assert re.findall(r'<a href="#([^"]+)">', text) == re.findall(r'<section id="([^"]+)"', text)


def test_a_run_says_who_waited_and_who_was_waited_for(pages: dict[str, tuple[Document, str]]) -> None:
    document, text = pages["run"]
    skew = _json_of(document)["skew"]
    drawn = {row[0]: row[1:] for row in chart_tables(text)["Wait time and delay caused, by rank"]}
    for each in skew["ranks"]:
        assert drawn[f"rank {each['rank']}"] == [f"{each[name] / 1e6:,.3f}" for name in ("blame_ns", "wait_ns")]
    assert "No straggler: no rank delayed the others more than chance explains." in text
    assert f"agree to within {skew['residual_ns'] / 1e6:.3f} ms" in text


def test_a_straggler_is_named_with_what_held_it_and_its_evidence(pages: dict[str, tuple[Document, str]]) -> None:
    raw = _json_of(pages["run"][0])
    evidence = {
        "calls": 17, "chance": 0.00021, "idle_more_ns": 12_500_000, "communicated_more_ns": -3, "slowness": 1.25,
        "in_larger_grids": 0.5, "recording_may_explain": True, "not_known_yet_ns": 1_000_000,
    }  # fmt: skip
    raw["skew"]["stragglers"] = [{"rank": 1, "held_by": "host", "blame_ns": 26_000_000, "evidence": evidence}]
    raw["skew"]["residual_ns"] = None
    found = decoded(json.dumps(raw).encode())
    text = html.render(found)
    check_whole(text)
    assert "Rank 1 is a straggler: it delayed the others by 26.000 ms, at most " in text, "less of it was exposed"
    assert escape(f"; cause: {STRAGGLER_CAUSES['host']}") in text
    for words in (
        "arrived last at 17 calls", "idle 12.500 ms longer than its peers",
        "its kernels take 1.25 times as long as usual", "50.0 % of its compute in larger grids",
        "not known yet 1.000 ms", "p = 0.0002",
        "find the cause of straggler rank 1: it comes before settings of communication",
    ):  # fmt: skip
        assert words in unescape(text)
    assert "communicated" not in re.findall(r"arrived last at[^<]*", text)[0]
    assert "overlapscope advise" not in text  # no bucket helps against a late rank
    assert "clocks agree" not in text


def test_the_charts_hold_the_figures_of_the_run(pages: dict[str, tuple[Document, str]]) -> None:
    """Calculated again from the JSON of the analysis."""
    document, text = pages["run"]
    raw = _json_of(document)
    by_rank = {
        info["rank"]: [each for each in info["steps"] if each["complete"] and each["window_ns"]]
        for info in raw["ranks"]
    }
    tables = chart_tables(text)
    rows = {row[0]: [float(cell) for cell in row[1:]] for row in tables["Where a step goes, by rank"]}
    for rank, steps in by_rank.items():
        medians = [median(each[name] for each in steps) / 1e6 for name in PARTS]
        assert rows[f"rank {rank}"] == pytest.approx(medians, abs=0.00051)
    causes = {row[0]: float(row[1]) for row in tables["Why communication is exposed"]}
    of_steps = zip(*([each["exposed_comm_ns"] for each in steps] for steps in by_rank.values()), strict=True)
    assert sum(causes.values()) == pytest.approx(median(map(fmean, of_steps)) / 1e6, abs=0.006)
    lines = {row[0]: [float(cell) for cell in row[1:]] for row in tables["Step by step"]}
    number = by_rank[0][0]["step"]
    each = [next(s for s in steps if s["step"] == number) for steps in by_rank.values()]
    assert lines[f"step {number}"][1] == pytest.approx(fmean(s["exposed_comm_ns"] for s in each) / 1e6, abs=0.00051)
    assert lines[f"step {number}"][0] >= max(s["window_ns"] for s in each) / 1e6


def _json_of(document: Document) -> Any:
    return json.loads(as_json.render(document))


def chart_tables(text: str) -> dict[str, list[list[str]]]:
    found = {}
    for figure in re.findall(r"<figure>(.*?)</figure>", text, re.DOTALL):
        title = re.search(r"<figcaption>([^<]*)<", figure)
        assert title
        rows = re.findall(r"<tr>((?:<td.*?</td>)+)</tr>", figure)
        found[title[1]] = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    return found


def test_the_charts_hold_the_figures_of_the_comparison(pages: dict[str, tuple[Document, str]]) -> None:
    document, text = pages["gate"]
    raw = _json_of(document)["comparison"]
    rows = chart_tables(text)["Figures of a step, side by side"]
    values = {row[0]: row[1:] for row in rows}
    step = next(each for each in raw["metrics"] if each["name"] == "step_time_ns")
    assert values["step time"] == [f"{step[side]['value'] / 1e6:.3f}" for side in ("base", "candidate")]
    shares = chart_tables(text)["What the step consists of"]
    for at, side in ((1, "base"), (2, "candidate")):
        assert sum(float(row[at]) for row in shares) == pytest.approx(step[side]["value"] / 1e6, abs=0.003)


def test_bars_are_as_long_as_their_figures_and_stand_behind_each_other() -> None:
    chart = Chart(
        title="t", words="w", kind="stacked", axis="ms", categories=("a", "b"),
        series=(Series(name="x", values=(3.0, 1.0)), Series(name="y", values=(1.0, None))),
    )  # fmt: skip
    drawn = re.findall(r'data-tip="(\w): (\w) ([\d.]+) ms" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg(chart, 0))
    assert [each[:3] for each in drawn] == [("a", "x", "3.000"), ("a", "y", "1.000"), ("b", "x", "1.000")]
    (_, _, _, x0, w0), (_, _, _, x1, w1), (_, _, _, x2, w2) = drawn
    assert float(w0) == pytest.approx(3 * float(w1), rel=1e-3)
    assert float(x1) == pytest.approx(float(x0) + float(w0), abs=0.02)
    assert (x2, w2) == (x0, w1)


def test_what_is_not_known_is_said_and_not_drawn() -> None:
    chart = Chart(
        title="t", words="w", kind="grouped", axis="ms", categories=("a",),
        series=(Series(name="base", values=(None,)), Series(name="candidate", values=(2.0,))),
    )  # fmt: skip
    drawn = svg(chart, 0)
    assert drawn.count("<rect") == 1
    assert ">n/a</text>" in drawn


@pytest.mark.parametrize("most", [0.0, 1e-6, 0.7, 5.0, 99.9, 1234.5, 1e15])
def test_ticks_are_round_and_reach_the_largest_value(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] >= most
    assert 2 <= len(found) <= 7
    assert all(re.match(r"(1|2|2\.5|5)e", f"{found[1]:.10e}".replace("0", "").replace(".e", "e")) for _ in found[1:2])


@pytest.mark.slow
def test_long_runs_and_many_ranks_stay_bounded(pages: dict[str, tuple[Document, str]]) -> None:
    document, _ = pages["run"]
    raw = _json_of(document)
    first = raw["ranks"][0]
    step = next(each for each in first["steps"] if each["complete"])
    first["steps"] = [{**step, "step": at} for at in range(20_000)]
    raw["ranks"] = [first, *({**raw["ranks"][1], "rank": at} for at in range(1, 1024))]
    of_job = [{**raw["headline"]["job_steps"][0], "step": at} for at in range(20_000)]
    raw["headline"] |= {"steps": 20_000, "ranks": list(range(1024)), "job_steps": of_job}
    large = decoded(json.dumps(raw).encode())
    text = html.render(large)
    assert len(text.encode()) < 1_500_000
    by_title = {each.title: each for each in charts_of(large)}
    assert len(by_title["Where a step goes, by rank"].categories) == 64
    assert "64 of 1024 ranks" in by_title["Where a step goes, by rank"].words
    assert "Every 20. step is drawn" in by_title["Step by step"].words


def test_a_run_without_steps_or_communication_has_a_page(tmp_path: Path) -> None:
    empty = tmp_path / "trace.json"
    empty.write_text(
        json.dumps({"traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5, "args": {}},
        ], "distributedInfo": {"rank": 0, "world_size": 1}}),
        encoding="utf-8",
    )  # fmt: skip
    text = html.render(analyze(read_inputs([empty])))
    check_whole(text)
    assert "No communication was recorded" in text


@pytest.mark.parametrize(
    "evil", [*EVIL, "</script><script>alert(1)</script>", "</style><svg onload=alert(1)>", "x' y=\"z"]
)
def test_hostile_names_are_only_text(evil: str) -> None:
    for document in hostile(evil).values():
        text = html.render(document)
        seen = check_whole(text)
        assert tells(text, evil)
        assert printable(text) == text
        acting = [value for _, own in seen.elements for name, value in own.items() if name not in TOLD]
        assert not any("alert" in str(value) for value in acting)


def test_the_script_shows_tips_points_out_series_and_sorts() -> None:
    """In a JavaScript engine, with stand-ins for the page: what a browser draws is the next test's."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the page's script cannot run without a browser")
    script = ROOT / "overlapscope" / "report" / "formats" / "page.js"
    done = subprocess.run(
        [node, str(ROOT / "tests" / "support" / "page_script.mjs"), str(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "titleRemoved": True,
        "tip": [False, "<b>rank 0"],
        "tipLeft": True,
        "pressed": [["true", "false"], [False, True]],
        "released": [False, False],
        "sorted": [
            [["", "descending"], ["1,200.1", "1.000", "-3.5", "n/a"]],
            [["", "ascending"], ["n/a", "-3.5", "1.000", "1,200.1"]],
            [["ascending", ""], ["r0", "r1", "r2", "r3"]],
            [["descending", ""], ["r3", "r2", "r1", "r0"]],
        ],
    }


# --- in a real browser ------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_browser_shows_it_without_a_request_or_an_error(
    browser: Any, pages: dict[str, tuple[Document, str]], tmp_path: Path, scheme: str
) -> None:
    context = browser.new_context(color_scheme=scheme)
    for kind, (_, text) in pages.items():
        (tmp_path / f"{kind}.html").write_text(text, encoding="utf-8")
        view = context.new_page()
        requests: list[str] = []
        errors: list[str] = []
        view.on("request", lambda request, seen=requests: seen.append(request.url))
        view.on("console", lambda message, seen=errors: seen.append(message.text))
        view.on("pageerror", lambda error, seen=errors: seen.append(str(error)))
        view.goto(f"file://{tmp_path / kind}.html")
        # The tip, the legend and the sorting act; the style is in force.
        bar = view.locator("svg [data-tip]").first
        bar.hover()
        assert view.locator("#tip").is_visible()
        button = view.locator(".legend button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert view.locator("svg .faint").count() > 0
        head = view.locator("#figures th button").nth(2)
        head.click()
        assert view.locator("#figures th[aria-sort=descending]").count() == 1
        ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(22, 24, 26)") == (scheme == "dark")
        assert [each for each in requests if not each.startswith(("file:", "data:"))] == []
        assert errors == []
        view.close()
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("evil", [EVIL[0], *(pytest.param(each, marks=pytest.mark.slow) for each in EVIL[1:])])
def test_a_browser_runs_nothing_of_a_hostile_name(browser: Any, tmp_path: Path, evil: str) -> None:
    view = browser.new_page()
    dialogs: list[str] = []
    view.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for kind, document in hostile(evil).items():
        target = tmp_path / f"{kind}.html"
        target.write_text(html.render(document), encoding="utf-8")
        view.goto(f"file://{target}")
        assert view.locator("script").count() == 1
        assert view.locator("img").count() == 0
    assert dialogs == []
    view.close()

"""The blocking chain beside the timeline: the same as `explain` prints, each step where it lay; then in a browser."""

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from overlapscope.analysis.graph import explained
from overlapscope.analysis.graph.building import build
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.report.text.chain import gain_words, render, stretches
from overlapscope.timeline.columns import COMM, COMPUTE
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server.app import create_app
from overlapscope_dashboards.timeline.blocking_chain import MOST_LINKS, blocking_chain
from overlapscope_dashboards.timeline.source import TimelineSource, source_of
from tests.conftest import shared_file
from tests.support.axe import axe_script
from tests.support.browser import watched
from tests.support.dashboard_runs import folder_of_runs, ids, served

EXPOSED = "0@536158000"
"""In the regressed run, while rank 0 waits for rank 1."""


@pytest.fixture(scope="module")
def regressed(site: Site) -> OpenRun:
    return site.run(ids(site)["regressed"])


@pytest.fixture(scope="module")
def timeline(regressed: OpenRun) -> TimelineSource:
    return source_of(regressed)


def test_the_steps_are_the_rows_that_the_command_prints(regressed: OpenRun) -> None:
    shown = blocking_chain(regressed, EXPOSED)
    found = explained.chain_at(regressed.run, 0, 536_158_000, most=MOST_LINKS)
    rows = stretches(found.chain)
    assert [(each.words, each.known) for each in shown.steps] == [(row.words, row.known) for row in rows]
    assert len(rows) > 5
    printed = render(found)
    assert all(line in printed for line in (shown.lead[0], shown.notes[0]))
    assert shown.command.endswith("regressed --at 0:536.158000")
    assert shown.title == "Why is communication of rank 0 exposed here?"
    of_span = blocking_chain(regressed, f"0:{found.explains.span}")
    assert of_span.command.endswith(f"--span 0:{found.explains.span}")
    assert [each.words for each in of_span.steps] == [each.words for each in shown.steps]


def test_each_step_begins_where_the_one_before_it_in_time_ended(regressed: OpenRun, timeline: TimelineSource) -> None:
    shown = blocking_chain(regressed, EXPOSED)
    paths = [each.path for each in shown.steps]
    assert [path[0] for path in paths[:-1]] == [path[1] for path in paths[1:]]
    for begin, end in paths:
        assert begin[2] <= end[2]
    late = next(each for each in shown.steps if each.words.startswith("late rank"))
    (rank, lane, at), (waits, _, _) = late.path
    assert (rank, waits) == (1, 0)
    spans = regressed.run.ranks[1].spans
    begun = timeline.aligned(1, spans.start_ns[(spans.kind == COMM) & (spans.lane == lane)])
    assert np.abs(begun - at * 1e6).min() <= 1
    assert late.where == f"rank 1, {timeline.lanes(1).lanes[lane].label}"


def test_what_is_explained_is_the_time_without_compute_around_the_moment(
    regressed: OpenRun, timeline: TimelineSource
) -> None:
    rank, begin, end = blocking_chain(regressed, EXPOSED).marked
    spans = regressed.run.ranks[rank].spans
    starts, ends = (timeline.aligned(rank, each[spans.kind == COMPUTE]) for each in (spans.start_ns, spans.end_ns))
    assert begin * 1e6 == pytest.approx(max(each for each in ends.tolist() if each <= 536_158_000), abs=1)
    assert end * 1e6 == pytest.approx(min(each for each in starts.tolist() if each > 536_158_000), abs=1)


def test_steps_that_ended_before_the_interval_are_the_earlier_ones(regressed: OpenRun) -> None:
    shown = blocking_chain(regressed, EXPOSED)
    assert [each.earlier for each in shown.steps] == [each.path[1][2] <= shown.marked[1] for each in shown.steps]
    assert shown.ranks == [0, 1]
    assert shown.reach[0] <= shown.marked[1] * 1e6
    assert shown.reach[1] >= shown.marked[2] * 1e6 - 1


def test_exposed_communication_that_is_clicked_says_what_ended_it(regressed: OpenRun) -> None:
    found = explained.chain_at(regressed.run, 0, 536_158_000)
    (row,) = {each.span for each in found.chain if each.kind == "transfer" and each.rank == 0}
    clicked = blocking_chain(regressed, f"0:{row}", 536_158_000)
    assert clicked.asked == EXPOSED
    assert clicked == blocking_chain(regressed, EXPOSED)
    assert blocking_chain(regressed, f"0:{row}").asked == f"0:{row}"


def test_slack_of_a_step_is_how_much_later_its_end_could_be(regressed: OpenRun) -> None:
    shown = blocking_chain(regressed, EXPOSED)
    assert shown.steps[0].slack.startswith("slack 8.114 ms")
    assert "8.114 ms" in shown.notes[0]
    assert all(each.slack for each in shown.steps)
    assert {each.gain for each in shown.steps} == {"gain n/a"}, "threads of CPUs slow each other"


@pytest.mark.slow
def test_what_a_step_is_worth_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    place = shared_file("kineto/megatron_tp8")
    opened = Site([place]).run(Site([place]).find_runs().runs[0].id)
    shown = blocking_chain(opened, "0@500000000")
    gains = opened.chains.gains(opened.chains.at(0, 500_000_000, most=MOST_LINKS), [1])
    assert shown.steps[0].gain == gain_words(gains[0])
    assert main(["explain", str(place), "--at", "0:500"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {(row[0], row[2]): row[3] for row in printed if len(row) > 4 and row[2].isdigit()}
    for each in shown.steps:
        begin = each.when.partition(" ")[0]
        worth = rows[begin, each.where.split(",")[0].removeprefix("rank ")]
        assert each.gain == ("gone: saves nothing" if worth == "0.000" else f"gone: saves {worth} ms")
    assert any("saves nothing" not in each.gain for each in shown.steps)


def test_a_graph_is_built_once_for_the_analysis_and_all_chains_of_a_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    plain = build.run_graph
    monkeypatch.setattr(build, "run_graph", lambda *given: built.append(given[0]) or plain(*given))
    own = Site([root])
    opened = own.run(ids(own)["regressed"])
    assert opened.analysis.headline.step_ns
    for asked in (EXPOSED, "1@300000000", "0:200"):
        assert blocking_chain(opened, asked).steps
    assert len(built) == 1
    chains = opened.chains
    assert opened.chains is chains
    assert own.run(ids(own)["baseline"]).chains is not chains
    assert opened.chains is not chains, "of one run at a time the graphs are kept"


@pytest.mark.parametrize(
    ("asked", "words"),
    [("", "write RANK@NANOSECONDS"), ("a@1", "write RANK@NANOSECONDS"), ("0@-5", "write RANK@NANOSECONDS"),
     ("9@1", "no times of rank 9"), ("0:99999999", "has the spans 0 to"), ("0@999999999999", "outside what was")],
)  # fmt: skip
def test_what_has_no_chain_says_why(regressed: OpenRun, asked: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        blocking_chain(regressed, asked)


@pytest.mark.slow
def test_while_a_graph_is_built_the_progress_is_said_and_views_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope_dashboards.runs.site.PATIENCE_S", 0.2)
    go = threading.Event()
    plain = RunChains.graph

    def slow(*given: Any) -> Any:
        go.wait(60)
        return plain(*given)

    folder = folder_of_runs(tmp_path)
    client = create_app([folder]).server.test_client()
    address = run_address(ids(Site([folder]))["regressed"], "timeline")
    until = time.monotonic() + 60

    def settled(query: str) -> Any:
        while (answer := client.get(f"{address}/{query}")).status_code == 202 and time.monotonic() < until:
            time.sleep(0.05)
        return answer

    settled("view")
    monkeypatch.setattr(RunChains, "graph", slow)
    said = set()
    while "dependency graph of 2 ranks" not in " ".join(said) and time.monotonic() < until:
        for moment in range(8):  # more than may run at once for one page
            answer = client.get(f"{address}/chain?chain=0@{536_158_000 + moment}")
            assert answer.status_code == 202
            said.add(answer.text)
    assert "Building the dependency graph of 2 ranks." in said
    for width in range(800, 840, 10):
        assert settled(f"view?width={width}").status_code == 200
    assert not go.is_set()
    go.set()
    assert json.loads(settled(f"chain?chain={EXPOSED}").data)["asked"] == EXPOSED
    assert "no times of rank 9" in settled("chain?chain=9@1").json["problem"]


# --- in a browser -----------------------------------------------------------------------------------------------------

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def address(root: Path, browser: Any) -> str:
    return served([root]).rstrip("/")


def opened_page(browser: Any, address: str, query: dict[str, object]) -> tuple[Any, list[str]]:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    seen = watched(page, address)
    run = next(each["href"] for each in links(page, address) if each["name"] == "regressed")
    page.goto(address + run_address(run.split("/")[2], "timeline", query))
    page.wait_for_selector("#timeline-figure[data-drawn]", state="attached")
    return page, seen


def links(page: Any, address: str) -> list[dict[str, str]]:
    page.goto(f"{address}/")
    page.wait_for_selector("main a[href^='/runs/']")
    script = "[...document.querySelectorAll('main a')].map(e => ({name: e.textContent, href: e.getAttribute('href')}))"
    found: list[dict[str, str]] = page.evaluate(script)
    return found


def chain_stands(page: Any) -> None:
    page.wait_for_selector(".tl-steps .tl-step")
    page.wait_for_selector("#timeline-drawn .tl-link", state="attached")


def width_of_plot(page: Any) -> float:
    return float(page.evaluate("document.querySelector('#timeline-figure .nsewdrag').getBoundingClientRect().width"))


@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
def test_a_click_on_exposed_time_shows_its_chain_which_the_address_keeps(browser: Any, address: str) -> None:
    page, seen = opened_page(browser, address, {"t0": 500_000_000, "t1": 570_000_000, "ranks": "0"})
    box = page.locator("#timeline-figure .nsewdrag").first.bounding_box()
    part = (536.158 - 500) / 70
    page.mouse.click(box["x"] + box["width"] * part, box["y"] + 10)
    chain_stands(page)
    assert page.locator(".tl-chain h2").text_content() == "Why is communication of rank 0 exposed here?"
    rank, moment = parse_qs(urlsplit(page.url).query)["chain"][0].split("@")
    assert rank == "0"
    assert int(moment) == pytest.approx(536_158_000, abs=1_000_000)
    assert f"--at 0:{int(moment) / 1e6:.6f}" in page.locator(".tl-chain pre").text_content()
    # It leads to rank 1, which is now shown beside rank 0, and the lines reach it.
    page.wait_for_function("() => document.getElementById('timeline-ranks').value === '0,1'")
    page.wait_for_function("() => document.querySelectorAll('#timeline-drawn .tl-link .head').length > 0")
    assert page.locator("#timeline-pointed strong").text_content().startswith("rank 0 at "), "pinned while a rank came"
    steps = page.locator(".tl-step").all_text_contents()
    assert any("late rank" in each for each in steps)
    assert any("recorded" in each for each in steps)
    widths: list[float] = []
    page.on("request", lambda each: widths.extend(float(one) for one in parse_qs(each.url).get("width", [])))
    page.reload()
    page.wait_for_selector("#timeline-figure[data-drawn]", state="attached")
    chain_stands(page)
    assert page.locator(".tl-step").all_text_contents() == steps
    # The panel takes width from the plot, whose labels are those that fit what is left.
    for _ in range(300):
        if width_of_plot(page) < box["width"] - 40 and widths[-1:] == [pytest.approx(width_of_plot(page), abs=40)]:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail(f"the plot is {width_of_plot(page)} wide, {box['width']} before; asked for were {widths}")
    page.locator(".tl-chain h2").click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.step") == "1"
    page.evaluate(f"{axe_script()};0")
    assert page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))") == []
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search.includes('chain')")
    assert page.locator("#timeline-drawn svg").count() == 0
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
def test_an_address_whose_chain_does_not_exist_says_why(browser: Any, address: str) -> None:
    page, seen = opened_page(browser, address, {"chain": "9@1"})
    page.wait_for_selector("text=no times of rank 9 were recorded")
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
def test_a_hit_is_explained_and_fitted_by_keys_and_details_of_another_time_go(browser: Any, address: str) -> None:
    page, seen = opened_page(browser, address, {})
    hint = "Hover for details"
    title = "document.querySelector('#timeline-pointed strong').textContent"
    page.locator("#timeline-text").fill("gloo:all_reduce")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => {title} === 'gloo:all_reduce'")
    page.wait_for_function("() => document.querySelector('#timeline-hits').textContent.startsWith('1 of')")
    spans, parts = page.locator("#timeline-note").text_content(), page.locator("#timeline-pointed").text_content()
    assert "rank 0" in parts
    page.locator("#timeline-ranks").fill("1")
    page.keyboard.press("Enter")
    page.wait_for_function("was => document.querySelector('#timeline-note').textContent !== was", arg=spans)
    assert page.locator("#timeline-pointed").text_content() == parts, "pinned while its rank is not shown"
    page.locator("#timeline-ranks").fill("0,1")
    page.keyboard.press("Enter")
    page.wait_for_function("was => document.querySelector('#timeline-note').textContent === was", arg=spans)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("e")
    chain_stands(page)
    assert page.locator(".tl-chain h2").text_content() == "Why did gloo:all_reduce begin only then?"
    page.keyboard.press("0")
    page.wait_for_function("() => !location.search.includes('t0')")
    assert page.evaluate(title) == "gloo:all_reduce", "details of a span stay with it"
    page.keyboard.press("f")
    page.wait_for_function("() => location.search.includes('t0')")
    found = {name: int(value[0]) for name, value in parse_qs(urlsplit(page.url).query).items() if name in ("t0", "t1")}
    assert found["t1"] - found["t0"] < 400_000_000
    page.keyboard.press("Escape")
    page.wait_for_function(f"() => {title}.startsWith('{hint}')")
    box = page.locator("#timeline-figure .nsewdrag").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    page.wait_for_function(f"() => {title}.startsWith('rank 0 at')")
    page.mouse.move(5, 5)
    page.keyboard.press("w")
    page.wait_for_function(f"() => {title}.startsWith('{hint}')")
    assert seen == []

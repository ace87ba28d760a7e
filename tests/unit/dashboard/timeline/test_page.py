"""The timeline of whole runs: figures and text agree with the analysis; then in a real browser."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from dash._utils import to_json

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope.timeline.columns import COMM, NONE
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import save_run
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.server.app import create_app
from overlapscope_dashboards.server.serve import perfetto_app
from overlapscope_dashboards.timeline import source as source_module
from overlapscope_dashboards.timeline import view
from overlapscope_dashboards.timeline.figure import DrawnTimeline, draw
from overlapscope_dashboards.timeline.heat_map import map_rows
from overlapscope_dashboards.timeline.labels import times_in_window
from overlapscope_dashboards.timeline.query import TimelineQuery, parse_timeline_query
from overlapscope_dashboards.timeline.source import TimelineSource, source_of
from overlapscope_dashboards.timeline.window import TimeWindow
from tests.support.browser import watched
from tests.support.builders import full_timeline
from tests.support.dashboard_runs import copy_run, figure_numbers, folder_of_runs, ids

EVIL = '<img src=x onerror="alert(1)">&lt;b&gt;<a href="javascript:alert(1)">'


def whole(source: TimelineSource, **query: object) -> TimelineQuery:
    return parse_timeline_query(query, source.whole, source.ranks)


def figures(drawn: DrawnTimeline, kind: str) -> list[dict[str, Any]]:
    return [trace for trace in drawn.figure["data"] if trace["type"] == kind]


# --- figures ----------------------------------------------------------------------------------------------------------


def test_times_in_view_are_the_breakdown_of_the_same_window(source: TimelineSource, opened: OpenRun) -> None:
    window = TimeWindow(start_ns=100_000_001, end_ns=250_000_003)
    spent = times_in_window(source, window, source.ranks)
    clocks = opened.cross_rank.clocks
    for rank, timeline in opened.run.ranks.items():
        start_ns, end_ns = (clocks.aligned_ns(rank, each) for each in (timeline.spans.start_ns, timeline.spans.end_ns))
        moved = Coverage.of_times(timeline.spans.kind, start_ns, end_ns)
        result = moved.breakdown((window.start_ns + source.origin_ns, window.end_ns + source.origin_ns))
        ours = dict(zip(STATES, spent[rank], strict=True))
        assert ours["exposed"] == result.exposed_comm_ns
        assert ours["hidden"] == result.overlapped_ns
        assert ours["compute"] == result.compute_only_ns
        assert ours["idle"] + ours["unrecorded"] == result.idle_ns
        assert result.exposed_comm_ns > 0


def test_exposed_pieces_and_causes_drawn_add_up_to_the_exposed_time(source: TimelineSource) -> None:
    drawn = draw(source, whole(source), 1_000)
    assert drawn.detailed
    rows = dict(
        zip(drawn.figure["layout"]["yaxis2"]["tickvals"], drawn.figure["layout"]["yaxis2"]["ticktext"], strict=True)
    )
    exposed_ns = sum(
        spent[STATES.index("exposed")] for spent in times_in_window(source, source.whole, source.ranks).values()
    )
    why = [trace for trace in figures(drawn, "bar") if trace["width"] == 0.5]
    assert all("why exposed" in rows[place] for trace in why for place in figure_numbers(trace["y"]).tolist())
    assert sum(figure_numbers(trace["x"]).sum() for trace in why) == pytest.approx(exposed_ns / 1e6, abs=1e-3)
    pieces = next(trace for trace in figures(drawn, "bar") if trace["name"] == "exposed")
    assert figure_numbers(pieces["x"]).sum() >= exposed_ns / 1e6 - 1e-3


def test_every_span_in_view_is_drawn_once_where_it_ran(source: TimelineSource, opened: OpenRun) -> None:
    view_ = whole(source, t0=10_000_000, t1=60_000_000)
    drawn = draw(source, view_, 1_000)
    result = {
        key: (start, length)
        for trace in figures(drawn, "bar")
        if trace.get("customdata") and trace["width"] != 0.5
        for (key, _), start, length in zip(
            trace["customdata"], figure_numbers(trace["base"]), figure_numbers(trace["x"]), strict=True
        )
    }
    expected = {}
    for rank, timeline in opened.run.ranks.items():
        start, end = (source.aligned(rank, each) for each in (timeline.spans.start_ns, timeline.spans.end_ns))
        for row in np.flatnonzero((start < 60_000_000) & (end > 10_000_000)).tolist():
            expected[f"{rank}:{row}"] = (start[row] / 1e6, (end[row] - start[row]) / 1e6)
    assert result.keys() == expected.keys()
    assert len(result) == drawn.spans > 50
    for key, (start, length) in expected.items():
        assert result[key] == pytest.approx((start, length), abs=1e-6)


def test_a_span_that_began_before_the_window_has_its_name_in_view(source: TimelineSource) -> None:
    lane = source.lanes(source.ranks[0]).lanes[0]
    longest = int((lane.end_ns - lane.start_ns).argmax())
    start, end = int(lane.start_ns[longest]), int(lane.end_ns[longest])
    window = {"t0": str((start + end) // 2), "t1": str((start + end) // 2 + (end - start))}
    query = whole(source, ranks=str(source.ranks[0]), **window)
    shown = draw(source, query, 1_000).figure["data"]
    (names,) = (trace for trace in shown if trace["name"] == "names")
    timeline = source.tables(source.ranks[0])
    name = timeline.names[int(timeline.spans.name[lane.rows[longest]])]
    assert names["text"][0].rstrip("…")
    assert name.startswith(names["text"][0].rstrip("…"))
    assert figure_numbers(names["base"])[0] == query.window.start_ns / 1e6
    exact = [figure_numbers(each["base"]) for each in shown if each["type"] == "bar" and each["name"] != "names"]
    assert any((each == start / 1e6).any() for each in exact), "its bar stays where it ran"


def test_labels_of_steps_do_not_lie_on_each_other(source: TimelineSource) -> None:
    steps = source.steps(source.ranks[0])
    (_, _, _), (second, start, end) = steps[:2]
    near = whole(source, t0=str(start - (end - start) // 100), t1=str(end))
    words = [note["text"] for note in draw(source, near, 1_000).figure["layout"]["annotations"]]
    assert words == [f"step {second.step}"]
    words = [note["text"] for note in draw(source, whole(source), 1_000).figure["layout"]["annotations"]]
    assert words == [f"step {each.step}" for each, _, _ in steps]


def test_the_row_of_the_whole_run_shows_the_state_of_most_time_in_each_cell(source: TimelineSource) -> None:
    shown = source.overview
    assert len(shown.cells) * shown.cell_ns >= source.whole.length_ns
    assert (len(shown.cells) - 1) * shown.cell_ns < source.whole.length_ns
    for at in range(0, len(shown.cells), 37):
        window = TimeWindow(start_ns=at * shown.cell_ns, end_ns=(at + 1) * shown.cell_ns)
        spent = np.sum(list(times_in_window(source, window, source.ranks).values()), axis=0)
        assert spent[shown.cells[at]] == spent.max()
    assert source.overview is shown, "computed once"


def test_where_too_many_spans_are_in_view_it_says_how_many(
    source: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = draw(source, whole(source), 1_000)
    monkeypatch.setattr("overlapscope_dashboards.timeline.lane_drawing.MAX_SPANS", 100)
    many = draw(source, whole(source), 1_000)
    assert many.spans == few.spans
    assert not many.detailed
    assert not figures(many, "bar")
    assert [trace["name"] for trace in figures(many, "heatmap")] == ["lanes"]
    assert not figures(few, "heatmap")
    assert few.rasters[0].cells == many.rasters[0].cells
    assert "zoom in to see kernels (1,416 in view)" in view._note(source, whole(source), many)


def test_a_span_says_what_is_known_of_it_and_marks_its_call_on_all_ranks(
    source: TimelineSource, opened: OpenRun
) -> None:
    timeline = opened.run.ranks[0]
    row = int(np.flatnonzero((timeline.spans.kind == COMM) & (timeline.spans.collective != NONE))[3])
    pointed = view.point(source, whole(source), 1_000, {"key": f"0:{row}"})
    said = " · ".join(pointed.parts)
    assert pointed.title == timeline.names[timeline.spans.name[row]]
    assert "rank 0" in said
    assert "all_reduce" in said
    assert re.search(r"\d MiB|KiB", said)
    assert "algbw" in said
    assert "the same call on 2 ranks" in said
    call = int(timeline.spans.collective[row])
    split = next(each for each in opened.cross_rank.splits if call in each.block.rows[each.block.ranks.index(0)])
    column = split.block.rows[split.block.ranks.index(0)].tolist().index(call)
    wait = int(split.block.end_ns[0, column] - split.block.start_ns[0, column] - split.transfer_ns[column])
    assert ("waited" in said) == (wait >= 0)
    own = [mark for mark in pointed.links if mark["type"] == "rect"]
    assert len(own) >= 2
    path = next(mark["path"] for mark in pointed.links if mark["type"] == "path")
    assert path.count("M") == 2


@pytest.mark.parametrize(
    "probe", [{}, {"key": "x"}, {"key": "9:1"}, {"key": "0:99999999"}, {"key": "0:-1"}, {"key": [1]},
              {"row": 99, "bin": 0, "part": "map"},
              {"row": 0, "bin": 10**9, "part": "map"}, {"row": -1, "bin": -1}, {"row": None, "bin": "a"}],
)  # fmt: skip
def test_a_pointer_at_nothing_says_so(source: TimelineSource, probe: dict[str, Any]) -> None:
    assert view.point(source, whole(source), 1_000, probe) == view.no_details(whole(source))


def test_a_cell_says_its_exact_times(source: TimelineSource) -> None:
    result = view.point(source, whole(source), 1_000, {"row": 0, "bin": 3, "part": "map"})
    assert result.title.startswith("rank 0 at ")
    assert len(map_rows(len(source.ranks))) == 2
    assert any("compute only" in each for each in result.parts)


def test_names_that_are_found_are_counted_and_the_window_jumps_to_them(source: TimelineSource, opened: OpenRun) -> None:
    first = view.show(source, whole(source, q="ALL_REDUCE"), 1_000)
    named = sum(
        sum("all_reduce" in timeline.names[code] for code in timeline.spans.name.tolist() if code >= 0)
        for timeline in opened.run.ranks.values()
    )
    assert first.found["number"] >= named > 10
    place = first.found["next"]
    assert place["at"] == 0
    rank, row = (int(each) for each in place["key"].split(":"))
    start = int(source.aligned(rank, opened.run.ranks[rank].spans.start_ns[row : row + 1])[0])
    assert place["t0"] <= start < place["t1"]
    again = view.show(source, whole(source, q="ALL_REDUCE", t0=place["t0"], t1=place["t1"]), 1_000, place["key"])
    assert again.found["at"] == 0
    assert again.found["next"]["at"] == 1
    assert again.found["previous"]["at"] == first.found["number"] - 1
    for wrong in ("", "0", "0:99999999", "x:1", "0:" + "9" * 40):
        assert view.show(source, whole(source, q="ALL_REDUCE"), 1_000, wrong).found["at"] is None


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    save_run(
        Run(world_size=2, ranks={rank: full_timeline(rank, tag=EVIL) for rank in range(2)}),
        tmp_path / "evil",
        version="0",
    )
    site = Site([tmp_path])
    shown = router.show(site, run_address(ids(site)["evil"], "timeline"), {"q": EVIL})
    assert any(getattr(each, "id", "") == "timeline-laid" for each in shown.content)
    opened = site.run(ids(site)["evil"])
    own = source_of(opened)
    assert any(EVIL[:20] in name for name, *_ in view.show(own, whole(own, q=EVIL), 1_000).listed)
    drawn = draw(TimelineSource(opened), parse_timeline_query({}, TimelineSource(opened).whole, [0, 1]), 1_000)
    text = to_json(drawn.figure)
    assert "onerror" in text
    for sign in ("<img", "<a href"):
        assert sign not in text
        assert sign not in json.dumps(drawn.figure, default=str)
    for trace in drawn.figure["data"]:
        assert "onerror" not in str(trace.get("hovertemplate", ""))


def test_an_answer_holds_the_view_and_its_cells_and_says_what_is_not_there(
    source: TimelineSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope_dashboards.runs.site.PATIENCE_S", 60)
    client = create_app([folder_of_runs(tmp_path)]).server.test_client()
    address = run_address(ids(Site([tmp_path]))["baseline"], "timeline")
    asked_for = {"t0": 100_000_000, "t1": 250_000_000, "ranks": "1", "mode": "exposed"}
    answer = client.get(f"{address}/view", query_string={**asked_for, "width": 800}).data
    length = int.from_bytes(answer[:4], "little")
    result = json.loads(answer[4 : 4 + length])
    shown = view.show(source, whole(source, **asked_for), 800)
    assert answer[4 + length :] == b"".join(each.cells for each in shown.rasters)
    assert [each["rows"] * each["bins"] for each in result["rasters"]] == [len(each.cells) for each in shown.rasters]
    assert result["state"] == {**asked_for, "q": "", "show": ""}
    assert result["note"] == shown.note
    assert result["twin"] == shown.twin
    assert [each["state"] for each in result["amounts"]] == [each.state for each in shown.amounts]
    assert ("recorded time" in result["mean_of"]) == ("unrecorded" in {each.state for each in shown.amounts})
    for wrong, words in (("ranks=77", "No rank"), ("mode=x", "no mode")):
        refused = client.get(f"{address}/view?{wrong}")
        assert refused.status_code == 200
        assert words in refused.json["problem"]
    assert "no such run" in client.get("/runs/none/timeline/view").json["problem"]
    assert client.get(f"{address}/view?width=-1&hit=x&t0=z").status_code == 200


# --- a large run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimelineSource:
    """The timeline of a run that counts as large, before its analysis."""
    monkeypatch.setattr(source_module, "LARGE", 1)
    site = Site([copy_run(tmp_path / "run")])
    return TimelineSource(site.run(site.find_runs().runs[0].id))


def analyze(own: TimelineSource) -> None:
    own.start_analysis()
    assert own._thread is not None
    own._thread.join(60)


def test_a_large_run_shows_the_same_before_it_is_read_and_from_what_was_kept(
    source: TimelineSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_run(tmp_path / "run")
    monkeypatch.setattr(source_module, "LARGE", 1)
    site = Site([tmp_path / "run"])
    place = site.find_runs().runs[0].id
    before = site.run(place).revision
    first = TimelineSource(site.run(place))
    assert first.clocks is None
    assert "run" not in site.run(place)._results
    assert not first.is_working
    analyze(first)
    second = TimelineSource(Site([tmp_path / "run"]).run(place))  # as another process would
    for each in (first, second):
        assert each.clocks is not None
        assert each.origin_ns == source.origin_ns
        for ours, theirs in zip(each.snapshot.occupancy, source.snapshot.occupancy, strict=True):
            assert ours.at_ns.tolist() == theirs.at_ns.tolist()
            assert ours.state.tolist() == theirs.state.tolist()
    assert second.figures is None
    assert second.lanes(1).lanes[0].start_ns.tolist() == source.lanes(1).lanes[0].start_ns.tolist()
    assert Site([tmp_path / "run"]).run(place).revision == before  # the cache is not part of the run


def test_a_map_of_cells_and_one_of_states_are_the_times_of_each_rank(large: TimelineSource) -> None:
    own = large
    length = own.whole.length_ns
    drawn_from_cells = []
    for first, last in (
        (0, length),
        (length // 3, length // 3 + length // 2),
        (length // 5, length // 5 + length // 90),
    ):
        asked_for = whole(own, t0=first, t1=last)
        bins = own.snapshot.bins(asked_for.window, 1_000)
        drawn_from_cells.append(own.snapshot.coarse is not None and own.snapshot.coarse.over(bins) is not None)
        each_rank = [each.spent(bins + own.origin_ns) for each in own.snapshot.occupancy]
        assert own.snapshot.spent(bins).tolist() == [spent.T.tolist() for spent in each_rank]
        drawn = draw(own, asked_for, 1_000)
        inside = times_in_window(own, asked_for.window, own.ranks)
        assert drawn.spent_ns == np.sum(list(inside.values()), axis=0).tolist()
        cells = np.frombuffer(drawn.rasters[0].cells, np.uint8).reshape(len(own.ranks), -1)
        for row, spent in zip(cells, each_rank, strict=True):
            assert (spent[np.arange(row.size), row] == spent.max(axis=1)).all()
    assert drawn_from_cells == [True, True, False]


def test_a_fault_in_the_background_is_said_and_ends_the_waiting(
    large: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(source_module, "causes_of", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    analyze(large)
    assert not large.is_working
    shown = view.show(large, whole(large), 1_000)
    assert "causes and matched calls are not available: an internal error" in shown.note
    assert not shown.coming


def test_what_became_known_while_a_view_was_drawn_is_still_to_come(
    large: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = view.times_in_window

    def known(*given: Any) -> Any:
        analyze(large)
        return plain(*given)

    monkeypatch.setattr(view, "times_in_window", known)
    assert view.show(large, whole(large), 1_000).coming
    assert not view.show(large, whole(large), 1_000).coming


def test_the_length_of_the_recording_is_not_taken_for_that_of_a_step(source: TimelineSource) -> None:
    everything, part = (view.show(source, whole(source, **of), 1_000).when for of in ({}, {"t0": 0, "t1": 90_000_000}))
    assert everything == f"whole recording, 0.000 to {source.whole.length_ns / 1e6:,.3f} ms"
    assert part == "0.000 to 90.000 ms"


def test_a_reader_has_states_and_their_begin_of_the_same_clocks(large: TimelineSource) -> None:
    before = large.snapshot
    result = (before.clocks, before.origin_ns, [each.at_ns.tolist() for each in before.occupancy])
    analyze(large)
    assert large.snapshot is not before
    assert (before.clocks, before.origin_ns, [each.at_ns.tolist() for each in before.occupancy]) == result


# --- a window for Perfetto --------------------------------------------------------------------------------------------


def test_a_window_for_perfetto_holds_what_has_a_part_in_it(
    opened: OpenRun, source: TimelineSource, tmp_path: Path
) -> None:
    app = create_app([folder_of_runs(tmp_path)])
    client = app.server.test_client()
    address = run_address(ids(Site([tmp_path]))["baseline"], "timeline")
    answer = client.get(f"{address}/window.json.gz?t0=100000000&t1=130000000&ranks=1")
    assert answer.status_code == 200
    document = json.loads(gzip.decompress(answer.data))
    base = document["otherData"]["base_time_ns"] - source.origin_ns
    slices = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == 3]
    assert {event["pid"] for event in document["traceEvents"] if event["ph"] == "X"} <= {1, 3}
    assert any(event["cat"] == "comm" for event in slices)
    assert any(event["cat"] == "exposed" for event in slices)
    for event in slices:
        start = base / 1e3 + event["ts"]
        assert start < 130_000
        assert start + event["dur"] > 100_000 or event["dur"] == 0
    shown = source.lanes(1).lanes
    expected = sum(lane.in_view(100_000_000, 130_000_000).size for lane in shown)
    assert len([event for event in slices if event["cat"] in ("comm", "compute", "copy")]) == expected
    assert client.get(f"{address}/window.json.gz?ranks=99").status_code == 404
    assert client.get("/runs/none/timeline/window.json.gz").status_code == 404


# --- in a browser -----------------------------------------------------------------------------------------------------


def start(application: Any) -> tuple[str, Any]:
    """Serve an application from a thread; return its address and the server to close."""
    from waitress.server import create_server  # noqa: PLC0415 - only where there is a browser

    server = create_server(application, host="127.0.0.1", port=0, threads=4)

    def run() -> None:
        with suppress(OSError):  # in the end its sockets are closed beneath it
            server.run()

    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{server.effective_port}", server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Site]]:
    place = folder_of_runs(tmp_path_factory.mktemp("served"))
    evil = {rank: full_timeline(rank, tag=EVIL) for rank in range(2)}
    save_run(Run(world_size=2, ranks=evil), place / "evil", version="0")
    address, server = start(create_app([place]).server)
    yield address, Site([place])
    server.close()


WAIT_MS = 90_000


def new_page(browser: Any, address: str) -> tuple[Any, list[str]]:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    return page, watched(page, address)


def query(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def drawn(page: Any) -> None:
    page.wait_for_selector("#timeline-figure[data-drawn]", state="attached")
    page.wait_for_function("() => !document.querySelector('[data-dash-is-loading=true]')")


@pytest.mark.browser
def test_from_the_overview_to_a_span_and_back_by_its_address(browser: Any, served: tuple[str, Site]) -> None:
    address, site = served
    page, seen = new_page(browser, address)
    page.goto(address + run_address(ids(site)["baseline"]))
    page.get_by_role("link", name="Timeline").click()
    drawn(page)
    assert page.locator("h1").text_content() == "Timeline"
    page.locator("#timeline-text").fill("gloo:all_reduce")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#timeline-pointed strong').textContent === 'gloo:all_reduce'")
    page.wait_for_function("() => document.getElementById('timeline-hits').textContent.startsWith('1 of ')")
    said = page.locator("#timeline-pointed").text_content()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('timeline-hits').textContent.startsWith('2 of ')")
    page.locator("[data-timeline=previous]").click()
    page.wait_for_function("() => document.getElementById('timeline-hits').textContent.startsWith('1 of ')")
    # What is said of a hit comes after its number.
    page.wait_for_function("said => document.querySelector('#timeline-pointed').textContent === said", arg=said)
    assert "algbw" in said
    assert "the same call on 2 ranks is marked" in said
    page.wait_for_function("() => document.querySelectorAll('#timeline-figure .shapelayer path').length > 2")
    found = query(page)
    assert int(found["t1"][0]) - int(found["t0"][0]) < 400_000_000
    assert found["q"] == ["gloo:all_reduce"]
    assert re.fullmatch(r"[01]:\d+", found["hit"][0])
    note, when = (page.locator(each).text_content() for each in ("#timeline-note", "#timeline-legend .when strong"))
    page.reload()
    drawn(page)
    assert query(page) == found
    assert page.locator("#timeline-note").text_content() == note
    assert page.locator("#timeline-legend .when strong").text_content() == when
    assert page.locator("#timeline-text").input_value() == "gloo:all_reduce"
    assert page.locator("#timeline-hits").text_content().startswith("1 of "), "a link shows the hit of who sent it"
    page.wait_for_function("said => document.querySelector('#timeline-pointed').textContent === said", arg=said)
    page.keyboard.press("n")
    page.wait_for_function("() => document.getElementById('timeline-hits').textContent.startsWith('2 of ')")
    page.locator("#timeline-text").fill("")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !location.search.includes('hit=')")
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
def test_buttons_keys_and_drag_move_the_window_and_the_address(browser: Any, served: tuple[str, Site]) -> None:
    address, site = served
    page, seen = new_page(browser, address)
    page.goto(address + run_address(ids(site)["baseline"], "timeline", {"mode": "exposed"}))
    drawn(page)

    def when() -> str:
        return str(page.locator("#timeline-legend .when strong").text_content())

    def changes(what: Any) -> None:
        before = when()
        what()
        page.wait_for_function(
            "before => document.querySelector('#timeline-legend .when strong').textContent !== before", arg=before
        )

    all_of_it = when()
    changes(lambda: page.locator("[data-timeline=in]").click())
    first = query(page)
    assert first["mode"] == ["exposed"]
    changes(lambda: page.keyboard.press("ArrowRight"))
    length = int(first["t1"][0]) - int(first["t0"][0])
    assert int(query(page)["t0"][0]) - int(first["t0"][0]) == pytest.approx(length / 4, abs=2)
    box = page.locator("#timeline-figure .nsewdrag").first.bounding_box()

    def drag() -> None:
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2, steps=4)
        page.mouse.up()

    changes(drag)
    moved = query(page)
    assert int(moved["t1"][0]) - int(moved["t0"][0]) == pytest.approx(length, abs=2)
    assert int(moved["t0"][0]) == pytest.approx(int(first["t0"][0]), abs=length * 0.02)
    page.keyboard.down("Shift")
    changes(drag)
    page.keyboard.up("Shift")
    stretch = query(page)
    assert int(stretch["t1"][0]) - int(stretch["t0"][0]) == pytest.approx(length / 4, rel=0.05)
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2)
    changes(lambda: page.mouse.wheel(0, -200))
    page.wait_for_function("before => !location.search.includes(before)", arg="t0=" + stretch["t0"][0])
    wheeled = {name: int(query(page)[name][0]) for name in ("t0", "t1")}
    before = {name: int(stretch[name][0]) for name in ("t0", "t1")}
    assert wheeled["t1"] - wheeled["t0"] < before["t1"] - before["t0"]
    still = [each["t0"] + 0.75 * (each["t1"] - each["t0"]) for each in (wheeled, before)]
    assert still[0] == pytest.approx(still[1], abs=length * 0.01)
    changes(lambda: page.keyboard.press("s"))
    changes(lambda: page.keyboard.press("w"))
    changes(lambda: page.keyboard.press("d"))
    changes(lambda: page.keyboard.press("a"))
    changes(lambda: page.locator("[data-timeline=in]").click())
    window = {name: int(query(page)[name][0]) for name in ("t0", "t1")}
    strip, frame = (page.locator(each).bounding_box() for each in (".tl-minimap canvas", ".tl-frame"))
    shown = page.evaluate(
        "() => [document.querySelector('#timeline-figure')._fullLayout._size].map((s) => [s.l, s.w])[0]"
    )
    figure = page.locator("#timeline-figure").bounding_box()
    assert strip["x"] == pytest.approx(figure["x"] + shown[0], abs=2)
    assert strip["width"] == pytest.approx(shown[1], abs=2)
    run_ns = source_of(site.run(ids(site)["baseline"])).whole.length_ns
    assert frame["x"] - strip["x"] == pytest.approx(window["t0"] / run_ns * shown[1], abs=2)
    assert frame["width"] == pytest.approx((window["t1"] - window["t0"]) / run_ns * shown[1], abs=4)

    def pull() -> None:
        middle = frame["y"] + frame["height"] / 2
        page.mouse.move(frame["x"] + frame["width"] * 0.4, middle)
        page.mouse.down()
        page.mouse.move(frame["x"] + frame["width"] * 0.4 - 40, middle, steps=4)
        page.mouse.up()

    changes(pull)
    pulled = {name: int(query(page)[name][0]) for name in ("t0", "t1")}
    assert pulled["t1"] - pulled["t0"] == window["t1"] - window["t0"]
    assert window["t0"] - pulled["t0"] == pytest.approx(40 / shown[1] * run_ns, rel=0.05)
    changes(lambda: page.mouse.click(strip["x"] + 1, strip["y"] + 8))
    assert int(query(page).get("t0", ["0"])[0]) == 0
    page.locator("#timeline-minimap").focus()
    changes(lambda: page.keyboard.press("ArrowRight"))
    slider = page.locator("#timeline-minimap")
    assert 0 < int(slider.get_attribute("aria-valuenow")) < 100
    assert " ms of 0.000 to " in slider.get_attribute("aria-valuetext")
    changes(lambda: page.keyboard.press("0"))
    assert when() == all_of_it
    assert "t0" not in query(page)
    page.locator("#timeline-ranks").fill("77")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('timeline-note').textContent.includes('No rank')")
    page.locator("#timeline-ranks").fill("1")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !document.getElementById('timeline-note').textContent.includes('No rank')")
    page.locator("[data-mode=dominating]").click()
    page.wait_for_function("() => !location.search.includes('mode')")
    page.locator("summary").first.click()
    assert "rank 1" in page.locator("#timeline-twin").text_content()
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_runs_nothing_of_a_hostile_name_in_a_timeline(browser: Any, served: tuple[str, Site]) -> None:
    address, site = served
    page, seen = new_page(browser, address)
    page.goto(address + run_address(ids(site)["evil"], "timeline", {"q": EVIL}))
    drawn(page)
    page.locator("[data-timeline=next]").click()
    page.wait_for_function("() => document.querySelector('#timeline-pointed strong').textContent.includes('onerror')")
    page.locator("summary").first.click()
    assert page.locator("#main img, #main a[href^='javascript']").count() == 0
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
def test_a_view_that_fails_says_what_the_server_says(browser: Any, served: tuple[str, Site]) -> None:
    address, site = served
    page, _ = new_page(browser, address)
    said = "Something went wrong; the terminal that serves this says what."
    page.route(
        "**/timeline/view*", lambda route: route.fulfill(status=500, content_type="text/plain", body=said + "\n")
    )
    page.goto(address + run_address(ids(site)["evil"], "timeline"))
    page.wait_for_selector("#timeline-note", state="attached")
    page.wait_for_function(
        "(said) => document.querySelector('#timeline-note').textContent === said", arg=said, timeout=WAIT_MS // 3
    )


STAND_IN = """<!DOCTYPE html><title>waiting</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) document.title = "got " + event.data.perfetto.buffer.byteLength;
});
</script>"""


@pytest.fixture
def beside_perfetto(browser: Any, site: Site, tmp_path: Path) -> Iterator[tuple[Any, list[str]]]:
    """Yield a timeline served beside a stand-in for the Perfetto UI, and what it does wrong."""
    (tmp_path / "ui").mkdir()
    (tmp_path / "ui" / "index.html").write_text(STAND_IN)
    perfetto, beside = start(perfetto_app(tmp_path / "ui"))
    address, server = start(create_app(site.roots, perfetto_url=f"{perfetto}/").server)
    page, seen = new_page(browser, address)
    page.goto(address + run_address(ids(site)["baseline"], "timeline", {"t0": 0, "t1": 50_000_000}))
    drawn(page)
    page.get_by_role("button", name="Open in Perfetto").wait_for()
    yield page, seen
    server.close()
    beside.close()


@pytest.mark.slow
@pytest.mark.browser
def test_a_window_is_handed_over_to_perfetto_on_its_own_port(beside_perfetto: tuple[Any, list[str]]) -> None:
    page, seen = beside_perfetto
    with page.expect_popup() as popup:
        page.get_by_role("button", name="Open in Perfetto").click()
    popup.value.wait_for_function("() => document.title.startsWith('got ')", timeout=WAIT_MS)
    assert int(popup.value.title().split()[1]) > 1_000
    assert seen == []


@pytest.mark.slow
@pytest.mark.browser
def test_a_hand_over_to_perfetto_that_fails_says_why(beside_perfetto: tuple[Any, list[str]]) -> None:
    page, _ = beside_perfetto
    said = "words => document.getElementById('timeline-said').textContent.includes(words)"
    button = page.get_by_role("button", name="Open in Perfetto")
    busy = {"status": 503, "body": "Other windows are being written; try again.\n"}
    page.route("**/window.json.gz*", lambda route: route.fulfill(**busy))
    button.click()
    page.wait_for_function(said, arg="could not load this window: Other windows are being written; try again.")
    page.unroute("**/window.json.gz*")
    page.route("**/window.json.gz*", lambda route: route.abort())
    button.click()
    page.wait_for_function(said, arg="could not load this window: the server does not answer.")
    page.evaluate("window.open = () => null")
    button.click()
    page.wait_for_function(said, arg="allow pop-ups for this page")

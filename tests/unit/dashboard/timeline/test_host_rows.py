"""Host threads and the critical path as rows of the timeline, and the arrow from a launch to its span."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.graph.step_paths import follow_paths
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.cli.main import main
from overlapscope.ingest.options import ReadOptions
from overlapscope.timeline.columns import ANNOTATION, FUNCTION, NONE, OPERATION, PYTHON, RUNTIME, HostSpans, make
from overlapscope.timeline.python_stack import stack_of_launch
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, Site, run_address
from overlapscope_dashboards.timeline import bars, view
from overlapscope_dashboards.timeline.blocking_chain import blocking_chain
from overlapscope_dashboards.timeline.figure import draw
from overlapscope_dashboards.timeline.lane_rows import NO_RANK, lower_rows
from overlapscope_dashboards.timeline.query import TimelineQuery, parse_timeline_query
from overlapscope_dashboards.timeline.source import TimelineSource, source_of
from overlapscope_dashboards.timeline.tracks import MOST_LEVELS, TRACK_COLOURS, HostTracks, launching_call, nesting
from tests.conftest import shared_file
from tests.support.axe import axe_script
from tests.support.browser import watched
from tests.support.builders import flip_bit
from tests.support.dashboard_runs import figure_numbers, ids, served
from tests.support.writers.kineto import MS, US, distributed, op, training, write


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("job")
    for rank in (0, 1):
        (found / f"rank{rank}.json").write_bytes(write(training(3), metadata=distributed(rank)))
    return found


@pytest.fixture(scope="module")
def traced(place: Path) -> OpenRun:
    site = Site([place])
    return site.run(site.find_runs().runs[0].id)


@pytest.fixture(scope="module")
def own(traced: OpenRun) -> TimelineSource:
    return source_of(traced)


def whole(source: TimelineSource, **query: object) -> TimelineQuery:
    return parse_timeline_query({"show": "host,path", **query}, source.whole, source.ranks)


@pytest.mark.parametrize("seed", range(6))
def test_nesting_counts_the_times_around_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    spans: list[tuple[int, int]] = []

    def fill(begin: int, end: int, levels: int) -> None:
        while levels and begin < end:
            start = begin + int(random.integers(0, 4))
            stop = start + int(random.integers(0, 12))
            if stop > end:
                return
            spans.append((start, stop))
            if stop - start > 1:
                fill(start, stop, levels - 1)
            begin = stop + 1

    fill(0, 120, 4)
    spans.sort(key=lambda each: (each[0], -each[1]))
    by_hand = [
        sum(other[0] <= each[0] and max(other[1], other[0] + 1) > each[0] for other in spans[:at])
        for at, each in enumerate(spans)
    ]
    start, end = (np.array(each, np.int64) for each in zip(*spans, strict=True))
    assert max(by_hand) >= 2
    assert nesting(start, end).tolist() == by_hand


def test_every_operation_and_call_of_a_shown_thread_is_drawn_once_where_it_ran(
    own: TimelineSource, traced: OpenRun
) -> None:
    for rank, timeline in traced.run.ranks.items():
        host, found = timeline.host, own.host(rank)
        lanes = {track.lane for track in found.tracks} - {-1}
        assert lanes
        wanted = np.isin(host.kind, (OPERATION, ANNOTATION, RUNTIME)) & np.isin(host.lane, list(lanes))
        expected = sorted(
            (start, end, timeline.names[code])
            for start, end, code in zip(
                own.aligned(rank, host.start_ns[wanted]).tolist(), own.aligned(rank, host.end_ns[wanted]).tolist(),
                host.name[wanted].tolist(), strict=True,
            )
        )  # fmt: skip
        drawn = sorted(
            each for track in found.tracks
            for each in zip(track.start_ns.tolist(), track.end_ns.tolist(),
                            track.words(np.arange(track.start_ns.size)), strict=True)
        )  # fmt: skip
        assert drawn == expected
        assert sum(track.label == "calls" for track in found.tracks) == len(lanes)
        assert len(found.tracks) <= len(lanes) * (MOST_LEVELS + 1)


def test_the_figure_shows_them_on_demand_and_their_cover_where_they_are_many(
    own: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traces(query: TimelineQuery) -> list[dict[str, Any]]:
        return [each for each in draw(own, query, 1_000).figure["data"] if each["name"].startswith("track")]

    query = whole(own, show="host")
    assert not traces(whole(own, show=""))
    tracks = [row.track for row in lower_rows(own, query) if row.track is not None]
    total = sum(track.in_view(0, own.whole.end_ns).size for track in tracks)
    assert sum(figure_numbers(each["x"]).size for each in traces(query)) == total > 20
    monkeypatch.setattr(bars, "MOST_DRAWN", 10)
    many = traces(query)
    (cover,) = [each for each in many if each["type"] == "heatmap"]
    cells = figure_numbers(cover["z"])
    bins = own.snapshot.bins(query.window, 1_000)
    for at, row in enumerate(lower_rows(own, query)):
        if row.track is None:
            assert not cells[at].any()
            continue
        starts, ends = row.track.start_ns, row.track.end_ns
        ran = [bool(((starts < right) & (ends > left) & (ends > starts)).any())
               for left, right in zip(bins[:-1].tolist(), bins[1:].tolist(), strict=True)]  # fmt: skip
        assert (cells[at] > 0).tolist() == ran
        if row.track.label == "calls":
            assert set(cells[at].tolist()) == {0, 1 + TRACK_COLOURS.index("launch")}
    assert sum(figure_numbers(each["x"]).size for each in many if each["type"] == "bar") <= 10


@pytest.mark.slow
def test_a_launched_span_says_where_in_python_it_was_launched() -> None:
    folder = shared_file("kineto/tracelens_mi300_resnet_act_checkpoint.json.gz")
    site = Site([folder])
    opened = site.run(site.find_runs().runs[0].id)
    source, timeline = source_of(opened), opened.run.ranks[0]
    host, asked = timeline.host, whole(source)
    python = np.flatnonzero(np.isin(host.kind, (PYTHON, FUNCTION))).tolist()
    said = 0
    for row in range(0, timeline.spans.start_ns.size, 97):
        number = int(timeline.spans.correlation[row])
        calls = [at for at in np.flatnonzero(host.kind == RUNTIME).tolist() if host.correlation[at] == number >= 0]
        found = view.point(source, asked, 1_000, {"key": f"0:{row}"})
        shown = [each.removeprefix("in Python: ").split(" > ") for each in found.parts if each.startswith("in Python")]
        if not calls:
            assert shown == []
            continue
        begun, lane = int(host.start_ns[calls[0]]), int(host.lane[calls[0]])
        around = [at for at in python if host.lane[at] == lane and host.start_ns[at] <= begun < host.end_ns[at]]
        around.sort(key=lambda at: (int(host.start_ns[at]), -int(host.end_ns[at])))
        names = [timeline.names[host.name[at]][: view.MAX_FRAME] for at in around][-view.MAX_FRAMES :]
        assert shown == ([names] if names else [])
        said += bool(names)
    assert said > 3


def test_a_host_row_says_which_operation_and_where_in_python_its_thread_was(tmp_path: Path) -> None:
    for rank in (0, 1):
        frames = [
            op(f"file.py({depth}): depth{depth}", (100 + 300 * depth + 40 * rank) * US, (9_000 - 700 * depth) * US,
               sort="python_function")
            for depth in range(6)
        ]  # fmt: skip
        events = [replace(each, start_ns=each.start_ns + rank * 7 * MS) for each in (*training(3), *frames)]
        (tmp_path / f"rank{rank}.json").write_bytes(write(events, metadata=distributed(rank)))
    site = Site([tmp_path], ReadOptions(stacks=True))
    opened = site.run(site.find_runs().runs[0].id)
    source = source_of(opened)
    assert opened.cross_rank.clocks.offset_ns
    query, width = whole(source, show="host", ranks="0-1"), 600
    bins = source.snapshot.bins(query.window, width)
    said = named = 0
    for at, row in enumerate(lower_rows(source, query)):
        if row.track is None or row.rank == NO_RANK:
            continue
        timeline = opened.run.ranks[row.rank]
        host = timeline.host
        start, end = (source.aligned(row.rank, each).tolist() for each in (host.start_ns, host.end_ns))
        stack = [each for each in range(len(start)) if host.kind[each] == FUNCTION]
        for cell in range(0, bins.size - 1, 7):
            begin, until = int(bins[cell]), int(bins[cell + 1])
            middle = (begin + until) // 2
            around = [
                timeline.names[host.name[each]]
                for each in stack
                if host.lane[each] == row.track.thread and start[each] <= middle < end[each]
            ]
            parts = view.point(source, query, width, {"row": at, "bin": cell, "part": "lanes"}).parts
            shown = [each for each in parts if each.startswith("in Python: ")]
            assert shown == ([f"in Python: {' > '.join(around[-view.MAX_FRAMES :])}"] if around else [])
            said += bool(shown)
            found = row.track.in_view(begin, until)
            if found.size == 1:
                assert parts[0].startswith(row.track.words(found)[0])
                named += 1
            else:
                assert parts[0] == (f"{found.size} times")
    assert said > 20
    assert named > 5


def test_the_arrow_of_a_span_leads_from_the_call_with_its_correlation(own: TimelineSource, traced: OpenRun) -> None:
    timeline = traced.run.ranks[1]
    spans, host = timeline.spans, timeline.host
    seen = 0
    for row in range(spans.start_ns.size):
        calls = np.flatnonzero((host.kind == RUNTIME) & (host.correlation == spans.correlation[row]))
        found = view.point(own, whole(own), 1_000, {"key": f"1:{row}"})
        if spans.correlation[row] == NONE or not calls.size:
            assert found.launch == []
            continue
        seen += 1
        (rank, thread, begun), (_, stream, start) = found.launch
        assert (rank, thread, stream) == (1, int(host.lane[calls[0]]), int(spans.lane[row]))
        times = own.aligned(1, np.array([host.start_ns[calls[0]], spans.start_ns[row]]))
        assert [begun, start] == pytest.approx((times / 1e6).tolist())
        assert f"launched by {timeline.names[host.name[calls[0]]]}" in " · ".join(found.parts)
        assert view.point(own, whole(own, show=""), 1_000, {"key": f"1:{row}"}).launch == []
    assert seen > 3


def test_the_critical_path_is_a_row_of_the_segments_of_each_step(site: Site) -> None:
    opened = site.run(ids(site)["regressed"])
    source = TimelineSource(opened)
    query = whole(source, show="path")
    first = view.show(source, query, 1_000)
    assert first.coming
    assert source._following is not None
    source._following.join(60)
    shown = view.show(source, query, 1_000)
    assert shown.rows[0] == (NO_RANK, -1)
    assert source.path is not None
    run = opened.run
    found = follow_paths(run, {rank: step_windows(each) for rank, each in run.ranks.items()}, opened.cross_rank)
    lengths = sum(int((each.segments.end_ns - each.segments.start_ns).sum()) for each in found.paths)
    track = source.path
    assert int((track.end_ns - track.start_ns).sum()) == lengths > 0
    assert track.start_ns[0] == found.paths[0].segments.start_ns[0] - source.origin_ns
    assert any("rank 1 compute" in each for each in track.words(np.arange(track.start_ns.size)))
    cell = view.point(source, query, 1_000, {"row": 0, "bin": 5, "part": "lanes"})
    assert cell.title.startswith("critical path at ")


def test_what_has_no_path_or_no_host_events_is_said(own: TimelineSource, source: TimelineSource) -> None:
    own.start_path()
    assert own._following is not None
    own._following.join(60)
    assert (own.path is None) == bool(own.no_path)
    without = view.show(source, whole(source, show="host"), 1_000)
    assert "no host events of rank 0, 1 were recorded" in without.note
    with pytest.raises(NotFound, match="cannot show 'x'"):
        whole(own, show="x")


def test_damaged_host_events_cost_the_timeline_their_rows_alone(place: Path, tmp_path: Path) -> None:
    assert main(["ingest", str(place), "-o", str(tmp_path / "run")]) == 0
    flip_bit(tmp_path / "run" / "rank_00001" / "host.parquet")
    site = Site([tmp_path / "run"])
    source = source_of(site.run(site.find_runs().runs[0].id))
    shown = view.show(source, whole(source, show="host"), 1_000)
    assert "the host events of rank 1 are damaged and cannot be read" in shown.note
    assert "were recorded" not in shown.note
    assert {each.rank for each in lower_rows(source, whole(source, show="host")) if each.track is not None} == {0}
    launched, lost = (view.point(source, whole(source), 1_000, {"key": f"{rank}:0"}) for rank in (0, 1))
    assert lost.title == launched.title.replace("rank 0", "rank 1")
    assert (bool(launched.launch), lost.launch) == (True, [])


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
def test_a_chain_of_a_real_job_leads_through_host_threads_to_another_rank(browser: Any) -> None:
    folder = shared_file("kineto/megatron_tp8")
    address = served([folder]).rstrip("/")
    run = Site([folder]).find_runs().runs[0].id
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(60_000)
    seen = watched(page, address)
    page.goto(address + run_address(run, "timeline", {"t0": 88_000_000, "t1": 128_000_000, "chain": "4@115000000"}))
    page.wait_for_function("() => document.getElementById('timeline-ranks')?.value === '4,6'")
    page.wait_for_function("() => document.querySelector('#timeline-figure').textContent.includes('thread 2590098')")
    assert page.get_by_role("button", name="Host threads").get_attribute("aria-pressed") == "true"
    words = page.locator(".tl-step").all_text_contents()
    assert any("longest pause 24.018 ms" in each and "thread 2590098" in each for each in words)
    assert any("late rank" in each and "rank 6" in each for each in words)
    page.get_by_role("button", name="Critical path").click()
    page.wait_for_function("() => location.search.includes('host%2Cpath')")
    page.wait_for_function("() => document.querySelector('#timeline-figure').textContent.includes('critical path')")
    page.evaluate(f"{axe_script()};0")
    assert page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))") == []
    assert blocking_chain(Site([folder]).run(run), "4@115000000").on_threads
    assert seen == []


def test_a_launch_is_that_of_the_span_s_own_recording() -> None:
    calls = make(HostSpans, 2, start_ns=[10, 5_000], end_ns=[12, 5_002], correlation=[7, 7], kind=RUNTIME)
    host = HostTracks(tracks=(), calls=calls, frames=make(HostSpans, 0), left_out=0)
    assert [launching_call(host, 7, launch) for launch in (10, 5_000, 11, NONE)] == [0, 1, None, None]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
def test_the_python_stack_of_a_span_is_folded_below_its_chain(browser: Any) -> None:
    file = shared_file("kineto/tracelens_b200_eager.json.gz")
    options = ReadOptions(stacks=True)
    address = served([file], options=options).rstrip("/")
    opened = Site([file], options).run(Site([file], options).find_runs().runs[0].id)
    (rank,) = opened.run.ranks
    timeline = opened.run.ranks[rank]
    row = next(row for row in range(200, timeline.num_spans) if len(stack_of_launch(timeline, row)) > 8)
    stack = stack_of_launch(timeline, row)
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(60_000)
    seen = watched(page, address)
    page.goto(address + run_address(opened.id, "timeline", {"chain": f"{rank}:{row}"}))
    place = page.locator(".tl-python")
    place.wait_for()
    assert not place.locator("li").first.is_visible()
    assert place.locator("summary").text_content() == f"In Python: {stack[-1]} and {len(stack) - 1} around it"
    place.locator("summary").click()
    assert place.locator("li").all_text_contents() == stack
    assert place.locator("li").first.is_visible()
    page.evaluate(f"{axe_script()};0")
    assert page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))") == []
    assert seen == []

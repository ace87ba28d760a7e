"""The same step of two runs: pairing of collectives, the figure, and messages where there is no such step."""

import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.result import StepBreakdown
from overlapscope.timeline.columns import COMM, NONE
from overlapscope_dashboards.compare.steps import choose_step, query_for_choice
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, Site
from overlapscope_dashboards.server import router
from overlapscope_dashboards.timeline.side_by_side import (
    StepSide,
    complete_steps,
    draw_side_by_side,
    side_of,
    state_durations,
)
from overlapscope_dashboards.timeline.source import source_of
from overlapscope_dashboards.views.paired_calls import CallPairing, StepCall, pair_calls
from tests.support.dashboard_runs import figure_numbers, hostile_traces, ids, words

EVIL = '<img src=x onerror="alert(1)">'


def call(start: int, *, op: str = "all_reduce", size: int | None = 8, ns: int = 10, **more: Any) -> StepCall:
    return StepCall(op=op, dtype="float32", size_bytes=size, group_size=2, start_ns=start, end_ns=start + ns, **more)


# --- which collectives are the same ---------------------------------------------------------------------------------


def test_calls_of_one_kind_are_paired_in_order_of_time() -> None:
    found = pair_calls([call(20, size=4), call(0), call(10)], [call(5, size=4), call(11), call(1)])
    pairs = {(link.base[0].start_ns, link.candidate[0].start_ns) for link in found.links}
    assert pairs == {(0, 1), (10, 11), (20, 5)}
    assert not found.only_base
    assert not found.only_candidate


def test_buckets_that_were_cut_in_another_way_are_one_piece() -> None:
    ours, theirs = [call(at, size=8, ns=5) for at in (0, 10, 20)], [call(40, size=24, ns=60)]
    (link,) = pair_calls(ours, theirs).links
    assert link.size_bytes == 24
    assert link.pieces() == [((0, 5), (40, 60)), ((10, 15), (60, 80)), ((20, 25), (80, 100))]


def test_what_carries_other_bytes_or_does_something_else_has_no_partner() -> None:
    found = pair_calls([call(0, size=8), call(1, op="broadcast")], [call(0, size=16), call(1, size=None)])
    assert not found.links
    assert [each.op for each in found.only_base] == ["all_reduce", "broadcast"]
    assert [each.size_bytes for each in found.only_candidate] == [16, None]


def test_what_changed_most_is_by_exposed_time_where_that_is_known_else_by_length() -> None:
    known = CallPairing(base=(call(0, exposed_ns=3),), candidate=(call(0, ns=99, exposed_ns=10),))
    assert known.change_ns == 7
    assert CallPairing(base=(call(0, exposed_ns=3),), candidate=(call(0, ns=99),)).change_ns == 89
    ours = [call(at, exposed_ns=0) for at in (0, 20)]
    theirs = [call(0, exposed_ns=2), call(20, exposed_ns=9)]
    assert [link.base[0].start_ns for link in pair_calls(ours, theirs).links] == [20, 0]


calls = st.lists(
    st.builds(call, st.integers(0, 99), op=st.sampled_from(["a", "b"]), size=st.none() | st.integers(1, 3) | st.just(6),
              ns=st.integers(0, 9)), max_size=7,
)  # fmt: skip


@given(calls, calls)
def test_every_call_is_in_one_place_and_links_carry_the_same_bytes(
    ours: list[StepCall], theirs: list[StepCall]
) -> None:
    found = pair_calls(ours, theirs)
    for side, given_, alone in (("base", ours, found.only_base), ("candidate", theirs, found.only_candidate)):
        placed = [each for link in found.links for each in getattr(link, side)]
        assert Counter([*placed, *alone]) == Counter(given_)
    for link in found.links:
        assert len({(each.op, each.dtype, each.group_size) for each in (*link.base, *link.candidate)}) == 1
        if link.size_bytes is not None:
            assert sum(each.size_bytes or 0 for each in link.candidate) == link.size_bytes
        for (start, end), (other_start, other_end) in link.pieces():
            assert start <= end
            assert other_start <= other_end
    left = Counter(each.op for each in found.only_base if each.size_bytes is None)
    assert not left & Counter(each.op for each in found.only_candidate if each.size_bytes is None)


# --- which step ------------------------------------------------------------------------------------------------------


def steps_of(**lengths: int) -> dict[int, tuple[int, int]]:
    return {int(name[1:]): (0, length) for name, length in lengths.items()}


def test_nobody_asked_the_step_whose_difference_is_the_middle_one_is_shown() -> None:
    ours, theirs = steps_of(s3=10, s4=10, s5=10), steps_of(s3=90, s4=11, s5=20, s6=1)
    found = choose_step({}, ([0, 1], [1, 2]), (lambda _: ours, lambda _: theirs))
    assert not isinstance(found, str)
    assert (found.rank, found.step, found.is_default) == (1, 5, True)
    assert found.ranks == (1,)
    asked = choose_step({"step": "4", "rank": "1"}, ([0, 1], [1, 2]), (lambda _: ours, lambda _: theirs))
    assert not isinstance(asked, str)
    assert (asked.step, asked.candidate, asked.is_default) == (4, (0, 11), False)


def test_runs_without_a_common_rank_or_step_say_so() -> None:
    no_details = choose_step({}, ([0, 1], [4, 6]), (lambda _: {}, lambda _: {}))
    assert no_details == (
        "No rank was recorded in both runs: ranks 0 to 1 in the base, ranks 4 to 6 (2 of them) in the candidate."
    )
    apart = choose_step({}, ([0], [0]), (lambda _: steps_of(s1=1, s2=1), lambda _: steps_of(s7=1)))
    assert apart == (
        "No step of the same number is complete in both runs on rank 0: of rank 0 the base has steps 1 to 2, the "
        "candidate step 7."
    )
    assert "no step" in str(choose_step({}, ([0], [0]), (lambda _: {}, lambda _: {})))


@pytest.mark.parametrize("asked", [{"step": "9"}, {"rank": "9"}, {"step": "x"}, {"rank": "-1"}, {"step": "9" * 400}])
def test_a_step_or_rank_that_does_not_exist_is_reported_with_alternatives(asked: dict[str, str]) -> None:
    with pytest.raises(NotFound) as result:
        choose_step(asked, ([0], [0]), (lambda _: steps_of(s1=1), lambda _: steps_of(s1=1)))
    assert result.value.alternatives
    assert len(str(result.value)) < 100


def test_what_is_typed_becomes_the_address_and_what_is_shown_does_not() -> None:
    search = "?base=a&candidate=b&step=4"
    assert query_for_choice("4", "0", [4, 0], search) is None
    assert query_for_choice("7", "0", [4, 0], search) == "?base=a&candidate=b&step=7&rank=0"
    assert query_for_choice("", " 1 ", [4, 0], search) == "?base=a&candidate=b&rank=1"
    assert query_for_choice("7", "0", None, search) is None


# --- on the page ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(site: Site) -> tuple[OpenRun, OpenRun]:
    known = ids(site)
    return site.run(known["baseline"]), site.run(known["regressed"])


def sides(pair: tuple[OpenRun, OpenRun], step: int, rank: int) -> tuple[StepSide, StepSide]:
    ours, theirs = (
        side_of(each.name, source_of(each), rank, step, complete_steps(source_of(each), rank)[step]) for each in pair
    )
    return ours, theirs


def step_info(opened: OpenRun, rank: int, step: int) -> StepBreakdown:
    return next(each for info in opened.analysis.ranks if info.rank == rank for each in info.steps if each.step == step)


def page(site: Site, base: str = "baseline", candidate: str = "regressed", **query: str) -> router.RenderedPage:
    known = ids(site)
    return router.show(site, "/compare", {"base": known[base], "candidate": known[candidate], **query})


def test_states_of_a_step_are_those_of_the_analysis(pair: tuple[OpenRun, OpenRun]) -> None:
    for opened, side in zip(pair, sides(pair, 5, 1), strict=True):
        result, own = step_info(opened, 1, 5), state_durations(side)
        assert side.length_ns == result.window_ns
        assert (own["exposed"], own["hidden"], own["compute"], own["idle"]) == (
            result.exposed_comm_ns, result.overlapped_ns, result.compute_only_ns, result.idle_ns,
        )  # fmt: skip
        assert side.calls is not None
        assert sum(each.exposed_ns or 0 for each in side.calls) == result.exposed_comm_ns


def test_every_span_in_view_is_drawn_once_in_its_run_from_where_its_step_began(pair: tuple[OpenRun, OpenRun]) -> None:
    ours, theirs = sides(pair, 5, 0)
    figure = draw_side_by_side(ours, theirs, []).figure
    left, right = figure["layout"]["xaxis"]["range"]
    labels = dict(zip(figure["layout"]["yaxis"]["tickvals"], figure["layout"]["yaxis"]["ticktext"], strict=True))
    border = next(at for at, label in labels.items() if label == "<b>candidate</b>")
    for opened, side in ((pair[0], ours), (pair[1], theirs)):
        bars = {
            key: (round(float(start) * 1e6), round(float(length) * 1e6))
            for trace in figure["data"]
            if trace.get("customdata") and trace["width"] != 0.5
            for (key, _), start, length, row in zip(
                trace["customdata"], *(figure_numbers(trace[name]) for name in ("base", "x", "y")), strict=True
            )
            if (row > border) == (side is theirs)
        }
        drawn = sorted(bars.values())
        spans = opened.run.ranks[0].spans
        table = opened.run.ranks[0].steps
        begin = int(table.start_ns[table.step == 5][0])
        inside = (spans.start_ns - begin < right * 1e6) & (spans.end_ns - begin > left * 1e6)
        raw = zip(spans.start_ns[inside] - begin, spans.end_ns[inside] - spans.start_ns[inside], strict=True)
        expected = sorted((int(start), int(length)) for start, length in raw)
        assert len(drawn) == len(expected) > 20
        for ours_, theirs_ in zip(drawn, expected, strict=True):
            assert ours_ == pytest.approx(theirs_, abs=60_000)  # clocks are aligned by less
            assert ours_[1] == theirs_[1]
    assert border > 3


def test_a_link_is_marked_on_both_runs_where_its_calls_ran(pair: tuple[OpenRun, OpenRun]) -> None:
    ours, theirs = sides(pair, 5, 0)
    assert ours.calls is not None
    assert theirs.calls is not None
    found = pair_calls(ours.calls, theirs.calls)
    (link,) = found.links
    assert (len(link.base), len(link.candidate)) == (4, 1)
    assert link.size_bytes == 18_898_944
    exposed = [step_info(opened, 0, 5).exposed_comm_ns for opened in pair]
    assert exposed[0] is not None
    assert exposed[1] is not None
    assert link.change_ns == exposed[1] - exposed[0]
    figure = draw_side_by_side(ours, theirs, [link]).figure
    (ribbon,) = [each for each in figure["layout"]["shapes"] if each["type"] == "path"]
    assert ribbon["path"].count("M") == 5 + 4
    marks = [each for each in figure["layout"]["annotations"] if each["text"] == "<b>1</b>"]
    assert [each["x"] for each in marks] == pytest.approx(
        [(each.start_ns + each.end_ns) / 2e6 for each in (*link.base, *link.candidate)]
    )
    spans = pair[0].run.ranks[0].spans
    calls_of_step = np.unique(spans.collective[(spans.kind == COMM) & (spans.step == 5) & (spans.collective != NONE)])
    assert calls_of_step.size == 4


@pytest.mark.slow
def test_the_page_shows_the_step_of_its_address_and_leads_to_both_timelines(site: Site) -> None:
    shown = page(site, step="5", rank="1")
    said = words(shown.content)
    assert "Step 5 of rank 1 lasts" in said
    assert "6 steps and 2 ranks in common" in said
    assert "all_reduce, 18.02 MiB over 2 ranks" in said
    assert "4 → 1" in said
    found = re.findall(r"href='(/runs/[0-9a-f]+/timeline\?t0=[^']*)'", str(shown.content))
    assert len(found) == 2
    for address in found:
        query = {name: value[0] for name, value in parse_qs(urlsplit(address).query).items()}
        assert query["ranks"] == "1"
        there = router.show(site, urlsplit(address).path, query)
        assert there.status == 200
        laid = next(each for each in there.content if getattr(each, "id", "") == "timeline-laid")
        assert f'"t0": {query["t0"]}, "t1": {query["t1"]}, "ranks": "1"' in laid.data  # type: ignore[attr-defined]
    unknown = page(site, step="99")
    assert unknown.status == 404
    assert "Step 99 of rank 0 is not complete in both runs." in words(unknown.content)
    assert "&step=3&rank=0" in str(unknown.content)


def test_a_run_against_itself_has_no_ribbon(site: Site) -> None:
    assert "No collective changed." in words(page(site, candidate="baseline").content)


def test_names_of_traces_stay_text_where_two_runs_stand_above_each_other(tmp_path: Path) -> None:
    hostile_traces(tmp_path / "evil", EVIL)
    site = Site([tmp_path / "evil"])
    (run,) = ids(site).values()
    opened = site.run(run)
    ours, theirs = sides((opened, opened), next(iter(complete_steps(source_of(opened), 0))), 0)
    assert ours.calls is not None
    assert theirs.calls is not None
    drawn = str(draw_side_by_side(ours, theirs, pair_calls(ours.calls, theirs.calls).links).figure)
    assert "onerror" in drawn
    assert "<img" not in drawn


def test_long_names_stand_whole_in_the_table(tmp_path: Path) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, " + "std::array<char*, 3ul>, " * 8 + "end>"
    hostile_traces(tmp_path / "long", name)
    site = Site([tmp_path / "long"])
    (run,) = ids(site).values()
    said = words(router.show(site, "/compare", {"base": run, "candidate": run}).content)
    assert said.count(name) > 2
    assert "Spans of the step, the 15 longest of each run" in said

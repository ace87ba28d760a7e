"""What cards are made of: times with three digits, bars to scale, small pictures of chains, links to documentation."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.advice.advise import advise
from overlapscope.cli.verbs.explain import pages as documented
from overlapscope.report.formatting import ms
from overlapscope_dashboards.pages import recommendations
from overlapscope_dashboards.parts.bars import BarRow, Segment, bar_table, stacked_bar
from overlapscope_dashboards.parts.quantities import Time, exact_text, rounded_ms, time, with_times
from overlapscope_dashboards.parts.text import documentation, with_code
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.timeline.blocking_chain import MOST_ROWS, blocking_chain, chain_picture
from overlapscope_dashboards.views import overview
from tests.conftest import ROOT, shared_file
from tests.support.dashboard_runs import ids

PIXELS = 1_560
"""Width of the widest page's content."""


@pytest.mark.parametrize(
    ("ns", "words"),
    [(417_511_375, "418"), (68_296_000, "68.3"), (2_556_000, "2.56"), (999_600, "1.00"), (9_999_000, "10.0"),
     (494_000, "0.49"), (0, "0.00"), (1_017_400_000, "1,020"), (99_960_000, "100"), (-2_556_000, "-2.56"),
     (None, "n/a")],
)  # fmt: skip
def test_times_have_three_digits(ns: float | None, words: str) -> None:
    assert rounded_ms(ns) == words


@given(st.integers(1, 10**13))
def test_a_rounded_time_is_within_half_of_its_last_digit_and_exact_on_hover(ns: int) -> None:
    shown = time(ns)
    number = float(rounded_ms(ns).replace(",", ""))
    assert abs(number - ns / 1e6) <= max(0.005, 0.00501 * ns / 1e6)
    assert shown.title == f"{ms(ns)} ms"
    assert exact_text(("a ", Time(ns), ".")) == f"a {ms(ns)} ms."
    assert with_times(("a ", Time(ns)))[0] == "a "


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=24))
def test_bars_are_within_a_pixel_of_their_share(lengths: list[int]) -> None:
    whole = sum(lengths)
    segments = [Segment(name=str(at), ns=ns, kind="compute") for at, ns in enumerate(lengths)]
    drawn = [_pixels(each.style["width"]) for each in stacked_bar(segments, whole).children]
    table: Any = bar_table([BarRow(name=each.name, ns=each.ns) for each in segments], caption="", unit="ms",
                           whole_ns=whole, stacked_ns=whole)  # fmt: skip
    bars = [row.children[1].children.style for row in table.children[2].children]
    begins = 0
    for length, pixels, style in zip(lengths, drawn, bars, strict=True):
        assert pixels == pytest.approx(PIXELS * length / whole, abs=1)
        assert _pixels(style["width"]) == pytest.approx(PIXELS * length / whole, abs=1)
        assert _pixels(style["marginLeft"]) == pytest.approx(PIXELS * begins / whole, abs=1)
        begins += length
    assert sum(drawn) == pytest.approx(PIXELS, abs=1)


def _pixels(width: str) -> float:
    return PIXELS * float(width.removesuffix("%")) / 100


def test_no_style_gives_a_bar_a_least_width() -> None:
    sheet = (ROOT / "dashboards" / "assets" / "style.css").read_text(encoding="utf-8")
    for name in (".segment {", "div.bar {", ".split > div {", ".cp-box {", ".gain-bar .left {"):
        rule = sheet.partition(name)[2].partition("}")[0]
        assert "min-width: 0" in rule or "min-width" not in rule, name
    assert "gap" not in sheet.partition(".stacked {")[2].partition("}")[0]


@pytest.fixture(scope="module", params=["traces/regressed", "kineto/megatron_tp8"])
def advised(request: pytest.FixtureRequest) -> OpenRun:
    folder: Path = ROOT / request.param if request.param.startswith("traces/") else shared_file(request.param)
    site = Site([folder])
    return site.run(site.find_runs().runs[0].id)


@pytest.mark.slow
def test_a_picture_of_a_chain_is_the_chain_of_the_timeline_to_scale(advised: OpenRun) -> None:
    for each in advised.advice[0]:
        found = blocking_chain(advised, f"advice-{each.id}")
        picture = chain_picture(advised.run, found)
        assert 1 <= len(picture.rows) <= MOST_ROWS
        assert picture.rows[0].startswith(f"rank {found.marked[0]}")
        assert (picture.start_ns, picture.end_ns) == pytest.approx(found.reach)
        reach = picture.end_ns - picture.start_ns
        explained, *steps = picture.boxes
        assert explained.number == 0
        assert picture.start_ns + explained.end * reach == pytest.approx(found.marked[2] * 1e6, abs=1_000)
        assert steps
        for box in steps:
            step = found.steps[box.number - 1]
            assert not step.earlier
            (_, _, begin), (_, _, end) = step.path
            assert box.words.startswith(f"{box.number}. {step.words}")
            assert picture.start_ns + box.end * reach == pytest.approx(end * 1e6, abs=1_000)
            assert picture.start_ns + box.start * reach == pytest.approx(max(begin * 1e6, picture.start_ns), abs=1_000)
        for arrow in picture.arrows:
            assert arrow.from_row != arrow.to_row
            assert 0 <= arrow.at <= 1
        assert picture.words == found.lead[-1]


@pytest.mark.slow
def test_every_finding_and_recommendation_of_a_page_has_its_documentation(advised: OpenRun) -> None:
    known = documented()
    site = Site([ROOT / "traces"])
    runs = [advised, *(site.run(each) for each in ids(site).values())]
    for opened in runs:
        named = [("findings", "finding", each.id) for each in opened.analysis.findings]
        named += [("advice", "recommendation", each.id) for each in opened.advice[0]]
        for folder, of, name in named:
            link = documentation(folder, name)
            source = ROOT / "docs" / link.href.removeprefix("/docs/").replace(".html", ".md")
            assert source == known[name.partition(":")[0]][of]
    overview_links = _hrefs(_content(advised, "overview"))
    for each in advised.analysis.findings:
        assert f"/docs/findings/{each.id.partition(':')[0]}.html" in overview_links
    advice_links = _hrefs(_content(advised, "recommendations"))
    assert {f"/docs/advice/{each.id}.html" for each in advised.advice[0]} <= advice_links


def _content(opened: OpenRun, page: str) -> Any:
    from overlapscope_dashboards.pages import pages  # noqa: PLC0415 - the layout of a page, without a server

    return pages()[page].layout(opened, {})


def _hrefs(component: Any) -> set[str]:
    if isinstance(component, (list, tuple)):
        return set().union(*map(_hrefs, component))
    own = getattr(component, "href", None)
    return ({own} if own else set()) | _hrefs(getattr(component, "children", None) or [])


@pytest.mark.slow
def test_kinds_of_parallelism_are_named_where_groups_say_so(advised: OpenRun) -> None:
    found = overview.parallelism(advised.analysis)
    known = {each.dimension for each in advised.analysis.collectives if each.dimension}
    assert len(found) == len(known & set(overview.DIMENSIONS))
    if known == {"data"}:
        assert found == ["DP 2"]
        assert "DP 2" in overview.facts(advised.analysis)


@pytest.mark.slow
def test_no_first_recommendation_changes_numerics(advised: OpenRun) -> None:
    found, _ = advise(advised.run, advised.analysis, advised.cross_rank)
    assert found
    assert not found[0].changes_numerics
    note = str(recommendations.layout(advised, {})[0])
    assert ("changes of numerics last" in note) == any(each.changes_numerics for each in found)


@pytest.mark.parametrize(
    ("words", "coded"),
    [("record it with `a(b)`, then `c`", ["a(b)", "c"]), ("no command", []), ("one ` alone", []), ("`a` and `b", [])],
)
def test_commands_in_backticks_are_shown_as_code(words: str, coded: list[str]) -> None:
    shown = with_code(words)
    parts = [shown] if isinstance(shown, str) else shown
    assert [each.children for each in parts if not isinstance(each, str)] == coded
    assert "".join(each if isinstance(each, str) else f"`{each.children}`" for each in parts) == words

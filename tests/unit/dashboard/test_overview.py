"""The overview of many ranks and steps: few cells, and the maximum stays visible."""

import msgspec
import numpy as np
import pytest
from dash._utils import to_json
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.cost.late_starts import LateStarts
from overlapscope.analysis.cost.throughput import Stated, with_stated
from overlapscope.analysis.result import Analysis
from overlapscope.report.formatting import ms
from overlapscope.report.model import Chart, Series
from overlapscope.report.text.exposed_causes import exposed_causes_text, largest_cause
from overlapscope.report.text.idle_time import idle_text
from overlapscope.report.text.main_sentences import basis_text, sentence
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from overlapscope_dashboards.pages import overview as page
from overlapscope_dashboards.parts.charts import MAX_ROWS, chart_table
from overlapscope_dashboards.parts.quantities import exact_text
from overlapscope_dashboards.views import overview as view
from overlapscope_dashboards.views.runs import cells, summary_of
from tests.support.dashboard_runs import words
from tests.unit.report.test_mean_step import of_three_and_two


def grid_of(values: list[list[int]]) -> view.RankStepGrid:
    """Return a grid of ranks 10, 11, ... and steps 100, 101, ..."""
    cells = np.array(values, np.int64).reshape(len(values), len(values[0]))
    ranks, steps = (tuple(range(first, first + size)) for first, size in zip((10, 100), cells.shape, strict=True))
    return view.RankStepGrid(ranks=ranks, steps=steps, exposed_ns=cells)


def test_the_lead_ends_with_throughput_where_it_is_known(analysis: Analysis) -> None:
    def said(of: Analysis) -> list[str]:
        return [each.text for each in view.happened(of)]

    assert not any("tokens/s" in line for line in said(analysis))
    assert analysis.throughput is not None
    known = with_stated(analysis.throughput, Stated(tokens_per_step=1000))
    lines = said(msgspec.structs.replace(analysis, throughput=known))
    assert [line.partition(":")[2] for line in lines if "tokens/s" in line] == [" 1,000 a step (as stated)."]
    assert said(msgspec.structs.replace(analysis, throughput=None)) == said(analysis)


def test_the_longest_loss_is_said_to_be_of_what_it_is_of(analysis: Analysis) -> None:
    loss = analysis.critical_path.longest_loss
    assert loss is not None

    def said(step: int | None, steps: int) -> str:
        path = msgspec.structs.replace(analysis.critical_path, longest_loss=msgspec.structs.replace(loss, step=step))
        head = msgspec.structs.replace(analysis.headline, steps=steps)
        return view.why(msgspec.structs.replace(analysis, critical_path=path, headline=head))[-1].text

    assert said(5, 6).startswith("Longest loss of a typical step: ")
    assert said(3, 1).startswith("Longest loss of step 3: ")
    assert said(None, 0).startswith("Longest loss of the recording: ")


def test_where_the_mean_step_is_the_main_figure_the_page_begins_with_it() -> None:
    """The median step takes 100 ms, of which 10 are exposed; the mean one 120, and 22."""
    analysis = of_three_and_two()
    assert view.lead(analysis).text == sentence(analysis).splitlines()[0]
    assert view.lead(analysis).text.startswith("In the mean 22.000 ms of a 120.000 ms step is exposed")
    happened = [each.text for each in view.happened(analysis)]
    assert happened[0].startswith("In the median 10.000 ms of a 100.000 ms step")
    assert happened[1].startswith("Medians of 5 steps")
    assert len([each for each in happened if each.startswith("Medians")]) == 1
    assert view.why(analysis)[0].text == "Exposed mostly: 22.000 ms the next compute waited for it."
    figures = {name: exact_text((value, " ", *words)) for name, value, words in view.key_figures(analysis)}
    assert figures["Step"] == "120.000 ms mean of 5 steps"
    assert figures["Exposed"] == "22.000 ms 18.3 % of a step"
    parts = view.step(analysis)
    assert parts is not None
    assert parts.basis == "Means of 5 steps, means over 2 ranks"
    assert sum(each.ns for each in parts.segments) == parts.whole_ns == 120_000_000
    assert {each.ns for each in view.by_rank(analysis)} == {22_000_000}
    summary = summary_of(Run(world_size=2, ranks={}), analysis)
    assert (summary.step_ns, summary.exposed_ns) == (120_000_000, 22_000_000)
    assert cells(summary)["unit"] == "mean of 5 steps"


def test_what_ranks_lose_before_their_first_kernels_stands_beside_the_other_costs(analysis: Analysis) -> None:
    assert analysis.throughput is not None
    late = LateStarts(rank=1, most_ns=8_000_000, mean_ns=4_000_000)
    cost = msgspec.structs.replace(
        analysis.throughput, late_starts=late, late_starts_gpu_hours_a_day=1.5, idle_gpu_hours_a_day=3.0,
        price_per_gpu_hour=2.0,
    )  # fmt: skip
    found = view.key_figures(msgspec.structs.replace(analysis, throughput=cost))
    figures = {name: exact_text((value, " ", *words)) for name, value, words in found}
    assert figures["Before first kernels"] == (
        "4.000 ms mean over ranks, most on rank 1: 8.000 ms; 1.5 GPU-hours a day worth 3.00"
    )
    assert figures["Idle"].endswith("; 3.0 GPU-hours a day worth 6.00")
    assert "Before first kernels" not in {name for name, *_ in view.key_figures(analysis)}


def test_the_page_says_the_idle_time_and_the_causes_that_analyze_says(analysis: Analysis) -> None:
    """Most of the idle time is unknown: no known cause of it is most."""
    head = msgspec.structs.replace(
        analysis.headline, idle_ns=10_000_000, idle_causes={"unknown": 8_000_000, "launch_latency": 2_000_000}
    )
    said = [each.text for each in view.why(msgspec.structs.replace(analysis, headline=head))]
    assert idle_text(msgspec.structs.replace(analysis, headline=head)) in said
    largest = largest_cause(analysis)
    assert largest is not None
    assert any(each.endswith(f": {ms(largest.ns)} ms {largest.label}.") for each in said)
    assert exposed_causes_text(analysis).splitlines()[1].startswith(largest.label)


def test_where_causes_are_of_the_mean_step_alone_the_page_says_so(analysis: Analysis) -> None:
    """The median step exposes next to nothing of what the mean one does."""
    head = msgspec.structs.replace(analysis.headline, exposed_comm_ns=1_000, causes={"dependency": 1_000})
    said = view.why(msgspec.structs.replace(analysis, headline=head))[0].text
    assert said.startswith(("Exposed mostly, in the mean step: ", "Largest part of exposed time, in the mean step: "))


def test_the_most_exposed_rank_is_named_where_analyze_names_it(analysis: Analysis) -> None:
    """Where the sums over steps have another order than the medians, neither names one."""

    def said(of: Analysis) -> list[str]:
        return [each.text for each in view.happened(of) if each.text.startswith("Medians")]

    assert said(analysis) == [basis_text(analysis)]
    first, *others = analysis.ranks
    last = [each for each in first.steps if each.complete][-1]
    steps = [
        msgspec.structs.replace(each, exposed_comm_ns=each.exposed_comm_ns + (10**9 if each is last else 0))
        for each in first.steps
    ]
    pausing = msgspec.structs.replace(analysis, ranks=[msgspec.structs.replace(first, steps=steps), *others])
    assert said(pausing) == [basis_text(pausing)]


def test_few_ranks_and_steps_have_a_cell_each(analysis: Analysis) -> None:
    found = view.grid(analysis)
    assert found is not None
    result = {
        (info.rank, each.step): each.exposed_comm_ns for info in analysis.ranks for each in info.steps if each.complete
    }
    assert {(r, s): int(ns) for r, row in zip(found.ranks, found.exposed_ns, strict=True)
            for s, ns in zip(found.steps, row, strict=True)} == result  # fmt: skip
    drawn = view.heat_map(found, 120, 200)
    assert (drawn.words, drawn.rows, drawn.columns) == ("", ("0", "1"), tuple(map(str, found.steps)))
    trace = page.draw_heat_map(drawn)["data"][0]
    assert trace["z"][1][2] == pytest.approx((result[1, found.steps[2]] or 0) / 1e6, abs=5e-4)
    assert "customdata" not in trace


def test_one_bad_step_of_one_rank_of_a_thousand_is_still_seen(analysis: Analysis) -> None:
    info = analysis.ranks[0]
    usual = next(each for each in info.steps if each.complete)

    def exposed(place: tuple[int, int]) -> int:
        return 77_000_000 if place == (701, 93) else 1_000

    ranks = [
        msgspec.structs.replace(
            info, rank=rank,
            steps=[
                msgspec.structs.replace(usual, step=step, exposed_comm_ns=exposed((rank, step))) for step in range(100)
            ],
        )
        for rank in range(1_024)
    ]  # fmt: skip
    many = msgspec.structs.replace(analysis, ranks=ranks)
    found = view.grid(many)
    assert found is not None
    drawn = view.heat_map(found, page.MAX_MAP_ROWS, page.MAX_MAP_COLUMNS)
    assert drawn.words == "Each cell is the maximum of 9 neighbouring ranks."
    trace = page.draw_heat_map(drawn)["data"][0]
    assert len(to_json(trace)) < 500_000
    row, column = np.argwhere(np.array(trace["z"]) == 77).tolist()[0]
    assert trace["y"][row] == "693 to 701"
    assert trace["x"][column] == "93"
    assert trace["customdata"][row][column] == [701, 93]
    rows, columns = view.most_exposed(found, 64)
    assert 701 in rows
    assert 93 in columns
    assert (len(rows), len(columns)) == (64, 64)
    said = words(page._grid_table(found))
    assert "The 64 most exposed of 1024 ranks, the 64 most exposed of 100 steps." in said
    assert "77.000" in said


values = st.integers(1, 9).flatmap(
    lambda wide: st.lists(
        st.lists(st.just(NONE) | st.integers(0, 50), min_size=wide, max_size=wide), min_size=1, max_size=9
    )
)


@given(values, st.integers(1, 5), st.integers(1, 5))
def test_a_cell_is_the_most_of_its_ranks_and_steps_and_says_whose_it_is(
    cells: list[list[int]], rows: int, columns: int
) -> None:
    found = grid_of(cells)
    drawn = view.heat_map(found, rows, columns)
    assert len(drawn.rows) <= rows
    assert len(drawn.columns) <= columns
    assert drawn.most_ns.shape == (len(drawn.rows), len(drawn.columns))
    tall, wide = drawn.ranks_in_row, drawn.steps_in_column
    for at in range(len(drawn.rows)):
        for place in range(len(drawn.columns)):
            inside = [
                (ns, found.ranks[r], found.steps[s])
                for r, row in enumerate(cells) if r // tall == at
                for s, ns in enumerate(row) if s // wide == place
            ]  # fmt: skip
            most = max(ns for ns, _, _ in inside)
            assert int(drawn.most_ns[at, place]) == most
            if most != NONE:
                assert (most, int(drawn.rank[at, place]), int(drawn.step[at, place])) in inside


def test_a_table_of_a_long_chart_is_cut_and_says_so() -> None:
    long = Chart(
        title="Steps", words="", kind="lines", axis="ms", categories=tuple(map(str, range(1_000))),
        series=(Series(name="step", values=tuple(float(at) for at in range(1_000))),),
    )  # fmt: skip
    said = words(chart_table(long))
    assert f"The first {MAX_ROWS} of 1000: overlapscope analyze RUN --json has all." in said
    assert "199.000" in said
    assert "200.000" not in said

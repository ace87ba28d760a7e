"""The overview of many ranks and steps: few cells, and the maximum stays visible."""

import msgspec
import numpy as np
import pytest
from dash._utils import to_json
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.cost.throughput import Stated, with_stated
from overlapscope.analysis.result import Analysis
from overlapscope.report.model import Chart, Series
from overlapscope.timeline.columns import NONE
from overlapscope_dashboards.pages import overview as page
from overlapscope_dashboards.parts.charts import MAX_ROWS, chart_table
from overlapscope_dashboards.views import overview as view
from tests.support.dashboard_runs import words


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

"""Timeline values, checked against loops over single nanoseconds and single spans."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import STATES, Occupancy
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from overlapscope_dashboards.runs.site import NotFound
from overlapscope_dashboards.timeline import coarse_sums as coarse_module
from overlapscope_dashboards.timeline import heat_map as heat_module
from overlapscope_dashboards.timeline.coarse_sums import SPARE_CELLS, CoarseSums, cell_width, cells
from overlapscope_dashboards.timeline.heat_map import (
    DOMINATING,
    FULL,
    MODES,
    map_cells,
    map_rows,
    share_rows,
    time_by_row,
)
from overlapscope_dashboards.timeline.lanes import MAX_LANES, MAX_RANKS, lanes_of, pieces, state_cells
from overlapscope_dashboards.timeline.query import MAX_TEXT, format_ranks, parse_timeline_query
from overlapscope_dashboards.timeline.search import find_spans, next_hit
from overlapscope_dashboards.timeline.window import MAX_BINS, SHORTEST_NS, TimeWindow, around, bin_width, edges, within
from tests.support.builders import EPOCH_NS, Span, full_timeline, instants, spans_table, timeline

kinds = st.sampled_from((COMPUTE, COMM, COPY))
some_spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12), kinds, st.integers(0, 3)).map(
        lambda result: Span(start=result[0], end=result[0] + result[1], kind=result[2], lane=result[3])
    ),
    max_size=14,
)
"""Spans that overlap, touch or nest, some of zero length."""
at_edges = st.lists(instants, min_size=2, max_size=12).map(sorted)
whole = TimeWindow(start_ns=0, end_ns=1_000_000)


def occupancy(spans: list[Span]) -> Occupancy:
    return Occupancy.of(Coverage.of(spans_table(spans)), [(0, 40)])


def state_at(spans: list[Span], moment: int) -> str:
    on = {span.kind for span in spans if span.start <= moment < span.end}
    if COMM in on:
        return "hidden" if COMPUTE in on else "exposed"
    if COMPUTE in on:
        return "compute"
    if COPY in on:
        return "copy"
    return "idle" if 0 <= moment < 40 else "unrecorded"


# --- windows ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(-5, 5_000))
def test_bins_cover_the_window_on_a_grid_and_are_about_as_many_as_pixels(start: int, length: int, pixels: int) -> None:
    window = TimeWindow(start_ns=start, end_ns=start + length)
    found = edges(window, pixels)
    width = bin_width(length, pixels)
    assert (np.diff(found) == width).all()
    assert (found % width == 0).all()
    assert found[0] <= window.start_ns < found[1]
    assert found[-2] < window.end_ns <= found[-1]
    assert found.size - 1 <= min(max(pixels, 200), MAX_BINS) + 1
    assert width == 1 or found.size - 1 >= min(max(pixels, 200), MAX_BINS) // 2 or width <= 7


@given(st.integers(0, 10**15), st.integers(1, 10**15), st.integers(1, 4_000), st.integers(0, 50))
def test_bins_of_two_cells_and_more_are_whole_cells(start: int, length: int, pixels: int, shift: int) -> None:
    plain, cell = bin_width(length, pixels), 1 << shift
    found = edges(TimeWindow(start_ns=start, end_ns=start + length), pixels, cell)
    width = int(found[1] - found[0])
    assert width % cell == 0 if plain >= 2 * cell else width == plain
    assert plain <= width < plain + cell
    assert (found % width == 0).all()
    assert found[0] <= start < found[1]
    assert found[-2] < start + length <= found[-1]


@given(st.integers(0, 10**12), st.integers(10_000, 10**12), st.integers(0, 10**9))
def test_windows_of_one_length_share_their_bins(start: int, length: int, moved: int) -> None:
    one, other = (edges(TimeWindow(start_ns=at, end_ns=at + length), 1_000) for at in (start, start + moved))
    both = np.intersect1d(one, other)
    reach = (one >= other[0]) & (one <= other[-1])
    assert both.size == reach.sum()


@given(st.integers(-(10**7), 10**7), st.integers(-(10**7), 10**7))
def test_any_window_asked_for_is_one_of_the_run(start: int, end: int) -> None:
    found = within(start, end, whole)
    assert whole.start_ns <= found.start_ns < found.end_ns <= whole.end_ns
    assert found.length_ns == min(max(abs(end - start), SHORTEST_NS), whole.length_ns)
    if whole.start_ns <= min(start, end) and max(start, end) <= whole.end_ns and abs(end - start) >= SHORTEST_NS:
        assert (found.start_ns, found.end_ns) == (min(start, end), max(start, end))


@given(st.integers(0, 10**6 - 1), st.integers(0, 10**5))
def test_a_jump_to_a_span_shows_all_of_it(start: int, length: int) -> None:
    end = min(start + length, whole.end_ns)
    found = around(start, end, whole)
    assert found.start_ns <= start
    assert found.end_ns >= end


# --- the heat map -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 64))
def test_every_rank_is_in_one_row(ranks: int, most: int) -> None:
    rows = share_rows(ranks, most)
    assert [rank for row in rows for rank in row] == list(range(ranks))
    assert len(rows) <= most
    assert len({len(row) for row in rows[:-1]}) <= 1


@given(
    st.lists(some_spans, min_size=1, max_size=5), st.integers(-20, 50), st.integers(1, 9), st.integers(1, 12),
    st.integers(1, 5), st.sampled_from(MODES), st.booleans(),
)  # fmt: skip
def test_cells_are_what_counting_nanoseconds_gives(
    ranks: list[list[Span]], first: int, width: int, bins: int, most: int, mode: str, exact: bool
) -> None:
    rows = share_rows(len(ranks), most)
    at = [first + width * each for each in range(bins + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heat_module, "_EXACT", 1 << 53 if exact else 0)  # sums of floats, and of whole numbers
        spent = time_by_row([occupancy(spans) for spans in ranks], rows, np.array(at, np.int64))
    ours = map_cells(spent, mode)
    for row, places in enumerate(rows):
        for bin_, (start, end) in enumerate(pairwise(at)):
            result = [state_at(ranks[place], moment) for place in places for moment in range(start, end)]
            recorded = [state for state in result if state != "unrecorded"]
            cell = int(ours[row, bin_])
            if mode == DOMINATING:
                most_time = max((result.count(state) for state in STATES), default=0)
                assert result.count(STATES[cell]) == most_time
            elif not recorded:
                assert cell == 0
            else:
                share = result.count(mode) / len(recorded)
                assert (cell == 1) == (share == 0)
                assert abs((cell - 1) / (FULL - 1) - share) <= 1 / (FULL - 1) + 1e-9


@pytest.mark.slow
@given(st.lists(some_spans, min_size=1, max_size=5), st.integers(1, 60), st.integers(0, 40), st.integers(1, 6))
def test_bins_of_whole_cells_are_the_sums_of_their_states(
    ranks: list[list[Span]], length: int, first: int, each: int
) -> None:
    given_states = [occupancy(spans) for spans in ranks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse_module, "CELLS", 8)
        coarse = CoarseSums.of(given_states, -3, length)
        assert coarse is not None
        assert coarse.cell_ns == cell_width(length) == 1 << max(-(-length // 8) - 1, 0).bit_length()
        assert coarse.spent.shape[2] == cells(length) >= -(-length // coarse.cell_ns) + SPARE_CELLS
    bins = (first // each + np.arange(7)) * each * coarse.cell_ns
    found = coarse.over(bins)
    inside = bins[-1] <= coarse.spent.shape[2] * coarse.cell_ns
    assert (found is not None) == inside
    if found is not None:
        assert found.tolist() == time_by_row(given_states, map_rows(len(ranks)), bins - 3).tolist()
    assert coarse.over(bins - coarse.cell_ns * 10_000) is None
    assert coarse.cell_ns == 1 or coarse.over(bins + 1) is None


def test_a_run_whose_cells_would_overflow_has_none() -> None:
    states = [occupancy([Span(start=0, end=40, kind=COMM)])]
    assert CoarseSums.of(states, 0, 8_000 << 32) is None


# --- lanes ------------------------------------------------------------------------------------------------------------


@given(some_spans, instants, instants)
def test_spans_in_view_are_those_that_a_loop_finds(spans: list[Span], one: int, other: int) -> None:
    start, end = min(one, other), max(one, other) + 1
    built = timeline(spans=spans)
    lanes = lanes_of(built, built.spans.start_ns, built.spans.end_ns, [f"lane {at}" for at in range(4)])
    found = sorted(row for lane in lanes.lanes for row in lane.rows[lane.in_view(start, end)].tolist())
    expected = [
        row
        for row, span in enumerate(spans)
        if (span.start < end and span.end > start) or (span.start == span.end and start <= span.start < end)
    ]
    assert found == expected


@given(some_spans, at_edges)
def test_lanes_show_exposed_where_no_lane_computes(spans: list[Span], at: list[int]) -> None:
    built = timeline(spans=spans)
    lanes = lanes_of(built, built.spans.start_ns, built.spans.end_ns, [f"lane {each}" for each in range(4)])
    cells = state_cells(lanes.lanes, np.array(at, np.int64))
    for lane, own_cells in zip(lanes.lanes, cells, strict=True):
        own = [span for span in spans if span.lane == lane.lane]
        for bin_, (start, end) in enumerate(pairwise(at)):
            result = []
            for moment in range(start, end):
                on = {span.kind for span in own if span.start <= moment < span.end}
                if COMPUTE in on:
                    result.append("compute")
                elif COMM in on:
                    result.append("hidden" if state_at(spans, moment) == "hidden" else "exposed")
                elif COPY in on:
                    result.append("copy")
            if not result:
                assert own_cells[bin_] == 0
            else:
                assert result.count(STATES[own_cells[bin_]]) == max(result.count(state) for state in STATES)


@given(some_spans)
def test_pieces_are_the_exposed_time_of_each_span(spans: list[Span]) -> None:
    built = timeline(spans=spans)
    lanes = lanes_of(built, built.spans.start_ns, built.spans.end_ns, [f"lane {at}" for at in range(4)])
    for lane in lanes.lanes:
        at = np.arange(lane.rows.size)
        of, start, end = pieces(lane, at, lanes.exposed)
        assert (end > start).all() or (lane.start_ns == lane.end_ns).any()
        for place in at.tolist():
            span = spans[int(lane.rows[place])]
            exposed = [t for t in range(span.start, span.end) if state_at(spans, t) == "exposed"]
            assert int((end - start)[of == place].clip(0).sum()) == len(exposed)


def test_of_many_lanes_the_busiest_are_shown_and_the_others_counted() -> None:
    spans = [Span(start=0, end=10 + lane, lane=lane) for lane in range(MAX_LANES + 3)]
    built = timeline(spans=spans)
    lanes = lanes_of(built, built.spans.start_ns, built.spans.end_ns, [str(at) for at in range(MAX_LANES + 3)])
    assert [each.lane for each in lanes.lanes] == list(range(3, MAX_LANES + 3))
    assert lanes.left_out == 3


def test_a_rank_without_spans_has_no_lanes() -> None:
    built = timeline()
    lanes = lanes_of(built, built.spans.start_ns, built.spans.end_ns, [])
    assert lanes.lanes == ()
    assert lanes.exposed.starts.size == 0


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_found_whatever_their_case_in_order_of_time() -> None:
    ranks = [full_timeline(rank, tag="<img src=x>") for rank in range(2)]
    given_times = [
        (each, each.spans.start_ns - EPOCH_NS - 100 * each.rank, each.spans.end_ns - EPOCH_NS) for each in ranks
    ]
    found = find_spans(given_times, "ALLREDUCE")
    expected = sorted(
        (int(start[row]), each.rank, row)
        for each, start, _ in given_times
        for row in range(4)
        if each.spans.name[row] >= 0 and "AllReduce" in each.names[each.spans.name[row]]
    )
    assert list(zip(found.start_ns.tolist(), found.rank.tolist(), found.row.tolist(), strict=True)) == expected
    assert find_spans(given_times, "nccl:all_reduce").count == 2  # by the host operation around the launch
    assert find_spans(given_times, "<IMG").count == 2
    assert find_spans(given_times, "no such name").count == 0
    assert find_spans(given_times, "  ").count == 0


@given(st.lists(st.integers(0, 50), max_size=8).map(sorted), st.integers(-5, 60), st.sampled_from((1, -1)))
def test_from_a_time_the_next_one_found_is_the_nearest_that_way(starts: list[int], now: int, step: int) -> None:
    column = np.array(starts, np.int64)
    empty = np.zeros(len(starts), np.int64)
    found = find_spans([], "x")
    found = type(found)(rank=empty, row=empty, start_ns=column, end_ns=column)
    at = next_hit(found, None, now, step)
    if not starts:
        assert at is None
        return
    later = [place for place, start in enumerate(starts) if start >= now]
    before = [place for place, start in enumerate(starts) if start < now]
    wanted = (later[:1] or [0]) if step > 0 else (before[-1:] or [len(starts) - 1])
    assert [at] == wanted
    assert next_hit(found, at, 0, 1) == (wanted[0] + 1) % len(starts)


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_address_says_the_whole_view() -> None:
    result = parse_timeline_query(
        {"t0": "1000", "t1": "5000", "ranks": "0-2, 7", "mode": "exposed", "q": "gemm"}, whole, list(range(8))
    )
    assert result.window == TimeWindow(start_ns=1_000, end_ns=5_000)
    assert result.ranks == (0, 1, 2, 7)
    assert format_ranks(result.ranks) == "0-2,7"
    assert (result.mode, result.text) == ("exposed", "gemm")


@pytest.mark.parametrize("value", ["", "x", "1e400", "-", "9" * 40, None, 1.5e300, True, float("nan"), [], {}])
def test_a_time_that_is_none_shows_the_whole_run(value: object) -> None:
    assert parse_timeline_query({"t0": value, "t1": value}, whole, [0]).window == whole


def test_ranks_and_modes_that_there_are_not_say_what_there_is() -> None:
    with pytest.raises(NotFound, match="No rank '9'") as unknown:
        parse_timeline_query({"ranks": "9"}, whole, [3, 5])
    assert [label for label, _ in unknown.value.alternatives] == ["rank 3", "rank 5"]
    with pytest.raises(NotFound, match="no mode"):
        parse_timeline_query({"mode": "<script>"}, whole, [0])


def test_no_more_ranks_or_text_than_can_be_shown_are_taken() -> None:
    result = parse_timeline_query({"ranks": "0-999999999", "q": "x" * 10_000}, whole, list(range(100)))
    assert len(result.ranks) == MAX_RANKS
    assert len(result.text) == MAX_TEXT


@given(st.sets(st.integers(0, 60), min_size=1, max_size=MAX_RANKS))
def test_spelled_ranks_are_read_again(ranks: set[int]) -> None:
    assert parse_timeline_query({"ranks": format_ranks(sorted(ranks))}, whole, range(61)).ranks == tuple(sorted(ranks))

"""Causes of exposed communication with too many spans in view to draw each."""

import base64

import numpy as np
import pytest

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.timeline import view
from overlapscope_dashboards.timeline.figure import draw
from overlapscope_dashboards.timeline.lane_drawing import cause_times
from overlapscope_dashboards.timeline.lane_rows import lower_rows
from overlapscope_dashboards.timeline.query import parse_timeline_query
from overlapscope_dashboards.timeline.source import TimelineSource
from overlapscope_dashboards.timeline.window import edges
from tests.support.dashboard_runs import ids


@pytest.fixture(scope="module")
def source(site: Site) -> TimelineSource:
    return TimelineSource(site.run(ids(site)["regressed"]))


@pytest.mark.parametrize("t0", [0, 200_000_000])
def test_times_by_cause_are_those_of_the_pieces_and_add_up_to_what_is_exposed(source: TimelineSource, t0: int) -> None:
    window = parse_timeline_query({"t0": t0, "t1": t0 + 150_000_000}, source.whole, source.ranks)
    bins = edges(window.window, 700)
    for rank in source.ranks:
        spent = cause_times(source, window, rank, bins)
        by_hand = np.zeros_like(spent)
        for cause, starts, ends in source.causes(rank, window.window):
            for at, (left, right) in enumerate(zip(bins[:-1].tolist(), bins[1:].tolist(), strict=True)):
                inside = np.minimum(ends, right) - np.maximum(starts, left)
                by_hand[list(CAUSES).index(cause), at] = inside[inside > 0].sum()
        assert (spent == by_hand).all()
        assert spent.any()
        own = source.snapshot.occupancy[source.ranks.index(rank)].spent(bins + source.origin_ns)
        assert spent[:, 1:-1].sum(axis=0).tolist() == pytest.approx(own[1:-1, STATES.index("exposed")], abs=2)


def test_the_row_of_causes_is_never_empty_where_something_was_exposed(
    source: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope_dashboards.timeline.lane_drawing.MAX_SPANS", 10)
    whole = parse_timeline_query({}, source.whole, source.ranks)
    (lanes,) = [each for each in draw(source, whole, 700).figure["data"] if each["name"] == "lanes"]
    shape = [int(each) for each in lanes["z"]["shape"].split(",")]
    cells = np.frombuffer(base64.b64decode(lanes["z"]["bdata"]), np.uint8).reshape(shape)
    rows = lower_rows(source, whole)
    for at, row in enumerate(rows):
        if row.lane is None:
            spent = cause_times(source, whole, row.rank, edges(whole.window, 700))
            assert ((cells[at] >= len(STATES)) == spent.any(axis=0)).all()
            place = int(np.flatnonzero(cells[at])[0])
            result = view.point(source, whole, 700, {"row": at, "bin": place, "part": "lanes"})
            assert result.title.endswith("causes of exposed time")
            assert len(result.parts) == int((spent[:, place] > 0).sum())
            empty = int(np.flatnonzero(cells[at] == 0)[0])
            result = view.point(source, whole, 700, {"row": at, "bin": empty, "part": "lanes"})
            assert result.parts == ["no exposed time"]
        else:
            assert (cells[at] < len(STATES)).all()

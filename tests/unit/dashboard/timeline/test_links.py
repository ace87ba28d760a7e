"""Buckets and steps that are marked across ranks on hover in the timeline."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.timeline.columns import COMM, COMPUTE, NONE
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.timeline import view
from overlapscope_dashboards.timeline.query import parse_timeline_query
from overlapscope_dashboards.timeline.source import TimelineSource


def pointed_at(source: TimelineSource, rank: int, row: int) -> view.PointerDetails:
    return view.point(source, parse_timeline_query({}, source.whole, source.ranks), 1_000, {"key": f"{rank}:{row}"})


def all_reduces(opened: OpenRun, rank: int, step: int) -> list[int]:
    """Return a span of each all-reduce of a step, in order of launch."""
    own = opened.run.ranks[rank]
    calls = np.flatnonzero(own.collectives.step == step)
    calls = calls[np.argsort(own.collectives.launch_ns[calls])].tolist()
    return [int(np.flatnonzero((own.spans.collective == call) & (own.spans.kind == COMM))[0]) for call in calls]


def lines(pointed: view.PointerDetails) -> list[dict[str, Any]]:
    return [mark for mark in pointed.links if mark["type"] == "line"]


def test_an_all_reduce_says_which_bucket_it_carries_and_marks_when_it_was_ready(
    source: TimelineSource, opened: OpenRun
) -> None:
    spans = all_reduces(opened, 1, 6)
    result = opened.run.ranks[1].recorded["ddp"]
    assert len(spans) == len(result["bucket_parameters"]) == 4
    for number, row in enumerate(spans):
        found = pointed_at(source, 1, row)
        said = " · ".join(found.parts)
        named = result["bucket_parameters"][number]
        assert f"bucket {number + 1} of 4: 4 gradients, 4.506 MiB, module.{named[0]} to module.{named[-1]}" in said
        times = []
        for rank in (0, 1):
            table, names = opened.run.ranks[rank].gradients, opened.run.ranks[rank].names
            mine = [
                at
                for at in np.flatnonzero(table.step == 6).tolist()
                if names[table.name[at]].removeprefix("module.") in named
            ]
            ready = table.ready_ns[mine].max()
            times.append(int(source.aligned(rank, np.array([ready]))[0]) / 1e6)
        assert f"last gradient ready at {times[1]:,.3f} ms, launched" in said
        assert [mark["x0"] for mark in lines(found)] == pytest.approx(times)


def test_of_an_all_reduce_whose_bucket_is_not_known_nothing_is_said(opened: OpenRun) -> None:
    unknown = {
        rank: replace(own.at_hand(), recorded={}, gradients=replace(own.gradients, elements=own.gradients.elements + 1))
        for rank, own in opened.run.ranks.items()
    }
    own = TimelineSource(opened)
    assert own.figures is not None
    own.figures = replace(own.figures, run=replace(opened.run, ranks=unknown))
    found = pointed_at(own, 1, all_reduces(opened, 1, 6)[0])
    assert "bucket" not in " · ".join(found.parts)
    assert "the same call on 2 ranks" in " · ".join(found.parts)
    assert not lines(found)


def test_a_span_of_a_step_brackets_the_step_on_every_rank(source: TimelineSource, opened: OpenRun) -> None:
    spans = opened.run.ranks[0].spans
    row = int(np.flatnonzero((spans.kind == COMPUTE) & (spans.step == 5))[2])
    found = pointed_at(source, 0, row)
    assert found.parts[-1] == "step 5 is marked on 2 ranks"
    expected = []
    for rank in (0, 1):
        table = opened.run.ranks[rank].steps
        (at,) = np.flatnonzero(table.step == 5).tolist()
        window = np.array([table.start_ns[at], table.end_ns[at]])
        expected.append([each / 1e6 for each in source.aligned(rank, window).tolist()])
    for axis in ("y", "y2"):
        drawn = [[mark["x0"], mark["x1"]] for mark in found.links if mark["yref"] == axis]
        assert drawn == [pytest.approx(each) for each in expected]


def test_a_span_of_no_step_links_nothing(opened: OpenRun) -> None:
    own = TimelineSource(opened)
    assert own.figures is not None
    first = opened.run.ranks[0]
    row = int(np.flatnonzero(first.spans.kind == COMPUTE)[5])
    bare = replace(first.at_hand(), spans=replace(first.spans, step=np.full_like(first.spans.step, NONE)))
    own.figures = replace(own.figures, run=replace(opened.run, ranks={**opened.run.ranks, 0: bare}))
    assert pointed_at(own, 0, row).links == []

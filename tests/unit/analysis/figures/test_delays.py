"""Delays of calls: launched late, or queued on their stream, as far as that delays the group."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.exposure.exposed_causes import each_causes
from overlapscope.analysis.exposure.own_parts import own_parts
from overlapscope.analysis.graph.found_causes import Ahead, OwnCauses
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.columns import COMM
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import RankTimeline
from tests.unit.analysis.figures.test_exposed_causes import LANES, explained, rank_of, together

READY, BESIDE = (0, 20, "gemm"), (59, 60, "gemm")


@pytest.mark.parametrize(
    ("call", "computes", "causes"),
    [
        # 28 late, of which nine of the transfer's ten are exposed.
        pytest.param((50, 60, 48), [READY, BESIDE], {"late_launch": 9}, id="launched after the data were ready"),
        # The second is launched at 48, too: it is not what the call waited for.
        pytest.param((50, 60, 48), [READY, (49, 50, "gemm"), BESIDE], {"late_launch": 9}, id="launched with compute"),
        pytest.param((50, 60, 48), [READY], {"unknown": 10}, id="nothing runs beside it"),
        pytest.param((35, 60, 10), [READY], {"unknown": 25}, id="its stream is free"),
    ],
)
def test_what_delayed_a_call_of_both_ranks(
    call: tuple[int, int, int], computes: list[tuple[int, int, str]], causes: dict[str, int]
) -> None:
    _, found = explained(*(rank_of(rank, [call], computes, has_device=True) for rank in (0, 1)))
    assert found[0] == causes


def on_one_stream(timeline: RankTimeline) -> RankTimeline:
    """Return the rank with all its communication on one stream."""
    spans = timeline.spans
    return replace(timeline, spans=replace(spans, lane=np.where(spans.kind == COMM, 0, LANES).astype(spans.lane.dtype)))


@pytest.mark.parametrize(
    ("calls", "queued"),
    [
        pytest.param([(35, 60, 10), (35, 60, 10)], [25, 25], id="both are ready"),
        pytest.param([(35, 60, 10), (35, 60, 30)], [5, 5], id="launched later elsewhere"),
        pytest.param([(35, 60, 10), (35, 60, 35)], [0, 0], id="launched last elsewhere"),
        # The first waits for 5 of the 10 that the other one's queue takes.
        pytest.param([(30, 60, 10), (35, 60, 25)], [5, 10], id="and begun later there"),
    ],
)
def test_a_call_is_queued_only_while_all_of_its_group_could_begin(
    calls: list[tuple[int, int, int]], queued: list[int]
) -> None:
    ranks = [
        on_one_stream(rank_of(at, [call], [(0, 10, "gemm")], has_device=True, elsewhere=[(10, call[0])]))
        for at, call in enumerate(calls)
    ]
    _, found = explained(*ranks)
    assert [found[rank].get("queued", 0) for rank in range(2)] == queued
    # So it is where the graph of a rank says for how long its call was queued.
    run, cross_rank = together(*ranks)
    parts = {
        rank.rank: own_parts(rank, OwnCauses(idle={}, exposed={"queued": queue_of(call)}))
        for rank, call in zip(ranks, calls, strict=True)
    }
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    by_graph = dict(each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run)))
    assert [by_graph[rank].within((0, 100)).get("queued", 0) for rank in range(2)] == queued


@pytest.mark.parametrize(
    ("launched", "causes"),
    [
        pytest.param(10, {"ahead": 25, "dependency": 25}, id="both are ready"),
        pytest.param(30, {"ahead": 5, "dependency": 45}, id="launched later elsewhere"),
        pytest.param(35, {"dependency": 50}, id="launched last elsewhere"),
    ],
)
def test_a_call_is_ahead_only_while_all_members_of_the_other_could_begin(launched: int, causes: dict[str, int]) -> None:
    calls = [(35, 60, 10), (35, 60, launched)]
    ranks = [
        on_one_stream(rank_of(at, [call], [(0, 10, "gemm")], has_device=True, elsewhere=[(10, call[0])]))
        for at, call in enumerate(calls)
    ]
    run, cross_rank = together(*ranks)
    row = int(np.flatnonzero(ranks[0].collectives.start_ns == 35)[0])
    ahead = Ahead(start_ns=np.array([10]), end_ns=np.array([35]), needed=np.array([row]))
    by_graph = {"ahead": union((np.array([10]), np.array([35]))), "dependency": union((np.array([35]), np.array([60])))}
    own = [OwnCauses(idle={}, exposed=by_graph, ahead=ahead), OwnCauses(idle={}, exposed={})]
    parts = {rank.rank: own_parts(rank, each) for rank, each in zip(ranks, own, strict=True)}
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    found = dict(each_causes(run, cross_rank, coverage, parts, cross_rank.transfers(run)))
    assert found[0].within((0, 100)) == causes


def queue_of(call: tuple[int, int, int]) -> Intervals:
    """Return for how long a call was queued since its launch, from its begin on, as graphs say it."""
    start, end, launch = call
    return union((np.array([start]), np.array([min(2 * start - launch, end)])))


def test_a_call_behind_its_own_kind_is_not_queued() -> None:
    calls: list[tuple[int, int, int | None]] = [(10, 35, 5), (35, 60, 10)]
    ranks = [on_one_stream(rank_of(at, calls, [(0, 10, "gemm")], has_device=True)) for at in (0, 1)]
    _, found = explained(*ranks)
    assert found[0] == {"unknown": 50}


@pytest.mark.parametrize(
    ("computes", "causes"),
    [
        ([READY, (70, 80, "gemm")], {"dependency": 10}),
        ([READY], {"tail": 10}),
        ([READY, (70, 80, "optimizer")], {"tail": 10}),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_call_on_the_stream_of_compute_is_never_late_or_queued(
    ranks: int, computes: list[tuple[int, int, str]], causes: dict[str, int]
) -> None:
    """Launched 28 late, and begun 2 after: nothing could have run beside it all the same."""

    def serial(rank: int) -> RankTimeline:
        timeline = rank_of(rank, [(50, 60, 48)], computes, has_device=True)
        return replace(timeline, spans=replace(timeline.spans, lane=np.full_like(timeline.spans.lane, LANES)))

    _, found = explained(*(serial(rank) for rank in range(ranks)))
    assert found[0] == causes


def test_a_single_rank_knows_only_lateness_and_queues() -> None:
    alone = rank_of(0, [(35, 60, 10)], [(0, 20, "gemm"), (70, 80, "optimizer")], has_device=True, elsewhere=[(10, 35)])
    _, found = explained(on_one_stream(alone))
    assert found[0] == {"queued": 15, "unknown": 15 + 10}


def test_a_call_is_launched_late_only_after_all_of_its_group_had_their_data() -> None:
    ready = [READY, (0, 45, "gemm")]
    _, found = explained(
        *(rank_of(rank, [(50, 60, 48)], [own, BESIDE], has_device=True) for rank, own in enumerate(ready))
    )
    assert [found[rank]["late_launch"] for rank in (0, 1)] == [3, 3]

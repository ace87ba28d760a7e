"""What a call after the optimizer holds up: the next step's compute, where that waits for it."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.exposure.exposed_causes import each_causes
from overlapscope.analysis.exposure.own_parts import own_parts
from overlapscope.analysis.graph.found_causes import OwnCauses
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.figures.test_exposed_causes import explained, rank_of

GATHER = (40, 60, 39)


UPDATED = [(0, 20, "gemm"), (25, 39, "optimizer")]


AT_ONCE, LATER = (60 + 9_000, 60 + 9_100, "gemm"), (60 + 11_000, 60 + 11_100, "gemm")


def next_step_from(timeline: RankTimeline, start_ns: int) -> RankTimeline:
    """Return the rank with what begins then, or later, in step 1."""
    spans = timeline.spans
    return replace(timeline, spans=replace(spans, step=(spans.start_ns >= start_ns).astype(spans.step.dtype)))


@pytest.mark.parametrize(
    ("computes", "cause"),
    [
        pytest.param([*UPDATED, AT_ONCE], "dependency", id="the next step's compute begins at its end"),
        pytest.param([*UPDATED, LATER], "tail", id="the next step's compute begins later"),
        pytest.param([*UPDATED, (59, 61, "gemm"), AT_ONCE], "dependency", id="some compute beside its end"),
        pytest.param([*UPDATED, (45, 61, "gemm"), AT_ONCE], "tail", id="compute goes on beside it"),
        pytest.param(UPDATED, "tail", id="the recording ends"),
        pytest.param([(0, 20, "gemm"), AT_ONCE], "unknown", id="no optimizer"),
        pytest.param([(0, 39, "gemm"), (62, 70, "optimizer"), AT_ONCE], "tail", id="before the optimizer"),
        pytest.param([*UPDATED, (62, 70, "optimizer"), AT_ONCE], "dependency", id="within the optimizer"),
    ],
)
def test_a_gather_of_updated_parameters_is_what_the_next_step_waits_for_where_that_begins_at_its_end(
    computes: list[tuple[int, int, str]], cause: str
) -> None:
    ranks = [
        next_step_from(rank_of(rank, [GATHER], computes, op="all_gather", has_device=True), AT_ONCE[0])
        for rank in (0, 1)
    ]
    _, found = explained(*ranks)
    assert set(found[0]) == {cause}


def test_calls_between_a_call_and_what_follows_wait_for_it_too() -> None:
    ranks = [
        next_step_from(
            rank_of(rank, [GATHER, (70, 20_000, 41)], [*UPDATED, (20_005, 20_100, "gemm")], has_device=True), 20_005
        )
        for rank in (0, 1)
    ]
    _, found = explained(*ranks)
    assert set(found[0]) == {"dependency"}


@pytest.mark.parametrize(
    ("computes", "cause"),
    [
        pytest.param([*UPDATED, LATER], "dependency", id="after the optimizer"),
        pytest.param([(0, 20, "gemm"), (62, 70, "optimizer"), LATER], "tail", id="before the optimizer"),
    ],
)
def test_what_the_graph_says_of_the_next_step_holds(computes: list[tuple[int, int, str]], cause: str) -> None:
    rank = next_step_from(rank_of(0, [GATHER], computes, has_device=True), LATER[0])
    run, cross_rank = Run(world_size=1, ranks={0: rank}), CrossRank()
    parts = {0: own_parts(rank, OwnCauses(idle={}, exposed={"dependency": union((np.array([40]), np.array([60])))}))}
    ((_, found),) = each_causes(run, cross_rank, {0: Coverage.of(rank.spans)}, parts, cross_rank.transfers(run))
    assert found.within((0, 100)) == {cause: 20}


def test_what_other_compute_waits_for_beside_a_call_that_ends_before_the_optimizer_is_no_tail() -> None:
    """The longer call owns all of it. Until 60 ns compute waits for the shorter one; from 80 ns on the optimizer."""
    computes = [(0, 30, "gemm"), (60, 80, "embedding_backward_adagrad"), (95, 99, "optimizer")]
    rank = rank_of(0, [(30, 60, 20), (35, 90, 21)], computes, has_device=True)
    run, cross_rank = Run(world_size=1, ranks={0: rank}), CrossRank()
    awaited = union((np.array([35, 80]), np.array([60, 90])))
    parts = {0: own_parts(rank, OwnCauses(idle={}, exposed={"dependency": awaited}))}
    ((_, found),) = each_causes(run, cross_rank, {0: Coverage.of(rank.spans)}, parts, cross_rank.transfers(run))
    assert found.within((35, 100)) == {"dependency": 25, "tail": 10}


@pytest.mark.parametrize(("finishes", "cause"), [(True, "tail"), (False, "dependency")])
def test_what_only_finishes_a_call_is_no_compute_before_the_optimizer(cause: str, *, finishes: bool) -> None:
    rank = rank_of(0, [(30, 60, 20)], [(0, 30, "gemm"), (60, 70, "cast"), (95, 99, "optimizer")], has_device=True)
    run, cross_rank = Run(world_size=1, ranks={0: rank}), CrossRank()
    cast = np.flatnonzero((rank.spans.start_ns == 60) & finishes)
    awaited = {"dependency": union((np.array([30]), np.array([60])))}
    parts = {0: own_parts(rank, OwnCauses(idle={}, exposed=awaited, finishing=cast))}
    ((_, found),) = each_causes(run, cross_rank, {0: Coverage.of(rank.spans)}, parts, cross_rank.transfers(run))
    assert found.within((30, 60)) == {cause: 30}


BACKWARD: tuple[tuple[str, str, int, int], ...] = (("gemm", "aten::mm", 0, 20), ("gemm", "aten::mm", 25, 39))
CLIPPED = (("multi_tensor_apply_kernel", "aten::_foreach_norm", 60, 62), ("optimizer", "", 63, 70))
SCALED = (("kernel", "aten::_amp_foreach_non_finite_check_and_unscale_", 60, 61),
          ("kernel", "aten::_amp_update_scale_", 61, 62), ("optimizer", "", 63, 70))  # fmt: skip
IN_BACKWARD = (("optimizer", "", 60, 62), ("gemm", "aten::mm", 63, 68), ("optimizer", "", 69, 70))


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        pytest.param(CLIPPED, "tail", id="gradients are clipped, then the optimizer"),
        pytest.param(SCALED, "tail", id="gradients are unscaled, then the optimizer"),
        pytest.param(IN_BACKWARD, "unknown", id="optimizers run in backward: these cycles are no steps"),
    ],
)
def test_without_marks_of_steps_cycles_of_the_optimizer_show_what_follows(
    after: Sequence[tuple[str, str, int, int]], cause: str
) -> None:
    """Of two cycles 21 ns of a call are exposed, between 39 and 60."""

    def rank_at(rank: int) -> RankTimeline:
        work = [
            {"name": name, "host_op": op, "start_ns": at + start, "end_ns": at + end, "launch_ns": at + start}
            for at in (0, 100)
            for name, op, start, end in (*BACKWARD, *after)
        ]
        calls = [
            {"op": "all_reduce", "group": "0", "seq": at, "dtype": "float32", "bytes": 1000, "group_size": 2,
             "start_ns": at + 30, "end_ns": at + 60, "launch_ns": at + 30, "lane": 1}
            for at in (0, 100)
        ]  # fmt: skip
        return rank_timeline(rank, calls=calls, work=work)

    _, found = explained(rank_at(0), rank_at(1))
    assert found[0] == found[1] == {cause: 2 * 21}

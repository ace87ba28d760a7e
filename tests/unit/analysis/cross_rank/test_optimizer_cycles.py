"""Cycles of the optimizer stand for steps that are not marked only where they are alike on all ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.optimizer_cycles import optimizer_cycles
from overlapscope.timeline.columns import COMM, COMPUTE, Recordings, make
from overlapscope.timeline.run import Group, Run
from tests.support.rank_rows import rank_timeline

US, CYCLE_NS = 1_000, 100_000
ADAM, NORM = (f"multi_tensor_apply_kernel<{each}>" for each in ("FusedAdamMathFunctor", "LpNormFunctor"))
PIECES = (("gemm", 0), ("gemm", 20), ("all_reduce", 40), (NORM, 60), (ADAM, 70), (ADAM, 80))
"""Names and begins, in us, of what a cycle does; each takes 10 us."""


def recorded(cycles: Sequence[Sequence[tuple[str, float]]], *, ranks: int = 2, apart_us: float = 0) -> Run:
    """Return ranks that do this, cycle after cycle; all that the last one does is `apart_us` later, but calls."""

    def spans(rank: int) -> list[dict[str, Any]]:
        later = apart_us * (rank == ranks - 1)
        return [
            {"name": name, "start_ns": start, "end_ns": start + 10 * US, "launch_ns": start}
            for at, cycle in enumerate(cycles)
            for name, begin in cycle
            for start in [round(at * CYCLE_NS + (begin + later * (name != "all_reduce")) * US)]
        ]

    call = {"op": "all_reduce", "group": "0", "dtype": "float32", "bytes": 1 << 20, "group_size": ranks, "kind": COMM}
    every = {rank: spans(rank) for rank in range(ranks)}
    return Run(
        world_size=ranks,
        ranks={
            rank: rank_timeline(
                rank,
                calls=[{**call, **each} for each in own if each["name"] == "all_reduce"],
                work=[{"kind": COMPUTE, **each} for each in own if each["name"] != "all_reduce"],
            )
            for rank, own in every.items()
        },
        groups=(Group(name="0", size=ranks, ranks=tuple(range(ranks))),),
    )


def cycles_of(run: Run) -> list[list[tuple[int, int]]]:
    found = optimizer_cycles(run, match_and_align(run).clocks)
    return [[(start // US, end // US) for start, end in own] for own in found.values()]


def test_a_cycle_lasts_from_one_end_of_the_optimizer_to_the_next() -> None:
    assert cycles_of(recorded([PIECES] * 3)) == [[(0, 90), (90, 190), (190, 290)]] * 2


def test_what_follows_the_last_optimizer_is_no_cycle_and_the_first_one_lacks_what_follows_each() -> None:
    metrics = (*PIECES, ("all_reduce", 88), ("elementwise_kernel", 89))
    assert cycles_of(recorded([metrics] * 3)) == [[(0, 90), (90, 190), (190, 290)]] * 2


@pytest.mark.parametrize(
    ("first", "rest"),
    [(PIECES[1:], ()), (PIECES[3:], ()), (PIECES[4:], PIECES[:2])],
    ids=["no forward", "no call", "as much as is left behind the last one"],
)
def test_a_first_cycle_that_is_cut_is_left_out(
    first: Sequence[tuple[str, float]], rest: Sequence[tuple[str, float]]
) -> None:
    assert cycles_of(recorded([first, PIECES, PIECES, rest])) == [[(90, 190), (190, 290)]] * 2


OTHER = (("gemm", 0), ("gemm", 20), ("all_reduce", 40), ("multi_tensor_apply_kernel<SGD>", 70))
IN_BACKWARD = (("gemm", 0), (ADAM, 20), ("gemm", 40), ("all_reduce", 60), (ADAM, 80))
LAYER = (("gemm", 0), ("gemm", 12), ("all_reduce", 24), (ADAM, 36))
"""Backward of a layer, whose optimizer runs at once."""
FORWARD = (("gemm", 50), ("gemm", 62), ("gemm", 74))
DISCRIMINATOR = (("gemm", 0), ("gemm", 10), ("all_reduce", 20), (ADAM, 30))
GENERATOR = (("gemm", 45), ("gemm", 55), ("gemm", 65), ("all_reduce", 75), (ADAM, 85))


@pytest.mark.parametrize(
    "run",
    [
        recorded([PIECES, OTHER] * 2),
        recorded([IN_BACKWARD] * 3),
        recorded([PIECES, (*PIECES, ("all_reduce", 15)), PIECES, PIECES]),
        recorded([PIECES[:4]] * 3),
        recorded([PIECES] * 3, apart_us=9),
        recorded([LAYER, LAYER, (*LAYER, *FORWARD)] * 3),
        recorded([FORWARD, LAYER, LAYER, LAYER]),
        recorded([LAYER, LAYER, LAYER, FORWARD]),
        recorded([LAYER[1:]] * 9),
        recorded([(*DISCRIMINATOR, *GENERATOR)] * 3),
    ],
    ids=[
        "two optimizers",
        "within backward",
        "another call",
        "norms alone",
        "ends apart",
        "within backward, a layer each",
        "of one step",
        "and a begin of the next one",
        "a product each",
        "a discriminator and a generator",
    ],
)
def test_other_recordings_have_none(run: Run) -> None:
    assert cycles_of(run) == []


def test_ranks_whose_optimizers_differ_have_none() -> None:
    one, other = recorded([PIECES] * 3), recorded([[each for each in PIECES if each != PIECES[-1]]] * 3)
    assert cycles_of(Run(world_size=2, ranks={0: one.ranks[0], 1: other.ranks[1]}, groups=one.groups)) == []


def test_the_cycles_of_one_rank_alone_are_known() -> None:
    assert cycles_of(recorded([PIECES] * 3, ranks=1)) == [[(0, 90), (90, 190), (190, 290)]]


@pytest.mark.parametrize("change", [{"has_device": False}, {"recordings": make(Recordings, 2)}])
def test_a_rank_without_a_device_or_of_several_recordings_has_none(change: Mapping[str, Any]) -> None:
    run = recorded([PIECES] * 3)
    clocks = match_and_align(run).clocks
    assert optimizer_cycles(run, clocks)
    assert optimizer_cycles(replace(run, ranks=run.ranks | {1: replace(run.ranks[1], **change)}), clocks) == {}


def test_ranks_whose_clocks_are_not_comparable_have_none() -> None:
    assert optimizer_cycles(recorded([PIECES] * 3), Clocks()) == {}


def test_parts_of_a_product_that_are_added_up_now_and_then_are_no_product() -> None:
    divided = (*PIECES, ("splitKreduce_kernel", 31))
    assert cycles_of(recorded([PIECES, divided, PIECES])) == [[(0, 90), (90, 190), (190, 290)]] * 2

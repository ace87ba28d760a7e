"""Interference from a recording: made truths are found again, and what cannot tell it tells nothing."""

import random

import numpy as np
import pytest

from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM, COMPUTE, Spans, make
from overlapscope.timeline.intervals import EMPTY, Intervals, union
from overlapscope.whatif.cost.interference import slowdown
from tests.conftest import shared_file

KERNELS = 6
LAUNCHES = 8


def recorded(truth: float, *, steps: int, moves: bool, seed: int = 3, extra: bool = False) -> tuple[Spans, Intervals]:
    """Steps of kernels with a shape for each launch; a transfer covers some launches, others in each step."""
    drawn = random.Random(seed)
    shape = {(kernel, launch): drawn.randint(1_000, 90_000) for kernel in range(KERNELS) for launch in range(LAUNCHES)}
    rows: list[tuple[int, int, int, int]] = []
    transfers = []
    now = 0
    for step in range(steps):
        covered = drawn.randrange(KERNELS * LAUNCHES // 2) if moves else KERNELS
        begun = now
        for place, (kernel, launch) in enumerate((k, n) for n in range(LAUNCHES) for k in range(KERNELS)):
            beside = covered <= place < covered + KERNELS * LAUNCHES // 2
            if place == covered:
                begun = now
            took = round(shape[kernel, launch] * (truth if beside else 1.0) * drawn.uniform(0.99, 1.01))
            rows.append((step, kernel, now, now + took))
            now += took
            if place == covered + KERNELS * LAUNCHES // 2 - 1:
                transfers.append((begun, now))
        if extra and step == 1:  # one step launches a kernel more often, in front of all others: other work
            rows += [(step, 0, begun - 10, begun)]
    table = np.array(rows)
    spans = make(
        Spans, len(rows), kind=np.full(len(rows), COMPUTE), step=table[:, 0], name=table[:, 1],
        start_ns=table[:, 2], end_ns=table[:, 3],
    )  # fmt: skip
    starts, ends = np.array(transfers, np.int64).T
    return spans, union((starts, ends))


@pytest.mark.parametrize("truth", [1.0, 1.3, 1.9])
@pytest.mark.parametrize("extra", [False, True])
def test_a_made_slowdown_is_found_again_whatever_the_shapes(truth: float, extra: bool) -> None:
    found = slowdown(*recorded(truth, steps=6, moves=True, extra=extra))
    assert found
    assert found.mean == pytest.approx(truth, rel=0.02)
    assert found.low - 0.02 <= truth <= found.high + 0.02
    assert found.kernels == KERNELS
    assert found.compared_share > 0.3


def test_steps_that_overlap_alike_tell_nothing() -> None:
    assert slowdown(*recorded(1.5, steps=6, moves=False)) is None


def test_two_steps_or_no_transfer_tell_nothing() -> None:
    for steps in (1, 2):
        assert slowdown(*recorded(1.5, steps=steps, moves=True)) is None
    spans, _ = recorded(1.5, steps=4, moves=True)
    assert slowdown(spans, EMPTY) is None
    assert slowdown(make(Spans, 0), EMPTY) is None


@pytest.mark.parametrize("name", ["a100_ddp_rank0of2_collective_args.json.gz", "a100_rank3of8_six_steps.json.gz"])
def test_real_recordings_tell_what_is_published_of_others(name: str) -> None:
    """Echo (arXiv 2412.12487) has 1.27 for matrix products and 1.38 over all kernels beside an all-reduce."""
    (timeline,) = read_inputs([shared_file(f"kineto/{name}")]).ranks.values()
    spans = timeline.spans
    rows = spans.kind == COMM
    found = slowdown(spans, union((spans.start_ns[rows], spans.end_ns[rows])))
    assert found
    assert 1.15 < found.mean < 1.45
    assert found.low < found.mean < found.high

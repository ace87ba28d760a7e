"""Buckets in pieces, and what the next forward needs first sent first: by hand, and what must hold for any model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.whatif.cost.curves import curve
from overlapscope.whatif.ddp.buckets import MIB, DdpSettings
from overlapscope.whatif.ddp.calibrate import step_job
from overlapscope.whatif.ddp.ddp_step import Reduction, Settings, ddp_job, reductions_of
from overlapscope.whatif.ddp.priority_step import sending_order
from overlapscope.whatif.replay.replay import replay
from overlapscope.whatif.workload.workload import Workload
from tests.unit.whatif.test_ddp_step import MS, transfer_ms, workload

U = transfer_ms(10)
"""Time of 10 MiB, in which all is counted here."""


def two_halves() -> Workload:
    """Backward takes 4.1 + 3.9, forward as many halves of them, the gradients of each half 6 on the link."""
    return workload(
        [60, 60], [8.1 * U, 12 * U], forward_ns=4 * U * MS, backward_ns=8 * U * MS, optimizer_ns=0.0
    )  # fmt: skip


def step(work: Workload, cap: float = 1, **settings: object) -> float:
    chosen = Settings(ddp=DdpSettings(bucket_cap_mb=cap), **settings)  # type: ignore[arg-type]
    return replay(step_job(work, chosen)).step_ns / MS


def test_a_step_worked_out_by_hand_gains_where_pieces_can_overtake() -> None:
    work = two_halves()
    assert step(work) == pytest.approx(20.1 * U)  # the halves are sent from 8.1 to 14.1, and to 20.1
    assert step(work, partition_mb=10.0) == pytest.approx(20.1 * U)  # pieces alone change nothing
    assert step(work, priority=True) == pytest.approx(20.1 * U)  # a whole bucket cannot be overtaken
    # Four pieces go before the other half is ready, its six go until 14.1 after backward began, and the last two beside
    # its forward of 1.95; the first half's forward of 2.05 begins when they are there, at 16.1.
    assert step(work, priority=True, partition_mb=10.0) == pytest.approx(18.15 * U)
    # Of pieces of 4.5 and 1.5 the first is under way until 8.6, the others until 14.6, the last one beside forward.
    assert step(work, priority=True, partition_mb=45.0) == pytest.approx(18.6 * U)


def test_the_optimizer_of_a_half_follows_its_own_gradients() -> None:
    work = workload([60, 60], [8.1 * U, 12 * U], forward_ns=4 * U * MS, backward_ns=8 * U * MS, optimizer_ns=2 * U * MS)
    assert step(work) == pytest.approx(22.1 * U)
    # Optimizer and forward of the first layers, from 14.1 to 17.05, hide the two pieces that are left.
    assert step(work, priority=True, partition_mb=10.0) == pytest.approx(20.1 * U)


def test_what_is_ready_last_is_sent_first() -> None:
    found = [Reduction(0.0, (2.0, 2.0, 2.0), 0, 0), Reduction(3.0, (2.0,), 0, 0), Reduction(20.0, (1.0,), 0, 0)]
    assert sending_order(found) == [(0, 0), (0, 1), (1, 0), (0, 2), (2, 0)]


def test_latency_makes_pieces_dear() -> None:
    sizes = MIB * np.array([1e-3, 1.0, 1e4])
    work = workload([60, 60], [8.1 * U, 12 * U], curves=(curve("all_reduce", sizes, 2e5 + sizes / 10, ranks=4),),
                    forward_ns=4 * U * MS, backward_ns=8 * U * MS)  # fmt: skip
    assert step(work, partition_mb=1.0) > step(work, partition_mb=10.0) > step(work)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7),
    cap=st.sampled_from((1, 25, 1000)),
    partition=st.sampled_from((None, 0.7, 5.0, 40.0)),
    forward=st.integers(1, 40),
    drawn=st.integers(0, 10**6),
)
def test_no_order_beats_the_bounds_or_loses_to_waiting_for_all(
    sizes: list[int], cap: int, partition: float | None, forward: int, drawn: int
) -> None:
    ready = np.sort(np.random.default_rng(drawn).uniform(forward, forward + 30, len(sizes)))
    ready[-1] = forward + 30
    work = workload([float(each) for each in sizes], ready.tolist(), forward_ns=forward * MS, backward_ns=30 * MS)
    plain = Settings(ddp=DdpSettings(bucket_cap_mb=cap), partition_mb=partition)
    pieces = [ns for each in reductions_of(work, plain) for ns in each.pieces_ns]
    assert sum(pieces) / MS == pytest.approx(transfer_ms(sum(sizes)))  # no byte is lost or sent twice
    assert partition is None or max(pieces) / MS <= transfer_ms(partition) * (1 + 1e-9)
    waits = replay(ddp_job(work, plain)).step_ns
    ordered = replay(step_job(work, Settings(ddp=plain.ddp, partition_mb=partition, priority=True))).step_ns
    assert ordered <= waits * (1 + 1e-9)
    assert ordered >= max(work.compute_ns, sum(pieces)) * (1 - 1e-9)
    nothing = curve("all_reduce", MIB * np.array([1e-3, 1e4]), np.array([1e-9, 1e-8]), ranks=4)
    free = workload(
        [float(each) for each in sizes], ready.tolist(), forward_ns=forward * MS, backward_ns=30 * MS, curves=(nothing,)
    )
    assert step(free, cap, partition_mb=partition, priority=True) == pytest.approx(free.compute_ns / MS)


def test_passes_that_reduce_nothing_come_first_and_ranks_keep_one_order_however_late() -> None:
    work = two_halves()
    twice = step(work, priority=True, partition_mb=10.0, accumulation=2, no_sync=True)
    assert twice == pytest.approx((18.15 + 12) * U)
    late = workload([60, 60], [8.1 * U, 12 * U], forward_ns=4 * U * MS, backward_ns=8 * U * MS, optimizer_ns=0.0,
                    lateness_ns=(0.0, 3 * U * MS, U * MS))  # fmt: skip
    assert step(late, priority=True, partition_mb=10.0) == pytest.approx(21.15 * U)
    unused = Settings(ddp=DdpSettings(bucket_cap_mb=1, find_unused_parameters=True), priority=True)
    assert replay(step_job(work, unused)).step_ns >= work.compute_ns

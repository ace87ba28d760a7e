"""Optimizer, gradients or parameters sharded: steps worked out by hand, bytes counted, memory as published."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.errors import UsageError
from overlapscope.whatif.cost.curves import curve
from overlapscope.whatif.ddp.buckets import MIB, DdpSettings
from overlapscope.whatif.ddp.calibrate import step_job
from overlapscope.whatif.ddp.ddp_step import Settings, bucket_memory_bytes, ddp_job
from overlapscope.whatif.ddp.sharded_step import sharded_job
from overlapscope.whatif.ddp.zero import Sharding, saved_bytes, sharding_of, unmeasured_operations
from overlapscope.whatif.replay.replay import Job, Launch, replay
from overlapscope.whatif.workload.workload import Gradients, Workload
from tests.unit.whatif.test_ddp_step import MS, transfer_ms, workload

SIZES = MIB * np.array([1e-3, 1.0, 1e4])


def sharded(stage: int, cap: float = 1, **changes: object) -> Settings:
    return Settings(ddp=DdpSettings(bucket_cap_mb=cap), sharding=sharding_of(stage, "adam"), **changes)  # type: ignore[arg-type]


def step_ms(work: Workload, stage: int, cap: float = 1, **changes: object) -> float:
    return replay(step_job(work, sharded(stage, cap, **changes))).step_ns / MS


def test_steps_worked_out_by_hand() -> None:
    """Four ranks; what is scattered or gathered takes half of the all-reduce, one bucket for each gradient."""
    work = workload([40, 40, 40], [15, 20, 30])
    half = transfer_ms(40) / 2  # 2.1 ms
    # Two scatters are hidden; the third, a quarter of the optimizer's 2 ms and three gathers are not.
    assert step_ms(work, 1) == step_ms(work, 2) == pytest.approx(30 + half + 0.5 + 3 * half)
    # Forward waits for its first gather, backward for its own; the last scatter has no cover; all else is hidden.
    assert step_ms(work, 3) == pytest.approx(30 + 3 * half + 0.5)
    # All in one: nothing to gather ahead of.
    assert step_ms(work, 3, cap=1000) == pytest.approx(30 + 3 * 3 * half + 0.5)
    assert step_ms(work, 1, cap=1000) == pytest.approx(30 + 2 * 3 * half + 0.5)


def test_the_last_bucket_is_scattered_when_its_gradients_are_ready_and_not_when_backward_ends() -> None:
    work = workload([40, 40, 40], [15, 20, 25])
    half = transfer_ms(40) / 2
    # 5 ms of backward are left and hide the last scatter too.
    assert step_ms(work, 1) == pytest.approx(30 + 0.5 + 3 * half)
    assert step_ms(work, 3) == pytest.approx(30 + 2 * half + 0.5)


def test_passes_that_are_accumulated_scatter_where_a_rank_keeps_only_its_own_gradients() -> None:
    work = workload([40, 40, 40], [15, 20, 30])
    half = transfer_ms(40) / 2
    twice = {"accumulation": 2, "no_sync": True}
    assert step_ms(work, 1, **twice) == pytest.approx(60 + half + 0.5 + 3 * half)
    assert step_ms(work, 2, **twice) == pytest.approx(60 + 2 * half + 0.5 + 3 * half)
    assert step_ms(work, 3, **twice) == pytest.approx(60 + 2 * 3 * half + 0.5)


def test_what_was_measured_is_taken_and_what_was_not_is_a_share_of_the_all_reduce() -> None:
    work = workload([40, 40, 40], [15, 20, 30])
    reduce = work.curves[0]
    own = [curve(op, SIZES, SIZES / rate, ranks=4) for op, rate in (("reduce_scatter", 16.0), ("all_gather", 40.0))]
    known = workload([40, 40, 40], [15, 20, 30], curves=(reduce, *own))
    assert unmeasured_operations(work) == ["reduce_scatter", "all_gather"]
    assert unmeasured_operations(known) == []
    bytes_ms = 40 * MIB / MS
    assert step_ms(known, 1) == pytest.approx(30 + bytes_ms / 16 + 0.5 + 3 * bytes_ms / 40)
    least, usual, most = (
        replay(sharded_job(work, Settings(ddp=DdpSettings(bucket_cap_mb=1), sharding=each))).step_ns
        for each in sharding_of(1, "adam").range()
    )
    assert least < usual < most
    over_gloo = workload([40, 40, 40], [15, 20, 30], comm_width=2)
    assert step_ms(over_gloo, 1) > step_ms(work, 1)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    cap=st.sampled_from((1, 25, 80, 1000)),
    accumulation=st.integers(1, 3),
)
def test_bytes_are_those_of_the_stage_and_nothing_else_takes_time(
    sizes: list[int], cap: int, accumulation: int
) -> None:
    """With links of one byte a nanosecond times are bytes: a whole scattered and gathered, or gathered twice a pass."""
    ready = np.linspace(12, 30, len(sizes)).tolist()
    named = [curve(op, SIZES, SIZES, ranks=4) for op in ("all_reduce", "reduce_scatter", "all_gather")]
    work = workload([float(each) for each in sizes], ready, curves=tuple(named))
    whole = sum(sizes) * MIB
    for stage, wanted in ((1, 1 + 1), (2, accumulation + 1), (3, 3 * accumulation)):
        job = step_job(work, sharded(stage, cap, accumulation=accumulation, no_sync=True))
        assert moved_ns(job) == pytest.approx(wanted * whole)
    free = workload([float(each) for each in sizes], ready, curves=(curve("all_reduce", SIZES, SIZES * 1e-9, ranks=4),))
    alone = accumulation * 30 + 2 / 4
    for stage in (1, 2, 3):
        assert step_ms(free, stage, cap, accumulation=accumulation) == pytest.approx(alone, rel=1e-6)


def moved_ns(job: Job) -> float:
    launched = [each.collective for each in job.programmes[0] if isinstance(each, Launch)]
    assert sorted(launched) == list(range(len(job.transfers)))  # every one of them, once
    return sum(each.alone_ns for each in job.transfers)


@pytest.mark.parametrize(("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.88)])
def test_memory_is_that_of_the_papers_example(stage: int, gigabytes: float) -> None:
    """7.5 billion parameters in 16 bits under Adam on 64 ranks: 120 GB, 31.4, 16.6, 1.9 (ZeRO, figure 1)."""
    work = model(75, 10**8, "bfloat16", 64)
    assert 120 - saved_bytes(work, sharding_of(stage, "adam"), 0) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_memory_of_32_bits_has_no_copy_of_parameters_and_stage_3_keeps_two_buckets() -> None:
    work = model(10, 10**6, "float32", 4)
    whole = 40 * 10**6
    assert saved_bytes(work, sharding_of(1, "adam"), 0) == 2 * whole * 3 // 4
    assert saved_bytes(work, sharding_of(1, "sgd"), 0) == 0
    assert saved_bytes(work, sharding_of(2, "sgd_momentum"), 0) == 2 * whole * 3 // 4
    assert saved_bytes(work, sharding_of(3, "sgd"), 4 * 10**6) == (2 * whole - 8 * 10**6) * 3 // 4
    plain = Settings(ddp=DdpSettings(bucket_cap_mb=1000))
    assert bucket_memory_bytes(work, plain) == 0
    # One bucket holds all: parameters are gathered whole, and only gradients and states are sharded.
    assert bucket_memory_bytes(work, sharded(3, 1000)) == bucket_memory_bytes(work, sharded(2, 1000)) < 0


def model(count: int, elements: int, dtype: str, ranks: int) -> Workload:
    width = {"bfloat16": 2, "float32": 4}[dtype]
    gradients = Gradients(
        names=tuple(f"p{number}" for number in range(count)),
        sizes_bytes=np.full(count, elements * width, np.int64),
        kinds=(("gpu", dtype),) * count,
        ready_ns=np.linspace(11, 30, count) * MS,
        registered=np.arange(count)[::-1].astype(np.int64),
    )
    sizes = np.array([1.0, 1e12])
    made = curve("all_reduce", sizes, sizes, ranks=ranks)
    return workload([1], [30], gradients=gradients, world_size=ranks, curves=(made,))


def test_late_ranks_and_faster_links_count_as_they_do_without_sharding() -> None:
    work = workload([40, 40, 40], [15, 20, 30], lateness_ns=(0.0, 3 * MS))
    assert step_ms(work, 1) == pytest.approx(step_ms(workload([40, 40, 40], [15, 20, 30]), 1) + 3)
    assert step_ms(work, 1, late_ranks=False) == pytest.approx(step_ms(work, 1) - 3)
    half = transfer_ms(40) / 2
    assert step_ms(workload([40] * 3, [15, 20, 30]), 1, link_speed=2.0) == pytest.approx(
        30 + half / 2 + 0.5 + 1.5 * half
    )


def test_there_are_three_stages_and_a_step_without_one_is_the_jobs_own() -> None:
    work = workload([40, 40, 40], [15, 20, 30])
    plain = Settings(ddp=DdpSettings(bucket_cap_mb=1))
    assert replay(step_job(work, plain)).step_ns == replay(ddp_job(work, plain)).step_ns
    assert sharded(2).knobs()["zero_stage"] == 2
    assert Sharding(stage=1, state_bytes=8) == sharding_of(1, "adamw")
    for stage in (0, 4):
        with pytest.raises(UsageError, match="stages 1, 2 and 3"):
            sharding_of(stage, "adam")

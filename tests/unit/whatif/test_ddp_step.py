"""A DDP step as a job: steps worked out by hand, and what must hold between settings whatever the model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.whatif.cost.compression import Compression
from overlapscope.whatif.cost.curves import curve
from overlapscope.whatif.ddp.buckets import MIB, DdpSettings
from overlapscope.whatif.ddp.ddp_step import Settings, bucket_memory_bytes, buckets_of, ddp_job
from overlapscope.whatif.replay.replay import Work, replay
from overlapscope.whatif.workload.workload import Gradients, Interference, Placed, Workload, curve_of

MS = 1e6
RATE = 10.0
"""Bytes a nanosecond; without latency, so that steps can be worked out by hand."""


def workload(sizes_mib: list[float], ready_ms: list[float], **changes: object) -> Workload:
    count = len(sizes_mib)
    gradients = Gradients(
        names=tuple(f"p{number}" for number in range(count)),
        sizes_bytes=np.array([int(each * MIB) for each in sizes_mib], np.int64),
        kinds=("float32",) * count,
        ready_ns=np.array(ready_ms) * MS,
        registered=np.arange(count)[::-1].astype(np.int64),
    )
    sizes = MIB * np.array([1e-3, 1.0, 1e4])
    given: dict[str, object] = {
        "world_size": 4,
        "forward_ns": 10 * MS,
        "backward_ns": 20 * MS,
        "optimizer_ns": 2 * MS,
        "gradients": gradients,
        "curves": (curve("all_reduce", sizes, sizes / RATE, ranks=4),),
    }
    return Workload(**{**given, **changes})  # type: ignore[arg-type]


def step_ms(work: Workload, cap: float, **settings: object) -> float:
    chosen = Settings(ddp=DdpSettings(bucket_cap_mb=cap), **settings)  # type: ignore[arg-type]
    return replay(ddp_job(work, chosen)).step_ns / MS


def transfer_ms(mib: float) -> float:
    return mib * MIB / RATE / MS


def test_steps_worked_out_by_hand() -> None:
    work = workload([40, 40, 40], [15, 20, 30])
    each = transfer_ms(40)  # 4.19 ms
    assert step_ms(work, 1) == pytest.approx(30 + each + 2)  # the first two are hidden, the last has no cover
    assert step_ms(work, 1000) == pytest.approx(30 + 3 * each + 2)
    assert step_ms(work, 41) == pytest.approx(max(30, 20 + 2 * each) + each + 2)
    slowed = workload([40, 40, 40], [15, 20, 30], interference=Interference(compute=1.5))
    # Two transfers beside compute cost a third of their time each.
    assert step_ms(slowed, 1) == pytest.approx(30 + 2 * each / 3 + each + 2)


def test_the_order_of_registration_counts_only_without_rebuilding() -> None:
    work = workload([40, 40, 40], [15, 20, 30])
    mixed = Workload(**{  # type: ignore[arg-type]
        **{name: getattr(work, name) for name in Workload.__struct_fields__},
        "gradients": Gradients(
            names=work.gradients.names, sizes_bytes=work.gradients.sizes_bytes, kinds=work.gradients.kinds,
            ready_ns=work.gradients.ready_ns, registered=np.array([0, 2, 1]),
        ),
    })  # fmt: skip
    rebuilt = Settings(ddp=DdpSettings(bucket_cap_mb=1))
    fixed = Settings(ddp=DdpSettings(bucket_cap_mb=1, find_unused_parameters=True))
    assert [each.parameters for each in buckets_of(mixed, rebuilt)] == [(0,), (1,), (2,)]
    assert [each.parameters for each in buckets_of(mixed, fixed)] == [(1,), (2,), (0,)]


def test_accumulation_pays_each_pass_and_no_sync_only_the_last() -> None:
    work = workload([40], [30])
    once = 30 + transfer_ms(40)
    assert step_ms(work, 1, accumulation=4) == pytest.approx(4 * once + 2)
    assert step_ms(work, 1, accumulation=4, no_sync=True) == pytest.approx(3 * 30 + once + 2)


def test_half_the_bytes_take_half_the_time() -> None:
    work = workload([40], [30])
    assert step_ms(work, 1, communicated=0.5) == pytest.approx(32 + transfer_ms(20))


def test_a_faster_link_and_no_late_ranks_are_what_they_say() -> None:
    work = workload([40], [30], lateness_ns=(0.0, 3 * MS, 0.0, 1 * MS))
    assert step_ms(work, 1, link_speed=2.0) == pytest.approx(35 + transfer_ms(20))
    assert step_ms(work, 1, late_ranks=False) == pytest.approx(32 + transfer_ms(40))
    assert Settings(link_speed=2.0).hypothetical
    assert not Settings().hypothetical


def test_copies_are_paid_where_gradients_are_no_views() -> None:
    work = workload([40], [30], pass_ns_per_byte=0.01)
    copy = 0.01 * 40 * MIB / MS
    assert step_ms(work, 1) == pytest.approx(32 + copy + transfer_ms(40))  # the division by the world size
    assert step_ms(work, 1, gradient_as_bucket_view=False) == pytest.approx(32 + transfer_ms(40) + 2 * copy)
    assert bucket_memory_bytes(work, Settings()) == 0
    assert bucket_memory_bytes(work, Settings(gradient_as_bucket_view=False)) == 40 * MIB


def test_compressing_is_paid_beside_the_division_by_the_world_size() -> None:
    gradients = Gradients(
        names=("p0",), sizes_bytes=np.array([40 * MIB]), kinds=("float32",), ready_ns=np.array([30 * MS]),
        registered=np.array([0]), shapes=((1024, 10240),),
    )  # fmt: skip
    work = workload([40], [30], gradients=gradients, pass_ns_per_byte=0.01)
    topk = Compression(method="topk", amount=0.01, passes=5)
    passes = 0.01 * 40 * MIB / MS * (1 + 5)
    kept = 104_858 * 4  # a hundredth of the numbers, of four ranks; gathered with their places in half the time
    sent = 2 * kept * 4 / RATE / 2 / MS
    assert step_ms(work, 1, compression=topk) == pytest.approx(32 + passes + sent)


def test_the_map_of_used_parameters_is_reduced_when_the_backward_pass_ends() -> None:
    work = workload([40], [15], curves=(curve("all_reduce", [1.0, 1e9], [3 * MS, 3 * MS], ranks=4),))
    for unused, expected in ((False, 32), (True, 30 + 3 + 2)):  # the gradient's own reduction ends at 18
        chosen = Settings(ddp=DdpSettings(bucket_cap_mb=1, find_unused_parameters=unused))
        assert replay(ddp_job(work, chosen)).step_ns / MS == pytest.approx(expected)


@pytest.mark.parametrize(("mib", "pieces"), [(0, [0]), (1, [1]), (16, [16]), (40, [16, 16, 8])])
def test_a_bucket_is_sent_in_whole_pieces_and_what_is_left_but_never_not_at_all(mib: int, pieces: list[int]) -> None:
    work = workload([mib], [30])
    job = ddp_job(work, Settings(ddp=DdpSettings(bucket_cap_mb=1), partition_mb=16))
    least = transfer_ms(1e-3)  # the smallest size of the curve
    expected = [max(transfer_ms(each), least) for each in pieces]
    assert [each.alone_ns / MS for each in job.transfers] == pytest.approx(expected)


def test_the_last_rank_sets_the_step() -> None:
    work = workload([40], [30], lateness_ns=(0.0, 3 * MS, 0.0, 1 * MS))
    job = ddp_job(work, Settings(ddp=DdpSettings(bucket_cap_mb=1)))
    assert sorted(job.programmes) == [0, 1, 3]  # two ranks do the same, and are one
    assert replay(job).step_ns / MS == pytest.approx(3 + 32 + transfer_ms(40))


def test_a_placed_collective_holds_compute_where_its_result_is_needed() -> None:
    gather = Placed(op="all_gather", bytes=40 * MIB, ranks=(0, 1, 2, 3), launch_ns=0, needed_ns=2 * MS, stream="gather")
    sizes = MIB * np.array([1e-3, 1e4])
    work = workload([1e-6], [30], placed=(gather,))
    curves = (*work.curves, curve("all_gather", sizes, sizes / RATE, ranks=4))
    work = workload([1e-6], [30], placed=(gather,), curves=curves)
    late = transfer_ms(40) - 2
    assert step_ms(work, 1) == pytest.approx(32 + late, abs=0.01)
    with pytest.raises(KeyError, match="all_gather over 4 ranks"):
        step_ms(workload([1], [30], placed=(gather,)), 1)
    assert curve_of(work, "all_gather", 4) is curves[-1]


@settings(max_examples=40)
@given(
    drawn=st.lists(st.tuples(st.floats(0.01, 50), st.floats(10, 30)), min_size=1, max_size=20),
    cap=st.sampled_from((0.5, 5, 25, 1000)),
    slow=st.sampled_from((1.0, 1.4)),
)
def test_every_step_lies_between_the_bounds_and_all_compute_is_done(
    drawn: list[tuple[float, float]], cap: float, slow: float
) -> None:
    work = workload([size for size, _ in drawn], sorted(at for _, at in drawn), interference=Interference(compute=slow))
    job = ddp_job(work, Settings(ddp=DdpSettings(bucket_cap_mb=cap)))
    done = replay(job)
    compute = sum(each.ns for each in job.programmes[0] if isinstance(each, Work))
    moving = sum(each.alone_ns for each in job.transfers)
    assert compute == pytest.approx(work.compute_ns)
    assert max(compute, moving) - 1 <= done.step_ns <= compute + moving + 1
    assert done.exposed_comm_ns[0] + done.hidden_comm_ns[0] == pytest.approx(moving, rel=1e-6)
    assert done.step_ns == pytest.approx(compute + done.exposed_comm_ns[0] + done.hidden_comm_ns[0] * (1 - 1 / slow))

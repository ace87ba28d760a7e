"""Large buckets that hold the gradients are to be split; smaller ones, and other calls, are not."""

import pytest

from overlapscope.advice.losses.sharded_optimizer import SCATTER
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Ready, Sent, made
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20


def buckets(*sizes: int, phase: str | None = "backward", gathered: int = 0, more: tuple[Item, ...] = ()) -> Run:
    """Return a step that reduces buckets of so many MiB for 50 us each, after backward but for 20 us."""
    sent = [
        Sent(start=480 + 50 * at, end=530 + 50 * at, launch=100 + at, phase=phase, size_bytes=size * MIB)
        for at, size in enumerate(sizes)
    ]
    gather = [Sent(start=900, end=920, launch=210, op="all_gather", size_bytes=gathered * MIB)] * bool(gathered)
    return made(
        lambda _: [
            Kernel(start=0, end=500), *sent, Kernel(start=880, end=900, launch=200), *gather,
            Kernel(start=920, end=990, launch=220), *more,
        ]
    )  # fmt: skip


DDP = Range(name="DistributedDataParallel.forward", start=1, end=2)


def test_few_large_buckets_are_to_be_split() -> None:
    found = fired(buckets(386, 202))["split_all_reduce"]
    assert found.title.startswith("Split all-reduces of 386 MiB: one begins only when all that it sends is ready, and ")
    assert found.gain_high_ns == pytest.approx(80 * US, rel=0.01), "what is exposed of 100 us"
    assert "reduce_bucket_size" in found.apply["deepspeed"]
    assert "torch" not in found.apply


def test_a_bucket_of_ddp_that_fills_through_backward_is_to_be_split_where_no_gradients_were_recorded() -> None:
    found = fired(buckets(386, more=(DDP,)))["split_all_reduce"]
    assert "bucket_cap_mb" in found.apply["ddp"]
    assert found.gain_high_ns == pytest.approx(30 * US, rel=0.01), "what is exposed"


def test_buckets_are_split_only_for_compute_that_follows_their_first_gradient() -> None:
    """Backward launches 500 us at 0, its first gradient is stored at 95 us, and calls are launched from 100 us on."""
    stored = Range(name="autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start=93, end=95)
    assert "split_all_reduce" not in fired(buckets(386, 202, more=(stored,)))
    work = Kernel(start=500, end=505, launch=97), Kernel(start=510, end=530, launch=98)
    some = fired(buckets(386, 202, more=(stored, *work)))["split_all_reduce"]
    assert some.gain_high_ns == pytest.approx(25 * US, rel=0.01), "of 55 us that are exposed"


@pytest.mark.parametrize(("gathered", "said"), [(588, True), (300, False)])
def test_that_reduce_scatter_sends_less_is_said_where_as_much_is_gathered(gathered: int, *, said: bool) -> None:
    found = fired(buckets(386, 202, gathered=gathered))["split_all_reduce"]
    assert found.apply.get("torch") == (SCATTER if said else None)
    assert not said or "as many bytes are gathered as reduced" in found.apply["torch"]
    assert not said or "two thirds of what all_reduce with all_gather does" in found.apply["torch"]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(buckets(99, 99), id="small ones"),
        pytest.param(buckets(*[110] * 5), id="many"),
        pytest.param(buckets(386, 202, phase="forward"), id="in forward, as tensor parallelism does"),
        pytest.param(buckets(386, 202, phase=None), id="nothing says that they are of backward"),
        pytest.param(
            buckets(386, 202, more=(DDP, Ready(name="g", elements=1 << 20, at=400))),
            id="of DDP, whose caps are replayed",
        ),
        pytest.param(buckets(202, 386, more=(DDP,)), id="of DDP, of which the largest fills in no time: one gradient"),
        pytest.param(buckets(1, 101, 101, 220, more=(DDP,)), id="of DDP, of which the last is mostly one gradient"),
    ],
)
def test_others_are_not(run: Run) -> None:
    assert "split_all_reduce" not in fired(run)

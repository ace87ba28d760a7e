"""Gradients are to be scattered during backward, and parameters gathered beside the next forward, where an optimizer
between the two leaves both exposed."""

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20


def sharded(
    *, before: str = "reduce_scatter", after: str = "all_gather", optimizer: bool = True, overlapped: float = 0,
    dimension: str | None = "data", size_bytes: int = 700 * MIB, group: str = "g",
) -> Run:  # fmt: skip
    """Return a job that reduces for 100 us, computes for 50, and gathers for 100."""
    reduce = Sent(start=600 - overlapped, end=700, launch=10, op=before, dimension=dimension, size_bytes=size_bytes)
    gather = Sent(
        start=750, end=850, launch=12, op=after, dimension=dimension, size_bytes=size_bytes, group=group
    )  # fmt: skip
    middle = [Kernel(start=700, end=750, launch=11)] * optimizer
    return made(lambda _: [Kernel(start=0, end=600), reduce, *middle, gather, Kernel(start=850, end=990, launch=13)])


@pytest.mark.parametrize("dimension", ["data", None])
def test_calls_around_the_optimizer_are_to_be_overlapped(dimension: str | None) -> None:
    found = fired(sharded(dimension=dimension))["sharded_optimizer"]
    assert found.gain_high_ns == 200 * US
    assert found.apply["deepspeed"] == '{"zero_optimization": {"overlap_comm": true}}'
    assert found.title.startswith("Reduce gradients during backward, and gather")


@pytest.mark.parametrize(
    "other",
    [
        {"before": "all_gather", "after": "reduce_scatter"}, {"before": "all_reduce"}, {"optimizer": False},
        {"overlapped": 50}, {"dimension": "tensor"}, {"size_bytes": 4096}, {"group": "h"},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_advised_elsewhere(other: dict[str, object]) -> None:
    assert "sharded_optimizer" not in fired(sharded(**other))  # type: ignore[arg-type]


def test_gradients_that_backward_waits_for_are_to_be_waited_for_once() -> None:
    more = {"op": "reduce_scatter", "size_bytes": 36 * MIB, "phase": "backward"}

    def step(_: int) -> list[Kernel | Sent]:
        return [
            Kernel(start=0, end=200), Sent(start=200, end=400, launch=1, **more),  # type: ignore[arg-type]
            Kernel(start=400, end=440, launch=2), Sent(start=440, end=640, launch=3, **more),  # type: ignore[arg-type]
            Kernel(start=640, end=700, launch=4),
            Sent(start=700, end=750, launch=5, op="all_gather", size_bytes=36 * MIB),
            Kernel(start=750, end=990, launch=6),
        ]  # fmt: skip

    found = fired(made(step))["sharded_optimizer"]
    assert found.gain_high_ns == (40 + 50) * US, "compute between the reductions, and the gather"
    assert found.title.startswith("Wait once for gradients, before the optimizer, and gather")

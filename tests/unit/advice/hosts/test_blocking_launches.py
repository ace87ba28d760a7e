"""A host whose launches wait for each kernel is told from one that is slow, and from one that says why it waits."""

from collections.abc import Sequence
from typing import Final

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

LATENCY: Final = 5
TOOK: Final = (205, 20, 210, 10, 15, 205, 12, 205)
"""Kernels of a step, in microseconds: eight, of which four are long."""


def waiting(
    *,
    ahead: int = 0,
    after_us: float = 5,
    period_us: float | None = None,
    call: str | None = None,
    took: Sequence[float] = TOOK,
    graph: bool = False,
    blocks: bool = False,
    late: Sent | None = None,
) -> Run:
    """Return a job whose host launches after a kernel's end, `ahead` more before that; or each `period_us`.

    With `call` it does so in calls of that name; with `blocks` its launches last as long as their kernels."""

    def step(_: int) -> Sequence[Item]:
        items: list[Item] = []
        ends = [0.0]
        for at, us in enumerate(took):
            waited = ends[max(len(ends) - 1 - (at % (ahead + 1)), 0)]
            launch = waited + after_us + at % (ahead + 1) if period_us is None else at * period_us
            start = max(launch + LATENCY, ends[-1] + 1)
            items.append(Kernel(start=start, end=start + us, launch=launch))
            items += [Range(name=call, start=ends[-1] + 1, end=ends[-1] + 2)] if call else []
            items += [Range(name="cudaLaunchKernel", start=launch, end=start + us + 1)] * blocks
            ends.append(start + us)
        return [
            *items,
            Kernel(start=985, end=995, launch=980),
            Sent(start=100, end=200),
            *([late] if late else []),
            *[Range(name="cudaGraphLaunch", start=0, end=1)] * graph,
        ]

    return made(step)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_host_that_waits_for_each_kernel_is_named_with_all_idle_time(ahead: int) -> None:
    found = fired(waiting(ahead=ahead))
    assert found["blocking_launches"].apply["environment"].startswith("unset CUDA_LAUNCH_BLOCKING")
    assert found["blocking_launches"].title.startswith("Let launches run ahead of the device: none does")
    idle_ns, exposed_ns = (found["blocking_launches"].evidence[each] for each in ("idle_ns", "exposed_ns"))
    assert found["blocking_launches"].gain_high_ns == idle_ns + exposed_ns > 50 * US
    assert not {"launch_bound", "blocking_calls", "idle_device", "exposed_communication"} & found.keys()


def test_communication_that_is_launched_when_compute_has_ended_is_exposed_for_that() -> None:
    late = Sent(start=985, end=997, launch=981)
    found = fired(waiting(late=late))["blocking_launches"]
    assert found.evidence["exposed_ns"] > 0
    assert "of communication are exposed, some perhaps for late launches" in found.title


def test_a_launch_that_lasts_as_long_as_its_kernel_is_one_of_these() -> None:
    assert "blocking_launches" in fired(waiting(blocks=True))


@pytest.mark.parametrize(
    "other",
    [
        {"ahead": 2, "took": (10, 12, 20, 15, 20, 205, 12, 14, 205, 10, 11, 20)},
        {"after_us": 60, "took": (210, 20) * 3}, {"period_us": 245, "took": (210, 20, 220, 10)},
        {"took": (20,) * 20}, {"took": (210,) * 4}, {"graph": True}, {"call": "cudaDeviceSynchronize"},
    ],
    ids=str,
)  # fmt: skip
def test_others_are_not(other: dict[str, object]) -> None:
    """A host that is ahead; ones that are slow; kernels that are all short, or all long; graphs; and recorded waits."""
    assert "blocking_launches" not in fired(waiting(**other))  # type: ignore[arg-type]

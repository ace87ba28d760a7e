"""Gradients that FSDP reduces after each of several passes are to be reduced once; calls of one pass are not."""

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

FSDP1 = "FullyShardedDataParallel.forward"
FSDP2 = "FSDP::pre_forward"


def one_pass(start: int, size_bytes: int, *, name: str, scatters: str | None = "backward") -> list[Item]:
    """Return 450 us: a gather, forward, backward, and a reduction beside nothing."""
    return [
        Range(name=name, start=start, end=start + 5),
        Sent(start=start, end=start + 50, launch=start, op="all_gather", phase="forward", size_bytes=size_bytes),
        Kernel(start=start + 50, end=start + 300, launch=start + 1),
        *([] if scatters is None else [
            Sent(start=start + 300, end=start + 450, launch=start + 2, op="reduce_scatter", phase=scatters,
                 size_bytes=size_bytes),
        ]),
    ]  # fmt: skip


def passes(
    *, name: str = FSDP1, second: int = 1 << 20, optimizers: tuple[int, ...] = (910,),
    first: str | None = "backward", scatters: str | None = "backward",
) -> Run:  # fmt: skip
    return made(
        lambda _: [
            *one_pass(0, 1 << 20, name=name, scatters=first),
            *one_pass(450, second, name=name, scatters=scatters),
            Kernel(start=920, end=990, launch=915),
            *(Range(name="Optimizer.step#AdamW.step", start=at, end=at + 20) for at in optimizers),
        ]
    )


@pytest.mark.parametrize(("name", "how"), [(FSDP1, "no_sync"), (FSDP2, "set_requires_gradient_sync(False)")])
def test_gradients_that_fsdp_reduces_after_each_pass_are_to_be_reduced_once(name: str, how: str) -> None:
    found = fired(passes(name=name))["repeated_reductions"]
    assert found.title.startswith("Reduce gradients once a step: FSDP reduces all of them 2 times before its optimizer")
    assert found.evidence == {"times": 2, "exposed_ns": pytest.approx(300 * US, rel=0.01)}
    assert found.gain_high_ns == pytest.approx(150 * US, rel=0.01), "of reductions but the last; gathers stay"
    assert how in found.apply["fsdp2"]
    assert "memory" in found.apply["fsdp2"]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(passes(second=3 << 20), id="other parameters"),
        pytest.param(passes(optimizers=(440, 910)), id="an optimizer for each pass"),
        pytest.param(passes(optimizers=()), id="no optimizer is known"),
        pytest.param(passes(scatters=None), id="a second forward without backward"),
        pytest.param(passes(first=None), id="only the last pass reduces"),
        pytest.param(passes(first="forward"), id="forward reduces, as tensor parallelism does"),
    ],
)
def test_what_is_reduced_once_is_not(run: Run) -> None:
    assert "repeated_reductions" not in fired(run)

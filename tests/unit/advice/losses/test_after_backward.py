"""Gradients that are reduced after backward, beside nothing, are to be reduced during it."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.after_backward import AFTER_BACKWARD, FLATTEN, of_gradients_after_backward
from overlapscope.advice.losses.exposed_remedies import instead
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from tests.support.step_cases import Item, Kernel, Range, Sent, made

MIB = 1 << 20


def looked_at(items: Sequence[Item]) -> RuleInput:
    run = made(lambda _: items)
    together = match_and_align(run)
    return RuleInput.of(run, analyze(run, together), together)


def reduced(
    *sizes: int, since: float = 500, took: float = 20, between: float = 2, phase: str | None = None
) -> list[Item]:
    """Return a step that computes until 500 us, then reduces gradients one by one and scales each, then updates."""
    found: list[Item] = [Kernel(start=0, end=500)]
    for at, size in enumerate(sizes):
        begin = since + at * (took + between)
        found.append(Sent(start=begin, end=begin + took, launch=1, size_bytes=size, phase=phase))
        found.append(Kernel(start=begin + took, end=begin + took + between, launch=2, name="div"))
    return [*found, Kernel(start=970, end=990, launch=3, name="adamw")]


OPTIMIZER = Range(name="Optimizer.step#AdamW.step", start=0, end=0.5)
"""It ends before calls are launched."""
PHASED = Sent(start=100, end=110, launch=1, group="h", phase="backward")
SMALL = [1 << at for at in range(8, 20)]
LARGE = [at * MIB for at in range(1, 13)]
SMALL_AFTER: list[Item] = [
    Kernel(start=650, end=750, launch=2),
    *(Sent(start=760 + 12 * at, end=770 + 12 * at, launch=1, size_bytes=256 << at) for at in range(8)),
]
"""A row of its own: compute lies before it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "said"),
    [
        pytest.param(reduced(*SMALL), AFTER_BACKWARD + FLATTEN, id="one by one"),
        pytest.param(reduced(*(at * MIB for at in (1, 2, 3, 4))), AFTER_BACKWARD, id="large ones"),
        pytest.param([*reduced(*LARGE, took=10), *SMALL_AFTER], AFTER_BACKWARD, id="many large ones, then small ones"),
        pytest.param([*reduced(64 * MIB, took=300), PHASED], AFTER_BACKWARD, id="flat, the only call of the step"),
        pytest.param([*reduced(*LARGE), OPTIMIZER], None, id="after the optimizer, as of an outer one"),
        pytest.param([*reduced(4096, took=300), PHASED], None, id="one small call, as of a loss"),
        pytest.param(reduced(64 * MIB, took=300), None, id="one call, of which it is not known who launched it"),
        pytest.param(reduced(*SMALL, phase="backward"), None, id="by hooks"),
        pytest.param(reduced(*SMALL, since=240), None, id="beside compute"),
        pytest.param(reduced(MIB, MIB, MIB, took=30, between=90), None, id="compute between, as of tensor parallelism"),
        pytest.param([*reduced(*SMALL), Range(name="DistributedDataParallel.forward", start=0, end=9)], None, id="DDP"),
    ],
)
def test_gradients_in_a_row_after_compute_are_reduced_after_backward(items: Sequence[Item], said: str | None) -> None:
    given = looked_at(items)
    assert of_gradients_after_backward(given) == said
    for cause in ("dependency", "tail"):
        assert (instead(given, cause) == said) == (said is not None)
    sharded = replace(given, job=replace(given.job, frameworks=("fsdp2",)))
    assert of_gradients_after_backward(sharded) is None

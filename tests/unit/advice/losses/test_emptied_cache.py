"""Runs of calls that free memory are those of an emptied cache; others are allocations one by one, or tried again."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.emptied_cache import empties_cache
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.columns import COMPUTE, RUNTIME
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline

FREE, ALLOCATE, LAUNCH, WAIT = "cudaFree", "cudaMalloc", "cudaLaunchKernel", "cudaDeviceSynchronize"


def looked_at(steps: Sequence[Sequence[str]]) -> RuleInput:
    """Return a rank whose host makes these calls in each step, one after the other."""
    calls = [(1000 * step + 10 * at, name) for step, own in enumerate(steps) for at, name in enumerate([LAUNCH, *own])]
    host = [{"kind": RUNTIME, "name": name, "lane": 1, "start_ns": begin, "end_ns": begin + 5} for begin, name in calls]
    timeline = rank_timeline(work=[{"kind": COMPUTE, "name": "gemm", "start_ns": 0, "end_ns": 9}], host=host)
    run = Run(world_size=1, ranks={0: timeline})
    together = match_and_align(run)
    windows = tuple((1000 * step, 1000 * (step + 1)) for step in range(len(steps)))
    return replace(RuleInput.of(run, analyze(run, together), together), windows={0: windows})


@pytest.mark.parametrize(
    ("step", "empties"),
    [
        pytest.param([LAUNCH, WAIT, FREE, FREE, FREE], True, id="once a step"),
        pytest.param([LAUNCH, "cudaFree_v3020", "cudaFree_v3020", LAUNCH, FREE, FREE], True, id="twice"),
        pytest.param([LAUNCH, WAIT, FREE, WAIT, FREE], True, id="with waits between"),
        pytest.param([ALLOCATE, WAIT, FREE, FREE, FREE, ALLOCATE], False, id="after an allocation that failed"),
        pytest.param([ALLOCATE, LAUNCH, FREE, ALLOCATE, LAUNCH, FREE], False, id="one by one"),
        pytest.param([LAUNCH, *[FREE, FREE, LAUNCH] * 3], False, id="in many runs"),
        pytest.param([LAUNCH, "cudaFreeHost", "cudaFreeHost"], False, id="host memory"),
    ],
)
def test_runs_that_free_are_told_from_others(step: list[str], empties: bool) -> None:
    assert empties_cache(looked_at([step] * 4)) == empties


@pytest.mark.parametrize(("emptied", "empties"), [(1, False), (5, True)])
def test_few_runs_in_many_steps_are_of_something_else(emptied: int, empties: bool) -> None:
    assert empties_cache(looked_at([[LAUNCH, WAIT, FREE, FREE]] * emptied + [[LAUNCH] * 4] * (10 - emptied))) == empties

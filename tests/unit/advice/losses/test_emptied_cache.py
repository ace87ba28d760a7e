"""Runs of calls that free memory are those of an emptied cache; others are allocations one by one, or tried again."""

import pytest

from overlapscope.advice.losses.emptied_cache import _empties
from overlapscope.timeline.columns import COMPUTE, RUNTIME
from tests.support.rank_rows import rank_timeline

FREE, ALLOCATE, LAUNCH, WAIT = "cudaFree", "cudaMalloc", "cudaLaunchKernel", "cudaDeviceSynchronize"


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
    calls = [LAUNCH, *step] * 4
    host = [
        {"kind": RUNTIME, "name": name, "lane": 1, "start_ns": 10 * at, "end_ns": 10 * at + 5}
        for at, name in enumerate(calls)
    ]
    timeline = rank_timeline(work=[{"kind": COMPUTE, "name": "gemm", "start_ns": 0, "end_ns": 9}], host=host)
    length = 10 * (len(step) + 1)
    assert _empties(timeline, tuple((at * length, (at + 1) * length) for at in range(4))) == empties

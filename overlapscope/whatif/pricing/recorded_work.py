"""How long the kernels of a recorded step took, by the class of operation that a price tells apart."""

import re
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from overlapscope.timeline.columns import ATTENTION, COMPUTE, MATMUL, MEMORY
from overlapscope.timeline.run import RankTimeline

_ATTENTION: Final = re.compile(r"(?i)flash|fmha|attention|sdpa")
"""Searched first: kernels of attention are often built from a library of products."""
_PRODUCT: Final = re.compile(
    r"(?i)gemm|gemv|matmul|cutlass|cublas|hipblas|rocblas|wgmma|nvjet|\bxmma_|_xmma_|^Cijk_|tensile"
)


def recorded_work(timeline: RankTimeline, steps: Collection[int]) -> Mapping[int, float]:
    """Return the time in ns that a step's kernels of each class take together, a mean over `steps`.

    Keys are MATMUL, ATTENTION and MEMORY, which is every other kernel. Empty without kernels of products in them: a
    recording of a CPU, or one whose kernels are not known by name.
    """
    spans = timeline.spans
    chosen = (spans.kind == COMPUTE) & np.isin(spans.step, list(steps))
    if timeline.basis != "trace" or not timeline.has_device or not steps:
        return {}
    classes = np.array([_class_of(name) for name in timeline.names], np.int64)
    kinds = classes[spans.name[chosen]]
    lasted = (spans.end_ns - spans.start_ns)[chosen]
    found = {kind: float(lasted[kinds == kind].sum()) / len(steps) for kind in (MATMUL, ATTENTION, MEMORY)}
    return found if found[MATMUL] else {}


def _class_of(name: str) -> int:
    if _ATTENTION.search(name):
        return ATTENTION
    return MATMUL if _PRODUCT.search(name) else MEMORY

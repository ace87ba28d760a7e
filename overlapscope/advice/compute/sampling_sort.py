"""Rule: a server sorts the scores of all tokens of its vocabulary to sample the next one."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, NONE
from overlapscope.timeline.intervals import intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Share of the time from which sorting is worth a change. A choice."""
FEW: Final = 0.04
"""Largest share of all kernels that such kernels may be. A choice: a layer has some ten kernels, so what sorts in each
layer, as the choice of experts does, is more."""
SORTS: Final = re.compile(r"RadixSort|SortOnesweep|bitonic|merge_?sort|segmented_?sort|top_?k", re.I)
"""Kernels that sort, of cub, rocPRIM and PyTorch."""
OPS: Final = re.compile(r"^aten::(?:sort|argsort|topk|cumsum)$")
"""Operations that sort, and the running sum of what was sorted."""
OF_EXPERTS: Final = re.compile(r"moe|expert|gating|router|topk_?softmax", re.I)
"""In names of kernels and operations that choose experts, which is no sampling."""
APPLY: Final = {
    "serving": "# top_p over all tokens sorts them: set top_k as well and take these first, or sample greedily\n"
    "pip install flashinfer-python  # samplers that sort nothing; vLLM: export VLLM_USE_FLASHINFER_SAMPLER=1"
}


def sampling_sort(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where a server's device sorts for `LEAST` of the time, in few kernels; else None."""
    if not given.job.serves or not given.run_has_device or not given.step_ns:
        return None
    found = [_sorted(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    mean = sum(ns for ns, _, _ in found) / max(len(found), 1)
    sorts, kernels = sum(sorts for _, sorts, _ in found), sum(kernels for _, _, kernels in found)
    if mean < LEAST * given.step_ns or sorts > FEW * kernels:
        return None
    each = round(sorts / len(found))
    return recommended(
        given,
        id="sampling_sort",
        title=f"Sample without sorting: sorts of the whole vocabulary take {ms(mean)} of a {ms(given.step_ns)} "
        f"{given.per} ({percent_text(mean / given.step_ns)}; kernels: {each})",
        at_most_ns=max(ns for ns, _, _ in found),
        apply=APPLY,
        evidence={"sorting_ns": round(mean), "kernels": each},
        measured=["the time of kernels that sort, by their names and operations: few beside all kernels"],
        assumed=[
            "that these sorts are for sampling, which can do without: the gain is an upper bound, of the rank that "
            "sorts longest"
        ],
    )


def _sorted(timeline: RankTimeline, windows: Windows) -> tuple[float, float, float]:
    """Return for how long kernels that sort ran, in ns a window, their number, and that of all kernels, a window."""
    spans, names = timeline.spans, timeline.names
    rows = np.flatnonzero(spans.kind == COMPUTE)
    rows = rows[window_of(windows, spans.start_ns[rows]) != NONE]
    own = rows_named(spans.name[rows], names, SORTS.search) | rows_named(spans.host_op[rows], names, OPS.search)
    own &= ~rows_named(spans.name[rows], names, OF_EXPERTS.search)
    own &= ~rows_named(spans.host_op[rows], names, OF_EXPERTS.search)
    sorts = rows[own]
    times = intersection(union((spans.start_ns[sorts], spans.end_ns[sorts])), time_of(windows))
    return length(times) / len(windows), sorts.size / len(windows), rows.size / len(windows)

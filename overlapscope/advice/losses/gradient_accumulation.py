"""Rule: kernels that add the gradients of one backward pass to those of another take long; and which kernels no
compiled model has."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, lie_within, ms, recommended, time_of, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import ANNOTATION, COMPUTE, NONE, OPERATION, Flags, HostSpans, Ints, make
from overlapscope.timeline.intervals import EMPTY, Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.run import RankTimeline

LEAST: Final = 0.05
"""Share of a step from which this is said. A choice."""
NODE: Final = re.compile(r"autograd::engine::evaluate_function: ")
ACCUMULATES: Final = re.compile(r"\bAccumulateGrad\b")
"""The node of autograd that stores a gradient, and runs the hooks on it."""
OUTSIDE_MODEL: Final = re.compile(
    r"\bAccumulateGrad\b|torch::distributed::reducer::|torch\.distributed\.ddp\.reducer::|^Optimizer\.|^FSDP::post_backward"
    r"|^aten::_?(?:un)?flatten_dense_tensors$"
)
"""Ranges in which gradients are stored, sent or put into buckets, or the optimizer works."""
ADDS: Final = re.compile(r"^aten::add_?$")


def gradient_accumulation(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where kernels that add to gradients take `LEAST` of a step; None without a device."""
    if not given.run_has_device or given.job.serves:
        return None
    found = [_taken(timeline, windows) for timeline, windows in given.some_at_hand() if timeline.has_device]
    mean = sum(ns for ns, _ in found) / max(len(found), 1)
    if not mean or mean < LEAST * given.step_ns:
        return None
    kernels = round(sum(count for _, count in found) / len(found))
    advised = recommended(
        given,
        id="gradient_accumulation",
        title="Accumulate fewer, larger micro-batches, or zero gradients with set_to_none=True: adding to stored "
        f"gradients takes {ms(mean)} of a {ms(given.step_ns)} {given.per} ({percent_text(mean / given.step_ns)}; "
        f"kernels: {kernels})",
        verdict="trial",
        at_most_ns=mean,
        apply={
            "torch": "# fewer passes of larger micro-batches a step, as far as memory allows\n"
            "optimizer.zero_grad(set_to_none=True)  # the first pass then stores gradients and adds nothing"
        },
        evidence={"accumulation_ns": round(mean), "kernels": kernels},
        measured=["the time of kernels that autograd's AccumulateGrad launched to add to a gradient"],
        assumed=["that one pass is enough, which then stores gradients and adds nothing: the gain is an upper bound"],
    )
    # Its bound orders it, but hides no loss that is smaller: `largest_loss` names that beside it.
    return msgspec.structs.replace(advised, loss_ns=None)


def _taken(timeline: RankTimeline, windows: Windows) -> tuple[float, float]:
    """Return for how long kernels that add to gradients ran, in ns a window, and their number."""
    spans = timeline.spans
    own = np.flatnonzero((spans.kind == COMPUTE) & rows_named(spans.host_op, timeline.names, ADDS.search))
    own = own[lie_within(times_in(timeline, ACCUMULATES), spans.launch_ns[own])]
    own = own[window_of(windows, spans.start_ns[own]) != NONE]
    times = intersection(union((spans.start_ns[own], spans.end_ns[own])), time_of(windows))
    return length(times) / len(windows), own.size / len(windows)


def outside_model(timeline: RankTimeline, spans: Ints) -> Flags:
    """Return which of these spans (rows) were launched where gradients are stored, sent, scaled or clipped: in such
    ranges, and between the last node of autograd and the optimizer that follows it."""
    nodes, updates = times_in(timeline, NODE), times_in(timeline, OPTIMIZER_MARK)
    between = EMPTY
    if nodes.ends.size:
        last = np.searchsorted(nodes.ends, updates.starts, side="right") - 1
        follows = last >= 0
        between = union((nodes.ends[last[follows]], updates.starts[follows]))
    launch_ns = timeline.spans.launch_ns[spans]
    return lie_within(times_in(timeline, OUTSIDE_MODEL), launch_ns) | lie_within(between, launch_ns)


def times_in(timeline: RankTimeline, pattern: re.Pattern[str]) -> Intervals:
    """Return when a host of the rank was in operations or ranges whose names match."""
    named = np.array([pattern.search(name) is not None for name in timeline.names], np.bool_)
    lost = timeline.host_is_lost or not named.any()
    host = make(HostSpans, 0) if lost else select_host_spans(timeline.host, (OPERATION, ANNOTATION), named)
    notes = timeline.annotations
    own = rows_named(notes.name, timeline.names, pattern.search)
    return union(
        (
            np.concatenate([host.start_ns, notes.start_ns[own]]),
            np.concatenate([host.end_ns, notes.end_ns[own]]),
        )
    )

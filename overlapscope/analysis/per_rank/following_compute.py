"""Find what a step computes after a collective: other work that depends on it, only the optimizer, or nothing."""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.streams import prepares_calls
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.intervals import union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.optimizer_marks import OPTIMIZER_MARK
from overlapscope.timeline.rows import largest_by, sort_order, values_in
from overlapscope.timeline.run import RankTimeline

LIBRARY_COPY: Final = re.compile(r"\bhorovod::common::batched_\w*memcpy")
"""A copy into or out of the fusion buffer of a call: a part of that call."""
NORM_OPS: Final = frozenset({
    "aten::_foreach_norm", "aten::linalg_vector_norm", "aten::_amp_foreach_non_finite_check_and_unscale_",
})  # fmt: skip
NORM_KERNEL: Final = re.compile(r"\b(?:LpNormFunctor|L2NormFunctor)\b")
"""Kernels of `aten::_foreach_norm` and of apex's `multi_tensor_l2norm`, which may stand without an operation."""
CLIP_OPS: Final = NORM_OPS | {
    "aten::stack", "aten::cat", "aten::add", "aten::reciprocal", "aten::div", "aten::mul", "aten::clamp",
    "aten::mul_", "aten::_foreach_mul_", "aten::copy_", "aten::_to_copy", "aten::_amp_update_scale_",
}  # fmt: skip
"""Operations of torch.nn.utils.clip_grad_norm_ and of torch.amp.GradScaler: where nothing else, and a norm among them,
ends the compute of a step, they prepare its gradients for the optimizer."""


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """What each step computes."""

    number: Ints
    """The steps, ascending; the next two columns have a row for each of them."""
    last_start_ns: Ints
    """Begin of its last compute other than the optimizer's, without the norms of gradients before it and what only
    prepares calls; NONE without."""
    last_of_optimizer_ns: Ints
    """Begin of the last compute of its optimizer; NONE where none was recorded."""
    last_before_optimizer_ns: Ints
    """As `last_start_ns`, of what began before that: an evaluation that follows the optimizer in the step waits for no
    gradient, but for the optimizer."""
    start_ns: Ints
    """This column and the next ones have a row for each compute of a known step, by begin."""
    step: Ints
    optimizes: Flags

    def depends(self, steps: Ints, ends_ns: Ints) -> Flags:
        """Return for each (step, end of a collective) whether compute other than the optimizer's follows in it: before
        the last of the optimizer's, where that follows, too."""
        optimizer_follows = self._of_steps(self.last_of_optimizer_ns, steps) >= ends_ns
        last_ns = np.where(
            optimizer_follows, self.last_before_optimizer_of(steps), self._of_steps(self.last_start_ns, steps)
        )
        return np.asarray(last_ns >= ends_ns, np.bool_)

    def before_optimizer(self, steps: Ints, starts_ns: Ints, ends_ns: Ints) -> Flags:
        """Return for each (step, begin and end of a collective) whether the optimizer follows in it, and nothing else
        before that has ended.

        Not where the compute before the collective is the optimizer's, too: it exchanges what that has updated, as
        ZeRO's gather of parameters does, and the next forward waits for it.
        """
        before = np.searchsorted(self.start_ns, starts_ns, side="left") - 1
        optimized = np.append(self.optimizes, False)[before] & (np.append(self.step, NONE)[before] == steps)
        follows = self._of_steps(self.last_of_optimizer_ns, steps) >= ends_ns
        return np.asarray(follows & ~self.depends(steps, ends_ns) & ~optimized, np.bool_)

    def last_before_optimizer_of(self, steps: Ints) -> Ints:
        """Return for each step when the last compute other than its optimizer's began before that; NONE without any."""
        return self._of_steps(self.last_before_optimizer_ns, steps)

    def known(self, steps: Ints) -> Flags:
        """Return for each step whether its optimizer was recorded; without it, `depends` is not known."""
        return np.asarray(self._of_steps(self.last_of_optimizer_ns, steps) != NONE, np.bool_)

    def _of_steps(self, times_ns: Ints, steps: Ints) -> Ints:
        """Return the time of each of these steps; NONE of those that compute nothing."""
        at = np.searchsorted(self.number, steps)
        there = np.append(self.number, NONE)[at] == steps
        return np.where(there, np.append(times_ns, NONE)[at], NONE)


def following(timeline: RankTimeline, cycle_ends_ns: Ints | None = None) -> Following:
    """Return what each step of a rank computes; with `cycle_ends_ns`, each time up to one of these moments, and what
    follows the last one, is a step (`cycles_at`)."""
    spans = timeline.spans
    steps = spans.step if cycle_ends_ns is None else cycles_at(cycle_ends_ns, spans.start_ns)
    computes = np.flatnonzero((spans.kind == COMPUTE) & (steps != NONE))
    computes = computes[sort_order(spans.start_ns[computes])]
    optimizes = in_optimizer(timeline, computes)
    prepares = prepares_calls(spans.lane, spans.kind, spans.start_ns, spans.end_ns)[computes]
    copies = rows_named(spans.name[computes], timeline.names, LIBRARY_COPY.search)
    others = computes[~optimizes & ~prepares & ~copies]
    numbers = values_in(steps[computes])

    def last_start(rows: Ints) -> Ints:
        """Return when the last of these spans began in each step; NONE without any."""
        return largest_by(np.searchsorted(numbers, steps[rows]), spans.start_ns[rows], numbers.size)

    by_kernel = rows_named(spans.name[others], timeline.names, NORM_KERNEL.search)
    clips, norms = (_of_ops(timeline, others, each) | by_kernel for each in (CLIP_OPS, NORM_OPS))

    def without_clips(chosen: Flags) -> Ints:
        """Return when the last of these others began, without the norms of gradients that they end with."""
        before_clips = last_start(others[chosen & ~clips])
        ends_with_norms = (before_clips != NONE) & (last_start(others[chosen & norms]) > before_clips)
        return np.where(ends_with_norms, before_clips, last_start(others[chosen]))

    last_of_optimizer = last_start(computes[optimizes])
    until = last_of_optimizer[np.searchsorted(numbers, steps[others])]
    return Following(
        number=numbers,
        last_start_ns=without_clips(np.ones(others.size, np.bool_)),
        last_of_optimizer_ns=last_of_optimizer,
        last_before_optimizer_ns=without_clips(spans.start_ns[others] <= until),
        start_ns=spans.start_ns[computes],
        step=steps[computes],
        optimizes=optimizes,
    )


def cycles_at(ends_ns: Ints, moments_ns: Ints) -> Ints:
    """Return the number of the cycle that each moment lies in: how many had ended."""
    return np.searchsorted(ends_ns, moments_ns, side="right").astype(np.int64)


def _of_ops(timeline: RankTimeline, spans: Ints, ops: frozenset[str]) -> Flags:
    """Return which of these spans (rows) are of one of the operations, by their own name or the launching one's."""
    names, table = timeline.names, timeline.spans
    return np.asarray(
        rows_named(table.name[spans], names, ops.__contains__)
        | rows_named(table.host_op[spans], names, ops.__contains__),
        np.bool_,
    )


def in_optimizer(timeline: RankTimeline, spans: Ints) -> Flags:
    """Return which of these spans (rows) belong to the optimizer, by their names or by when they were launched."""
    table, notes = timeline.spans, timeline.annotations
    marks = rows_named(notes.name, timeline.names, OPTIMIZER_MARK.match)
    marked = union((notes.start_ns[marks], notes.end_ns[marks]))
    begun = np.where(table.launch_ns == NONE, table.start_ns, table.launch_ns)[spans]
    at = np.searchsorted(marked.starts, begun, side="right") - 1
    optimizes = rows_named(table.name[spans], timeline.names, OPTIMIZER_MARK.match)
    if marked.starts.size:
        optimizes |= (at >= 0) & (begun < marked.ends[np.maximum(at, 0)])
    return optimizes

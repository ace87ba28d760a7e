"""What each kernel took in the steps of one run, so that two runs can be laid side by side."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from overlapscope.analysis.distinct import distinct
from overlapscope.analysis.steps import StepWindow
from overlapscope.timeline.by_group import sum_by
from overlapscope.timeline.columns import COMPUTE, COPY, SPAN_KINDS, size
from overlapscope.timeline.run import RankTimeline

UNNAMED = "(without a name)"


class Kernel(NamedTuple):
    """A kernel by name; a copy also by the host operation that asked for it, which tells an `.item()` from a loader."""

    kind: str
    name: str
    host_op: str | None


class KernelSums(msgspec.Struct, frozen=True, kw_only=True):
    """The compute kernels and copies of one rank's complete steps, or of its recording where there are none."""

    steps: int
    """0: of the whole recording."""
    sums: Mapping[Kernel, tuple[int, int]]
    """Nanoseconds, and how many; durations are summed, not united, so kernels side by side count twice."""


def kernel_sums(timeline: RankTimeline, windows: Sequence[StepWindow]) -> KernelSums:
    """Sum up a rank's kernels and copies over its complete steps, in the order of their first; others are left out."""
    spans = timeline.spans
    complete = [each for each in windows if each.complete and each.window]
    chosen = np.isin(spans.kind, (COMPUTE, COPY))
    if complete:
        inside = np.zeros(size(spans), np.bool_)
        for recording in {each.recording for each in complete}:
            steps = [each.step for each in complete if each.recording == recording]
            inside |= (spans.recording == recording) & np.isin(spans.step, steps)
        chosen &= inside
    rows = np.flatnonzero(chosen)
    host_op = np.where(spans.kind[rows] == COPY, spans.host_op[rows], -1)
    columns = spans.kind[rows], spans.name[rows], host_op
    which, first = distinct(columns)
    totals = sum_by(which, spans.end_ns[rows] - spans.start_ns[rows], first.size)
    counts = np.bincount(which, minlength=first.size)
    keys = zip(*(each[first].tolist() for each in columns), strict=True)
    names = timeline.names
    found: dict[Kernel, tuple[int, int]] = {}
    for (kind, name, op), ns, count in zip(keys, totals.tolist(), counts.tolist(), strict=True):
        kernel = Kernel(SPAN_KINDS[kind], names[name] if name >= 0 else UNNAMED, names[op] if op >= 0 else None)
        found[kernel] = (ns, count)
    return KernelSums(steps=len(complete), sums=found)


def mean_per_step(ranks: Sequence[KernelSums]) -> dict[Kernel, tuple[float, float]]:
    """Give nanoseconds and number of each kernel a step, mean over ranks (a recording without steps counts as one)."""
    found: dict[Kernel, tuple[float, float]] = {}
    for rank in ranks:
        share = 1 / (max(rank.steps, 1) * len(ranks))
        for kernel, (ns, count) in rank.sums.items():
            before = found.get(kernel, (0.0, 0.0))
            found[kernel] = (before[0] + ns * share, before[1] + count * share)
    return found

"""Sum each kernel and copy over the steps of a run, and find those whose time differs most between two sides."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import COMPUTE, COPY, SPAN_KINDS, size
from overlapscope.timeline.rows import factorize_rows, sum_by
from overlapscope.timeline.run import RankTimeline

MOST: Final = 10
SYNCHRONISES: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"})
"""Operations whose copies the host waits for, since they read a tensor's value back. The host also waits for every copy
from the device to pageable memory (CUDA Runtime API, "API synchronization behavior")."""


class Kernel(NamedTuple):
    """A kernel by name; a copy also by the host operation that requested it (for example `.item()` or a loader)."""

    kind: str
    name: str
    host_op: str | None


Sums = Mapping[Kernel, tuple[float, float]]
UNNAMED = "(without a name)"


class KernelSide(msgspec.Struct, kw_only=True, frozen=True):
    """A kernel on one side: per step, mean over ranks and runs; durations of concurrent kernels are summed."""

    duration_ns: int
    count: float


class KernelChange(msgspec.Struct, kw_only=True, frozen=True):
    """A compute kernel or copy whose time changed."""

    name: str
    kind: Literal["compute", "copy"]
    host_op: str | None
    """For a copy: the host operation that requested it."""
    base: KernelSide
    candidate: KernelSide
    difference_ns: int


class KernelChanges(msgspec.Struct, kw_only=True, frozen=True):
    """The sums over all kernels and copies, and those that changed the most."""

    base: KernelSide
    candidate: KernelSide
    grown: list[KernelChange]
    shrunk: list[KernelChange]
    base_synchronisations: float
    """Values per step that the host reads back, as `.item()` does; see `SYNCHRONISES`."""
    candidate_synchronisations: float


class KernelSums(msgspec.Struct, frozen=True, kw_only=True):
    """The compute kernels and copies of one rank's complete steps, or of its recording where there are none."""

    steps: int
    """Complete steps summed; 0 for the whole recording."""
    sums: Mapping[Kernel, tuple[int, int]]
    """(nanoseconds, count) by kernel; durations are summed, so concurrent kernels count twice."""


def kernel_changes(base: Sequence[Sequence[KernelSums]], candidate: Sequence[Sequence[KernelSums]]) -> KernelChanges:
    """Compare the kernels of two sides; each side holds the ranks of its runs."""
    ours, theirs = _mean(base), _mean(candidate)
    changes = [
        KernelChange(
            name=kernel.name,
            kind="copy" if kernel.kind == "copy" else "compute",
            host_op=kernel.host_op,
            base=_side([ours.get(kernel, (0.0, 0.0))]),
            candidate=_side([theirs.get(kernel, (0.0, 0.0))]),
            difference_ns=round(theirs.get(kernel, (0.0, 0.0))[0]) - round(ours.get(kernel, (0.0, 0.0))[0]),
        )
        for kernel in dict.fromkeys([*ours, *theirs])
    ]
    changes.sort(key=lambda each: (-abs(each.difference_ns), each.name, each.host_op or ""))
    return KernelChanges(
        base=_side(ours.values()),
        candidate=_side(theirs.values()),
        grown=[each for each in changes if each.difference_ns > 0][:MOST],
        shrunk=[each for each in changes if each.difference_ns < 0][:MOST],
        base_synchronisations=_synchronisations(ours),
        candidate_synchronisations=_synchronisations(theirs),
    )


def _mean(runs: Sequence[Sequence[KernelSums]]) -> Sums:
    found: dict[Kernel, tuple[float, float]] = {}
    for ranks in runs:
        for kernel, (ns, count) in mean_per_step(ranks).items():
            before = found.get(kernel, (0.0, 0.0))
            found[kernel] = before[0] + ns / len(runs), before[1] + count / len(runs)
    return found


def _side(values: Iterable[tuple[float, float]]) -> KernelSide:
    listed = list(values)
    return KernelSide(duration_ns=round(sum(ns for ns, _ in listed)), count=sum(count for _, count in listed))


def _synchronisations(sums: Sums) -> float:
    return sum(count for kernel, (_, count) in sums.items() if kernel.kind == "copy" and _synchronises(kernel))


def _synchronises(copy: Kernel) -> bool:
    return copy.host_op in SYNCHRONISES or (copy.name.startswith("Memcpy DtoH") and "Pageable" in copy.name)


def kernel_sums(timeline: RankTimeline, windows: Sequence[StepWindow]) -> KernelSums:
    """Sum a rank's kernels and copies over its complete steps (else the recording), in order of their first spans."""
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
    which, first = factorize_rows(columns)
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
    """Return (nanoseconds, count) of each kernel per step, mean over ranks; a recording without steps is one step."""
    found: dict[Kernel, tuple[float, float]] = {}
    for rank in ranks:
        share = 1 / (max(rank.steps, 1) * len(ranks))
        for kernel, (ns, count) in rank.sums.items():
            before = found.get(kernel, (0.0, 0.0))
            found[kernel] = (before[0] + ns * share, before[1] + count * share)
    return found

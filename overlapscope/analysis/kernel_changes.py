"""Which kernels and copies of two sides grew and shrank the most."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from overlapscope.analysis.kernel_sums import Kernel, KernelSums, mean_per_step

MOST: Final = 10
SYNCHRONISES: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"})
"""Operations whose copies the host waits for: they read a value of a tensor back. So it does for every copy from the
device to pageable memory (CUDA Runtime API, "API synchronization behavior")."""


class KernelSide(msgspec.Struct, kw_only=True, frozen=True):
    """A kernel on one side: a step, mean over ranks and runs; durations are summed, also of kernels side by side."""

    duration_ns: int
    count: float


class KernelChange(msgspec.Struct, kw_only=True, frozen=True):
    """A compute kernel or copy whose time changed."""

    name: str
    kind: Literal["compute", "copy"]
    host_op: str | None
    """Of a copy: the host operation that asked for it."""
    base: KernelSide
    candidate: KernelSide
    difference_ns: int


class KernelChanges(msgspec.Struct, kw_only=True, frozen=True):
    """All of them summed up, and those that changed the most."""

    base: KernelSide
    candidate: KernelSide
    grown: list[KernelChange]
    shrunk: list[KernelChange]
    base_synchronisations: float
    """Values read back by the host, as `.item()` does, a step; see `SYNCHRONISES`."""
    candidate_synchronisations: float


Sums = Mapping[Kernel, tuple[float, float]]


def kernel_changes(
    base: Sequence[Sequence[KernelSums]], candidate: Sequence[Sequence[KernelSums]], *, most: int = MOST
) -> KernelChanges:
    """Lay the kernels of two sides side by side, each the ranks of its runs."""
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
        grown=[each for each in changes if each.difference_ns > 0][:most],
        shrunk=[each for each in changes if each.difference_ns < 0][:most],
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

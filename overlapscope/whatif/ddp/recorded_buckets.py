"""Find the gradients that an all-reduce of DistributedDataParallel carried.

Our own capture records the names of each bucket's parameters. Without them, times and sizes may prove it: DDP launches
a bucket when its last gradient is ready and the buckets before it are launched (Reducer::mark_bucket_ready in
torch/csrc/distributed/c10d/reducer.cpp). So if the gradients that were ready at the launch of each all-reduce, and no
others, have in total the elements that were launched until then, this all-reduce and those before it carry them.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import RankTimeline

MODULE = "module."
"""Prefix that DistributedDataParallel adds to the parameter names of the wrapped model."""


class RecordedBucket(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The gradients that one all-reduce carried. Times are host times on the rank's own clock."""

    number: int
    """From 0, in the order in which the pass launched its buckets."""
    of: int
    """Number of buckets of the pass."""
    gradients: Ints
    """Rows in the rank's `Gradients`, in the order in which they became ready."""
    ready_ns: int
    """When the last of them was accumulated."""
    launch_ns: int
    named: bool
    """Whether DDP recorded its parameter names; else times and sizes prove the gradients."""


def recorded_bucket(timeline: RankTimeline, row: int) -> RecordedBucket | None:
    """Return the bucket that a row of `Collectives` carried; None where that is not known, or it carried none."""
    calls, table = timeline.collectives, timeline.gradients
    step = int(calls.step[row])
    if step == NONE or not _is_all_reduce(timeline, row):
        return None
    gradients = np.flatnonzero((table.step == step) & (table.elements > 0) & (table.ready_ns != NONE))
    passes = _passes(timeline, gradients[np.argsort(table.order[gradients], kind="stable")])
    launch = int(launch_times(timeline, np.array([row]))[0])
    begins = [int(table.ready_ns[each].min()) for each in passes] + [np.iinfo(np.int64).max]
    for each, (begin, end) in zip(passes, pairwise(begins), strict=True):
        if begin <= launch < end:
            return _of_pass(timeline, row, each, (begin, end))
    return None


def _is_all_reduce(timeline: RankTimeline, row: int) -> bool:
    op = int(timeline.collectives.op[row])
    return op >= 0 and timeline.names[op] == "all_reduce"


def _passes(timeline: RankTimeline, rows: Ints) -> list[Ints]:
    """Return the gradients of each backward pass of a step; empty where they differ between passes."""
    names = timeline.gradients.name[rows]
    _, often = np.unique(names, return_counts=True)
    if not often.size or (often != often[0]).any() or (names < 0).any():
        return []
    passes = np.split(rows, int(often[0]))
    alike = {tuple(np.sort(timeline.gradients.name[each]).tolist()) for each in passes}
    return passes if len(alike) == 1 else []


def _of_pass(timeline: RankTimeline, row: int, gradients: Ints, within: tuple[int, int]) -> RecordedBucket | None:
    calls = timeline.collectives
    same = (calls.step == calls.step[row]) & (calls.op == calls.op[row]) & (calls.group == calls.group[row])
    rows = np.flatnonzero(same & (calls.elements > 0))
    launched = launch_times(timeline, rows)
    kept = (launched >= within[0]) & (launched < within[1]) & (launched < optimizer_ns(timeline, calls.step[rows]))
    order = np.argsort(launched[kept], kind="stable")
    rows, launched = rows[kept][order], launched[kept][order]
    run = _only_run(calls.elements[rows], int(timeline.gradients.elements[gradients].sum()))
    if run is None or row not in rows[run].tolist():
        return None
    rows, launched = rows[run], launched[run]
    number = rows.tolist().index(row)
    named = _named_parts(timeline, gradients, calls.elements[rows])
    parts = named or _proven(timeline, gradients, calls.elements[rows], launched)
    if parts is None:
        return None
    own = parts[number]
    ready = int(timeline.gradients.ready_ns[own].max())
    if ready > launched[number]:  # an all-reduce cannot carry a gradient that was not ready
        return None
    return RecordedBucket(number=number, of=rows.size, gradients=own, ready_ns=ready, launch_ns=int(launched[number]),
                  named=named is not None)  # fmt: skip


def _only_run(elements: Ints, total: int) -> slice | None:
    """Return the only run of consecutive calls with `total` elements; None where there is none or more than one."""
    sums = np.concatenate(([0], np.cumsum(elements)))
    first = np.flatnonzero(np.isin(sums + total, sums))
    if first.size != 1:
        return None
    return slice(int(first[0]), int(np.searchsorted(sums, sums[first[0]] + total)))


def _named_parts(timeline: RankTimeline, gradients: Ints, elements: Ints) -> list[Ints] | None:
    """Return the gradients of each bucket by the names that DDP recorded; None where sizes do not match."""
    recorded: Any = timeline.recorded.get("ddp")
    named = recorded.get("bucket_parameters") if isinstance(recorded, dict) else None
    if not isinstance(named, list) or len(named) != elements.size:
        return None
    table = timeline.gradients
    place = {_bare(timeline.names[code]): at for at, code in enumerate(table.name[gradients].tolist())}
    parts = [_places(each, place) for each in named]
    if None in parts or sorted(at for part in parts for at in part or ()) != list(range(gradients.size)):
        return None
    rows = [gradients[sorted(part or ())] for part in parts]
    sums = [int(table.elements[each].sum()) for each in rows]
    return rows if sums == elements.tolist() else None


def _places(names: Any, place: dict[str, int]) -> list[int] | None:
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        return None
    found = [place.get(_bare(each)) for each in names]
    return [each for each in found if each is not None] if None not in found else None


def _bare(name: str) -> str:
    return name.removeprefix(MODULE)


def _proven(timeline: RankTimeline, gradients: Ints, elements: Ints, launched: Ints) -> list[Ints] | None:
    """Return the gradients of each all-reduce, if exactly these were ready at its launch and add up to its size."""
    table = timeline.gradients
    filled = np.cumsum(table.elements[gradients])
    ends = np.searchsorted(filled, np.cumsum(elements))
    if not np.array_equal(filled[np.minimum(ends, filled.size - 1)], np.cumsum(elements)):
        return None
    ready = np.maximum.accumulate(table.ready_ns[gradients])
    following = np.append(table.ready_ns[gradients], np.iinfo(np.int64).max)[ends + 1]
    if (launched < ready[ends]).any() or (launched >= following).any():
        return None
    return _split(gradients, ends)


def _split(gradients: Ints, ends: Ints) -> list[Ints]:
    parts: Sequence[Ints] = np.split(gradients, (ends + 1).tolist())
    return list(parts[: ends.size])

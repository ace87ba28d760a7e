"""Extract the steps of DistributedDataParallel from a recording: gradients and the all-reduces that carry them.

Only complete and equal steps are kept: the same gradients on every rank, and all-reduces whose elements add up to
them. Times are nanoseconds on the clock that all ranks share; the axes of the arrays are (rank, step, ...).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.per_rank.host_operations import has_shapes
from overlapscope.analysis.per_rank.optimizers import launch_times, optimizer_ns
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.errors import InputError
from overlapscope.timeline.columns import COMPUTE, NONE, Floats, Ints
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES, POINT_TO_POINT
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.ddp.no_sync import averages_parameters, unsynced_steps
from overlapscope.whatif.parallelism import noted_no_ddp, shows_ddp

HOW: Final = "record it with `overlapscope.profile(path, model=model)` around the training loop"
NOT_SEEN: Final = f"DistributedDataParallel is not seen in it, nor buckets that could be replayed; if it is used, {HOW}"
NOT_KNOWN: Final = (
    "no range of DistributedDataParallel was recorded, and of its all-reduces, which may be buckets, it is not known "
    f"which gradients they hold; if it is used, {HOW}"
)
"""The same of a run with all-reduces as large as buckets."""
NOT_USED: Final = (
    "the recorded model is not wrapped in DistributedDataParallel, and no buckets that could be replayed are seen"
)
MOST_STEPS: Final = 64
"""Limit on the steps that are used: the last ones of a longer recording."""
MOST_RANK_STEPS: Final = 4096
"""Limit on ranks times steps: with many ranks fewer steps are used ..."""
LEAST_STEPS: Final = 5
"""... but at least this many."""
LEAST_BUCKET: Final = 1 << 20
"""Smaller all-reduces are not said to be buckets: the first one of DistributedDataParallel holds 1 MiB."""
FLOATING: Final = re.compile(r"b?float|complex")
"""Names of the types that gradients have."""
GLOO_THREADS: Final = 2
"""Collectives that torch's gloo runs at once (`ProcessGroupGloo::Options::threads`)."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The equal steps of one recording."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    """Names of the gradients in the order in which they became ready; `elements` and `dtypes` have the same order."""
    elements: Ints
    dtypes: tuple[str, ...]
    start_ns: Floats
    end_ns: Floats
    """Start and end of each step, shape (rank, step)."""
    passes: int
    """Backward passes of a step."""
    synced: int
    """How many of these passes reduced gradients: 1 or all."""
    ready_ns: Floats
    """When each gradient was ready, shape (rank, step, pass, gradient)."""
    bytes: Ints
    """Size of each all-reduce of the last pass, in launch order."""
    sent_dtypes: tuple[str, ...]
    launch_ns: Floats
    """When each call of the last pass was made, shape (rank, step, all-reduce)."""
    begun_ns: Floats
    """When a stream or a worker started each call."""
    done_ns: Floats
    rows: Ints
    """Row in the rank's `Collectives`, shape (rank, step, all-reduce)."""
    left_out: int
    """Number of complete steps that did other work."""
    unsynced: int = 0
    """Number of complete steps with these gradients and no all-reduce, between steps that have some."""
    earlier: bool = False
    """Whether equal steps before these are not used, because there are many."""

    def transfers(self, rank: int) -> Intervals:
        """Return when the rank at this index transferred: from the start of the last member to its own end."""
        begun, done = self.begun_ns.max(axis=0).ravel(), self.done_ns[rank].ravel()
        return union((np.rint(begun).astype(np.int64), np.rint(done).astype(np.int64)))

    @property
    def steps_ns(self) -> Floats:
        """Duration of each step, from the earliest start to the latest end over the ranks."""
        lasted: Floats = self.end_ns.max(axis=0) - self.start_ns.min(axis=0)
        return lasted

    @property
    def grad_bytes(self) -> Ints:
        """Bytes of each gradient."""
        return self.elements * np.array([ITEM_BYTES[each] for each in self.dtypes], np.int64)


class _Step(msgspec.Struct, frozen=True):
    window: tuple[int, int]
    ready_ns: Ints
    """Ready times of all passes one after the other, each pass in the rank's first order of gradients."""
    rows: Ints
    """Rows of the all-reduces of all passes."""


def recorded_steps(run: Run, cross_rank: CrossRank) -> Recorded:
    """Return the equal steps of a recording. Raises InputError, which says what is missing and what to do."""
    if not run.ranks:
        raise InputError(f"no rank was recorded; {HOW}")
    reference = next(iter(run.ranks.values()))
    ops = {
        each.names[code] for each in run.ranks.values() for code in unique(each.collectives.op).tolist() if code >= 0
    }
    if ops and ops <= POINT_TO_POINT:
        raise InputError(
            "its ranks only send and receive: no collective reduces gradients, so there are no buckets to replay"
        )
    names, elements, dtypes, passes = _gradients(run, reference)
    found = {rank: _steps_of(each, names, int(elements.sum()), passes) for rank, each in run.ranks.items()}
    common = sorted(set.intersection(*(set(each) for each in found.values())))
    if not common and any(map(averages_parameters, run.ranks.values())):
        raise InputError(
            "its all-reduces run after the optimizer: they average parameters (local SGD) and carry no gradients, so "
            "there are no buckets to replay"
        )
    if not common:
        raise no_buckets(
            run,
            "no step whose all-reduces carry the gradients of one model was recorded completely on every rank: "
            f"`whatif` needs two steps of one DistributedDataParallel (not of two models in turn) after warm-up; {HOW}",
        )
    kinds = Counter(_signature(run, found, step) for step in common)
    usual, often = kinds.most_common(1)[0]
    most = max(min(MOST_STEPS, MOST_RANK_STEPS // len(run.ranks)), LEAST_STEPS)
    chosen = [step for step in common if _signature(run, found, step) == usual][-most:]
    if often < 2 or usual is None:
        raise InputError("its steps differ, or fewer than two are complete: record at least five equal steps")
    windows = set().union(*(_recent(timeline) for timeline in run.ranks.values()))
    without = set.intersection(*map(unsynced_steps, run.ranks.values())) & windows
    left_out = len(windows - set(common) - without) + len(common) - often
    seen = _joined(run, cross_rank, found, chosen, (names, elements, dtypes, passes), left_out)
    return replace(
        seen,
        unsynced=sum(chosen[0] < each < chosen[-1] for each in without),
        earlier=often > len(chosen) or min(windows) > min(int(each.steps.step.min()) for each in run.ranks.values()),
    )


def no_buckets(run: Run, lacks: str) -> InputError:
    """Return the error for a run that lacks what a replay of DistributedDataParallel needs, or is of another kind."""
    if shows_ddp(run):
        return InputError(lacks)
    if all(map(noted_no_ddp, run.ranks.values())):
        return InputError(NOT_USED)
    return InputError(NOT_KNOWN if any(map(_may_hold_buckets, run.ranks.values())) else NOT_SEEN)


def _may_hold_buckets(timeline: RankTimeline) -> bool:
    """Return whether a rank has all-reduces of numbers as gradients are, with sizes as of buckets."""
    rows = np.flatnonzero(timeline.collectives.bytes >= LEAST_BUCKET)
    rows = rows[rows_named(timeline.collectives.op[rows], timeline.names, "all_reduce".__eq__)]
    return bool(rows_named(timeline.collectives.dtype[rows], timeline.names, FLOATING.match).any())


def _gradients(run: Run, timeline: RankTimeline) -> tuple[tuple[str, ...], Ints, tuple[str, ...], int]:
    """Return the gradients of a pass in the order of the usual step, and the passes of a step."""
    table = timeline.gradients
    known = (table.elements > 0) & (table.step != NONE) & (table.ready_ns != NONE) & (table.dtype >= 0)
    if not known.any():
        raise no_buckets(
            run,
            f"it holds no gradients with sizes, which are needed to compute buckets"
            f"{', though it records shapes' if has_shapes(run) else ''}; {HOW}"
            + ("" if has_shapes(run) else ", or let torch's profiler record shapes (record_shapes=True)"),
        )
    steps = np.unique(table.step[known])[-MOST_STEPS:].tolist()
    orders = Counter(
        tuple(table.name[rows][np.argsort(table.order[rows], kind="stable")].tolist())
        for rows in (np.flatnonzero(known & (table.step == step)) for step in steps)
    )
    order = orders.most_common(1)[0][0]
    passes = max(Counter(order).values())
    first = list(dict.fromkeys(order))
    if len(order) != passes * len(first):
        raise InputError("its backward passes do not compute the same gradients, which `whatif` cannot replay")
    row = {code: int(np.flatnonzero(known & (table.name == code))[0]) for code in first}
    rows = np.array([row[code] for code in order[-len(first) :]], np.int64)
    dtypes = tuple(timeline.names[code] for code in table.dtype[rows].tolist())
    odd = next((each for each in dtypes if each not in ITEM_BYTES), None)
    if odd is not None:
        raise InputError(f"its gradients are of type {odd!r}, whose size is not known")
    return tuple(timeline.names[code] for code in table.name[rows].tolist()), table.elements[rows], dtypes, passes


def _steps_of(timeline: RankTimeline, names: Sequence[str], elements: int, passes: int) -> dict[int, _Step]:
    """Return the complete steps of a rank with these gradients and the all-reduces that carry them."""
    table, calls = timeline.gradients, timeline.collectives
    place = {name: at for at, name in enumerate(names)}
    position = np.array([place.get(name, -1) for name in timeline.names], np.int64)
    reduces = np.array([name == "all_reduce" for name in timeline.names], np.bool_)
    usable = (calls.elements > 0) & (calls.bytes > 0) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
    # Numbers of other types are no gradients: DDP sums a map of used parameters in int32 (find_unused_parameters).
    sized = np.array([name in ITEM_BYTES and FLOATING.match(name) is not None for name in timeline.names], np.bool_)
    usable &= (calls.op >= 0) & reduces[calls.op] & (calls.dtype >= 0) & sized[calls.dtype]
    usable &= (calls.end_ns >= calls.start_ns) & (calls.end_ns >= calls.launch_ns)
    # All-reduces after the optimizer carry no gradients: local SGD averages parameters there.
    usable &= launch_times(timeline, np.arange(calls.step.size)) < optimizer_ns(timeline, calls.step)
    found = {}
    recent = _recent(timeline)
    for each in step_windows(timeline):
        if each.step not in recent:
            continue
        mine = np.flatnonzero((table.step == each.step) & (table.name >= 0))
        if each.window is None or not each.complete or mine.size != passes * len(names):
            continue
        mine = mine[np.argsort(table.order[mine], kind="stable")]
        at = position[table.name[mine]].reshape(passes, len(names))
        if not (np.sort(at, axis=1) == np.arange(len(names))).all():
            continue
        ready = table.ready_ns[mine].reshape(passes, len(names))
        ready = np.take_along_axis(ready, np.argsort(at, axis=1), axis=1)
        rows = np.flatnonzero(usable & (calls.step == each.step))
        rows = rows[np.argsort(launch_times(timeline, rows), kind="stable")]
        carried = _carrying(timeline, rows, ready, elements)
        if carried is not None:
            found[each.step] = _Step(each.window, ready.ravel(), carried)
    return found


def _recent(timeline: RankTimeline) -> set[int]:
    """Return the last steps of a rank, twice as many as are kept."""
    return set(np.unique(timeline.steps.step)[-2 * MOST_STEPS :].tolist())


def _carrying(timeline: RankTimeline, rows: Ints, ready: Ints, elements: int) -> Ints | None:
    """Return the rows of the all-reduces of the last pass, or of every pass, that carry all gradients; None without."""
    launched, sizes = launch_times(timeline, rows), timeline.collectives.elements[rows]
    found: list[Ints] = []
    for turn in range(ready.shape[0]):
        until = ready[turn + 1].min() if turn + 1 < ready.shape[0] else np.iinfo(np.int64).max
        here = np.flatnonzero((launched >= ready[turn].min()) & (launched < until))
        total = np.concatenate(([0], np.cumsum(sizes[here])))
        first = np.flatnonzero(np.isin(total + elements, total))
        if first.size:
            last = int(np.searchsorted(total, total[first[0]] + elements))
            found.append(rows[here[first[0] : last]])
    complete = found and (len(found) in (1, ready.shape[0]))
    return np.concatenate(found) if complete and len({each.size for each in found}) == 1 else None


def _signature(run: Run, found: Mapping[int, Mapping[int, _Step]], step: int) -> tuple[Any, ...] | None:
    """Return the sizes of a step's all-reduces, which must be the same on all ranks (else None); equal steps match."""
    sizes = {
        tuple(run.ranks[rank].collectives.bytes[steps[step].rows].tolist()) for rank, steps in found.items()
    }  # fmt: skip
    return sizes.pop() if len(sizes) == 1 else None


def _times(timeline: RankTimeline, steps: Sequence[_Step], rows: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return a rank's windows, gradients' ready times, and launch, begin and end of the calls of `rows`, by step."""
    launched = np.array([launch_times(timeline, each) for each in rows])
    starts, ends = timeline.collectives.start_ns[rows], timeline.collectives.end_ns[rows]
    if timeline.basis == "events" and not timeline.has_device:
        starts = worker_starts(launched, ends, GLOO_THREADS)
    ready = np.array([each.ready_ns for each in steps])
    ready = _on_device(timeline, ready) if timeline.has_device else ready
    return np.array([each.window for each in steps]), ready, launched, starts, ends


def _joined(
    run: Run,
    cross_rank: CrossRank,
    found: Mapping[int, Mapping[int, _Step]],
    steps: Sequence[int],
    gradients: tuple[tuple[str, ...], Ints, tuple[str, ...], int],
    left_out: int,
) -> Recorded:
    names, elements, dtypes, passes = gradients
    ranks = tuple(run.ranks)
    rows = np.array([[found[rank][step].rows for step in steps] for rank in ranks], np.int64)
    reference = run.ranks[ranks[0]]
    total = int(reference.collectives.elements[rows[0, 0]].sum())
    synced = round(total / int(elements.sum()))
    last = rows[:, :, rows.shape[2] - rows.shape[2] // synced :]
    calls = reference.collectives
    times = [_times(run.ranks[rank], [found[rank][step] for step in steps], last[at]) for at, rank in enumerate(ranks)]
    shared = [[cross_rank.clocks.aligned(rank, each) for each in own] for rank, own in zip(ranks, times, strict=True)]
    windows, ready, launch, begun, done = (np.array(each) for each in zip(*shared, strict=True))
    return Recorded(
        ranks=ranks,
        steps=tuple(steps),
        names=names,
        elements=elements,
        dtypes=dtypes,
        start_ns=windows[..., 0],
        end_ns=windows[..., 1],
        passes=passes,
        synced=synced,
        ready_ns=ready.reshape(len(ranks), len(steps), passes, len(names)),
        bytes=calls.bytes[last[0, 0]],
        sent_dtypes=tuple(reference.names[code] for code in calls.dtype[last[0, 0]].tolist()),
        launch_ns=launch,
        begun_ns=begun,
        done_ns=done,
        rows=last,
        left_out=left_out,
    )


def worker_starts(launched: Ints, ended: Ints, workers: int) -> Ints:
    """Return when each call was started by one of `workers` workers that take calls in order; the last axis is calls.

    Where workers are not recorded, the recorded start of a call is its launch; a call that waits in the queue does not
    move data.
    """
    free = np.full((*launched.shape[:-1], workers), np.iinfo(np.int64).min, np.int64)
    begun = np.empty_like(launched)
    for call in range(launched.shape[-1]):
        first = free.argmin(axis=-1, keepdims=True)
        begun[..., call] = np.maximum(launched[..., call], np.take_along_axis(free, first, -1)[..., 0])
        np.put_along_axis(free, first, ended[..., call, None], -1)
    return np.minimum(begun, ended)


def _on_device(timeline: RankTimeline, times_ns: Ints) -> Ints:
    """Return when the device had finished the work that the host had launched by each time: the host runs ahead."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.launch_ns != NONE))
    if not rows.size:
        return times_ns
    rows = rows[np.argsort(spans.launch_ns[rows], kind="stable")]
    reached = np.maximum.accumulate(spans.end_ns[rows])
    place = np.searchsorted(spans.launch_ns[rows], times_ns, side="right") - 1
    return np.where(place >= 0, reached[np.maximum(place, 0)], times_ns)

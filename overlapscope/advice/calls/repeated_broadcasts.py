"""Rule: each step broadcasts tensors of the same sizes: parameters, buffers, or what one rank alone has.

Parameters are known by their elements, as many as were reduced of gradients in the same ranks, or by the optimizer that
launches the calls. Which rank sends is not in a recording: that one rank updates all, each one a part, or all alike and
none need send, look the same. Where they are reduced to one rank and sent back behind the optimizer, no update lies
between: parameters are averaged.
"""

import re
from collections import Counter
from collections.abc import Set
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.advice.calls.savings import saved_without_ns, transferring
from overlapscope.advice.calls.small_collectives import FEWEST_CALLS
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.per_rank.optimizers import follow_optimizer, launch_times
from overlapscope.analysis.result import Recommendation
from overlapscope.ingest.build.host_ranges import DDP_BUFFERS
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import DATA, OPTIMIZER
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.rows import smallest_by, sort_order, sum_by, unique
from overlapscope.timeline.run import RankTimeline

FEWEST_STEPS: Final = 3
MOSTLY: Final = 0.75
"""Least share of the steps which broadcast the same. A choice: a first step may broadcast everything."""
LEAST_BYTES: Final = 64 << 10
"""A step that broadcasts less sends settings or results. A choice."""
LONG_NS: Final = 1_000_000
"""Least transfer in a step of calls of unknown size that an optimizer launches, for them to be parameters. A choice:
many times NCCL's latency."""
ALIKE: Final = 0.02
"""Elements that are broadcast may differ from those that are reduced by this share, as for padding and metrics."""
OWN_PARTS: Final = re.compile(r"ZeroRedundancyOptimizer|^Optimizer\.step#OSS\.step")
"""Optimizers of torch and FairScale of which each rank updates a part of the parameters, and sends it."""
INTEGERS: Final = re.compile(r"u?int|bool")
"""Types of batches, and of nothing that is trained."""
Sent = Literal["averages", "buffers", "parameters", "tensors"]
REDUCE_TO_ALL: Final = "all_reduce"
REDUCE_TO_ONE: Final = "reduce"
OF_BUFFERS: Final = "DistributedDataParallel(model, broadcast_buffers=False)  # or SyncBatchNorm"
OF_TENSORS: Final = (
    "# parameters that all ranks update alike: broadcast once, before the first step; batches: let each rank load its "
    "own"
)
BESIDE_FORWARD: Final = (
    "# else beside the next forward: module by module (async_op=True), and wait for each before it computes"
)
UPDATE_ALL: Final = (
    "# ranks that all have the gradients and update all parameters alike need no broadcasts but one, before the first "
    "step"
)
ONE_UPDATES: Final = "# one rank updates all: let each run the same optimizer"
PARTS: Final = (
    "# each rank updates a part: an optimizer that is not sharded (no ZeroRedundancyOptimizer) sends nothing, if "
    "memory holds its whole state"
)
TWO_THIRDS: Final = (
    "# if it is to be sharded: reduce_scatter with all_gather sends at most two thirds of what all_reduce with "
    "broadcasts does (FSDP2 with reshard_after_forward=False)"
)
TO_ALL: Final = "DistributedDataParallel(model)  # all_reduce in buckets, beside backward; each rank updates all"
AVERAGE_TO_ALL: Final = (
    "dist.all_reduce(flat, op=dist.ReduceOp.AVG)  # the average is on each rank, and none sends it back\n"
    "# or average more rarely (more local steps), in 16 bits, or beside the next compute: each changes how it trains, "
    "and saves of the reductions, too"
)
OF_AVERAGES: Final = (
    "that no rank updates them in between; that all_reduce takes no longer than reduce, though n ranks in a ring move "
    "2 (n - 1) / n times as many bytes: the gain is an upper bound; durations include waiting for the rank that sends"
)
FLAT: Final = (
    "# {calls} of the calls are below 1 MiB: send what one rank updates as one flat tensor (ZeroRedundancyOptimizer: "
    "parameters_as_bucket_view=True)"
)


class _Broadcasts(msgspec.Struct, frozen=True, kw_only=True):
    """What most steps of a rank broadcast."""

    calls: int
    sizes: tuple[int, ...]
    """Bytes of the calls of a step; empty where they are not known."""
    sent: Sent
    own_parts: bool = False
    """Whether an optimizer is named of which each rank updates a part."""
    reduced_by: str | None = None
    """The operation that reduces as many elements; None where none is known to."""
    forward_ns: float = np.inf
    """From the begin of a step to its first reduction: forward, at most; infinite where that is not known."""


def repeated_broadcasts(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where broadcasts of the same sizes in each step are exposed for long enough."""
    found = [_broadcasts(given, timeline, windows) for timeline, windows in given.some_at_hand()]
    known = [each for each in found if each is not None]
    kinds = {(each.sent, each.reduced_by) for each in known}
    if len(known) < len(found) or len(kinds) != 1:
        return None
    one = known[0]
    sizes = {size for each in known for size in each.sizes}  # stages of a pipeline send other ones
    rows = [row for row in given.analysis.collectives if _is_of(row, sizes)]
    exposed = given.exposed_ns(rows)
    at_most = min(exposed, saved_without_ns(given, rows))
    if not given.is_worth(at_most):
        return None
    assumed = ["that none of them is needed; durations include waiting for the rank that sends"]
    evidence = {"calls": one.calls, "bytes": sum(one.sizes) if one.sizes else None, "exposed_ns": round(exposed)}
    if one.sent == "parameters":
        beside = given.besides_ns(min(at_most, *(each.forward_ns for each in known)))
        evidence["beside_forward_ns"] = round(beside)
        assumed = _assumed_of_parameters(one, beside)
    elif one.sent == "averages":
        assumed = [OF_AVERAGES]
    return recommended(
        given,
        id="repeated_broadcasts",
        title=_title(given, one, exposed),
        at_most_ns=at_most,
        apply=_apply(one),
        evidence=evidence,
        measured=[
            f"the {'sizes' if one.sizes else 'number'} of the broadcasts of each step, and what of them is exposed"
        ],
        assumed=assumed,
    )


def _is_of(row: CollectiveRow, sizes: Set[int]) -> bool:
    """Return whether calls of this row are broadcasts of these sizes; without any, of unknown size by an optimizer."""
    sized = row.bytes in sizes if sizes else row.bytes is None and row.phase == OPTIMIZER
    return row.op == "broadcast" and (row.dimension or DATA) == DATA and sized


def _title(given: RuleInput, one: _Broadcasts, exposed_ns: float) -> str:
    calls = "one call" if one.calls == 1 else f"{one.calls} calls"
    size = f"{sum(one.sizes) / 1e6:.1f} MB in {calls}" if one.sizes else f"{calls} of unknown size"
    cost = f"{size}, and {ms(exposed_ns)} of a {ms(given.step_ns)} {given.per} are exposed for it"
    if one.sent == "buffers":
        unless = "needed where they differ between ranks and are read"
        return f"Broadcast less: DDP broadcasts its buffers, {cost}; {unless}"
    if one.sent == "tensors":
        unless = "what all ranks update alike need not be sent; what one rank alone changes must be"
        return f"Broadcast less: each step broadcasts tensors of the same sizes, {cost}; {unless}"
    if one.sent == "averages":
        return (
            "Average parameters with all_reduce: reductions to one rank follow the optimizer, and as many elements are "
            f"broadcast back before the next one in each step, {cost}"
        )
    first = "Broadcast no parameters, or beside the next forward: "
    if one.reduced_by == REDUCE_TO_ONE:
        return (
            f"{first}reduce leaves each gradient on one rank, and as many elements are broadcast in each step, {cost}; "
            "with all_reduce instead each could update all itself, if memory holds the whole state of the optimizer"
        )
    if one.own_parts:
        what = "each rank updates a part of the parameters, and broadcasts it"
        return f"{first}{what}, {cost}; each can update all of them, if memory holds the whole state of the optimizer"
    unless = "needed only where ranks do not all update all parameters alike (one rank alone, or a part each)"
    what = "the optimizer broadcasts in each step"
    if one.reduced_by == REDUCE_TO_ALL:
        what = "all_reduce leaves all gradients on each rank, yet as many elements are broadcast in each step"
    return f"{first}{what}, {cost}; {unless}"


def _assumed_of_parameters(one: _Broadcasts, beside_ns: float) -> list[str]:
    as_many = "that they are parameters, as their elements are as many as those of gradients"
    what = as_many if one.reduced_by else "that an optimizer sends parameters: their sizes are not recorded"
    return [
        *([] if one.own_parts else [what]),
        "that each rank can update all parameters, and that it takes no longer, though it does where each updated a "
        f"part; beside the next forward it is at most {ms(beside_ns)}: the gain is an upper bound; durations include "
        "waiting for the rank that sends",
    ]


def _apply(one: _Broadcasts) -> dict[str, str]:
    if one.sent == "buffers":
        return {"ddp": OF_BUFFERS}
    if one.sent == "tensors":
        return {"torch": OF_TENSORS}
    if one.sent == "averages":
        return {"torch": AVERAGE_TO_ALL}
    small = sum(each < LARGE_BYTES for each in one.sizes)
    flat = [FLAT.format(calls=small)] if small >= FEWEST_CALLS else []
    if one.reduced_by == REDUCE_TO_ONE:
        return {"torch": "\n".join([TO_ALL, BESIDE_FORWARD, *flat])}
    alike = [] if one.own_parts else [UPDATE_ALL, ONE_UPDATES]
    shards = [TWO_THIRDS] if one.reduced_by == REDUCE_TO_ALL else []
    return {"torch": "\n".join([*alike, PARTS, BESIDE_FORWARD, *flat, *shards])}


def _broadcasts(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Broadcasts | None:
    """Return what most steps of a rank broadcast: buffers of DDP, or all others, whichever is more; None where that
    differs, is little or not known."""
    calls, names = timeline.collectives, timeline.names
    rows = np.flatnonzero(_over_data(timeline) & rows_named(calls.op, names, "broadcast".__eq__))
    rows = rows[window_of(windows, calls.start_ns[rows]) != NONE]
    if not rows.size:
        return None
    if (calls.bytes[rows] == NONE).any():
        return _of_optimizer(given, timeline, windows, rows)
    reduces = _reductions_beside(given, timeline, windows, rows)
    steps = _steps(timeline, rows, reduces)
    rows = rows[steps[rows] != NONE]
    buffers = rows_named(calls.module[rows], names, DDP_BUFFERS.__eq__)
    found = (
        _other_than_buffers(timeline, windows, rows[~buffers], reduces, steps),
        _of_buffers(timeline, windows, rows[buffers], steps),
    )
    return max(found, key=lambda each: 0 if each is None else sum(each.sizes))


def _of_buffers(timeline: RankTimeline, windows: Windows, rows: Ints, steps: Ints) -> _Broadcasts | None:
    sizes = _usual_sizes(timeline, windows, rows, steps)
    return None if sizes is None else _Broadcasts(calls=len(sizes), sizes=sizes, sent="buffers")


def _other_than_buffers(
    timeline: RankTimeline, windows: Windows, rows: Ints, reduces: Ints, steps: Ints
) -> _Broadcasts | None:
    """Return what most steps broadcast: parameters where as much is reduced; where parts of these are to be sent, or
    steps are not marked, nothing else."""
    calls = timeline.collectives
    sizes = _usual_sizes(timeline, windows, rows, steps)
    if sizes is None:
        return None
    own_parts, reduced_by = _has_own_parts(timeline), _reduced_by(timeline, rows, reduces, steps)
    of_optimizer = own_parts and bool(_launched_by_optimizer(timeline, rows).all())
    if reduced_by is None and not of_optimizer:
        is_marked = bool((calls.step[rows] != NONE).any())
        return _Broadcasts(calls=len(sizes), sizes=sizes, sent="tensors") if is_marked and not own_parts else None
    averages = reduced_by == REDUCE_TO_ONE and _follow_optimizer(timeline, rows, reduces)
    return _Broadcasts(
        calls=len(sizes),
        sizes=sizes,
        sent="averages" if averages else "parameters",
        own_parts=own_parts,
        reduced_by=reduced_by,
        forward_ns=_forward_ns(timeline, windows, reduces) if reduced_by else np.inf,
    )


def _follow_optimizer(timeline: RankTimeline, *calls: Ints) -> bool:
    """Return whether most calls of each of these rows follow the last optimizer of their step."""
    follows = follow_optimizer(timeline)
    return all(np.count_nonzero(follows[rows]) >= MOSTLY * rows.size for rows in calls)


def _of_optimizer(given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints) -> _Broadcasts | None:
    """Return the broadcasts of unknown sizes, where optimizers launch all of them, as many in most steps, and they
    transfer for long; else it is not known what they carry."""
    calls = timeline.collectives
    if (calls.bytes[rows] != NONE).any() or not _launched_by_optimizer(timeline, rows).all():
        return None
    rows = rows[calls.step[rows] != NONE]
    step, place, counts = np.unique(calls.step[rows], return_inverse=True, return_counts=True)
    took = calls.end_ns[rows] - transferring(given, timeline).since_ns[rows]
    usual, every = Counter(counts.tolist()).most_common(1), max(len(windows), step.size)
    if every < FEWEST_STEPS or not usual or usual[0][1] < MOSTLY * every:
        return None
    if np.median(sum_by(place, took, step.size)) < LONG_NS:
        return None
    return _Broadcasts(calls=usual[0][0], sizes=(), sent="parameters", own_parts=_has_own_parts(timeline))


def _over_data(timeline: RankTimeline) -> Flags:
    """Return which calls with times are of groups of data parallelism, or of no known dimension."""
    calls, names = timeline.collectives, timeline.names
    other = rows_named(calls.dimension, names, lambda name: name not in ("", DATA))
    return np.asarray(~other & (calls.start_ns != NONE) & (calls.end_ns != NONE), np.bool_)


def _has_own_parts(timeline: RankTimeline) -> bool:
    return any(OWN_PARTS.search(name) for name in timeline.names)


def _launched_by_optimizer(timeline: RankTimeline, rows: Ints) -> Flags:
    return rows_named(timeline.collectives.phase[rows], timeline.names, OPTIMIZER.__eq__)


def _reductions_beside(given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints) -> Ints:
    """Return the reductions of known size in groups of the same ranks as those of these broadcasts."""
    calls, names = timeline.collectives, (*timeline.names, None)  # -1 is no name
    members = {group.name: group.ranks or group.name for group in given.run.groups}
    of_group = [members.get(name, name) if name is not None else None for name in names]
    beside = {of_group[code] for code in unique(calls.group[rows]).tolist()}
    same = np.array([each in beside for each in of_group], np.bool_)[calls.group]
    reduces = rows_named(calls.op, timeline.names, (REDUCE_TO_ALL, REDUCE_TO_ONE).__contains__)
    own = np.flatnonzero(_over_data(timeline) & reduces & same & (calls.bytes != NONE))
    inside: Ints = own[window_of(windows, calls.start_ns[own]) != NONE]
    return inside


def _steps(timeline: RankTimeline, rows: Ints, reduces: Ints) -> Ints:
    """Return the step of each call; where none is marked, of these alone, by their turns: a step begins with the first
    reduction after a broadcast."""
    calls = timeline.collectives
    if (calls.step[rows] != NONE).any():
        return calls.step
    own = np.concatenate((rows, reduces))
    is_reduction = np.arange(own.size) >= rows.size
    order = sort_order(launch_times(timeline, own))
    steps = np.full(calls.op.size, NONE)
    steps[own[order]] = np.cumsum(np.append(False, np.diff(is_reduction[order].astype(np.int64)) > 0)[: own.size])
    return steps


def _usual_sizes(timeline: RankTimeline, windows: Windows, rows: Ints, steps: Ints) -> tuple[int, ...] | None:
    """Return the bytes of the calls that most steps make; None where they differ, or are few."""
    size = timeline.collectives.bytes
    rows = rows[sort_order(steps[rows], size[rows])]
    cuts = np.flatnonzero(np.diff(steps[rows])) + 1
    sizes = Counter(tuple(own.tolist()) for own in np.split(size[rows], cuts) if own.size)
    (usual, times), every = sizes.most_common(1)[0] if sizes else ((), 0), max(len(windows), sizes.total())
    if every < FEWEST_STEPS or times < MOSTLY * every or sum(usual) < LEAST_BYTES:
        return None
    return usual


def _reduced_by(timeline: RankTimeline, rows: Ints, reduces: Ints, steps: Ints) -> str | None:
    """Return the operation that in most steps reduces as many elements as these rows broadcast, which are no integers;
    None where none does."""
    calls, names = timeline.collectives, timeline.names
    if rows_named(calls.dtype[rows], names, INTEGERS.match).any():
        return None
    item = np.array([*(ITEM_BYTES.get(name, 1) for name in names), 1])
    elements, in_steps = calls.bytes // item[calls.dtype], unique(steps[rows])
    reduces = reduces[np.isin(steps[reduces], in_steps)]
    sent = sum_by(np.searchsorted(in_steps, steps[rows]), elements[rows], in_steps.size)
    for op in (REDUCE_TO_ALL, REDUCE_TO_ONE):
        own = reduces[rows_named(calls.op[reduces], names, op.__eq__)]
        got = sum_by(np.searchsorted(in_steps, steps[own]), elements[own], in_steps.size)
        if np.count_nonzero(np.abs(got - sent) <= ALIKE * sent) >= MOSTLY * in_steps.size:
            return op
    return None


def _forward_ns(timeline: RankTimeline, windows: Windows, reduces: Ints) -> float:
    """Return the mean time from the begin of a step to the begin of its first reduction; infinite where steps are not
    marked."""
    calls = timeline.collectives
    if (calls.step[reduces] == NONE).all():
        return np.inf
    window = window_of(windows, calls.start_ns[reduces])
    begins = np.array(sorted(begin for begin, _ in windows), np.int64)
    first, held = smallest_by(window, calls.start_ns[reduces], begins.size), unique(window)
    return float((first[held] - begins[held]).mean())

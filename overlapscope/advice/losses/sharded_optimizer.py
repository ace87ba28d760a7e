"""Rule: an optimizer whose state is sharded over data parallelism reduces and gathers, or gathers alone, beside
nothing."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.beside_micro_batches import shares_beside
from overlapscope.advice.losses.gradient_passes import after_first_gradient_ns, backward_waits_ns
from overlapscope.advice.rule_input import (
    LARGE_BYTES,
    NOTHING,
    RuleInput,
    Windows,
    ms,
    recommended,
    time_of,
    window_of,
)
from overlapscope.analysis.per_rank.optimizers import follow_optimizer, optimizer_begins
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, OPTIMIZER
from overlapscope.timeline.intervals import BusyTime, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by
from overlapscope.timeline.run import RankTimeline

MEGATRON: Final = ("--overlap-grad-reduce", "--overlap-param-gather")
GATHER: Final = "--overlap-param-gather  # needs --overlap-grad-reduce and --use-distributed-optimizer, too"
DEEPSPEED: Final = '{"zero_optimization": {"overlap_comm": true}}'
TORCH: Final = (
    "# reduce in buckets during backward, on a stream of their own (async_op=True); wait once, before the optimizer",
    "# gather beside the next forward, module by module, and wait for each before it computes",
)
SCATTER: Final = (
    "# as many bytes are gathered as reduced: reduce_scatter with all_gather sends two thirds of what all_reduce with "
    "all_gather does (FSDP2 with reshard_after_forward=False; DeepSpeed's stages 1 and 2 all-reduce, with "
    "reduce_scatter=true as well)"
)
ALIKE: Final = 0.02
"""Bytes that are gathered may differ from those that are reduced by this share, as for padding."""
IF_ALL_REDUCED: Final = (
    "# an optimizer that is not sharded (no ZeroRedundancyOptimizer) gathers nothing, if memory holds its whole state",
    TORCH[1],
    SCATTER,
)
STAGE_0: Final = '{"zero_optimization": {"stage": 0}}  # gathers nothing, if memory holds the whole optimizer'
FREE_TIME: Final = "a step has time without communication"
OF_MICRO_BATCHES: Final = (
    ", and gradients are complete only in backward of the last micro-batch of each chunk of layers, as parameters are "
    "needed in forward of the first"
)
LONG_NS: Final = 1_000_000
"""A call of which no size is known is large if it takes so long once all have come. A choice: many times NCCL's
latency."""
LATEST: Final = int(np.iinfo(np.int64).max)
HOST_WAITED_NS: Final = "host_waited_ns"
"""In the evidence: exposed time of these calls that only the host waited for (`blocking_calls`)."""


class _Sharded(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reduces before its optimizer, and gathers after it; ns a step."""

    reduce_ns: float
    gather_ns: float
    overlapped_ns: float
    """How much of both is overlapped ..."""
    gather_overlapped_ns: float
    """... and how much of what is gathered."""
    waited_ns: float
    """How much of both, exposed, only the host waited for ..."""
    gather_waited_ns: float
    """... and how much of what is gathered."""
    forward_ns: float
    """From the begin of a step, or the last gather, to its first call of backward, at most; infinite where that is not
    known."""
    free_ns: float
    """Time without communication, from the first span of a rank to the last."""
    compute_ns: float

    def beside_ns(self, serial_ns: float, share: float) -> float:
        """Return how much of so long calls can be beside compute, of which a share may be beside them."""
        return max(min(serial_ns, self.free_ns, share * self.compute_ns if share < 1 else np.inf), 0.0)


def sharded_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where gradients are scattered and parameters gathered beside no compute, on devices, or
    where parameters alone are."""
    if given.job.serves or not given.run_has_device:
        return None
    each = [_sharded(given, timeline, windows) for timeline, windows in given.some_ranks()]
    if not any(one.gather_ns for one in each):
        each = [_by_turns(given, timeline, windows, "reduce_scatter") for timeline, windows in given.some_ranks()]
    mean = _mean(each)
    if not mean.gather_ns:
        every = [_by_turns(given, timeline, windows, "all_reduce") for timeline, windows in given.some_ranks()]
        return _of_all_reduced(given, _mean(every))
    if mean.overlapped_ns <= NOTHING * (mean.reduce_ns + mean.gather_ns):
        return _of_both(given, each)
    return _of_gathers(given, each) if mean.gather_overlapped_ns <= NOTHING * mean.gather_ns else None


def _mean(each: Sequence[_Sharded]) -> _Sharded:
    return _Sharded(
        **{part: sum(getattr(one, part) for one in each) / max(len(each), 1) for part in _Sharded.__struct_fields__}
    )


def _of_all_reduced(given: RuleInput, found: _Sharded) -> Recommendation | None:
    """Return the recommendation where each rank has all gradients, but updates a part of the parameters alone, and
    nothing is computed while all of them are gathered: that can be left out, or be beside the next forward."""
    exposed = found.gather_ns - found.gather_overlapped_ns
    if not given.is_worth(exposed):
        return None
    beside = given.besides_ns(min(exposed, found.forward_ns))
    return recommended(
        given,
        id="sharded_optimizer",
        title="Gather no parameters, or gather them beside the next forward: all_reduce leaves all gradients on each "
        f"rank, yet all_gather after the optimizer takes {ms(found.gather_ns)} of a {ms(given.step_ns)} {given.per}, "
        "and nothing is computed beside it",
        at_most_ns=exposed,
        apply={"megatron": GATHER, "deepspeed": STAGE_0, "torch": "\n".join(IF_ALL_REDUCED)},
        evidence={
            "gather_ns": round(found.gather_ns),
            "exposed_ns": round(exposed),
            "beside_forward_ns": round(beside),
            HOST_WAITED_NS: round(found.gather_waited_ns),
        },
        measured=["these calls, their bytes, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            "that memory holds the whole state of the optimizer on each rank, and that updating all of it takes no "
            f"longer; beside the next forward it is at most {ms(beside)}: the gain is an upper bound",
        ],
    )


def _of_gathers(given: RuleInput, each: Sequence[_Sharded]) -> Recommendation | None:
    """Return the recommendation where reductions are overlapped, at least in part, and gathers are not."""
    found = max(each, key=lambda one: one.gather_ns)
    exposed = [one.gather_ns - one.gather_overlapped_ns for one in each]
    longest = [min(ns, one.forward_ns) for one, ns in zip(each, exposed, strict=True)]
    bound = _bound(given, each, longest)
    if bound is None:
        return None
    known = np.isfinite(found.forward_ns)
    return recommended(
        given,
        id="sharded_optimizer",
        title=f"Gather parameters beside the next forward: all_gather between the optimizer and forward takes "
        f"{ms(found.gather_ns)} of a {ms(given.step_ns)} {given.per}{_on_one([one.gather_ns for one in each])}, and "
        "nothing is computed beside it",
        at_most_ns=bound.at_most_ns,
        loss_ns=bound.loss_ns,
        apply={"megatron": GATHER, "torch": TORCH[1]},
        evidence={
            "gather_ns": round(found.gather_ns),
            "exposed_ns": round(found.gather_ns - found.gather_overlapped_ns),
            HOST_WAITED_NS: round(found.gather_waited_ns),
        }
        | ({"forward_ns": round(found.forward_ns)} if known else {}),
        measured=["these calls, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            f"that all of it can be overlapped, as far as {'forward lasts' if known else FREE_TIME}{bound.words}",
        ],
    )


def _of_both(given: RuleInput, each: Sequence[_Sharded]) -> Recommendation | None:
    """Return the recommendation where neither reductions nor gathers are overlapped."""
    found = max(each, key=lambda one: one.reduce_ns + one.gather_ns)
    waits = backward_waits_ns(given)
    beside = waits or after_first_gradient_ns(given)
    bound = _bound(given, each, [min(one.reduce_ns, beside) + min(one.gather_ns, one.forward_ns) for one in each])
    if bound is None:
        return None
    reduces, gathers = found.reduce_ns, found.gather_ns
    most = _on_one([one.reduce_ns + one.gather_ns for one in each])
    first = "Wait once for gradients, before the optimizer" if waits else "Reduce gradients during backward"
    return recommended(
        given,
        id="sharded_optimizer",
        title=f"{first}, and gather parameters beside the next forward: reduce_scatter ({ms(reduces)} of a "
        f"{ms(given.step_ns)} {given.per}) and all_gather ({ms(gathers)}) around the optimizer"
        f"{most}{',' * bool(most)} are beside no compute",
        at_most_ns=bound.at_most_ns,
        loss_ns=bound.loss_ns,
        apply={"megatron": " ".join(MEGATRON), "deepspeed": DEEPSPEED, "torch": "\n".join(TORCH)},
        evidence={
            "reduce_ns": round(reduces),
            "gather_ns": round(gathers),
            "exposed_ns": round(reduces + gathers - found.overlapped_ns),
            HOST_WAITED_NS: round(found.waited_ns),
        },
        measured=["these calls, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            f"that all of it can be overlapped, as far as {FREE_TIME}{bound.words}",
        ],
    )


def _on_one(shown_ns: Sequence[float]) -> str:
    """Return the words that say that the largest of these figures of ranks is shown, where others are smaller."""
    return ", on the rank with most" * (max(shown_ns) > (1 + ALIKE) * min(shown_ns))


class _Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What can be overlapped in a step."""

    at_most_ns: float | None
    """None where it is not known how much of compute may be beside these calls."""
    loss_ns: int | None
    """What orders it then: at least so much of compute may be."""
    words: str
    """What is assumed, after what bounds it."""


def _bound(given: RuleInput, each: Sequence[_Sharded], serial_ns: Sequence[float]) -> _Bound | None:
    """Return how much of these times of ranks can be overlapped, on the rank where that is most: others may wait for
    it; None where it is not worth it."""
    ranks = list(zip(each, serial_ns, strict=True))
    every = max((one.beside_ns(ns, 1.0) for one, ns in ranks), default=0.0)
    if not given.is_worth(every):
        return None
    low, high = shares_beside(given)
    least, most = (max(one.beside_ns(ns, share) for one, ns in ranks) for share in (low, high))
    if low < high:
        words = f"{OF_MICRO_BATCHES}; the number of micro-batches is not known, so no bound is given"
        return _Bound(at_most_ns=None, loss_ns=round(least), words=words)
    words = f"{OF_MICRO_BATCHES}, which is {high:.0%} of compute" if high < 1 else ""
    words += ": the gain is an upper bound"
    return _Bound(at_most_ns=most, loss_ns=None, words=words) if given.is_worth(most) else None


def _over_data(timeline: RankTimeline, op: str) -> Flags:
    """Return which calls are of an operation, in groups of data parallelism or of no known dimension."""
    calls, names = timeline.collectives, timeline.names
    data = (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    return data & rows_named(calls.op, names, op.__eq__)


def _by_turns(given: RuleInput, timeline: RankTimeline, windows: Windows, op: str) -> _Sharded:
    """Return the calls of groups that reduce by `op`, run the optimizer, and then gather as many elements, with nothing
    computed between the gathers; steps need not be marked.

    The first gathers may follow reductions from before the recording: these alone need not be as many, and count where
    they are as the later ones.
    """
    calls = timeline.collectives
    reduces, gathers = (_over_data(timeline, each) for each in (op, "all_gather"))
    large = (calls.bytes >= LARGE_BYTES) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
    own = np.flatnonzero((reduces | gathers) & large & (calls.launch_ns != NONE))
    own = own[window_of(windows, calls.start_ns[own]) != NONE]
    own = own[sort_order(calls.group[own], calls.launch_ns[own])]
    item = np.array([*(ITEM_BYTES.get(name, 1) for name in timeline.names), 1])
    elements, begins = calls.bytes // item[calls.dtype], optimizer_begins(timeline)
    compute = BusyTime(given.coverage[timeline.rank].compute)
    found: list[Ints] = []
    forward_ns: list[int] = []
    for rows in split_by(factorize_rows([calls.group[own]])[0]):
        turns = np.flatnonzero(np.diff(gathers[own[rows]].astype(np.int64)) < 0) + 1  # from gathers to reductions
        cycles = np.split(own[rows], turns)
        gathering = [each for each in cycles if gathers[each].any()]
        updates = [
            each
            for each in gathering
            if _gathers_updates(timeline, each, gathers[each], elements[each], begins, compute)
        ]
        if not updates or len(updates) < len(gathering) - 1:
            continue
        if _are_as_later_gathers(timeline, cycles[0], updates[0], gathers, compute):
            updates.insert(0, cycles[0])
        found += updates
        forward_ns += [
            int(calls.start_ns[after[0]] - calls.end_ns[before[-1]])
            for before, after in pairwise(cycles)
            if any(before is each for each in updates)
        ]
    rows = np.concatenate(found) if found else np.empty(0, np.int64)
    forward = fmean(forward_ns) * len(found) / len(windows) if forward_ns else np.inf
    return _of_rows(given, timeline, windows, rows, gathers, forward)


def _are_as_later_gathers(timeline: RankTimeline, rows: Ints, later: Ints, gathers: Flags, compute: BusyTime) -> bool:
    """Return whether these calls are gathers alone, of the bytes of those among the `later` calls, with nothing
    computed between them: the recording began after the reductions before them."""
    sizes = timeline.collectives.bytes
    alike = np.array_equal(sizes[rows], sizes[later[gathers[later]]])
    return bool(gathers[rows].all()) and alike and _is_between_nothing(timeline, rows, compute)


def _is_between_nothing(timeline: RankTimeline, rows: Ints, compute: BusyTime) -> bool:
    """Return whether nothing is computed from the first of these calls to the last."""
    calls = timeline.collectives
    first, last = calls.start_ns[rows].min(), calls.end_ns[rows].max()
    computed = compute.within(np.array([first]), np.array([last]))
    return bool(computed[0] <= NOTHING * (last - first))


def _gathers_updates(
    timeline: RankTimeline, rows: Ints, gathered: Flags, elements: Ints, begins: Ints, compute: BusyTime
) -> bool:
    """Return whether an optimizer runs between these reductions and the gathers behind them, of as many elements, and
    nothing is computed between the gathers.

    `elements` are those of each of these calls, `begins` when optimizers begin on the host.
    """
    calls, reduces, gathers = timeline.collectives, rows[~gathered], rows[gathered]
    sent, got = int(elements[~gathered].sum()), int(elements[gathered].sum())
    if not reduces.size or abs(got - sent) > ALIKE * sent:
        return False
    begun = np.searchsorted(begins, calls.launch_ns[[reduces[-1], gathers[0]]])
    return bool(begun[1] > begun[0]) and _is_between_nothing(timeline, gathers, compute)


def _sharded(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Sharded:
    """Return the calls of groups that only reduce-scatter in a step, then compute, and then only gather."""
    calls = timeline.collectives
    reduces, gathers = (_over_data(timeline, op) for op in ("reduce_scatter", "all_gather"))
    own = np.flatnonzero((reduces | gathers) & _are_large(given, timeline, gathers))
    window = window_of(windows, calls.start_ns[own])
    own, window = own[window != NONE], window[window != NONE]
    compute = BusyTime(given.coverage[timeline.rank].compute)
    found: list[Ints] = []
    for rows in split_by(factorize_rows([calls.group[own], window])[0]):
        those = own[rows]
        last, first = calls.end_ns[those[reduces[those]]], calls.start_ns[those[gathers[those]]]
        if last.size and first.size and int(compute.within(last.max()[None], first.min()[None])[0]) > 0:
            found.append(those)
    rows = np.concatenate(found) if found else np.empty(0, np.int64)
    return _of_rows(given, timeline, windows, rows, gathers, _forward_ns(timeline, windows))


def _of_rows(
    given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints, gathers: Flags, forward_ns: float
) -> _Sharded:
    """Return the figures of these calls of a rank, of which some are `gathers`."""
    calls, cover = timeline.collectives, given.coverage[timeline.rank]
    compute = BusyTime(cover.compute)
    took, gathered = calls.end_ns[rows] - calls.start_ns[rows], gathers[rows]
    beside = compute.within(calls.start_ns[rows], calls.end_ns[rows])
    waited = BusyTime((given.parts[timeline.rank].by_graph or {}).get("host_waited", union()))
    of_host = waited.within(calls.start_ns[rows], calls.end_ns[rows])
    # The last step may end before what the next one begins with is gathered.
    inside = intersection(time_of(windows), union((np.array([cover.first_ns]), np.array([LATEST]))))
    steps = max(len(windows) - int(not (window_of(windows, calls.start_ns[rows]) == len(windows) - 1).any()), 1)
    return _Sharded(
        reduce_ns=int(took[~gathered].sum()) / steps,
        gather_ns=int(took[gathered].sum()) / steps,
        overlapped_ns=int(beside.sum()) / steps,
        gather_overlapped_ns=int(beside[gathered].sum()) / steps,
        waited_ns=int(of_host.sum()) / steps,
        gather_waited_ns=int(of_host[gathered].sum()) / steps,
        forward_ns=forward_ns,
        free_ns=length(difference(inside, cover.comm)) / max(len(windows), 1),
        compute_ns=length(intersection(inside, cover.compute)) / max(len(windows), 1),
    )


def _are_large(given: RuleInput, timeline: RankTimeline, gathers: Flags) -> Flags:
    """Return which calls with times are large: of unknown size those that last long since their last member arrived,
    of gathers only those that an optimizer launches or that follow one."""
    calls, arrived_ns = timeline.collectives, given.arrivals[timeline.rank].arrived_ns
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    is_long = (arrived_ns != NONE) & (calls.end_ns - np.maximum(arrived_ns, calls.start_ns) >= LONG_NS)
    of_optimizer = rows_named(calls.phase, timeline.names, OPTIMIZER.__eq__) | follow_optimizer(timeline)
    large = np.where(calls.bytes == NONE, is_long & (of_optimizer | ~gathers), calls.bytes >= LARGE_BYTES)
    return np.asarray(timed & large, np.bool_)


def _forward_ns(timeline: RankTimeline, windows: Windows) -> float:
    """Return the mean time from the begin of a step to the begin of its first call of backward; infinite where no such
    call is known."""
    calls = timeline.collectives
    start = np.sort(calls.start_ns[rows_named(calls.phase, timeline.names, BACKWARD.__eq__) & (calls.start_ns != NONE)])
    window, at = np.unique(window_of(windows, start), return_index=True)
    begins = np.array(sorted(begin for begin, _ in windows), np.int64)
    known = window != NONE
    return float((start[at[known]] - begins[window[known]]).mean()) if known.any() else np.inf

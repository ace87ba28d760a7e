"""Rule: an optimizer whose state is sharded over data parallelism reduces and gathers, or gathers alone, beside
nothing."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.losses.exposed_calls import backward_waits_ns, follow_optimizer
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA, OPTIMIZER
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, split_by
from overlapscope.timeline.run import RankTimeline

MEGATRON: Final = ("--overlap-grad-reduce", "--overlap-param-gather")
GATHER: Final = "--overlap-param-gather  # needs --overlap-grad-reduce and --use-distributed-optimizer, too"
DEEPSPEED: Final = '{"zero_optimization": {"overlap_comm": true}}'
TORCH: Final = (
    "# reduce in buckets during backward, on a stream of their own (async_op=True); wait once, before the optimizer",
    "# gather beside the next forward, module by module, and wait for each before it computes",
)
FREE_TIME: Final = "a step has time without communication"
LONG_NS: Final = 1_000_000
"""A call of which no size is known is large if it takes so long once all have come. A choice: many times NCCL's
latency."""
HOST_WAITED_NS: Final = "host_waited_ns"
"""In the evidence: exposed time of these calls that only the host waited for (`blocking_calls`)."""


class _Sharded(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reduces before its optimizer, and gathers after it; ns a step."""

    reduce_ns: float
    gather_ns: float
    beside_ns: float
    """How much of both is overlapped ..."""
    gather_beside_ns: float
    """... and how much of what is gathered."""
    waited_ns: float
    """How much of both, exposed, only the host waited for ..."""
    gather_waited_ns: float
    """... and how much of what is gathered."""
    forward_ns: float
    """From the begin of a step to its first call of backward, at most; infinite where that is not known."""


def sharded_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where gradients are scattered and parameters gathered beside no compute, on devices, or
    where parameters alone are."""
    if given.job.serves or not given.run_has_device:
        return None
    each = [_sharded(given, timeline, windows) for timeline, windows in given.some_ranks()]
    mean = _Sharded(
        **{part: sum(getattr(one, part) for one in each) / max(len(each), 1) for part in _Sharded.__struct_fields__}
    )
    if mean.beside_ns <= NOTHING * (mean.reduce_ns + mean.gather_ns):
        return _of_both(given, mean)
    return _of_gathers(given, mean) if mean.gather_beside_ns <= NOTHING * mean.gather_ns else None


def _of_gathers(given: RuleInput, found: _Sharded) -> Recommendation | None:
    """Return the recommendation where reductions are overlapped, at least in part, and gathers are not."""
    exposed = found.gather_ns - found.gather_beside_ns
    at_most = given.besides_ns(min(exposed, found.forward_ns))
    if not given.is_worth(at_most):
        return None
    known = np.isfinite(found.forward_ns)
    return recommended(
        given,
        id="sharded_optimizer",
        title=f"Gather parameters beside the next forward: all_gather between the optimizer and forward takes "
        f"{ms(found.gather_ns)} of a {ms(given.step_ns)} {given.per}, and nothing is computed beside it",
        at_most_ns=at_most,
        apply={"megatron": GATHER, "torch": TORCH[1]},
        evidence={
            "gather_ns": round(found.gather_ns),
            "exposed_ns": round(exposed),
            HOST_WAITED_NS: round(found.gather_waited_ns),
        }
        | ({"forward_ns": round(found.forward_ns)} if known else {}),
        measured=["these calls, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            f"that all of it can be overlapped, as far as {'forward lasts' if known else FREE_TIME}: the gain is an "
            "upper bound",
        ],
    )


def _of_both(given: RuleInput, found: _Sharded) -> Recommendation | None:
    """Return the recommendation where neither reductions nor gathers are overlapped."""
    reduces, gathers = found.reduce_ns, found.gather_ns
    waits = backward_waits_ns(given)
    at_most = given.besides_ns(min(reduces, waits or reduces) + gathers)
    first = "Wait once for gradients, before the optimizer" if waits else "Reduce gradients during backward"
    if not given.is_worth(at_most):
        return None
    return recommended(
        given,
        id="sharded_optimizer",
        title=f"{first}, and gather parameters beside the next forward: reduce_scatter ({ms(reduces)} of a "
        f"{ms(given.step_ns)} {given.per}) and all_gather ({ms(gathers)}) around the optimizer are beside no compute",
        at_most_ns=at_most,
        apply={"megatron": " ".join(MEGATRON), "deepspeed": DEEPSPEED, "torch": "\n".join(TORCH)},
        evidence={
            "reduce_ns": round(reduces),
            "gather_ns": round(gathers),
            "exposed_ns": round(reduces + gathers - found.beside_ns),
            HOST_WAITED_NS: round(found.waited_ns),
        },
        measured=["these calls, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            f"that all of it can be overlapped, as far as {FREE_TIME}: the gain is an upper bound",
        ],
    )


def _sharded(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Sharded:
    """Return the calls of groups that only reduce-scatter in a step, then compute, and then only gather."""
    calls, names = timeline.collectives, timeline.names
    data = (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    reduces = rows_named(calls.op, names, "reduce_scatter".__eq__)
    gathers = rows_named(calls.op, names, "all_gather".__eq__)
    own = np.flatnonzero(data & (reduces | gathers) & _are_large(given, timeline, gathers))
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
    took, gathered = calls.end_ns[rows] - calls.start_ns[rows], gathers[rows]
    beside = compute.within(calls.start_ns[rows], calls.end_ns[rows])
    waited = BusyTime((given.parts[timeline.rank].by_graph or {}).get("host_waited", union()))
    of_host = waited.within(calls.start_ns[rows], calls.end_ns[rows])
    # The last step may end before what the next one begins with is gathered.
    steps = max(len(windows) - int(not (window_of(windows, calls.start_ns[rows]) == len(windows) - 1).any()), 1)
    return _Sharded(
        reduce_ns=int(took[~gathered].sum()) / steps,
        gather_ns=int(took[gathered].sum()) / steps,
        beside_ns=int(beside.sum()) / steps,
        gather_beside_ns=int(beside[gathered].sum()) / steps,
        waited_ns=int(of_host.sum()) / steps,
        gather_waited_ns=int(of_host[gathered].sum()) / steps,
        forward_ns=_forward_ns(timeline, windows),
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

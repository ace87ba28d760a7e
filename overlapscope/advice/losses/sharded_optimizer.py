"""Rule: an optimizer whose state is sharded over data parallelism reduces and gathers beside nothing."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.losses.exposed_calls import backward_waits_ns
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, split_by
from overlapscope.timeline.run import RankTimeline

MEGATRON: Final = ("--overlap-grad-reduce", "--overlap-param-gather")
DEEPSPEED: Final = '{"zero_optimization": {"overlap_comm": true}}'
TORCH: Final = (
    "# reduce in buckets during backward, on a stream of their own (async_op=True); wait once, before the optimizer",
    "# gather beside the next forward, module by module, and wait for each before it computes",
)


class _Sharded(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reduces before its optimizer, and gathers after it; ns a step."""

    reduce_ns: float
    gather_ns: float
    beside_ns: float
    """How much of both is overlapped."""


def sharded_optimizer(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where gradients are scattered and parameters gathered beside no compute, on devices."""
    if given.job.serves or not given.run_has_device:
        return None
    each = [_sharded(given, timeline, windows) for timeline, windows in given.some_ranks()]
    reduces, gathers, beside = (
        sum(getattr(one, part) for one in each) / max(len(each), 1) for part in ("reduce_ns", "gather_ns", "beside_ns")
    )
    exposed = reduces + gathers - beside
    waits = backward_waits_ns(given)
    at_most = given.besides_ns(min(reduces, waits or reduces) + gathers)
    first = "Wait once for gradients, before the optimizer" if waits else "Reduce gradients during backward"
    if not given.is_worth(at_most) or beside > NOTHING * (reduces + gathers):
        return None
    return recommended(
        given,
        id="sharded_optimizer",
        title=f"{first}, and gather parameters beside the next forward: reduce_scatter ({ms(reduces)} of a "
        f"{ms(given.step_ns)} {given.per}) and all_gather ({ms(gathers)}) around the optimizer are beside no compute",
        at_most_ns=at_most,
        apply={"megatron": " ".join(MEGATRON), "deepspeed": DEEPSPEED, "torch": "\n".join(TORCH)},
        evidence={"reduce_ns": round(reduces), "gather_ns": round(gathers), "exposed_ns": round(exposed)},
        measured=["these calls, and that nothing is computed beside them"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            "that all of it can be overlapped, as far as a step has time without communication: the gain is an upper "
            "bound",
        ],
    )


def _sharded(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Sharded:
    """Return the calls of groups that only reduce-scatter in a step, then compute, and then only gather."""
    calls, names = timeline.collectives, timeline.names
    data = (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    reduces = rows_named(calls.op, names, "reduce_scatter".__eq__)
    gathers = rows_named(calls.op, names, "all_gather".__eq__)
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.bytes >= LARGE_BYTES)
    own = np.flatnonzero(data & (reduces | gathers) & timed)
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
    took = calls.end_ns[rows] - calls.start_ns[rows]
    return _Sharded(
        reduce_ns=int(took[reduces[rows]].sum()) / len(windows),
        gather_ns=int(took[gathers[rows]].sum()) / len(windows),
        beside_ns=int(compute.within(calls.start_ns[rows], calls.end_ns[rows]).sum()) / len(windows),
    )

"""Rule: in backward FSDP gathers each layer's parameters only after the gradients before them were reduced, and compute
waits for both: nothing is gathered ahead."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.job_kind import uses_fsdp1
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, sort_order
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import SHARDS_PARAMETERS

SOON_NS: Final = 20_000
"""Compute that begins within this time of a call's end had waited for it. A choice: streams need some microseconds."""
MOSTLY: Final = 0.5
"""Least share of large reduce-scatters that such a gather follows. A choice: the last of a step has none."""
FOR_FSDP1: Final = "FullyShardedDataParallel(module, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)"
FOR_FSDP2: Final = "module.set_modules_to_backward_prefetch([...])  # the one before it in forward, on each one"


class _Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """The reduce-scatters of a rank that are followed so, with their gathers; of all its windows."""

    scatters: int
    """How many large ones there are."""
    found: int
    taken_ns: float
    """From the begin of each to the end of its gather, a step."""


def backward_prefetch(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where most reduce-scatters and the gathers after them delay backward, on devices."""
    if given.job.serves or not given.run_has_device or not _is_fsdp(given):
        return None
    each = [_pairs(given, timeline, windows) for timeline, windows in given.some_ranks()]
    found, scatters = sum(one.found for one in each), sum(one.scatters for one in each)
    taken = sum(one.taken_ns for one in each) / max(len(each), 1)
    at_most = given.besides_ns(taken)
    if not found or found < MOSTLY * scatters or not given.is_worth(at_most):
        return None
    many = round(found / sum(len(windows) for _, windows in given.some_ranks()))
    first = uses_fsdp1(given.run)
    return recommended(
        given,
        id="backward_prefetch",
        title=f"Prefetch parameters in backward: {many} times a {given.per} a gather begins only after the "
        f"reduce-scatter before it, and the next layer waits for both ({ms(taken)} of a {ms(given.step_ns)} "
        f"{given.per}); nothing is computed beside them",
        at_most_ns=at_most,
        apply={"torch": FOR_FSDP1} if first else {"fsdp2": FOR_FSDP2},
        evidence={"pairs": many, "taken_ns": round(taken)},
        measured=["these calls, that nothing is computed beside them, and that compute begins when the gathers end"],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            "that all of it can be overlapped, as far as a step has time without communication: the gain is an upper "
            "bound",
        ],
    )


def _is_fsdp(given: RuleInput) -> bool:
    return any(SHARDS_PARAMETERS.search(name) for timeline in given.run.ranks.values() for name in timeline.names)


def _pairs(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Pairs:
    """Find large reduce-scatters whose group's next call of the step is a gather that the device had no time for
    before, and that compute waits for; the host had launched both before the first one ended."""
    calls, names = timeline.collectives, timeline.names
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.launch_ns != NONE)
    kinds = rows_named(calls.op, names, ("reduce_scatter", "all_gather").__contains__)
    rows = np.flatnonzero(timed & kinds & (calls.bytes >= LARGE_BYTES))
    rows = rows[window_of(windows, calls.start_ns[rows]) != NONE]
    group = factorize_rows([calls.group[rows], calls.step[rows]])[0]
    order = sort_order(group, calls.start_ns[rows])
    rows, group = rows[order], group[order]
    scatters = rows_named(calls.op[rows], names, "reduce_scatter".__eq__)
    place = np.flatnonzero(scatters[:-1] & ~scatters[1:] & (group[1:] == group[:-1]))
    chosen = _delays_compute(given, timeline, rows[place], rows[place + 1])
    taken = (calls.end_ns[rows[place + 1]] - calls.start_ns[rows[place]])[chosen]
    return _Pairs(
        scatters=int(scatters.sum()), found=int(chosen.sum()), taken_ns=int(taken.sum()) / max(len(windows), 1)
    )


def _delays_compute(given: RuleInput, timeline: RankTimeline, scatter: Ints, gather: Ints) -> Flags:
    calls, compute = timeline.collectives, given.coverage[timeline.rank].compute
    begin, until, end = calls.start_ns[scatter], calls.end_ns[scatter], calls.end_ns[gather]
    after = np.searchsorted(compute.starts, end - SOON_NS)
    follows = np.append(compute.starts, np.iinfo(np.int64).max)[after] - end <= SOON_NS
    launched = (calls.launch_ns[gather] > calls.launch_ns[scatter]) & (calls.launch_ns[gather] <= until)
    beside = BusyTime(compute).within(begin, end)
    return np.asarray(follows & launched & (calls.start_ns[gather] >= until) & (beside <= NOTHING * (end - begin)))

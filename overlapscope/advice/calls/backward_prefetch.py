"""Rule: FSDP gathers nothing ahead: in backward each layer's parameters only after the gradients before them were
reduced, while compute waits for both, or in forward, too, only when the compute before has ended."""

from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.binding_calls import AT_ONCE_NS
from overlapscope.advice.calls.savings import kept_by_hosts, saved_by_overlap_ns
from overlapscope.advice.job_kind import uses_fsdp1
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, sort_order
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_fsdp

OF_FSDP: Final = ("all_gather", "reduce_scatter")
IN_FORWARD: Final = "in_forward"
"""In the evidence: true where nothing is gathered ahead in forward, too."""
SOON_NS: Final = 20_000
"""Compute that begins within this time of a call's end had waited for it. A choice: streams need some microseconds."""
MAIN: Final = 0.9
"""Least share of a rank's compute that its main stream has. A choice: copies of FSDP beside it take some per cent."""
MOSTLY: Final = 0.5
"""Least share of large reduce-scatters that such a gather follows. A choice: the last of a step has none."""
NEARLY_ALL: Final = 0.9
"""Least share of the gathers of parameters that are not prefetched, where none is said to be. A choice: the first of a
step may run beside the optimizer."""
UNITS: Final = 4
"""Least gathers of one size in a step of a model whose blocks are sharded one by one. A choice: two blocks in forward,
and in backward."""
FOR_BOTH: Final = {
    "torch": "FullyShardedDataParallel(module, forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE)",
    "fsdp2": "module.set_modules_to_forward_prefetch([...])  # the next one, on each one\n"
    "module.set_modules_to_backward_prefetch([...])  # the one before it in forward, on each one",
}
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
    if prefetches_nothing(given):
        return _in_forward_too(given)
    each = [_pairs(given, timeline, windows) for timeline, windows in given.some_ranks()]
    found, scatters = sum(one.found for one in each), sum(one.scatters for one in each)
    taken = sum(one.taken_ns for one in each) / max(len(each), 1)
    at_most = min(given.besides_ns(taken), given.host_free_ns)
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
            *kept_by_hosts(given, at_most),
        ],
    )


def _in_forward_too(given: RuleInput) -> Recommendation | None:
    """Return the recommendation to prefetch in both passes, where gathers and reduce-scatters are exposed for long
    enough."""
    rows = [row for row in given.analysis.collectives if row.op in OF_FSDP and row.dimension in (None, DATA)]
    exposed = given.exposed_ns(rows)
    at_most = given.besides_ns(min(exposed, saved_by_overlap_ns(given, rows)))
    if not given.is_worth(at_most):
        return None
    return recommended(
        given,
        id="backward_prefetch",
        title=f"Prefetch parameters in forward and backward: each gather begins only when the compute launched before "
        f"it has ended, and {ms(exposed)} of a {ms(given.step_ns)} {given.per} are exposed (all_gather, "
        "reduce_scatter)",
        at_most_ns=at_most,
        apply={"torch": FOR_BOTH["torch"]} if uses_fsdp1(given.run) else {"fsdp2": FOR_BOTH["fsdp2"]},
        evidence={"exposed_ns": round(exposed), IN_FORWARD: True},
        measured=[
            "when gathers, and the compute launched before them, ran, and these calls without compute beside them"
        ],
        assumed=[
            *([] if given.is_whole else ["that none of it is waiting for ranks that were not recorded"]),
            "that all of it can be overlapped, as far as a step has time without communication: the gain is an upper "
            "bound",
            *kept_by_hosts(given, at_most),
        ],
    )


def gathers_units(given: RuleInput) -> bool:
    """Return whether each rank at hand gathers parameters of one size several times a step: blocks are sharded one by
    one."""
    return all(_of_units(timeline, windows).size >= UNITS * len(windows) for timeline, windows in given.some_ranks())


def prefetches_nothing(given: RuleInput) -> bool:
    """Return whether nearly all gathers of blocks begin only after the compute that was launched before them has ended,
    though the host had launched most of them earlier, and compute waits for them: in forward, too, none is gathered
    ahead."""
    if not gathers_units(given):
        return False
    each = [_waiting(timeline, windows) for timeline, windows in given.some_at_hand()]
    return bool(each) and min(late for _, late in each) >= NEARLY_ALL and min(waits for waits, _ in each) > MOSTLY


def _of_units(timeline: RankTimeline, windows: Windows) -> Ints:
    """Return the gathers of a rank in its windows (rows of its calls) of the size that most of the large ones have."""
    calls, names = timeline.collectives, timeline.names
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.launch_ns != NONE)
    of_data = (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    rows = np.flatnonzero(
        timed & of_data & rows_named(calls.op, names, "all_gather".__eq__) & (calls.bytes >= LARGE_BYTES)
    )
    rows = rows[window_of(windows, calls.start_ns[rows]) != NONE]
    _, which = np.unique(calls.bytes[rows], return_inverse=True)
    found: Ints = rows[which == np.bincount(which, minlength=1).argmax()]
    return found


def _waiting(timeline: RankTimeline, windows: Windows) -> tuple[float, float]:
    """Return the share of these gathers that begin only after the compute launched before them has ended, though they
    were launched earlier, and of those that do whenever they were launched; compute begins soon after their end.

    Compute is that of the main stream: FSDP's copies of gradients run beside gathers. None are late without such a one.
    """
    calls, spans, rows = timeline.collectives, timeline.spans, _of_units(timeline, windows)
    compute = _of_main_stream(timeline)
    compute = compute[spans.launch_ns[compute] != NONE]
    compute = compute[np.argsort(spans.launch_ns[compute], kind="stable")]
    before = np.searchsorted(spans.launch_ns[compute], calls.launch_ns[rows])
    ended = np.append(NONE, np.maximum.accumulate(spans.end_ns[compute]))[before]
    begins = np.append(np.sort(spans.start_ns[compute]), np.iinfo(np.int64).max)
    end = calls.end_ns[rows]
    follows = begins[np.searchsorted(begins[:-1], end - SOON_NS)] - end <= SOON_NS
    after = (calls.start_ns[rows] >= ended - AT_ONCE_NS) & (ended != NONE) & follows
    return float((after & (calls.launch_ns[rows] < ended)).mean()), float(after.mean())


def _of_main_stream(timeline: RankTimeline) -> Ints:
    """Return the rows of the compute on the stream that nearly all is on; none where it is spread over several."""
    spans = timeline.spans
    rows = np.flatnonzero(spans.kind == COMPUTE)
    lane_ns = np.bincount(spans.lane[rows], spans.end_ns[rows] - spans.start_ns[rows], 1)
    main = lane_ns.argmax()
    found: Ints = rows[(spans.lane[rows] == main) & (lane_ns[main] >= MAIN * lane_ns.sum())]
    return found


def _is_fsdp(given: RuleInput) -> bool:
    return any(map(shows_fsdp, given.run.ranks.values()))


def _pairs(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Pairs:
    """Find large reduce-scatters whose group's next call of the step is a gather that the device had no time for
    before, and that compute waits for; the host had launched both before the first one ended."""
    calls, names = timeline.collectives, timeline.names
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.launch_ns != NONE)
    kinds = rows_named(calls.op, names, OF_FSDP.__contains__)
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

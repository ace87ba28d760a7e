"""What to do where a rank's own calls are exposed: as far as it is not done already, and helps."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.advice.calls.call_rates import MOST_ALIKE, dominant_calls, exposed_of_calls_ns
from overlapscope.advice.last_bucket import last_is_one_gradient
from overlapscope.advice.losses.after_backward import of_gradients_after_backward
from overlapscope.advice.losses.exposed_calls import (
    IN_A_ROW_NS,
    REDUCE,
    average_parameters,
    go_beside_backward,
    one_bandwidth_gbs,
    range_after_optimizer,
    reduce_after_optimizer,
    run_on_in_rows,
)
from overlapscope.advice.losses.gradient_passes import backward_waits_ns, beside_backward_ns
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, ms, window_of
from overlapscope.analysis.common.wording import short
from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import DATA
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.rows import sort_order, split_by
from overlapscope.whatif.parallelism import shows_ddp

OTHER_WORK: Final = (
    "# the next compute needs the result: give it other work meanwhile (two micro-batches, a part of the tensor at a "
    "time), or fewer bytes"
)
OF_OWN_CALLS: Final = {
    "dependency": f"{OTHER_WORK}; gradients: begin their calls during backward, in buckets",
    "tail": "# only the optimizer follows, or the recording ends: begin to reduce earlier, in buckets, or gather "
    "beside the next forward; a call after the optimizer: is it needed in each step?",
    "queued": "# calls wait on their stream for others, of another operation or group: a communicator of its own, or "
    "another order",
    "ahead": "# calls run on their stream before one that compute waits for: give that one a communicator of its own, "
    "or launch it before them",
}
"""By cause, where nothing more is known of the calls."""
AVERAGES: Final = (
    "# calls follow the optimizer in some steps alone: average parameters more rarely, in 16 bits, or beside the next "
    "steps"
)
"""What to do about local SGD, which sends no gradients."""
AFTER_OPTIMIZER: Final = (
    "# these calls follow the optimizer, so they are no gradients of its step: make them more rarely, with fewer "
    "bytes, or beside the next steps"
)
"""What to do about reductions after the optimizer in each recorded step, as of an outer optimizer."""
BESIDE_BACKWARD: Final = {
    "dependency": f"{OTHER_WORK}; gradients go beside backward already",
    "tail": "# nothing but the optimizer follows, and gradients go beside backward already: {rest}",
}
"""What to do where reductions begin in backward, beside compute."""
OF_OTHERS: Final = {
    "dependency": OTHER_WORK,
    "tail": "# nothing but the optimizer follows the last gradients: fewer bytes",
}
"""What to do where gradients are no matter: with FSDP, where other calls are exposed, or where next to nothing is left
of backward that could run beside them."""
RUN_ON: Final = (
    "# calls begin beside compute, several in a row, and only the ends of rows are exposed: if these are gradients, "
    "they go in buckets beside backward already: fewer bytes (16 bits), or a faster link"
)
"""What to do about reductions of which no phase is known, as no host events are."""
GATHER: Final = ", or gather beside the next forward"
ONE_BANDWIDTH: Final = (
    "# transfer takes longer than compute, at {gbs:.3g} GB/s on the bus whatever the size: fewer bytes a step "
    "({accumulation}; a larger local batch; 16 bits), or a faster link"
)
WAITS_FOR_EACH: Final = (
    "# calls begin in backward, but compute waits for each: wait once, before the optimizer (async_op=True, a stream "
    "of their own; DeepSpeed: overlap_comm=true); that saves at most {most}"
)
OF_HOROVOD: Final = (
    "# gradients go beside backward already; what remains is the last group, after it: fewer bytes "
    "(compression=hvd.Compression.fp16), or the gradient that is ready last earlier"
)
SIXTEEN_BITS, WIDEST = 2, 8
"""Bytes of an element; where its type is not known the most."""
IN_BUCKETS: Final = "# gradients go in buckets beside backward already: "
REPLAY_CAPS: Final = "overlapscope whatif RUN replays other caps"
LAST_BUCKET: Final = "fewer bytes (16 bits), or perhaps a smaller last bucket"
ONE_GRADIENT: Final = "fewer bytes (16 bits); most of the last bucket is one gradient, which no cap makes smaller"
FEWER_BYTES: Final = "fewer bytes (16 bits)"
LINK_IS_LIMIT: Final = (
    "# communication ({comm}) takes longer than the compute beside which it could run ({compute}), in large calls one "
    "after the other, so the link is the limit: compare its rate{rate} with all_reduce_perf of nccl-tests, and see in "
    "the log of NCCL_DEBUG=INFO which cards and transports NCCL chose; else {accumulation}; or fewer bytes (16 bits)"
)
ACCUMULATION: Final = "gradient accumulation"
NO_SYNC: Final = f"{ACCUMULATION} that reduces once, with model.no_sync() for all micro-batches but the last"
REDUCE_ONCE: Final = (
    f"{ACCUMULATION} that reduces between replicas once, with model.set_requires_all_reduce(False) for all "
    "micro-batches but the last"
)
"""Of FSDP2 with hybrid sharding, which all-reduces among replicas what it has scattered."""
OF_TAIL: Final = 0.3
"""A smaller last bucket is offered where the last call has this share of the exposed time of reductions. A choice: with
less, calls before it, which wait for the link, would follow it as late."""
ON_CORES: Final = "; threads that transfer need cores, too: one more a rank, or fewer, larger calls"
"""What to do about a late rest of gradients that are overlapped."""


def of_own_calls(given: RuleInput, cause: str) -> str:
    """Return what to do where the rank's own calls take long, by one of the causes of `OF_OWN_CALLS`."""
    averages = average_parameters(given)
    if averages or reduce_after_optimizer(given):
        name = range_after_optimizer(given, averages=averages)
        text = AVERAGES if averages else AFTER_OPTIMIZER
        return text if name is None else text.replace("calls", f"calls in {short(name)}", 1)
    narrow = _in_sixteen_bits(given)
    gbs = one_bandwidth_gbs(given)
    at_one = _without_bits(ONE_BANDWIDTH, narrow=narrow)
    lines = [] if gbs is None else [at_one.format(gbs=gbs, accumulation=_accumulation(given))]
    waits_ns = backward_waits_ns(given) if cause == "dependency" else 0.0
    if given.is_worth(waits_ns):
        return "\n".join([*lines, WAITS_FOR_EACH.format(most=ms(waits_ns))])
    after = of_gradients_after_backward(given) if cause in BESIDE_BACKWARD else None
    return "\n".join([*lines, after or _without_bits(of_gradients(given, cause), narrow=narrow)])


def _without_bits(text: str, *, narrow: bool) -> str:
    """Return advice without that of 16 bits, where these are sent already."""
    return _without(text, ("; 16 bits", "; or fewer bytes (16 bits)", " (16 bits)")) if narrow else text


def _without(text: str, parts: Sequence[str]) -> str:
    for part in parts:
        text = text.replace(part, "")
    return text


def _in_sixteen_bits(given: RuleInput) -> bool:
    """Return whether most of the exposed time is of calls of 16 bits, or fewer."""
    rows = given.analysis.collectives
    narrow = [row for row in rows if ITEM_BYTES.get(row.dtype or "", WIDEST) <= SIXTEEN_BITS]
    return given.exposed_ns(narrow) > given.exposed_ns(rows) / 2


def of_gradients(given: RuleInput, cause: str) -> str:
    """Return what to do about calls of gradients, as far as these go beside backward already, or else of any calls."""
    if cause not in BESIDE_BACKWARD:
        return OF_OWN_CALLS[cause]
    # FSDP reduces each group of parameters in backward.
    if "fsdp2" in given.job.frameworks or (cause == "dependency" and not _mostly_reduces(given)):
        return OF_OTHERS[cause]
    in_buckets = shows_ddp(given.run) and bool(given.figures.overlapped_ns)
    if not in_buckets and not go_beside_backward(given):
        nothing_left = not given.is_worth(beside_backward_ns(given))
        return RUN_ON if run_on_in_rows(given) else (OF_OTHERS if nothing_left else OF_OWN_CALLS)[cause]
    limit = OF_HOROVOD if "horovod" in given.job.frameworks else _of_link(given)
    if limit is not None:
        return limit
    if cause == "dependency" and in_buckets:
        return f"{IN_BUCKETS}{_rest(given)}{'' if given.run_has_device else ON_CORES}"
    gathers = any(row.op == "all_gather" for row in given.analysis.collectives)
    return BESIDE_BACKWARD[cause].format(rest=_rest(given) + GATHER * gathers)


def _mostly_reduces(given: RuleInput) -> bool:
    """Return whether most of the exposed time is of reductions, as of gradients."""
    rows = given.analysis.collectives
    return 2 * given.exposed_ns(row for row in rows if row.op in REDUCE) >= given.exposed_ns(rows)


def _rest(given: RuleInput) -> str:
    """Return what to do about the last bucket of gradients of which the others go beside backward; where most of what
    is exposed is of other calls, no bucket is why."""
    if not _mostly_reduces(given):
        return FEWER_BYTES
    if last_is_one_gradient(given):
        return ONE_GRADIENT
    if _replays_buckets(given):
        return REPLAY_CAPS
    return LAST_BUCKET if _last_call_decides(given) else FEWER_BYTES


def _accumulation(given: RuleInput) -> str:
    """Return how to reduce less often, as the framework names it."""
    if shows_ddp(given.run):
        return NO_SYNC
    rows = given.analysis.collectives
    reduced_ns = given.exposed_ns(row for row in rows if row.op == "all_reduce" and row.dimension in (None, DATA))
    of_replicas = "fsdp2" in given.job.frameworks and 2 * reduced_ns >= given.exposed_ns(rows)
    return REDUCE_ONCE if of_replicas else ACCUMULATION


def _last_call_decides(given: RuleInput) -> bool:
    """Return whether the last reduction of each step has much of what reductions expose, and is not behind others that
    keep the link busy from the first one on: these would end as late whatever their sizes."""
    return _of_last_call(given) >= OF_TAIL and not _keep_link_busy(given)


def _keep_link_busy(given: RuleInput) -> bool:
    """Return whether the reductions of nearly each step with exposed ones, two or more, run one after the other, from
    the first to the last."""
    busy = every = 0
    for timeline, windows in given.some_at_hand():
        calls = timeline.collectives
        rows = rows_named(calls.op, timeline.names, REDUCE.__contains__) & (calls.bytes >= LARGE_BYTES)
        rows &= (calls.start_ns != NONE) & (calls.end_ns != NONE)
        own = np.flatnonzero(rows)
        own = own[sort_order(calls.start_ns[own])]
        window = window_of(windows, calls.start_ns[own])
        own, window = own[window != NONE], window[window != NONE]
        for at in split_by(window):
            those = own[at]
            until = np.maximum.accumulate(calls.end_ns[those])
            busy += those.size > 1 and bool((calls.start_ns[those[1:]] - until[:-1] <= IN_A_ROW_NS).all())
            every += 1
    return every > 0 and busy >= MOST_ALIKE * every


def _of_link(given: RuleInput) -> str | None:
    """Return that the link is the limit, where large reductions that follow each other are exposed on devices, not the
    last one alone, and communication takes longer than compute; None elsewhere."""
    comm_ns, compute_ns = given.figures.comm_ns or 0, given.figures.compute_ns or 0
    if not given.run_has_device or comm_ns <= compute_ns or _last_call_decides(given):
        return None
    most = dominant_calls(given)
    if most is None or most.busbw_gbs is None:
        return None
    rate = f" ({most.rate_words(f' over {most.group_size} ranks')})"
    words = {"comm": ms(comm_ns), "compute": ms(compute_ns), "rate": rate, "accumulation": _accumulation(given)}
    return LINK_IS_LIMIT.format(**words)


def _of_last_call(given: RuleInput) -> float:
    """Return which share of the exposed time of reductions the last one of each step has; 0 where none is exposed."""
    last = every = 0
    for timeline, windows in given.some_at_hand():
        calls, exposed = timeline.collectives, exposed_of_calls_ns(given, timeline, windows)
        rows = np.flatnonzero(rows_named(calls.op, timeline.names, REDUCE.__contains__) & (exposed > 0))
        window = window_of(windows, calls.start_ns[rows])
        rows, window = rows[window != NONE], window[window != NONE]
        order = sort_order(window, calls.start_ns[rows])
        rows, window = rows[order], window[order]
        every += int(exposed[rows].sum())
        last += int(exposed[rows[np.append(window[1:] != window[:-1], np.True_)[: rows.size]]].sum())
    return last / every if every else 0.0


def _replays_buckets(given: RuleInput) -> bool:
    """Return whether a replay can say what other caps would gain: buckets were recorded, and waiting is known."""
    if given.figures.exposed_wait_ns is None:
        return False
    from overlapscope.whatif.ddp.recorded_steps import recorded_steps  # noqa: PLC0415 - few runs need it

    try:
        recorded_steps(given.run, given.cross_rank)
    except InputError:
        return False
    return True

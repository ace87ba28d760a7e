"""What fewer buckets of DDP save a slow host: launching each of its all-reduces takes it a while."""

from collections.abc import Collection
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, ms
from overlapscope.timeline.columns import NONE, OPERATION
from overlapscope.timeline.dimensions import BACKWARD, DATA
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

CALLS: Final = ("c10d::allreduce_", "record_param_comms")
"""Operations of torch in which the host launches an all-reduce, the outer one first."""
MANY: Final = 20
"""Least buckets a step of which fewer are advised. A choice: the last one, which nothing overlaps, grows with them."""
CAP_MB: Final = 100


def fewer_buckets(given: RuleInput, ranks: Collection[int]) -> dict[str, str]:
    """Return the setting for larger buckets, as in `Recommendation.apply`, where no other framework than DDP is
    seen, and the launches that it saves take the host of one of these ranks long enough; else nothing."""
    if {*given.job.frameworks} - {"ddp"} or given.per != "step":
        return {}
    every = [found for rank in ranks if rank in given.numbers if (found := _saved(given, given.run.ranks[rank]))]
    if not every:
        return {}
    saved_ns, call_ns, calls, left = max(every)
    if calls < MANY or not given.is_worth(saved_ns):
        return {}
    return {
        "ddp": f"DistributedDataParallel(model, bucket_cap_mb={CAP_MB})  # each of {calls} all-reduces a step takes "
        f"this host {ms(call_ns)}: {left} larger ones save it about {ms(saved_ns)}, while it is slow"
    }


def _saved(given: RuleInput, timeline: RankTimeline) -> tuple[float, float, int, int] | None:
    """Return how much shorter launches of larger buckets take a host in a step, how long one takes it, in ns, the
    median, and how many all-reduces of gradients a step has, and would have; None where that is not known, or not all
    of these are made in backward."""
    timeline = timeline.at_hand()
    calls, names, steps = timeline.collectives, timeline.names, given.numbers[timeline.rank]
    own = (calls.bytes >= LARGE_BYTES) & np.isin(calls.step, steps) & (calls.launch_ns != NONE)
    own &= (calls.dimension < 0) | rows_named(calls.dimension, names, DATA.__eq__)
    own &= rows_named(calls.op, names, "all_reduce".__eq__)
    host = select_host_spans(timeline.host, (OPERATION,))
    each = [rows_named(host.name, names, name.__eq__) for name in CALLS]
    which = next((rows for rows in each if rows.sum() >= own.sum()), None)
    backward = rows_named(calls.phase, names, BACKWARD.__eq__)
    if which is None or not own.any() or not backward[own].all():
        return None
    call_ns = float(np.median((host.end_ns - host.start_ns)[which]))
    many, sent = own.sum() / len(steps), float(calls.bytes[own].sum()) / len(steps)
    left = -int(-sent // (CAP_MB << 20))
    return (many - left) * call_ns, call_ns, round(many), left

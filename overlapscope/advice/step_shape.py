"""Rules on the shape of a step: next to no compute, one giant all-reduce, and overlap that was asked for in vain."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.backward_prefetch import gathers_units, prefetches_nothing
from overlapscope.advice.calls.calls_without_sizes import all_gradients_at_once
from overlapscope.advice.calls.savings import kept_by_hosts, saved_by_overlap_ns
from overlapscope.advice.job_kind import uses_rocm
from overlapscope.advice.last_bucket import last_is_one_gradient
from overlapscope.advice.losses.gradient_passes import (
    after_first_gradient_ns,
    apart_in_passes_ns,
    are_together,
    backward_waits_ns,
    beside_backward_ns,
    finds_unused_parameters,
    hosts_make_wait,
)
from overlapscope.advice.losses.sharded_optimizer import ALIKE, SCATTER
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.result import Recommendation
from overlapscope.display import size_text
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Ints, size
from overlapscope.timeline.dimensions import BACKWARD, DATA
from overlapscope.timeline.intervals import BusyTime
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import UNNAMED
from overlapscope.timeline.rows import largest_by
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.parallelism import shows_ddp

LITTLE: Final = 0.1
"""Share of a step below which compute is little. A choice."""
GIANT_BYTES: Final = 1 << 30
LARGE_BUCKET_BYTES: Final = 100 << 20
"""A choice: four times the usual bucket of DDP. Smaller ones transfer hardly faster when they are larger."""
LARGE_SHARE: Final = 0.25
"""Least share of the gradients of a step that such a bucket holds, and of its compute in which one of DDP fills. A
choice."""
OVERLAPPING: Final = {
    "ddp": "DistributedDataParallel reduces buckets while backward goes on",
    "fsdp2": "FSDP2 gathers the next module while this one computes",
}
"""What these do unless they are kept from it."""
OVERLAPPED: Final = {"ddp": ("all_reduce",), "fsdp2": ("all_gather", "reduce_scatter", "all_reduce")}
"""The operations that they overlap; others may be needed at once."""
LEAST_BUCKETS: Final = 2
"""Of LARGE_BYTES each, that gradients of known size would make."""
CUDA: Final = ("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
ROCM: Final = ("AMD_SERIALIZE_KERNEL HIP_LAUNCH_BLOCKING", "GPU_MAX_HW_QUEUES")
"""Variables that make launches wait for their kernels, and the one that says how many queues a device has."""
LONG_NS: Final = 200_000
"""A host that runs ahead launches the next kernel before one of this length ends. A choice: 20 times a launch."""
LONG_KERNELS: Final = 5
NEARLY_ALL: Final = 0.9
MOSTLY_WAITED: Final = 0.5
"""From this share on that hosts wait for, exposed time is mostly theirs. A choice."""
BOUND: Final = (
    "that all of it can be overlapped, as far as a step has time without communication: the gain is an upper bound"
)
MAY_WAIT: Final = "that these calls do not wait for ranks that were not recorded, which no overlap saves"
ONLY_ONES: Final = "that calls of which backward makes one a step, the only one of its type, hold all gradients"
ONE_BUCKET: Final = "# one bucket for all gradients, or a model that is a single module, is ready only at the end"
LAST_FIRST: Final = (
    "# all calls are launched at once: buckets are sent in order, and the first one waits for a gradient that is ready "
    "last (an embedding that is used twice, modules registered in another order than they run)"
)
OF_UNNAMED: Final = (
    "that calls of unknown operation that are launched between a forward and the optimizer reduce gradients, as no "
    "forward launches any"
)
WAITS: Final = (
    "# a hook waits for its call: return the future of all_reduce(..., async_op=True) from a communication hook, "
    "or in hooks of your own keep the handles, and wait for all of them once, before the optimizer"
)
UNUSED: Final = (
    "DistributedDataParallel(model, find_unused_parameters=False)  # or static_graph=True: each step reduces a map of "
    "used parameters, for which the host waits"
)
FSDP_UNITS: Final = "fully_shard(block)  # each block on its own: one call for the whole model overlaps nothing"
"""Where gathers do not show that blocks are sharded one by one."""


def little_compute(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the device computes in less than a tenth of its steps; None for recordings."""
    compute = given.figures.compute_ns
    if given.per != "step" or not given.run_has_device or not compute or compute >= LITTLE * given.step_ns:
        return None
    serving = {"serving": "# more requests a batch: --max-num-seqs, --max-num-batched-tokens"}
    return recommended(
        given,
        id="little_compute",
        title=f"Compute more a step: the device computes for {ms(compute)} of {ms(given.step_ns)}",
        apply=serving
        if given.job.serves
        else {
            "torch": "# a larger micro-batch, where memory allows\n"
            "with model.no_sync():  # several backward passes for each reduction of gradients; fewer optimizer steps",
            "megatron": "--micro-batch-size N --global-batch-size M",
        },
        evidence={"compute_ns": compute, "step_ns": given.step_ns},
        measured=["the time in which the device computes"],
        assumed=["that a larger batch trains as well, and that memory holds it"],
    )


def split_all_reduce(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where all-reduces of more than 1 GiB, or the few that hold all gradients, are exposed
    for long enough."""
    reduces = [row for row in given.analysis.collectives if row.op == "all_reduce" and row.dimension in (None, DATA)]
    rows = [row for row in reduces if (row.bytes or 0) > GIANT_BYTES]
    if not rows and given.run_has_device and not _has_replay(given):
        rows = _few_buckets(given, reduces) or all_gradients_at_once(given)
    exposed = given.exposed_ns(rows)
    at_most = given.besides_ns(min(exposed, saved_by_overlap_ns(given, rows)))
    if given.is_worth(at_most):
        at_most = min(at_most, after_first_gradient_ns(given))
    if given.job.serves or not given.is_worth(at_most):
        return None
    waits = any(row.estimate == "upper_bound" for row in rows)
    largest = max(row.bytes or 0 for row in rows)
    sizes = f"of {size_text(largest)}" if largest else "that hold all gradients"
    return recommended(
        given,
        id="split_all_reduce",
        title=f"Split all-reduces {sizes}: one begins only when all that it sends is ready, and "
        f"{ms(exposed)} of a {ms(given.step_ns)} {given.per} are exposed{', waiting included' if waits else ''}",
        at_most_ns=at_most,
        apply={
            "ddp": "DistributedDataParallel(model, bucket_cap_mb=100)  # each bucket is sent while backward goes on",
            "deepspeed": '{"zero_optimization": {"overlap_comm": true, "reduce_bucket_size": 5e7}}',
            "megatron": "--overlap-grad-reduce --ddp-bucket-size 40000000",
        }
        | ({"torch": SCATTER} if _gathered_after(given, reduces) else {}),
        evidence={"exposed_ns": round(exposed), "calls": sum(row.count for row in rows)}
        | ({"most_bytes": largest} if largest else {}),
        measured=[f"{'sizes' if largest else 'types'}, and the time of these calls beside which nothing is computed"],
        assumed=[
            BOUND,
            *kept_by_hosts(given, at_most),
            *([MAY_WAIT] if waits else []),
            *([] if largest else [ONLY_ONES]),
        ],
    )


def _gathered_after(given: RuleInput, reduces: Sequence[CollectiveRow]) -> bool:
    """Return whether as many bytes are gathered as reduced: parameters, by optimizers of which each has a part."""
    gathers = [row for row in given.analysis.collectives if row.op == "all_gather" and row.dimension in (None, DATA)]
    reduced, gathered = (
        sum(row.count * row.bytes for row in rows if row.bytes is not None and row.bytes >= LARGE_BYTES)
        for rows in (reduces, gathers)
    )
    return gathered > 0 and abs(gathered - reduced) <= ALIKE * reduced


def _few_buckets(given: RuleInput, rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the rows of reductions in backward if large buckets hold the gradients; of DDP only where the largest ones
    fill through much of a step: one gradient, which no cap makes smaller, does not."""
    large = [row for row in rows if (row.bytes or 0) >= LARGE_BUCKET_BYTES]
    of_ddp = shows_ddp(given.run)
    if not large or (of_ddp and last_is_one_gradient(given)):
        return []
    every = []
    for timeline, windows in given.some_ranks():
        calls = timeline.collectives
        own = given.calls_of(timeline, rows) & (calls.bytes >= LARGE_BYTES) & (calls.start_ns != NONE)
        backward = rows_named(calls.phase, timeline.names, BACKWARD.__eq__)
        own &= window_of(windows, calls.start_ns) != NONE
        sent = calls.bytes[own]
        if not own.any() or not backward[own].all():
            return []
        if of_ddp and not _fill_for_long(given, timeline, windows, np.flatnonzero(own)):
            return []
        every.append(int(sent.max()) * len(windows) / int(sent.sum()))
    return large if every and min(every) >= LARGE_SHARE else []


def _fill_for_long(given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints) -> bool:
    """Return whether much of the compute before the largest call of nearly each step lies behind the end of the call
    before that: so many gradients come to be in that bucket."""
    calls, compute = timeline.collectives, BusyTime(given.coverage[timeline.rank].compute)
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    window = window_of(windows, calls.start_ns[rows])
    begin = np.array(sorted(windows), np.int64)[window, 0]
    before = np.append(NONE, calls.end_ns[rows[:-1]])
    since = np.where(np.append(NONE, window[:-1]) == window, before, begin)
    largest = calls.bytes[rows] == largest_by(window, calls.bytes[rows], len(windows))[window]
    start = calls.start_ns[rows]
    filled = compute.within(since, np.maximum(start, since))
    long = filled[largest] >= LARGE_SHARE * compute.within(begin, start)[largest]
    return bool(np.count_nonzero(long) >= NEARLY_ALL * long.size)


def _has_replay(given: RuleInput) -> bool:
    """Return whether sizes of gradients were recorded, so that a replay of DDP's caps says more."""
    return shows_ddp(given.run) and any((each.gradients.elements > 0).any() for each in given.run.ranks.values())


def overlap_without_effect(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where a framework that overlaps communication overlaps none of it. Without a device
    only where DDP sends one bucket a step: gloo's threads need cores, too."""
    used = [key for key in given.job.frameworks if key in OVERLAPPING]
    comm, overlapped = given.figures.comm_ns or 0, given.figures.overlapped_ns or 0
    if given.job.serves or not used or not (given.run_has_device or _one_bucket(given)) or overlapped > NOTHING * comm:
        return None
    by_hosts = given.run_has_device and "ddp" in used and hosts_make_wait(given)
    waits_ns = backward_waits_ns(given) if by_hosts else 0.0
    ops = {op for key in used for op in OVERLAPPED[key]}.union([UNNAMED] if waits_ns else ())
    rows = [row for row in given.analysis.collectives if row.op in ops and row.dimension in (None, DATA)]
    exposed = given.exposed_ns(rows)
    at_most = given.besides_ns(min(exposed, given.figures.exposed_comm_ns or exposed, saved_by_overlap_ns(given, rows)))
    if not given.is_worth(at_most):
        return None
    if used == ["fsdp2"] and prefetches_nothing(given):
        return None  # `backward_prefetch` says why
    if _hosts_wait(given):
        return None  # `blocking_calls` says so
    if given.run_has_device and used == ["ddp"]:
        at_most = min(at_most, beside_backward_ns(given))
        if not given.is_worth(at_most):
            return None
    if given.is_worth(waits_ns):
        at_most = min(at_most, waits_ns)
        title = "Wait once for gradients, before the optimizer: backward waits for each reduction, and "
        apply = {"ddp": WAITS}
    elif given.run_has_device:
        title, apply = f"Nothing overlaps: {OVERLAPPING[used[0]]}, but ", _instead(given, used)
    else:
        title = "Nothing overlaps: DDP reduces all gradients at once, when backward ends, and "
        apply = {"ddp": "DistributedDataParallel(model, bucket_cap_mb=1)  # several buckets: most go beside backward"}
    return recommended(
        given,
        id="overlap_without_effect",
        title=f"{title}of {ms(comm)} of communication a {given.per} {ms(overlapped)} are overlapped",
        verdict="look",
        at_most_ns=at_most,
        apply=apply,
        evidence={"comm_ns": comm, "overlapped_ns": overlapped},
        measured=["communication, and the compute beside it"],
        assumed=[BOUND, *[OF_UNNAMED] * any(row.op == UNNAMED for row in rows), *kept_by_hosts(given, at_most)],
    )


def _hosts_wait(given: RuleInput) -> bool:
    """Return whether most exposed time before the last calls of steps, which only the optimizer follows, is of calls
    that only the host waited for before it launched what follows."""
    waited_ns = given.cause_ns("host_waited")
    before_ns = (given.figures.exposed_comm_ns or 0) - given.cause_ns("tail")
    return given.is_worth(min(waited_ns, given.figures.compute_ns or 0)) and waited_ns > MOSTLY_WAITED * before_ns


def _instead(given: RuleInput, used: Sequence[str]) -> dict[str, str]:
    """Return what may keep calls of devices from overlapping, as far as their launches show it."""
    shapes = [launches_of(timeline, given.step_ns) for timeline, _ in given.some_at_hand()]
    found: dict[str, str] = {}
    together = [each.together for each in shapes if each.together is not None]
    alone = any(each.alone for each in shapes) and not together
    if "ddp" in used:
        lines = [UNUSED] * any(finds_unused_parameters(timeline) for timeline, _ in given.some_at_hand())
        lines += [LAST_FIRST] * (bool(together) and all(together)) + [ONE_BUCKET] * alone
        found |= {"ddp": "\n".join(lines)} if lines else {}
    in_units = "fsdp2" in used and gathers_units(given)
    if "fsdp2" in used and not in_units:
        found["fsdp2"] = FSDP_UNITS
    blocking, queues = ROCM if uses_rocm(given.run) else CUDA
    if any(each.blocking for each in shapes):
        found = {"environment": f"unset {blocking}  # a launch lasts until its kernel has ended"} | found
    elif not all(together) and not in_units:
        found |= {"environment": f"unset {queues}  # one queue serialises streams"}
    return found


class _Launches(msgspec.Struct, frozen=True, kw_only=True):
    """When a rank launched its work."""

    blocking: bool
    """Whether the next launch comes only after the end of nearly each long kernel."""
    together: bool | None
    """As `are_together` returns it."""
    alone: bool
    """Whether passes have large calls, and none more than one."""


def launches_of(timeline: RankTimeline, step_ns: int) -> _Launches:
    """Return what the launches of a rank show of why its communication overlaps nothing, in steps of this length."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.launch_ns != NONE) & np.isin(spans.kind, (COMPUTE, COMM)))
    rows = rows[np.argsort(spans.launch_ns[rows], kind="stable")]
    long = np.flatnonzero((spans.end_ns - spans.start_ns)[rows[:-1]] >= LONG_NS)
    after = spans.launch_ns[rows[1:]][long] >= spans.end_ns[rows[:-1]][long]
    blocking = long.size >= LONG_KERNELS and bool(np.count_nonzero(after) >= NEARLY_ALL * long.size)
    apart = apart_in_passes_ns(timeline)
    several = any(ns is not None for ns in apart)
    return _Launches(blocking=blocking, together=are_together(apart, step_ns), alone=bool(apart) and not several)


def _one_bucket(given: RuleInput) -> bool:
    """Return whether DDP makes one all-reduce in each step, and no replay of its buckets says more."""
    rows = [row for row in given.analysis.collectives if row.op == "all_reduce"]
    calls = sum(row.count for row in rows)
    if any(row.bytes is not None and row.bytes < LEAST_BUCKETS * LARGE_BYTES for row in rows):
        return False
    replayed = any(size(each.gradients) for each in given.run.ranks.values())
    return shows_ddp(given.run) and given.per == "step" and calls == given.steps and not replayed

"""Compute that exists only to communicate: copies into buffers of collectives, and out of them."""

import re
from collections import defaultdict
from typing import Final

import numpy as np

from overlapscope.advice.given import Given, Windows, ms, recommended
from overlapscope.analysis.analyze import Recommendation
from overlapscope.timeline.columns import COMM, Flags, Ints
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.run import RankTimeline

DDP_OUT: Final = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""What `gradient_as_bucket_view` leaves out. `mul_out` beside it also divides, and stays in another form."""
FSDP: Final = re.compile(
    r"FSDP::(?:all_gather(?:_copy_out)?|post_backward_reduce)(?: \(.*\))?"
    r"|fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)"
    r"|aten::(?:split_with_sizes_copy|_chunk_cat)"
)
"""Ranges and operations in which FSDP2 launches its copies; what communicates in them is not counted."""
ONLY_COPIES: Final = re.compile(r"FSDP::all_gather_copy_out")
FSDP_OUT, DDP = "FSDP copies", "copies out of buckets"


def communication_copies(given: Given) -> Recommendation | None:
    """Give the recommendation where such copies take long enough."""
    sums: dict[str, list[float]] = defaultdict(list)
    for timeline, windows in given.some_ranks():
        for kind, ns in _copies(timeline, windows).items():
            sums[kind].append(ns / len(windows))
    spent = {kind: sum(each) / len(each) for kind, each in sums.items() if any(each)}
    total = sum(spent.values())
    if not given.is_worth(total):
        return None
    main = max(spent, key=lambda kind: spent[kind])
    of_ddp = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
    of_fsdp = (
        "fully_shard(module, reshard_after_forward=False)  # gathers and copies once a step, where memory allows\n"
        "fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))  # half; changes numerics"
    )
    return recommended(
        given,
        id="communication_copies",
        title=f"{main} take {ms(total)} of a {ms(given.step_ns)} {given.per}: compute that only serves communication",
        at_most_ns=total,
        apply={**({"ddp": of_ddp} if DDP in spent else {}), **({"fsdp2": of_fsdp} if FSDP_OUT in spent else {})},
        evidence={kind: round(ns) for kind, ns in spent.items()},
        measured=["the time of the copies"],
        assumed=["that all of them can be left out and none was hidden, which bounds the gain"],
    )


def _copies(timeline: RankTimeline, windows: Windows) -> dict[str, int]:
    """Give the time of each kind of copy in the windows."""
    inside = union((np.array([w[0] for w in windows]), np.array([w[1] for w in windows])))
    spans, names = timeline.spans, timeline.names
    of_fsdp = [at for at, name in enumerate(names) if FSDP.fullmatch(name)]
    of_ddp = [at for at, name in enumerate(names) if name == DDP_OUT]
    if not of_fsdp and not of_ddp:
        return {}
    rest = spans.kind != COMM
    if timeline.has_device:
        launched = np.isin(spans.host_op, of_fsdp) | _within(_ranges(timeline, of_fsdp), spans.launch_ns)
        fsdp = union((spans.start_ns[rest & launched], spans.end_ns[rest & launched]))
    else:
        # A CPU run's compute is that of all threads together: only ranges that do nothing but copy can be told.
        only = [at for at in of_fsdp if ONLY_COPIES.match(names[at])]
        fsdp = intersection(union((spans.start_ns[rest], spans.end_ns[rest])), _ranges(timeline, only))
    by_host = rest & np.isin(spans.host_op, of_ddp)
    ddp = union((spans.start_ns[by_host], spans.end_ns[by_host]))
    found = {FSDP_OUT: length(intersection(fsdp, inside)), DDP: length(intersection(ddp, inside))}
    return {kind: ns for kind, ns in found.items() if ns}


def _ranges(timeline: RankTimeline, codes: list[int]) -> Intervals:
    notes = timeline.annotations
    rows = np.isin(notes.name, codes)
    return union((notes.start_ns[rows], notes.end_ns[rows]))


def _within(ranges: Intervals, moments: Ints) -> Flags:
    if not ranges.starts.size:
        return np.zeros(moments.size, np.bool_)
    at = np.searchsorted(ranges.starts, moments, side="right") - 1
    return (at >= 0) & (moments < ranges.ends[np.maximum(at, 0)])

"""Rule: copies into and out of the buffers of collectives take long."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.intervals import Intervals, intersection, length, union
from overlapscope.timeline.lazy_host_spans import without_functions
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import RankTimeline

DDP_OUT: Final = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""The copy that `gradient_as_bucket_view` avoids. `mul_out` beside it also divides, and remains in another form."""
FSDP: Final = re.compile(
    r"FSDP::(?:all_gather(?:_copy_out)?|post_backward_reduce)(?: \(.*\))?"
    r"|fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)"
    r"|aten::(?:split_with_sizes_copy|_chunk_cat)"
)
"""Ranges and operations in which FSDP2 launches its copies; communication in them is not counted."""
COPIES: Final = re.compile(r"fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)")
"""Operations that do nothing but copy: on CPUs all of their own time is that of copies ..."""
ONLY_COPIES: Final = re.compile(r"FSDP::all_gather_copy_out")
"""... and a range in which all is copies."""
SIXTEEN_BITS: Final = 2
"""In bytes."""
MANY: Final = 8
"""Where the type is not known."""
FSDP_OUT, DDP = "FSDP copies", "copies out of buckets"


def communication_copies(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where such copies take long enough."""
    sums: dict[str, list[float]] = defaultdict(list)
    for timeline, windows in given.some_at_hand():
        for kind, ns in _copies(timeline, windows).items():
            sums[kind].append(ns / len(windows))
    spent = {kind: sum(each) / len(each) for kind, each in sums.items() if any(each)}
    of_ddp = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
    of_fsdp = _fsdp_code(given) if FSDP_OUT in spent else ""
    if not of_fsdp:  # what would save them is in effect
        spent.pop(FSDP_OUT, None)
    total = sum(spent.values())
    if not given.is_worth(total):
        return None
    kinds = " and ".join(sorted(spent, key=lambda kind: -spent[kind]))
    return recommended(
        given,
        id="communication_copies",
        title=f"{kinds} take {ms(total)} of a {ms(given.step_ns)} {given.per}: compute that only serves communication",
        # What copies less with FSDP2 gathers less, too: the copies bound no gain.
        at_most_ns=None if FSDP_OUT in spent else total,
        loss_ns=round(total),
        apply={**({"ddp": of_ddp} if DDP in spent else {}), **({"fsdp2": of_fsdp} if of_fsdp else {})},
        evidence={kind: round(ns) for kind, ns in spent.items()},
        measured=["the time of the copies"],
        assumed=[]
        if FSDP_OUT in spent
        else ["that all copies can be avoided and none was overlapped: the gain is an upper bound"],
    )


def _fsdp_code(given: RuleInput) -> str:
    """Return what copies less with FSDP2; empty where all of it is in effect."""
    gathers = "fully_shard(module, reshard_after_forward=False)  # gathers and copies once a step, where memory allows"
    half = "fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))  # half; changes numerics"
    found = [gathers] * _gathers_in_backward(given) + [half] * (not _in_sixteen_bits(given))
    return "\n".join(found)


def _gathers_in_backward(given: RuleInput) -> bool:
    """Return whether parameters are gathered in backward, or may be, as phases are not known."""
    for timeline, _ in given.some_ranks():
        calls, names = timeline.collectives, timeline.names
        gathers = rows_named(calls.op, names, "all_gather".__eq__)
        phase = calls.phase[gathers]
        if (rows_named(phase, names, BACKWARD.__eq__) | (phase < 0)).any():
            return True
    return False


def _in_sixteen_bits(given: RuleInput) -> bool:
    """Return whether all parameters are gathered in 16 bits already, or in fewer."""
    gathered = {row.dtype for row in given.analysis.collectives if row.op == "all_gather"}
    return bool(gathered) and all(ITEM_BYTES.get(dtype or "", MANY) <= SIXTEEN_BITS for dtype in gathered)


def _copies(timeline: RankTimeline, windows: Windows) -> dict[str, int]:
    """Return the time in ns of each kind of copy in the windows."""
    spans, names, notes = timeline.spans, timeline.names, timeline.annotations
    by_fsdp, by_ddp = (rows_named(spans.host_op, names, fits) for fits in (FSDP.fullmatch, DDP_OUT.__eq__))
    ranges = rows_named(notes.name, names, FSDP.fullmatch)
    if not any(FSDP.fullmatch(name) or name == DDP_OUT for name in names):
        return {}
    inside = time_of(windows)
    rest = spans.kind != COMM
    if timeline.has_device:
        copying = union((notes.start_ns[ranges], notes.end_ns[ranges]))
        by_fsdp = rest & (by_fsdp | _within(copying, spans.launch_ns))
        fsdp = union((spans.start_ns[by_fsdp], spans.end_ns[by_fsdp]))
    else:
        # The compute of a CPU run is that of all threads together: only what does nothing but copy can be used.
        ranges[ranges] = rows_named(notes.name[ranges], names, ONLY_COPIES.match)
        copying = union((notes.start_ns[ranges], notes.end_ns[ranges]), *_operations(timeline))
        fsdp = intersection(union((spans.start_ns[rest], spans.end_ns[rest])), copying)
    by_ddp &= rest
    ddp = union((spans.start_ns[by_ddp], spans.end_ns[by_ddp]))
    found = {FSDP_OUT: length(intersection(fsdp, inside)), DDP: length(intersection(ddp, inside))}
    return {kind: ns for kind, ns in found.items() if ns}


def _operations(timeline: RankTimeline) -> Iterator[tuple[Ints, Ints]]:
    """Yield the starts and ends of the operations that copy for FSDP2, where those of the host were recorded."""
    if timeline.has_host_events and not timeline.host_is_lost:
        host = without_functions(timeline.host)
        copies = rows_named(host.name, timeline.names, COPIES.fullmatch)
        yield host.start_ns[copies], host.end_ns[copies]


def _within(ranges: Intervals, moments: Ints) -> Flags:
    if not ranges.starts.size:
        return np.zeros(moments.size, np.bool_)
    at = np.searchsorted(ranges.starts, moments, side="right") - 1
    return (at >= 0) & (moments < ranges.ends[np.maximum(at, 0)])

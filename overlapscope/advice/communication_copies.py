"""Rule: copies into and out of the buffers of collectives take long."""

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, lie_within, ms, recommended, time_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, OPERATION, Flags, HostSpans, make, take
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.intervals import Intervals, difference, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import AUTOGRAD_NODE, ITEM_BYTES
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

DDP_OUT: Final = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""The copy that `gradient_as_bucket_view` avoids. `mul_out` beside it also divides, and remains in another form."""
FSDP: Final = re.compile(
    r"FSDP::(?:all_gather(?:_copy_out)?|post_backward_reduce)(?: \(.*\))?"
    r"|fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)"
    r"|aten::(?:split_with_sizes_copy|_chunk_cat)"
)
"""Ranges and operations in which FSDP2 launches its copies; communication in them is not counted."""
OF_GATHERS: Final = re.compile(r"all_gather|split_with_sizes_copy")
"""Of these, those of parameters; the others are of gradients."""
COPIES: Final = re.compile(r"fsdp::(?:all_gather_copy_in|split_with_sizes_copy|chunk_cat)")
"""Operations that do nothing but copy: on CPUs all of their own time is that of copies ..."""
ONLY_COPIES: Final = re.compile(r"FSDP::all_gather_copy_out")
"""... and a range in which all is copies."""
LAUNCHES: Final = ("launch_rate", "pause")
"""Kinds of losses in which the host launches late without waiting."""
SIXTEEN_BITS: Final = 2
"""In bytes."""
MANY: Final = 8
"""Where the type is not known."""
NEARLY_ALL: Final = 0.9
"""Share of the bytes gathered as floating-point numbers that is called all of them. A choice: norms may stay in 32
bits."""
FSDP_OUT, DDP = "FSDP copies", "copies out of buckets"
SHARDED: Final = "copies around gathers and reductions"
"""Where DeepSpeed shards parameters."""
LESS: Final = {
    "fsdp2": (
        "fully_shard(module, reshard_after_forward=False)  # gathers and copies once a step, where memory allows",
        "fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))  # half; changes numerics",
    ),
    "deepspeed": (
        '{"zero_optimization": {"stage3_max_live_parameters": 1e12, "stage3_max_reuse_distance": 1e12}}  '
        "# keeps what it gathers in forward, where memory allows",
        '{"bf16": {"enabled": true}}  # half; changes numerics',
    ),
}
"""By framework what gathers less, and what halves the rest. DeepSpeed keeps parameters gathered that are used again
within so many (https://www.deepspeed.ai/docs/config-json/)."""


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """How long a rank copied, ns a step."""

    gathers: float = 0.0
    """For gathers of FSDP2's parameters."""
    in_backward: float = 0.0
    """For those of them that are in backward, or may be."""
    gradients: float = 0.0
    """For FSDP2's gradients."""
    ddp: float = 0.0
    """Out of DDP's buckets."""
    ddp_host: float = 0.0
    """What a host took to launch these ..."""
    ddp_idle: float = 0.0
    """... how long the device was idle in that time ..."""
    launches: float = 0.0
    """... and how long it was in all, for launches."""


def communication_copies(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where settings that are not in effect can save such copies that take long enough."""
    spent = _mean([_copied(given, timeline, windows) for timeline, windows in given.some_at_hand()])
    fsdp = spent.gathers + spent.gradients
    seen = given.job.frameworks
    shards = "deepspeed" if "deepspeed" in seen and "fsdp2" not in seen else "fsdp2"
    of_fsdp, saved = _of_sharded(given, spent, shards) if fsdp else ("", 0.0)
    lost = saved + spent.ddp + spent.ddp_idle
    if not given.is_worth(lost):
        return None
    sharded = FSDP_OUT if shards == "fsdp2" else SHARDED
    took = {kind: ns for kind, ns in ((sharded, fsdp if of_fsdp else 0.0), (DDP, spent.ddp)) if ns}
    kinds = " and ".join(sorted(took, key=lambda kind: -took[kind]))
    # Settings that copy fewer shards gather less, too: the copies bound no gain.
    avoided = f"; {ms(saved + spent.ddp)} of these copies can be avoided, and some communication with them"
    most = avoided if of_fsdp and saved < fsdp else ""
    host_ns = min(spent.ddp_host, spent.launches)
    idle = f", and the device is idle for {ms(spent.ddp_idle)} while they are launched" if spent.ddp_idle else ""
    if host_ns > spent.ddp_idle > 0:
        took_host = f"launching them takes the host {ms(spent.ddp_host)}"
        idle = f", and {took_host}, in {ms(spent.ddp_idle)} of which the device is idle"
    of_ddp = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
    return recommended(
        given,
        id="communication_copies",
        title=f"{kinds} take {ms(sum(took.values()))} of a {ms(given.step_ns)} {given.per}{most}{idle}: compute that "
        "only serves communication",
        # Of what the host took to launch them the device saves as much as it idled meanwhile, or for launches that came
        # late for it.
        at_most_ns=None if of_fsdp else spent.ddp + max(spent.ddp_idle, host_ns),
        loss_ns=round(lost),
        apply={**({"ddp": of_ddp} if DDP in took else {}), **({shards: of_fsdp} if of_fsdp else {})},
        evidence={kind: round(ns) for kind, ns in took.items()}
        | ({"saved_at_most_ns": round(saved)} if of_fsdp else {})
        | ({"host_ns": round(spent.ddp_host)} if spent.ddp_host else {}),
        measured=["the time of the copies", *(["what the host took to launch them"] if spent.ddp_host else [])],
        assumed=[]
        if of_fsdp
        else ["that all copies can be avoided and none was overlapped: the gain is an upper bound"],
    )


def _mean(ranks: Sequence[_Copied]) -> _Copied:
    parts = _Copied.__struct_fields__
    return _Copied(**{part: sum(getattr(each, part) for each in ranks) / max(len(ranks), 1) for part in parts})


def _of_sharded(given: RuleInput, spent: _Copied, shards: str) -> tuple[str, float]:
    """Return what copies less with the framework that shards parameters, empty where all of it is in effect; and what
    it saves at most, in ns."""
    gathers, half = LESS[shards]
    again, wide = spent.in_backward > 0, not _in_sixteen_bits(given)
    rest = spent.gathers - spent.in_backward + spent.gradients
    return "\n".join([gathers] * again + [half] * wide), spent.in_backward + (rest / 2 if wide else 0.0)


def _share_in_backward(timeline: RankTimeline) -> float:
    """Return the share of the gathers that is in backward, or may be, where no call is known to be."""
    calls, names = timeline.collectives, timeline.names
    gathers = rows_named(calls.op, names, "all_gather".__eq__)
    backward = rows_named(calls.phase, names, BACKWARD.__eq__)
    may_be = backward if backward.any() else calls.phase < 0
    return float(may_be[gathers].mean()) if gathers.any() else 0.0


def _in_sixteen_bits(given: RuleInput) -> bool:
    """Return whether nearly all parameters are gathered in 16 bits already, or in fewer; integers are none."""
    gathered = [
        (row.count * (row.bytes or 1), ITEM_BYTES.get(row.dtype or "", MANY) <= SIXTEEN_BITS)
        for row in given.analysis.collectives
        if row.op == "all_gather" and (row.dtype is None or "float" in row.dtype)
    ]
    narrow = sum(size for size, is_narrow in gathered if is_narrow)
    return bool(gathered) and narrow >= NEARLY_ALL * sum(size for size, _ in gathered)


def _copied(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Copied:
    names, spans, inside = timeline.names, timeline.spans, time_of(windows)
    if not any(FSDP.fullmatch(name) or name == DDP_OUT for name in names):
        return _Copied()
    rest = spans.kind != COMM

    def a_step(rows: Flags, within: Intervals | None = None) -> float:
        times = union((spans.start_ns[rows], spans.end_ns[rows]))
        times = times if within is None else intersection(times, within)
        return length(intersection(times, inside)) / len(windows)

    by_name = rest & rows_named(spans.host_op, names, DDP_OUT.__eq__)
    if not timeline.has_device:
        # The compute of a CPU run is that of all threads together: only what does nothing but copy can be used.
        parts = [
            a_step(rest, _times(timeline, _both(ONLY_COPIES.match, of), _both(COPIES.fullmatch, of)))
            for of in (OF_GATHERS.search, _no_gather)
        ]
        return _Copied(
            gathers=parts[0], in_backward=parts[0] * _share_in_backward(timeline), gradients=parts[1],
            ddp=a_step(by_name),
        )  # fmt: skip
    gathers, gradients = (
        rest
        & (
            rows_named(spans.host_op, names, _both(FSDP.fullmatch, of))
            | lie_within(_times(timeline, _both(FSDP.fullmatch, of), None), spans.launch_ns)
        )
        for of in (OF_GATHERS.search, _no_gather)
    )
    copied, again = a_step(gathers), _launched_in_backward(timeline)
    out = _times(timeline, None, DDP_OUT.__eq__)
    cover = given.coverage[timeline.rank]
    idle = difference(intersection(out, inside), union(cover.compute, cover.comm, cover.copy))
    return _Copied(
        gathers=copied,
        in_backward=copied * _share_in_backward(timeline)
        if again is None
        else a_step(gathers & lie_within(again, spans.launch_ns)),
        gradients=a_step(gradients & ~gathers),
        ddp=a_step(by_name | (rest & lie_within(out, spans.launch_ns))),
        ddp_host=length(intersection(out, inside)) / len(windows),
        ddp_idle=length(idle) / len(windows),
        launches=length(intersection(_idle_for_launches(given, timeline.rank), inside)) / len(windows),
    )


def _idle_for_launches(given: RuleInput, rank: int) -> Intervals:
    losses = given.host_losses.get(rank, ())
    return union(*((each.when.starts, each.when.ends) for each in losses if each.kind in LAUNCHES))


def _launched_in_backward(timeline: RankTimeline) -> Intervals | None:
    """Return when threads of autograd launched copies for gathers of FSDP2; None where it is not known which they
    are."""
    names, notes = timeline.names, timeline.annotations
    fits = _both(FSDP.fullmatch, OF_GATHERS.search)
    ranges, calls = rows_named(notes.name, names, fits), _operations(timeline, fits)
    threads = unique(_operations(timeline, lambda name: name.startswith(AUTOGRAD_NODE)).lane)
    if not threads.size or not (ranges.any() or calls.lane.size):
        return None
    ranges &= np.isin(notes.lane, threads)
    calls = take(calls, np.isin(calls.lane, threads))
    return union((notes.start_ns[ranges], notes.end_ns[ranges]), (calls.start_ns, calls.end_ns))


Fits = Callable[[str], object]


def _both(*tests: Fits) -> Fits:
    return lambda name: all(fits(name) for fits in tests)


def _no_gather(name: str) -> bool:
    return OF_GATHERS.search(name) is None


def _times(timeline: RankTimeline, ranges: Fits | None, calls: Fits | None) -> Intervals:
    """Return when annotations, and operations of the host, ran whose names fit; None fits no name."""
    names, notes, found = timeline.names, timeline.annotations, []
    if ranges is not None:
        rows = rows_named(notes.name, names, _both(FSDP.fullmatch, ranges))
        found.append((notes.start_ns[rows], notes.end_ns[rows]))
    if calls is not None:
        host = _operations(timeline, calls)
        found.append((host.start_ns, host.end_ns))
    return union(*found)


def _operations(timeline: RankTimeline, fits: Fits) -> HostSpans:
    """Return the operations of the host whose names fit, where they were recorded and can be read."""
    named = np.array([bool(fits(name)) for name in timeline.names], np.bool_)
    if not timeline.has_host_events or timeline.host_is_lost or not named.any():
        return make(HostSpans, 0)
    return select_host_spans(timeline.host, (OPERATION,), named)

"""Rule: gradients are reduced in float32 while matrix products are computed in 16 bits: the same bits for both halve
what is sent."""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.advice.calls.binding_calls import DIRECTLY_NS
from overlapscope.advice.calls.calls_in_flight import in_flight_at_start
from overlapscope.advice.calls.savings import (
    as_fast_beside,
    faster_beside_half_ns,
    moving_ns,
    of_read_ranks,
    saved_by_half_ns,
    transferring,
)
from overlapscope.advice.rule_input import LARGE_BYTES, NOTHING, RuleInput, Windows, ms, recommended, time_of
from overlapscope.advice.setting_code import HOOK
from overlapscope.analysis.exposure.longer_than_like import LONGER
from overlapscope.analysis.per_rank.kernel_families import ELEMENTWISE, family_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD, DATA
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import bus_factor
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline

REDUCE: Final = ("all_reduce", "reduce_scatter")
SIXTEEN: Final = re.compile(
    r"bf16|fp16|f16f16|hgemm|[hi]884gemm|h1688gemm|h16816gemm|nvjet_[ht]s[hts]_"
    r"|^Cijk_\w*?_(?:H|HH|HHS|HSS|B|BB|BBS|BSS)_?BH?_|flash_(?:fwd|bwd)",
    re.I,
)
"""Names of kernels that multiply matrices in 16 bits: cuBLAS, CUTLASS, cuDNN, Tensile; FlashAttention has no others."""
WIDE: Final = re.compile(
    r"sgemm|dgemm|(?<!fp16_)(?<!f16_)s1688gemm|tf32|f32f32_f32f32|nvjet_sss_|^Cijk_\w*?_(?:S|SS)_?(?:MX_)?B_|scudnn",
    re.I,
)
"""In 32 bits, or more, first of all."""
SUMS_FLOAT32: Final = re.compile(r"nccl\w*Kernel_(?:AllReduce|ReduceScatter)_\w*(?:_f32|_float)(?![0-9])")
"""Kernels of NCCL that add up float32, by the names of all its versions: sums of each type have their own."""
WIDENS: Final = re.compile(r"chunk_cat_cuda_kernel<float, c10::(?:BFloat16|Half)>")
"""FSDP2's copy of 16-bit gradients into the float32 buffer that it reduces (aten/native/cuda/TensorShape.cu) ..."""
LESS_TO_COPY: Final = 1 / 3
"""... saves this share in 16 bits: it reads two bytes and writes four, then two."""
LONG_NS: Final = 200_000
"""A call of unknown size that transfers for as long is no small one. A choice: some times NCCL's latency."""
MOSTLY: Final = 0.5
APART: Final = 1.5
"""Ranks of which one exposes so many times what another does have no figure in common. A choice."""
UNSPLIT: Final = (
    f"that those whose wait is not known transfer at most {LONGER} times as long as the fast ones of their size: where "
    "these wait, too, the bound holds waiting"
)
LEAST_GB: Final = 999_500_000
"""Bytes that three digits write as 1 GB."""
LATEST: Final = int(np.iinfo(np.int64).max)
APPLY: Final = {
    "ddp": HOOK,
    "fsdp2": "fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
    "torch": "half = gradient.to(torch.bfloat16)  # before its all_reduce; then gradient.copy_(half)",
    "deepspeed": '{"communication_data_type": "bf16"}',
    "megatron": "--grad-reduce-in-bf16",
}
HOROVOD: Final = {"horovod": "hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)"}
"""Code where Horovod reduces the gradients, which the others then do not."""


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reduced in a step so that 16 bits would halve it."""

    bytes: float
    bus_bytes: float
    """As much on a link, as nccl-tests count it."""
    exposed_ns: float
    saved_ns: float
    """What of that half of the transfers can save, at most ..."""
    faster_ns: float
    """... and what compute beside them saves ..."""
    copied_ns: float
    """... and copies into what is reduced ..."""
    scaled_ns: float
    """... and kernels that pass over it just before."""
    took_ns: float
    """How long it transferred, at most."""
    split: bool
    """Whether that is known of all calls."""
    least_bytes: int
    """LATEST where no size is known."""
    most_bytes: int


def sixteen_bit_gradients(given: RuleInput) -> Recommendation | None:
    """Return the trial of 16-bit gradients; None without a device, whose cores would have to cast, or where it is not
    known that matrix products are computed in 16 bits."""
    if given.job.serves or not given.run_has_device:
        return None
    each = [_sent(given, timeline, windows) for timeline, windows in given.some_at_hand()]
    some = [one for one in each if one.took_ns]  # others, as of other stages, reduce nothing that 16 bits would halve
    sent, bus, took = (
        sum(getattr(one, part) for one in some) / max(len(some), 1) for part in ("bytes", "bus_bytes", "took_ns")
    )
    # Of a mean this is no bound: ranks that only wait in other calls for those that save have little of it.
    saved = max((one.saved_ns for one in some), default=0.0)
    if not given.is_worth(saved) or not _computes_in_sixteen(given):
        return None
    split, exposed_ns = all(one.split for one in some), [one.exposed_ns for one in some]
    least, most = min(one.least_bytes for one in some), max(one.most_bytes for one in some)
    waits = ", waiting included" * (fmean(exposed_ns) > (1 + NOTHING) * took)
    reduces = (
        f"a rank reduces {sent / 1e9:.3g} GB a {given.per} in float32 (calls of {_sizes(least, most)}, "
        f"{'' if split else 'at least '}{bus / took:.3g} GB/s on the bus)"
        if sent
        else f"a rank transfers float32 for {ms(took)} a {given.per}, as the names of kernels say,"
    )
    found = recommended(
        given,
        id="sixteen_bit_gradients",
        title=f"Try to send 16-bit gradients: {reduces} while matrix products are computed in 16 bits, and "
        f"{_exposed_words(given, exposed_ns)}{waits}; this changes numerics, so compare the loss",
        at_most_ns=max(one.saved_ns + one.faster_ns + one.copied_ns + one.scaled_ns for one in some),
        loss_ns=round(saved),
        apply=HOROVOD if "horovod" in given.job.frameworks else APPLY,
        evidence=({"bytes": round(sent), "busbw_gbs": bus / took} if sent else {})
        | {"exposed_ns": round(fmean(exposed_ns)), "transfer_ns": round(took)},
        measured=["sizes and types of these calls, how long they take, and what of it is exposed"],
        assumed=[
            "that calls, and elementwise kernels just before them, take half as long with half of the bytes, and "
            "others no less: the gain is an upper bound",
            *([] if split else [UNSPLIT]),
            *as_fast_beside(given),
            *of_read_ranks(given),
        ],
    )
    return replace(found, changes_numerics=True)


def _sizes(least: int, most: int) -> str:
    """Return the size of calls, or the least and the most of them, in the units that fit."""
    low, high = (f"{each / 1e6:.3g} MB" if each < LEAST_GB else f"{each / 1e9:.3g} GB" for each in (least, most))
    return high if low == high else f"{low.removesuffix(high[-3:])} to {high}"


def _exposed_words(given: RuleInput, of_ranks_ns: Sequence[float]) -> str:
    """Return how much is exposed in the mean over ranks, or where they differ, from the least to the most."""
    low, high = min(of_ranks_ns), max(of_ranks_ns)
    apart = high >= APART * low
    much = f"{ms(low)} to {ms(high)}" if apart else ms(fmean(of_ranks_ns))
    return f"{much} of a {ms(given.step_ns)} {given.per} are exposed{', by rank' * apart}"


def _sent(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Sent:
    """Return what a rank reduces, surely of gradients, in float32: in backward, or of DP, or with Horovod, outside all
    phases; and what is still in flight of the step before, of the same groups, types and sizes."""
    calls, names, cover, steps = timeline.collectives, timeline.names, given.coverage[timeline.rank], len(windows)
    backward, data = rows_named(calls.phase, names, BACKWARD.__eq__), rows_named(calls.dimension, names, DATA.__eq__)
    horovod = (calls.dimension < 0) & ("horovod" in given.job.frameworks)
    rows = rows_named(calls.op, names, REDUCE.__contains__)
    rows &= rows_named(calls.dtype, names, "float32".__eq__) | ((calls.dtype < 0) & _sums_float32(timeline))
    sized = calls.bytes != NONE
    sure = rows & ((backward & (calls.dimension < 0)) | ((data | horovod) & (backward | (calls.phase < 0))))
    rows = sure | (rows & sized & in_flight_at_start(timeline) & _like(timeline, sure))
    rows &= ((calls.bytes >= LARGE_BYTES) | ~sized) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
    inside = time_of(windows)
    own = np.flatnonzero(rows)
    own = own[BusyTime(inside).within(calls.start_ns[own], calls.start_ns[own] + 1) > 0]
    each = transferring(given, timeline)
    transfer, waits = calls.end_ns[own] - each.since_ns[own], ~each.known[own]
    large = sized[own] | (transfer >= LONG_NS)
    own, transfer, waits = own[large], transfer[large], waits[large]
    moved = moving_ns(timeline, own, transfer)
    start, end, sizes = calls.start_ns[own], calls.end_ns[own], np.where(sized[own], calls.bytes[own], 0)
    kinds = zip(calls.op[own].tolist(), calls.group_size[own].tolist(), strict=True)
    factors = np.array([bus_factor(names[op], ranks) if ranks > 0 else 1.0 for op, ranks in kinds])
    return _Sent(
        bytes=int(sizes.sum()) / steps,
        bus_bytes=float((sizes * factors).sum()) / steps,
        exposed_ns=length(difference(intersection(union((start, end)), inside), cover.compute)) / steps,
        saved_ns=saved_by_half_ns(given, timeline, windows, own, moved),
        faster_ns=faster_beside_half_ns(given, timeline, own, moved),
        copied_ns=LESS_TO_COPY * length(intersection(_widening(timeline), inside)) / steps,
        scaled_ns=int(np.minimum(_pass_before_ns(given, timeline, own), transfer).sum()) / 2 / steps,
        took_ns=int(transfer.sum()) / steps,
        split=not waits.any(),
        least_bytes=int(sizes[sizes > 0].min(initial=LATEST)),
        most_bytes=int(sizes.max(initial=0)),
    )


def _like(timeline: RankTimeline, rows: Flags) -> Flags:
    """Return which calls are of an operation, group, type, dimension and size of these."""
    calls = timeline.collectives
    kind, at = factorize_rows([calls.op, calls.group, calls.dtype, calls.dimension, calls.bytes])
    return np.asarray(np.bincount(kind[rows], minlength=at.size)[kind] > 0, np.bool_)


def _pass_before_ns(given: RuleInput, timeline: RankTimeline, rows: Ints) -> Ints:
    """Return how long the elementwise kernel takes that each of these calls directly follows, as one that scales what
    is reduced; 0 where there is none, or where something is computed beside the call: then it may wait for another."""
    spans, calls = timeline.spans, timeline.collectives
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    beside = BusyTime(given.coverage[timeline.rank].compute).within(start, end)
    computing = np.flatnonzero(spans.kind == COMPUTE)
    if not computing.size:
        return np.zeros(rows.size, np.int64)
    computing = computing[np.argsort(spans.end_ns[computing], kind="stable")]
    at = np.searchsorted(spans.end_ns[computing], start, side="right") - 1
    last = computing[np.maximum(at, 0)]
    follows = (at >= 0) & (start - spans.end_ns[last] <= DIRECTLY_NS) & (beside <= NOTHING * (end - start))
    passes = rows_named(spans.name[last], timeline.names, lambda name: family_of(name) == ELEMENTWISE)
    return np.where(follows & passes, spans.end_ns[last] - spans.start_ns[last], 0)


def _widening(timeline: RankTimeline) -> Intervals:
    """Return when gradients in 16 bits are copied into buffers in 32."""
    spans = timeline.spans
    rows = (spans.kind == COMPUTE) & rows_named(spans.name, timeline.names, WIDENS.search)
    return union((spans.start_ns[rows], spans.end_ns[rows]))


def _sums_float32(timeline: RankTimeline) -> Flags:
    """Return which calls a kernel made that adds up float32, as its name says."""
    spans = timeline.spans
    rows = (spans.kind == COMM) & (spans.collective != NONE)
    rows &= rows_named(spans.name, timeline.names, SUMS_FLOAT32.search)
    found = np.zeros(timeline.collectives.op.size, np.bool_)
    found[spans.collective[rows]] = True
    return found


def _computes_in_sixteen(given: RuleInput) -> bool:
    """Return whether kernels that multiply matrices, as far as their names say in how many bits, mostly do so in 16."""
    narrow_ns = wide_ns = 0
    for timeline, _ in given.some_at_hand():
        spans, names = timeline.spans, timeline.names
        computes = spans.kind == COMPUTE
        wide = computes & rows_named(spans.name, names, WIDE.search)
        narrow = computes & rows_named(spans.name, names, SIXTEEN.search) & ~wide
        took = spans.end_ns - spans.start_ns
        narrow_ns, wide_ns = narrow_ns + int(took[narrow].sum()), wide_ns + int(took[wide].sum())
    return narrow_ns > MOSTLY * (narrow_ns + wide_ns)

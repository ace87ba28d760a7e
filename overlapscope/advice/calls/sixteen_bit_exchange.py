"""Rule: ranks exchange tensors in float32, at one speed in each step: 16 bits halve what is sent."""

from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.advice.calls.savings import as_fast_beside, faster_beside_half_ns, of_read_ranks, saved_by_half_ns
from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, ms, recommended, time_of, window_of
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, values_in
from overlapscope.timeline.run import RankTimeline

STEADY: Final = 0.15
"""Calls are as fast in each step if the fastest of each comes within this of the fastest of all. A choice: ranks that
are waited for come as late in each step only by chance, and links vary by some per cent."""
LEAST_SEEN: Final = 3
"""Steps, of whichever ranks, of which the fastest calls are compared."""
APPLY: Final = {
    "torch": "# TorchRec: EmbeddingBagCollectionSharder(qcomm_codecs_registry=get_qcomm_codecs_registry(QCommsConfig(\n"
    "#     forward_precision=CommType.FP16, backward_precision=CommType.BF16)))\n"
    "half = tensor.to(torch.bfloat16)  # elsewhere: before its all_to_all, and back after it",
}


class _Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The large all-to-alls of a rank in float32."""

    rank: int
    rows: Ints
    sizes: Ints
    gbs: Floats
    """Bytes of each by its time, which may hold waiting."""
    group: Ints
    """Number of its group's name on this rank."""
    names: tuple[str, ...]
    """Name of each group by that number."""
    window: Ints
    exposed_ns: float
    """A step."""
    windows: int


def sixteen_bit_exchange(given: RuleInput) -> Recommendation | None:
    """Return the trial of 16 bits in all-to-alls, where these are as fast in each step and on each recorded rank, so
    that they transfer for as long as they take; None without a device, whose cores would have to cast."""
    if given.job.serves or not given.run_has_device:
        return None
    each = [_exchanged(given, timeline, windows) for timeline, windows in given.some_ranks()]
    some = [one for one in each if one.sizes.size]
    best = _steady_gbs(some)
    if not best:
        return None
    transfer_ns, sent, calls, saved, at_most = 0.0, 0.0, 0.0, 0.0, 0.0
    for one in some:
        steady = np.array([best.get(name, 0.0) for name in one.names])[one.group]
        sizes, needs = one.sizes[steady > 0], one.sizes[steady > 0] / steady[steady > 0]
        own, rows = given.run.ranks[one.rank], one.rows[steady > 0]
        of_rank = saved_by_half_ns(given, own, given.windows[one.rank], rows, needs)
        saved = max(saved, of_rank)
        at_most = max(at_most, of_rank + faster_beside_half_ns(given, own, rows, needs))
        transfer_ns += float(needs.sum()) / one.windows / len(each)
        sent, calls = sent + int(sizes.sum()) / one.windows / len(each), calls + sizes.size / one.windows / len(each)
    exposed = sum(one.exposed_ns for one in some) / len(each)
    if not given.is_worth(saved):
        return None
    found = recommended(
        given,
        id="sixteen_bit_exchange",
        title=f"Try to exchange 16 bits: all_to_all calls carry {sent / 1e9:.3g} GB a {given.per} in float32, about "
        f"{ms(transfer_ns / calls)} of each is probably transfer, as they are as fast in each step, and {ms(exposed)} "
        f"of a {ms(given.step_ns)} {given.per} are exposed; this changes numerics, so compare the loss",
        at_most_ns=at_most,
        loss_ns=round(saved),
        apply=APPLY,
        evidence={"bytes": round(sent), "exposed_ns": round(exposed), "transfer_ns": round(transfer_ns)},
        measured=["sizes and types of these calls, how long they take, and what of it is exposed"],
        assumed=[
            "that calls take half as long with half of the bytes, and others no less: the gain is an upper bound",
            "that the fastest call of a group waits for nobody",
            *as_fast_beside(given),
            *of_read_ranks(given),
        ],
    )
    return replace(found, changes_numerics=True)


def _exchanged(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Exchanged:
    calls, names = timeline.collectives, timeline.names
    rows = rows_named(calls.op, names, "all_to_all".__eq__) & rows_named(calls.dtype, names, "float32".__eq__)
    rows &= (calls.bytes >= LARGE_BYTES) & (calls.start_ns != NONE) & (calls.end_ns > calls.start_ns)
    own = np.flatnonzero(rows)
    window = window_of(windows, calls.start_ns[own])
    own, window = own[window != NONE], window[window != NONE]
    start, end = calls.start_ns[own], calls.end_ns[own]
    transfer = given.transfers[timeline.rank].transfer_ns[own]
    group, first = factorize_rows([calls.group[own]])
    codes = calls.group[own[first]].tolist()
    busy = intersection(union((start, end)), time_of(windows))
    return _Exchanged(
        rank=timeline.rank,
        rows=own,
        sizes=calls.bytes[own],
        gbs=calls.bytes[own] / np.where(transfer > 0, transfer, end - start),
        group=group,
        names=tuple(names[code] if code >= 0 else "" for code in codes),
        window=window,
        exposed_ns=length(difference(busy, given.coverage[timeline.rank].compute)) / len(windows),
        windows=len(windows),
    )


def _steady_gbs(some: list[_Exchanged]) -> dict[str, float]:
    """Return the highest speed of each group that is reached in each step, in bytes a ns."""
    fastest: dict[str, list[float]] = {}
    for one in some:
        kind, first = factorize_rows([one.group, one.window])
        highest = np.zeros(first.size)
        np.maximum.at(highest, kind, one.gbs)
        for at in values_in(kind).tolist():
            fastest.setdefault(one.names[one.group[first[at]]], []).append(float(highest[at]))
    return {
        name: max(speeds)
        for name, speeds in fastest.items()
        if len(speeds) >= LEAST_SEEN and min(speeds) >= (1 - STEADY) * max(speeds)
    }

"""Rules: nothing is computed beside copies between host and device: they run on the stream that computes, or on others
for which the next compute, or the host, waits. Offload, the batch that a step begins with, or a checkpoint.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.advice.copies.copy_rows import PAGEABLE, CopyRows, copy_rows, to_host_rows
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.checks.hosts.slow_host import slow_hosts
from overlapscope.analysis.common.host_work import ASYNC_SAVE
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, COPY, NONE, Flags, Ints, Spans
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline

TO_HOST_ALONE: Final = "to_host_alone"
"""In the evidence: whether the figures are of copies to the host alone."""
HOLDS_HOST: Final = "holds_host"
"""In the evidence: whether most of these copies, from or to pageable memory, hold the host until they end."""
NOT_BEFORE: Final = "; it may save nothing before the slow hosts are faster"
"""A device that waits for launches does not end sooner without its copies: they are then no loss, but a bound."""
MOSTLY: Final = 0.5
"""Of the copying time, this share is of batches, or to the host, where it is said to be that."""
ON_STREAM: Final = "copies_on_compute_stream"
AWAITED: Final = "awaited_copies"
ROWS: Final[Mapping[str, Callable[[CopyRows], Ints]]] = {
    ON_STREAM: lambda rows: rows.on_compute_stream,
    AWAITED: lambda rows: rows.awaited,
}
"""Which copies a recommendation is of, by its id."""
LIKE_BATCH: Final = 0.25
"""A copy is as long as that of a batch if it differs from it by at most this share. A choice: copies of one size differ
by a tenth, and more beside other traffic; sizes are not recorded."""
KERNELS_OF_BATCH: Final = 50
"""Fewest kernels that compute with a batch before the next is copied: the layer whose weights a copy brings has fewer.
A choice."""

_Kind = Literal["batch", "batches", "to_host", "other"]
WORDS: Final[Mapping[_Kind, tuple[str, str, str]]] = {
    "batch": ("Copy the next batch ahead", "copies", ", mostly of the batch that a step begins with,"),
    "batches": ("Copy the next batch ahead", "copies", ", mostly as long as that of a step's first batch,"),
    "to_host": ("Copy to the host on a stream of its own", "copies to the host", ""),
    "other": ("Copy on a stream of its own", "copies between host and device", ""),
}
"""What to do, what the copies are, and what they mostly are."""
AHEAD: Final[Mapping[_Kind, str]] = {"to_host": "Copy to the host later", "other": "Copy earlier"}
"""What to do where they are on a stream of their own already."""


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Such copies of one rank; times in ns a step."""

    timeline: RankTimeline
    alone: Intervals
    """When they ran and nothing computed. Communication beside them is exposed by them: the compute that waits for them
    could hide it."""
    alone_ns: float
    beside_ns: float
    """What of it has communication beside it."""
    by_window: Ints
    """What of it is in each window."""
    recurs: bool
    """Whether most windows have about as much of it."""
    parts: int
    """Steps that a sum is divided by; 1 for a recording."""
    to_device_ns: float
    input_ns: float
    """What of it is copied to the device before the first compute of the step that launched it, or launched next after
    a batch was fetched; where some of that is from pinned memory, that alone."""
    like_input_ns: float
    """What of the rest is as long as the copies that steps begin with, each followed by `KERNELS_OF_BATCH`."""
    pageable_ns: float
    ran_ns: float
    """For how long these copies ran, alone or not."""


def copies_on_compute_stream(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where copies on the stream with the most compute take long enough, beside nothing; None
    for runs without devices."""
    return _of_copies(given, id=ON_STREAM)


def awaited_copies(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where nothing is computed for long enough beside copies on other streams, for which the
    next compute or the host waits; None for runs without devices."""
    return _of_copies(given, id=AWAITED)


def _of_copies(given: RuleInput, *, id: str) -> Recommendation | None:
    ranks = [
        (timeline, windows, ROWS[id](copy_rows(timeline)))
        for timeline, windows in given.some_at_hand()
        if timeline.has_device and given.coverage[timeline.rank].copy.starts.size
    ]
    found = [_copied(given, *each, to_host=False) for each in ranks]
    mean = _mean([each.alone_ns for each in found])
    if not given.is_worth(mean):
        return None
    to_host = _mean([each.to_device_ns for each in found]) < MOSTLY * mean
    if to_host:
        found = [_copied(given, *each, to_host=True) for each in ranks]
        mean = _mean([each.alone_ns for each in found])
        if not given.is_worth(mean):
            return None
    most = max(found, key=lambda each: length(each.alone))
    at = int((most.alone.ends - most.alone.starts).argmax())
    pageable_ns = _mean([each.pageable_ns for each in found])
    kind = _kind(found, mean, to_host=to_host)
    one = given.in_one_step({each.timeline.rank: each.by_window for each in found})
    times = most.parts if one else 1  # a loss of one step is one of the recording
    slow = slow_hosts(given.analysis.findings) is not None
    beside = _mean([each.beside_ns for each in found])
    # However they run beside compute, a step takes as long as they do.
    free_ns = max(given.step_ns - _mean([each.ran_ns for each in found]), 0) if id == AWAITED and not one else mean
    holds = id == AWAITED and pageable_ns >= MOSTLY * mean
    title = _title(given, id, kind, mean, one, holds=holds)
    advice = recommended(
        given,
        id=id,
        title=f"{title}{_also_exposed(given, beside, mean)}{NOT_BEFORE * slow}",
        at_most_ns=min(mean, free_ns) * times,
        loss_ns=round(mean * times),
        bound_from=None if slow else "loss",
        apply=_apply(given, kind, pageable=given.is_worth(pageable_ns), recurs=most.recurs),
        evidence={
            "copies_alone_ns": round(mean * times),
            "beside_communication_ns": round(beside * times),
            "to_device_ns": round(most.to_device_ns * times),
            "of_inputs_ns": round(_mean([each.input_ns for each in found]) * times),
            "pageable": given.is_worth(pageable_ns),
            TO_HOST_ALONE: to_host,
            HOLDS_HOST: holds,
        },
        shown_by=ShownBy(rank=most.timeline.rank, start_ns=int(most.alone.starts[at]), end_ns=int(most.alone.ends[at])),
        measured=["the time of these copies in which the device does not compute"],
        assumed=[_assumed(kind, holds=holds)],
        per="recording" if one else None,
    )
    return msgspec.structs.replace(advice, loss_ns=None) if slow else advice


def _kind(found: list[_Copied], mean: float, *, to_host: bool) -> _Kind:
    """Return what most of the copies are of."""
    inputs = _mean([each.input_ns for each in found])
    if inputs >= MOSTLY * mean:
        return "batch"
    if inputs + _mean([each.like_input_ns for each in found]) >= MOSTLY * mean:
        return "batches"
    return "to_host" if to_host else "other"


def _title(given: RuleInput, id: str, kind: _Kind, mean: float, one: tuple[int, float] | None, *, holds: bool) -> str:
    """Return what to do and what it costs; `holds`: most copies, from or to pageable memory, hold the host."""
    do, what, mostly = WORDS[kind]
    how_long = (
        f"{ms(mean)} of a {ms(given.step_ns)} {given.per}" if one is None else f"{ms(one[1])} in step {one[0]} alone"
    )
    if id == ON_STREAM:
        return f"{do}: {what}{mostly} on the compute stream take {how_long}, and nothing is computed beside them"
    if holds:
        way = "to" if kind == "to_host" else "from"
        return (
            f"Copy {way} pinned memory: copies {way} pageable memory{mostly or ','} which hold the host until they "
            f"end, take {how_long} in which nothing is computed"
        )
    return (
        f"{AHEAD.get(kind, do)}: nothing is computed for {how_long} beside {what} on other streams{mostly or ','} as "
        "the next compute waits for them"
    )


def _assumed(kind: _Kind, *, holds: bool) -> str:
    when = "later" if kind == "to_host" else "earlier"
    if holds:
        return (
            f"that what is copied can be copied {when}, from or to pinned memory, beside compute; what the device "
            "idles until the host launches again, and how much faster these copies are, is not in the cost"
        )
    return f"that what is copied can be copied {when}, beside compute: the gain is an upper bound"


def _mean(times: list[float]) -> float:
    return sum(times) / len(times) if times else 0.0


def _also_exposed(given: RuleInput, beside: float, copied: float) -> str:
    """Return that communication beside copies is exposed, where that is worth saying: one time, counted twice. It is a
    share, as the table of causes holds only what the next compute waited for, divided as the sums over all steps."""
    share = percent_text(beside / copied) if given.is_worth(beside) else ""
    return f" (communication beside {share} of it is exposed, too)" if share else ""


def _copied(given: RuleInput, timeline: RankTimeline, windows: Windows, rows: Ints, *, to_host: bool) -> _Copied:
    """Return a rank's copies in `rows` while no other stream computes; with `to_host` those to the host alone that
    could run beside compute.

    Those of a step are the ones that it launched: they may run before its window begins. Where these are not known, it
    is the copies that ran in the windows.
    """
    spans, cover = timeline.spans, given.coverage[timeline.rank]
    rows = to_host_rows(timeline, rows) if to_host else rows

    def alone(chosen: Ints) -> Intervals:
        return difference(union((spans.start_ns[chosen], spans.end_ns[chosen])), cover.compute)

    steps = timeline.steps.step[~timeline.steps.cut]
    launched = rows[np.isin(spans.step[rows], steps)]
    inside = intersection(alone(rows), time_of(windows))
    by_launch = given.per == "step" and length(alone(launched)) >= length(inside) > 0
    counted, parts = (launched, steps.size) if by_launch else (rows, len(windows))

    def a_step(chosen: Flags) -> float:
        own = alone(counted[chosen])
        return length(own if by_launch else intersection(own, time_of(windows))) / parts

    def named(fits: re.Pattern[str]) -> Flags:
        return rows_named(spans.name[counted], timeline.names, fits.search)

    every = alone(counted) if by_launch else inside
    first = _after_fetch(timeline, counted)
    if by_launch:
        first |= _before_compute(spans, counted)
    of_batch = _of_batch(named(TO_DEVICE) & first, named(PAGEABLE))
    starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
    by_window = BusyTime(every).within(starts, ends)
    about_as_much = by_window >= MOSTLY * by_window.max(initial=0)
    return _Copied(
        timeline=timeline,
        alone=every,
        alone_ns=length(every) / parts,
        beside_ns=length(intersection(every, cover.comm)) / parts,
        by_window=by_window,
        recurs=given.per == "step" and about_as_much.size > 1 and bool(about_as_much.mean() > MOSTLY),
        parts=parts,
        to_device_ns=a_step(named(TO_DEVICE)),
        input_ns=a_step(of_batch),
        like_input_ns=a_step(_like_batches(timeline, counted) & named(TO_DEVICE) & ~named(PAGEABLE) & ~of_batch),
        pageable_ns=a_step(named(PAGEABLE)),
        ran_ns=length(union((spans.start_ns[counted], spans.end_ns[counted]))) / parts,
    )


def _of_batch(first: Flags, pageable: Flags) -> Flags:
    """Return which copies are of a batch, of those to the device before a step computes: beside copies from pinned
    memory, in which a loader leaves its batches, what those from pageable memory copy is not known, such as parameters
    that a host received."""
    pinned = first & ~pageable
    return pinned if pinned.any() else first


def _like_batches(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which rows are as long as the copies to the device, on whatever stream, that end before the first compute
    of the step that launched them, and followed by `KERNELS_OF_BATCH` or more before the next of these rows: batches
    that are evaluated, and no weights of a layer."""
    spans = timeline.spans
    copies = np.flatnonzero((spans.kind == COPY) & (spans.step != NONE))
    copies = copies[rows_named(spans.name[copies], timeline.names, TO_DEVICE.search)]
    opening = copies[_before_compute(spans, copies)]
    if not opening.size or not rows.size:
        return np.zeros(rows.size, np.bool_)
    lasted = spans.end_ns - spans.start_ns
    usual = float(np.median(lasted[opening]))
    begun = np.sort(spans.start_ns[spans.kind == COMPUTE])
    order = np.argsort(spans.start_ns[rows], kind="stable")
    before = np.searchsorted(begun, spans.start_ns[rows[order]])
    kernels = np.empty(rows.size, np.int64)
    kernels[order] = np.diff(np.append(before, begun.size))
    like: Flags = (np.abs(lasted[rows] - usual) <= LIKE_BATCH * usual) & (kernels >= KERNELS_OF_BATCH)
    return like


def _before_compute(spans: Spans, rows: Ints) -> Flags:
    """Return which rows ended before the first compute that their step launched; none where it launched none."""
    steps, of_row = np.unique(spans.step[rows], return_inverse=True)
    computes = np.flatnonzero((spans.kind == COMPUTE) & np.isin(spans.step, steps))
    first = np.full(steps.size, np.iinfo(np.int64).max, np.int64)
    of_compute = np.searchsorted(steps, spans.step[computes])
    np.minimum.at(first, of_compute, spans.start_ns[computes])
    computed = np.isin(np.arange(steps.size), of_compute)
    before: Flags = computed[of_row] & (spans.end_ns[rows] <= first[of_row])
    return before


def _after_fetch(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which rows were launched after a range in which a batch is fetched had begun, and before any compute was:
    without marks of steps, too."""
    spans, notes = timeline.spans, timeline.annotations
    fetches = np.sort(notes.start_ns[loads_data(timeline, notes.name, notes.start_ns, notes.end_ns)])
    if not fetches.size:
        return np.zeros(rows.size, np.bool_)
    launch, computes = spans.launch_ns[rows], spans.launch_ns[spans.kind == COMPUTE]
    computes = np.sort(computes[computes != NONE])
    latest = np.searchsorted(fetches, launch, side="right") - 1
    since = np.searchsorted(computes, fetches[np.maximum(latest, 0)])
    after: Flags = (launch != NONE) & (latest >= 0) & (np.searchsorted(computes, launch) == since)
    return after


def _apply(given: RuleInput, kind: _Kind, *, pageable: bool, recurs: bool) -> dict[str, str]:
    """Return code that copies beside compute; what recurs in each step is no checkpoint."""
    if kind in ("batch", "batches"):
        lines = [
            "copies = torch.cuda.Stream()",
            "with torch.cuda.stream(copies):  # the next batch, while this one computes",
            "    batch = next(batches).to(device, non_blocking=True)",
            "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
            "batch.record_stream(torch.cuda.current_stream())",
        ]
        lines += ["DataLoader(..., pin_memory=True)  # from pageable memory a copy runs beside nothing"] * pageable
        return {"torch": "\n".join(lines)}
    offload = (
        '# where offload_param or offload_optimizer is on: "pin_memory": true; "device": "none" where memory suffices'
    )
    of_deepspeed = {"deepspeed": offload} if "deepspeed" in given.job.frameworks else {}
    if kind == "to_host":
        pinned = "  # once: to pageable memory a copy runs beside nothing" if pageable else "  # once"
        lines = [
            f'host = torch.empty_like(tensor, device="cpu", pin_memory=True){pinned}',
            "copies = torch.cuda.Stream()",
            "copies.wait_stream(torch.cuda.current_stream())",
            "with torch.cuda.stream(copies):",
            "    host.copy_(tensor, non_blocking=True)",
            "copied = copies.record_event()  # in another thread: copied.synchronize(), then write or send host",
            "torch.cuda.current_stream().wait_event(copied)  # before tensor changes",
        ]
        checkpoint = f"{ASYNC_SAVE}  # where it is a checkpoint"
        lines += [] if given.job.serves or recurs else [checkpoint]
        return {"torch": "\n".join(lines)} | of_deepspeed
    lines = [
        "copies = torch.cuda.Stream()",
        "with torch.cuda.stream(copies):  # what is needed next, such as a layer's weights, while this one computes",
        "    tensor = host_tensor.to(device, non_blocking=True)",
        "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
    ]
    lines += ["host_tensor = host_tensor.pin_memory()  # from pageable memory a copy runs beside nothing"] * pageable
    if given.job.serves:
        return {"torch": "\n".join(lines), "serving": "# keep weights on the device where they fit: no CPU offload"}
    return {"torch": "\n".join(lines)} | of_deepspeed

"""Rule: copies between host and device run on the stream that computes, so nothing computes beside them: offload, the
batch that a step begins with, or a checkpoint.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
import numpy as np

from overlapscope.advice.losses.blocked_host import PINNED
from overlapscope.advice.losses.host_time import shown_by
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.checks.slow_host import slow_hosts
from overlapscope.analysis.common.loading import loads_data
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, COPY, NONE, Flags, Ints, Spans
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

BETWEEN: Final = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host-to-Device|Device-to-Host|H2D|D2H", re.I)
"""Names of copies between host and device."""
PAGEABLE: Final = re.compile(r"Pageable")
TO_HOST_ALONE: Final = "to_host_alone"
"""In the evidence: whether the figures are of copies to the host alone."""
NOT_BEFORE: Final = "; it may save nothing before the slow hosts are faster"
"""A device that waits for launches does not end sooner without its copies: they are then no loss, but a bound."""
MOSTLY: Final = 0.5
"""Of the copying time, this share is of batches, or to the host, where it is said to be that."""


_Kind = Literal["batch", "to_host", "other"]
WORDS: Final[Mapping[_Kind, tuple[str, str]]] = {
    "batch": ("Copy the next batch ahead", "copies, mostly of the batch that a step begins with,"),
    "to_host": ("Copy to the host on a stream of its own", "copies to the host"),
    "other": ("Copy on a stream of its own", "copies between host and device"),
}
"""What to do, and what the copies are mostly."""


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
    pageable_ns: float


def copies_on_compute_stream(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where such copies take long enough, beside nothing; None for runs without devices."""
    found = _of_ranks(given, to_host=False)
    mean = _mean([each.alone_ns for each in found])
    if not given.is_worth(mean):
        return None
    to_host = _mean([each.to_device_ns for each in found]) < MOSTLY * mean
    if to_host:
        found = _of_ranks(given, to_host=True)
        mean = _mean([each.alone_ns for each in found])
        if not given.is_worth(mean):
            return None
    beside = _mean([each.beside_ns for each in found])
    most = max(found, key=lambda each: length(each.alone))
    at = int((most.alone.ends - most.alone.starts).argmax())
    longest = HostLoss(kind="pause", when=most.alone, longest=(int(most.alone.starts[at]), int(most.alone.ends[at])))
    inputs = _mean([each.input_ns for each in found])
    pageable = given.is_worth(_mean([each.pageable_ns for each in found]))
    kind: _Kind = "batch" if inputs >= MOSTLY * mean else "to_host" if to_host else "other"
    one = given.in_one_step({each.timeline.rank: each.by_window for each in found})
    times = most.parts if one else 1  # a loss of one step is one of the recording
    how_long = (
        f"{ms(mean)} of a {ms(given.step_ns)} {given.per}" if one is None else f"{ms(one[1])} in step {one[0]} alone"
    )
    do, what = WORDS[kind]
    slow = slow_hosts(given.analysis.findings) is not None
    advice = recommended(
        given,
        id="copies_on_compute_stream",
        title=f"{do}: {what} on the compute stream take {how_long}, and nothing is computed beside them"
        f"{_also_exposed(given, beside, mean)}{NOT_BEFORE * slow}",
        at_most_ns=mean * times,
        bound_from=None if slow else "loss",
        apply=_apply(given, kind, pageable=pageable, recurs=most.recurs),
        evidence={
            "copies_alone_ns": round(mean * times),
            "beside_communication_ns": round(beside * times),
            "to_device_ns": round(most.to_device_ns * times),
            "of_inputs_ns": round(inputs * times),
            "pageable": pageable,
            TO_HOST_ALONE: to_host,
        },
        shown_by=shown_by(given.run.ranks[most.timeline.rank], longest),
        measured=["the time of these copies in which the device does not compute"],
        assumed=[
            f"that what is copied can be copied {'later' if kind == 'to_host' else 'earlier'}, beside compute: "
            "the gain is an upper bound"
        ],
        per="recording" if one else None,
    )
    return msgspec.structs.replace(advice, loss_ns=None) if slow else advice


def _of_ranks(given: RuleInput, *, to_host: bool) -> list[_Copied]:
    return [
        _copied(timeline, given, own, to_host=to_host)
        for timeline, own in given.some_at_hand()
        if timeline.has_device and given.coverage[timeline.rank].copy.starts.size
    ]


def _mean(times: list[float]) -> float:
    return sum(times) / len(times) if times else 0.0


def _also_exposed(given: RuleInput, beside: float, copied: float) -> str:
    """Return that communication beside copies is exposed, where that is worth saying: one time, counted twice. It is a
    share, as the table of causes holds only what the next compute waited for, divided as the sums over all steps."""
    share = percent_text(beside / copied) if given.is_worth(beside) else ""
    return f" (communication beside {share} of it is exposed, too)" if share else ""


def _copied(timeline: RankTimeline, given: RuleInput, windows: Windows, *, to_host: bool) -> _Copied:
    """Return a rank's copies on the stream with the most compute, while no other stream computes; with `to_host` those
    to the host alone that another stream could run beside compute.

    Those of a step are the ones that it launched: they may run before its window begins. Where these are not known, it
    is the copies that ran in the windows.
    """
    spans, cover = timeline.spans, given.coverage[timeline.rank]
    computes = spans.kind == COMPUTE
    by_lane = sum_by(
        spans.lane[computes], (spans.end_ns - spans.start_ns)[computes], int(spans.lane.max(initial=0)) + 1
    )
    rows = np.flatnonzero((spans.kind == COPY) & (spans.lane == by_lane.argmax()) & computes.any())
    rows = rows[rows_named(spans.name[rows], timeline.names, BETWEEN.search)]
    if to_host:
        rows = rows[~rows_named(spans.name[rows], timeline.names, TO_DEVICE.search)]
        rows = rows[~_waited_for(timeline, rows)]

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
        input_ns=a_step(_of_batch(named(TO_DEVICE) & first, named(PAGEABLE))),
        pageable_ns=a_step(named(PAGEABLE)),
    )


def _of_batch(first: Flags, pageable: Flags) -> Flags:
    """Return which copies are of a batch, of those to the device before a step computes: beside copies from pinned
    memory, in which a loader leaves its batches, what those from pageable memory copy is not known, such as parameters
    that a host received."""
    pinned = first & ~pageable
    return pinned if pinned.any() else first


def _waited_for(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which copies their host waited for although they are to pinned memory: until they ended it launched no
    compute that could run beside them. Not where a launch is not known."""
    spans = timeline.spans
    launch, computes = spans.launch_ns[rows], spans.launch_ns[spans.kind == COMPUTE]
    computes = np.sort(computes[computes != NONE])
    pinned = rows_named(spans.name[rows], timeline.names, PINNED.search)
    nothing = np.searchsorted(computes, launch, side="right") == np.searchsorted(computes, spans.end_ns[rows])
    found: Flags = pinned & (launch != NONE) & nothing & (computes.size > 0)
    return found


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
    if kind == "batch":
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
        checkpoint = "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)  # where it is a checkpoint"
        lines += [] if given.job.serves or recurs else [checkpoint]
        return {"torch": "\n".join(lines)} | of_deepspeed
    lines = [
        "copies = torch.cuda.Stream()",
        "with torch.cuda.stream(copies):  # the next layer's, while this one computes",
        "    weight = host_weight.to(device, non_blocking=True)",
        "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
    ]
    lines += ["host_weight = host_weight.pin_memory()  # from pageable memory a copy runs beside nothing"] * pageable
    if given.job.serves:
        return {"torch": "\n".join(lines), "serving": "# keep weights on the device where they fit: no CPU offload"}
    return {"torch": "\n".join(lines)} | of_deepspeed

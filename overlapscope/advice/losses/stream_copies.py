"""Rule: copies between host and device run on the stream that computes, so nothing computes beside them: offload, or
the batch that a step begins with.
"""

import re
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.losses.host_time import shown_by
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, COPY, Flags, Ints, Spans
from overlapscope.timeline.intervals import Intervals, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

BETWEEN: Final = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host-to-Device|Device-to-Host|H2D|D2H", re.I)
"""Names of copies between host and device."""
TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice|Host-to-Device|H2D", re.I)
PAGEABLE: Final = re.compile(r"Pageable")
MOSTLY: Final = 0.5
"""Of the copying time, this share is before a step's first compute where it is a batch that is copied."""


class _Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Such copies of one rank; times in ns a step."""

    timeline: RankTimeline
    alone: Intervals
    """When they ran and nothing computed. Communication beside them is exposed by them: the compute that waits for them
    could hide it."""
    alone_ns: float
    beside_ns: float
    """What of it has communication beside it."""
    to_device_ns: float
    input_ns: float
    """What of it is copied to the device before the first compute of the step that launched it."""
    pageable_ns: float


def copies_on_compute_stream(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where such copies take long enough, beside nothing; None for runs without devices."""
    found = [
        copied
        for timeline, own in given.some_at_hand()
        if timeline.has_device and given.coverage[timeline.rank].copy.starts.size
        for copied in (_copied(timeline, given, own),)
    ]
    mean = _mean([each.alone_ns for each in found])
    if not given.is_worth(mean):
        return None
    beside = _mean([each.beside_ns for each in found])
    most = max(found, key=lambda each: length(each.alone))
    at = int((most.alone.ends - most.alone.starts).argmax())
    longest = HostLoss(kind="pause", when=most.alone, longest=(int(most.alone.starts[at]), int(most.alone.ends[at])))
    inputs = _mean([each.input_ns for each in found])
    pageable = given.is_worth(_mean([each.pageable_ns for each in found]))
    is_batch = inputs >= MOSTLY * mean
    what = "copies, mostly of the batch that a step begins with," if is_batch else "copies between host and device"
    return recommended(
        given,
        id="copies_on_compute_stream",
        title=f"Copy {'the next batch ahead' if is_batch else 'on a stream of its own'}: {what} on the compute stream "
        f"take {ms(mean)} of a {ms(given.step_ns)} {given.per}, and nothing is computed beside them"
        f"{_also_exposed(given, beside)}",
        at_most_ns=mean,
        bound_from="loss",
        apply=_apply(given, is_batch=is_batch, pageable=pageable),
        evidence={
            "copies_alone_ns": round(mean),
            "beside_communication_ns": round(beside),
            "to_device_ns": round(most.to_device_ns),
            "of_inputs_ns": round(inputs),
            "pageable": pageable,
        },
        shown_by=shown_by(given.run.ranks[most.timeline.rank], longest),
        measured=["the time of these copies in which the device does not compute"],
        assumed=["that what is copied can be copied earlier, beside compute: the gain is an upper bound"],
    )


def _mean(times: list[float]) -> float:
    return sum(times) / len(times) if times else 0.0


def _also_exposed(given: RuleInput, beside: float) -> str:
    """Return that communication beside copies is exposed, where that is worth saying: one time, counted twice."""
    return f" ({ms(beside)} of it is exposed communication, too)" if given.is_worth(beside) else ""


def _copied(timeline: RankTimeline, given: RuleInput, windows: Windows) -> _Copied:
    """Return a rank's copies on the stream with the most compute, while no other stream computes.

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
    return _Copied(
        timeline=timeline,
        alone=every,
        alone_ns=length(every) / parts,
        beside_ns=length(intersection(every, cover.comm)) / parts,
        to_device_ns=a_step(named(TO_DEVICE)),
        input_ns=a_step(named(TO_DEVICE) & _before_compute(spans, counted)) if by_launch else 0.0,
        pageable_ns=a_step(named(PAGEABLE)),
    )


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


def _apply(given: RuleInput, *, is_batch: bool, pageable: bool) -> dict[str, str]:
    if is_batch:
        lines = [
            "copies = torch.cuda.Stream()",
            "with torch.cuda.stream(copies):  # the next batch, while this one computes",
            "    batch = next(batches).to(device, non_blocking=True)",
            "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
            "batch.record_stream(torch.cuda.current_stream())",
        ]
        lines += ["DataLoader(..., pin_memory=True)  # from pageable memory a copy runs beside nothing"] * pageable
        return {"torch": "\n".join(lines)}
    lines = [
        "copies = torch.cuda.Stream()",
        "with torch.cuda.stream(copies):  # the next layer's, while this one computes",
        "    weight = host_weight.to(device, non_blocking=True)",
        "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
    ]
    lines += ["host_weight = host_weight.pin_memory()  # from pageable memory a copy runs beside nothing"] * pageable
    if given.job.serves:
        return {"torch": "\n".join(lines), "serving": "# keep weights on the device where they fit: no CPU offload"}
    offload = (
        '# where offload_param or offload_optimizer is on: "pin_memory": true; "device": "none" where memory suffices'
    )
    return {"torch": "\n".join(lines)} | ({"deepspeed": offload} if "deepspeed" in given.job.frameworks else {})

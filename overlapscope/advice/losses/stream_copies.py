"""Rule: copies between host and device run on the stream that computes, so nothing computes beside them (offload)."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.advice.losses.host_time import shown_by
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import COMPUTE, COPY
from overlapscope.timeline.intervals import Intervals, difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

BETWEEN: Final = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host-to-Device|Device-to-Host|H2D|D2H", re.I)
"""Names of copies between host and device."""
TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice|Host-to-Device|H2D", re.I)
PAGEABLE: Final = re.compile(r"Pageable")


def copies_on_compute_stream(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where such copies take long enough, beside nothing; None for runs without devices."""
    found = [
        (rank, alone, to_device)
        for timeline, own in given.some_at_hand()
        if timeline.has_device and given.coverage[timeline.rank].copy.starts.size
        for rank, alone, to_device in (_alone(timeline, given, own),)
    ]
    mean = _mean_of_steps(given, {rank: alone for rank, alone, _ in found})
    if not given.is_worth(mean):
        return None
    beside = _mean_of_steps(given, {rank: intersection(alone, given.coverage[rank].comm) for rank, alone, _ in found})
    rank, alone, to_device = max(found, key=lambda each: length(each[1]))
    at = int((alone.ends - alone.starts).argmax())
    longest = HostLoss(kind="pause", when=alone, longest=(int(alone.starts[at]), int(alone.ends[at])))
    names = given.run.ranks[rank].names
    pageable = any(BETWEEN.search(name) and PAGEABLE.search(name) for name in names)
    return recommended(
        given,
        id="copies_on_compute_stream",
        title=f"Copy on a stream of its own: copies between host and device on the compute stream take {ms(mean)} of a "
        f"{ms(given.step_ns)} {given.per}, and nothing is computed beside them{_also_exposed(given, beside)}",
        at_most_ns=mean,
        bound_from="loss",
        apply=_apply(given, pageable=pageable),
        evidence={
            "copies_alone_ns": round(mean),
            "beside_communication_ns": round(beside),
            "to_device_ns": round(to_device),
            "pageable": pageable,
        },
        shown_by=shown_by(given.run.ranks[rank], longest),
        measured=["the time of these copies in which the device does not compute"],
        assumed=["that what is copied can be copied earlier, beside compute: the gain is an upper bound"],
    )


def _mean_of_steps(given: RuleInput, times: Mapping[int, Intervals]) -> float:
    """Return the mean length over ranks, in ns a step."""
    spent = [length(each) / len(given.windows[rank]) for rank, each in times.items()]
    return sum(spent) / len(spent) if spent else 0.0


def _also_exposed(given: RuleInput, beside: float) -> str:
    """Return that communication beside copies is exposed, where that is worth saying: one time, counted twice."""
    return f" ({ms(beside)} of it is exposed communication, too)" if given.is_worth(beside) else ""


def _alone(timeline: RankTimeline, given: RuleInput, windows: Windows) -> tuple[int, Intervals, float]:
    """Return the rank, when such copies ran in its windows with no compute beside them, and the mean ns of those to the
    device. Communication beside them is exposed by them: the compute that waits for them could hide it."""
    spans, cover = timeline.spans, given.coverage[timeline.rank]
    computes = spans.kind == COMPUTE
    if not computes.any():
        return timeline.rank, Intervals(spans.start_ns[:0], spans.end_ns[:0]), 0.0
    by_lane = sum_by(spans.lane[computes], (spans.end_ns - spans.start_ns)[computes], int(spans.lane.max()) + 1)
    on_compute = (spans.kind == COPY) & (spans.lane == by_lane.argmax())
    inside = time_of(windows)

    def alone(fits: re.Pattern[str]) -> Intervals:
        rows = np.flatnonzero(on_compute)
        rows = rows[rows_named(spans.name[rows], timeline.names, fits.search)]
        copied = union((spans.start_ns[rows], spans.end_ns[rows]))
        return intersection(difference(copied, cover.compute), inside)

    return timeline.rank, alone(BETWEEN), length(alone(TO_DEVICE)) / len(windows)


def _apply(given: RuleInput, *, pageable: bool) -> dict[str, str]:
    lines = [
        "copies = torch.cuda.Stream()",
        "with torch.cuda.stream(copies):  # the next layer's, while this one computes",
        "    weight = host_weight.to(device, non_blocking=True)",
        "torch.cuda.current_stream().wait_stream(copies)  # before it is used",
    ]
    lines += ["host_weight = host_weight.pin_memory()  # from pageable memory a copy runs beside nothing"] * pageable
    if given.job.serves:
        return {"torch": "\n".join(lines), "serving": "# keep weights on the device where they fit: no CPU offload"}
    return {
        "torch": "\n".join(lines),
        "deepspeed": '{"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": true}}}',
    }

"""What a run is of, by its sources: ranks, how many of its steps were recorded, and why a trigger recorded a trace."""

from typing import Any, TypeVar

import msgspec
import numpy as np

from overlapscope.analysis.result import CaptureCost, RecordedSteps, RunInfo, TriggeredTrace
from overlapscope.timeline.columns import STEP_TIME
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

T = TypeVar("T")


def run_info(run: Run) -> RunInfo:
    """Return what the sources say of the job, and of how it was recorded."""
    return RunInfo(
        world_size=run.world_size,
        ranks=list(run.ranks),
        missing_ranks=list(run.missing_ranks),
        unread_ranks=list(run.unread_ranks),
        fingerprint=dict(run.fingerprint),
        has_device=any(each.has_device for each in run.ranks.values()),
        recorded_steps=_recorded_steps(run),
        capture_cost=_capture_cost(run),
        triggers=_triggers(run),
    )


def _recorded_steps(run: Run) -> RecordedSteps | None:
    """Return how many steps were recorded on the rank that recorded most, None where it left none out."""
    found = []
    for timeline in run.ranks.values():
        chosen = _stated(timeline.recorded.get("sampled"), list[_Sampled])
        if timeline.basis == "events" and chosen and STEP_TIME in timeline.names:
            readings = timeline.telemetry
            rows = readings.name == timeline.names.index(STEP_TIME)
            timed, took = readings.step[rows], readings.value[rows]
            steps = unique(timeline.steps.step)
            whole = np.isfinite(took) & (took > 0)
            known = whole & np.isin(timed, steps)
            found.append(
                RecordedSteps(
                    recorded=steps.size, of=np.union1d(timed, steps).size, every=chosen[-1].every,
                    mean_ns=float(took[whole].mean()) if whole.any() else None,
                    recorded_mean_ns=float(took[known].mean()) if known.any() else None,
                )
            )  # fmt: skip
    most = max(found, key=lambda each: each.recorded, default=None)
    return None if most is None or most.recorded == most.of else most


def _capture_cost(run: Run) -> CaptureCost | None:
    """Return what recording cost on the rank where it was most; None where no rank says so, or in the mean of all it is
    not sure to have cost anything: then what a rank measured is what else changed between its steps."""
    stated = {rank: _stated(timeline.recorded.get("overhead"), _Overhead) for rank, timeline in run.ranks.items()}
    found = [CaptureCost(rank=rank, **msgspec.structs.asdict(own)) for rank, own in stated.items() if own is not None]
    if not found or sum(each.low_ns for each in found) <= 0:
        return None
    return max(found, key=lambda each: each.median_ns)


def _triggers(run: Run) -> list[TriggeredTrace]:
    """Return why a running job recorded this trace, or the traces beside this recording; each once."""
    found = []
    for timeline in run.ranks.values():
        reason = _stated(timeline.recorded.get("trigger"), str)
        found += [TriggeredTrace(reason=reason)] if reason else []
        found += _stated(timeline.recorded.get("triggered"), list[TriggeredTrace]) or []
    return list({(each.trace, each.reason): each for each in found}.values())


class _Sampled(msgspec.Struct):
    every: int


class _Overhead(msgspec.Struct):
    median_ns: float
    low_ns: float
    high_ns: float
    step_ns: float


def _stated(value: Any, kind: type[T]) -> T | None:
    """Return a value that a recording states of itself; None where it is not of this type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None

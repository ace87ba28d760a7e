"""Find hosts that make no call for long after the mark of a recording's first step began.

Nothing of the device was recorded until then: it may have been busy with what was launched before. So what such a pause
costs is said only where the step's mark lasts longer than those of other steps, by at most that.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.graph.idle import LONG_PAUSE_NS
from overlapscope.timeline.columns import ANNOTATION
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

WORTH: Final = 0.1
"""Least share of a usual step's mark by which the mark of the first one is longer. A choice: starting to record takes
some time as well."""
WHY: Final = (
    "the start of the profiler, a batch that is fetched, compilation, garbage collection, a file, a lock or a lost core"
)
FEWEST_OTHERS: Final = 1
"""Marks of other steps, at least, to compare with."""
_FAR: Final = np.iinfo(np.int64).max


class _Begin(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of a rank does not do as its first recorded step begins."""

    step: int
    start_ns: int
    paused_ns: int
    mark_ns: int
    usual_ns: float
    """The median mark of the other steps."""

    @property
    def cost_ns(self) -> int:
        """By how much longer its step takes for it, at most."""
        return round(min(self.paused_ns, self.mark_ns - self.usual_ns))


def before_first_calls(timelines: Mapping[int, RankTimeline], step_ns: float) -> list[Finding]:
    """Return at most one finding, of all ranks whose hosts are silent as the first step begins."""
    found = {rank: each for rank, timeline in timelines.items() if (each := _begin(timeline, step_ns)) is not None}
    steps = {each.step for each in found.values()}
    if len(steps) != 1:
        return []
    ranks, step = sorted(found), steps.pop()
    costliest = max(found, key=lambda rank: found[rank].cost_ns)
    most = found[costliest]
    return [
        Finding(
            id="host_pauses",
            severity="warning",
            title=f"{_who(found)} as step {step} begins: its mark lasts {format_ms(most.mark_ns)}, those of other "
            f"steps {format_ms(most.usual_ns)}. What was launched before is not recorded, so the device may have been "
            f"busy meanwhile; perhaps it is {WHY}",
            evidence={
                "ranks": ranks, "steps": [step], "of_steps": int(timelines[costliest].steps.step.size),
                "number": len(found), "paused_ns": round(float(np.median([each.paused_ns for each in found.values()]))),
                "idle_ns": 0, "cost_ns": most.cost_ns, "alone_in_step": step, "alone_cost_ns": most.cost_ns,
                "one_place": True, "anywhere": False, "at_begin": True, "in_turn": False, "inside": None, "does": None,
                "in_optimizer": False, "before_any_call": True,
                "pauses": [
                    {"rank": rank, "step": step, "start_ns": own.start_ns, "paused_ns": own.paused_ns,
                     "mark_ns": own.mark_ns, "usual_mark_ns": round(own.usual_ns), "cost_ns": own.cost_ns}
                    for rank, own in sorted(found.items(), key=lambda each: -each[1].cost_ns)
                ],
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _who(found: Mapping[int, _Begin]) -> str:
    paused = [each.paused_ns for each in found.values()]
    least, most = (format_ms(ns) for ns in (min(paused), max(paused)))
    times = most if least == most else f"{least} to {most}"
    one = len(found) == 1
    return f"the host{'' if one else 's'} of {rank_list(found)} make{'s' * one} no call for {times}"


def _begin(timeline: RankTimeline, step_ns: float) -> _Begin | None:
    """Return the silence as a rank's first recorded step begins; None where a call, a range or work of the device comes
    soon, the mark began before the recording, or is no longer than the others."""
    steps, spans = timeline.steps, timeline.spans
    order = sort_order(steps.start_ns)
    if order.size < 1 + FEWEST_OTHERS or not spans.start_ns.size:
        return None
    first, others = order[0], order[1:]
    start_ns, lengths = int(steps.start_ns[first]), steps.end_ns - steps.start_ns
    if steps.cut[first] or lengths[first] - np.median(lengths[others]) < LONG_PAUSE_NS:
        return None  # most end here, before their host events are read
    host = timeline.host
    calls = host.start_ns[host.kind != ANNOTATION]
    ranges = timeline.annotations.start_ns[~np.isin(timeline.annotations.start_ns, steps.start_ns)]
    ranges = ranges[ranges >= start_ns]
    until_ns = min(int(each.min(initial=_FAR)) for each in (calls, ranges, spans.start_ns))
    if not calls.size or start_ns < timeline.recordings.start_ns.min() or until_ns < start_ns:
        return None
    found = _Begin(
        step=int(steps.step[first]),
        start_ns=start_ns,
        paused_ns=until_ns - start_ns,
        mark_ns=int(lengths[first]),
        usual_ns=float(np.median(lengths[others])),
    )
    worth = max(LONG_PAUSE_NS, WORTH * step_ns)
    return found if found.cost_ns >= worth and until_ns < steps.end_ns[first] else None

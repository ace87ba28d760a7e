"""Decide which steps the sums over all steps are of: what a step loses as it begins lies in the window before its own.

A step's window lasts from its first compute to that of the next step. A batch that is fetched, or memory that is
allocated, before the first compute of a step is so at the end of the window before. The window of a step that no step
follows ends with its own work and lacks that, and what the first step lost before its first compute lies in no window.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.intervals import BusyTime, union
from overlapscope.timeline.run import RankTimeline

FEWEST: Final = 2
"""Steps that others follow, at least: of one nobody knows whether it is like the others."""
LACKS: Final = 0.02
"""A step is cut short if it, and its time without compute, are shorter than in any step that another one follows by
this share of that step. A choice: two recordings of unchanged code differ by as much."""
LEAST_NS: Final = 3_000_000
"""What comes before the first launch of all is named from this time on, and ..."""
OF_STEP: Final = 0.1
"""... from this share of a step, beyond what any step idles. Choices: less changes no decision."""
Windows = Mapping[int, tuple[StepWindow, Breakdown]]
"""The windows of one step with their breakdowns, by rank."""


class Lead(msgspec.Struct, kw_only=True, frozen=True):
    """Time after a step began on the host and before its first launch, which no window holds."""

    step: int
    quiet_ns: int
    """In it no work of the device was recorded: mean over ranks."""


def cut_short(steps: Sequence[Windows], every: Mapping[int, Sequence[StepWindow]]) -> list[int]:
    """Return the positions of complete steps that lack what the others lose before the next step begins.

    `every` are all windows of each rank with a device, incomplete ones as well: without a device, marks are windows and
    hold whole steps. A step that is no shorter than the others stays: its own loss is not to be left out.
    """
    begins = {
        rank: {(each.recording, each.window[0]) for each in own if each.window is not None}
        for rank, own in every.items()
    }
    followed = [all(_is_followed(at, begins.get(rank, set())) for rank, (at, _) in step.items()) for step in steps]
    lengths = [(sum(its.window_ns or 0 for _, its in step.values()), _without_compute_ns(step)) for step in steps]
    usual = [length for length, follows in zip(lengths, followed, strict=True) if follows]
    if len(usual) < FEWEST:
        return []
    shortest_ns, without_ns = (min(each) for each in zip(*usual, strict=True))
    return [
        at
        for at, (own, follows) in enumerate(zip(lengths, followed, strict=True))
        if not follows
        and own[0] <= (1 - LACKS) * shortest_ns
        and own[1] <= without_ns - LACKS * shortest_ns
    ]  # fmt: skip


def lead_of(steps: Sequence[Windows], timelines: Mapping[int, RankTimeline]) -> Lead | None:
    """Return what came before the first launch of the first of these steps, in runs with devices.

    None where it is little, or no more than every step idles: then the windows hold as much of the steps after it.
    """
    if not steps or not all(timelines[rank].has_device for rank in steps[0]):
        return None
    ranks = steps[0].keys()
    idle_ns = max(sum(step[rank][1].idle_ns or 0 for rank in ranks) for step in steps) / len(ranks)
    mean_ns = sum(step[rank][1].window_ns or 0 for step in steps for rank in ranks) / len(ranks) / len(steps)
    quiet_ns = sum(_quiet_before_ns(timelines[rank], at) for rank, (at, _) in steps[0].items()) / len(ranks)
    if quiet_ns - idle_ns < max(LEAST_NS, OF_STEP * mean_ns):
        return None
    return Lead(step=next(iter(steps[0].values()))[0].step, quiet_ns=round(quiet_ns))


def _is_followed(at: StepWindow, begins: set[tuple[int, int]]) -> bool:
    return at.window is not None and at.window[1] > at.window[0] and (at.recording, at.window[1]) in begins


def _without_compute_ns(step: Windows) -> int:
    return sum((its.window_ns or 0) - (its.compute_ns or 0) for _, its in step.values())


def _quiet_before_ns(timeline: RankTimeline, at: StepWindow) -> int:
    """Return for how long no span of the device was recorded from the begin of a step's mark to its first launch.

    What begins long after its launch shows that the device was busy with earlier work, recorded or not.
    """
    steps, spans = timeline.steps, timeline.spans
    begun = steps.start_ns[(steps.recording == at.recording) & (steps.step == at.step)]
    if not begun.size:
        return 0
    launches = spans.launch_ns[(spans.recording == at.recording) & (spans.launch_ns >= begun[-1])]
    until = np.array([launches.min(initial=(at.window or (0, 0))[0])])
    own = spans.recording == at.recording
    busy = BusyTime(union((spans.start_ns[own], spans.end_ns[own])))
    return max(int(until[0] - begun[-1] - busy.within(begun[-1:], until)[0]), 0) if launches.size else 0

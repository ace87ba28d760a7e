"""Decide which steps the sums over all steps are of: what a step loses as it begins lies in the window before its own.

A step's window lasts from its first compute to that of the next step. A batch that is fetched, or memory that is
allocated, before the first compute of a step is so at the end of the window before. The window of a step that no step
follows ends with its own work and lacks that, and what the first step lost before its first compute lies in no window.
What waits for its last calls, such as the next forward for gathers of parameters, was not recorded either.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import FEWEST_FOLLOWED, LACKS, StepWindow, lack_their_end
from overlapscope.timeline.intervals import BusyTime, difference, length, union
from overlapscope.timeline.run import RankTimeline

ALIKE: Final = 0.1
"""A step exposes as much as those that another one follows if it is within their range, give or take this share. A
choice."""
MOVED: Final = 0.05
"""What the end of the recording makes `tail` of a step is said from this share of what the others expose on. A choice:
by less no conclusion changes."""
LEAST_NS: Final = 3_000_000
"""What comes before the first launch of all is named from this time on, and ..."""
OF_STEP: Final = 0.1
"""... from this share of a step, beyond what any step idles. Choices: less changes no decision."""
TAIL: Final = "tail"
"""The cause of exposed time that nothing which was recorded waits for, or the optimizer alone."""
BESIDE: Final = 0.5
"""Where a single step is followed, the host's marks prove that the last one lacks its end from this share of what it is
shorter by. A choice: less is mostly other work."""
SAME: Final = 0.02
"""Beside a single followed step, the last one communicates and exposes the same if each differs by at most this share,
on each rank. A choice: what only some steps do is more."""
EVEN: Final = 1.25
"""A step that is no shorter than all others is left out only where the longest of these is at most so many times the
shortest: of steps that differ by more, sums are no longer those of the job without it. A choice."""
Windows = Mapping[int, tuple[StepWindow, Breakdown]]
"""The windows of one step with their breakdowns, by rank."""


class Lead(msgspec.Struct, kw_only=True, frozen=True):
    """Time after a step began on the host and before its first launch, which no window holds."""

    step: int
    quiet_ns: int
    """In it no work of the device was recorded: mean over ranks."""


def cut_short(
    steps: Sequence[Windows], every: Mapping[int, Sequence[StepWindow]], timelines: Mapping[int, RankTimeline]
) -> list[int]:
    """Return the positions of complete steps that lack what the others lose before the next step begins.

    `every` are all windows of each rank with a device, incomplete ones as well: without a device, marks are windows and
    hold whole steps. A step that is no shorter than the others stays: its own loss is not to be left out. So it is if
    it is no shorter on more than half of its ranks: one pause makes a step longer on the rank that pauses, and the next
    one on those that wait. Nor need it be shorter than all others if each of these ends with a stretch behind all that
    it launched, as the last one cannot: how long they are otherwise differs by chance. One that is shorter than a
    single followed one may have had less to do. It lacks its end if its marks hold most of what it is shorter by,
    beside its window: the host took that time, and no work of steps before filled it.
    """
    lengths = [sum(its.window_ns or 0 for _, its in step.values()) for step in steps]
    followed = _followed(steps, every)
    cut = lack_their_end(lengths, [_without_compute_ns(step) for step in steps], followed, fewest=1)
    if sum(followed) >= FEWEST_FOLLOWED:
        usual = [step for step, follows in zip(steps, followed, strict=True) if follows]
        ends = _end_behind_their_work(steps, lengths, followed)
        return [at for at in range(len(steps)) if at in ends or (at in cut and _is_shorter_on_half(steps[at], usual))]
    return [
        at
        for at in cut
        if sum(_beside_ns(timelines[rank], its) for rank, (its, _) in steps[at].items())
        >= BESIDE * (lengths[followed.index(True)] - lengths[at])
    ]


def _end_behind_their_work(steps: Sequence[Windows], lengths: Sequence[int], followed: Sequence[bool]) -> list[int]:
    """Return the positions of steps that no step follows and that are no longer than the mean of those that one
    follows, where each of these lasts on, behind the last span that it launched, for the share `LACKS` of the shortest
    or more: such a stretch is in no window that ends with its own last span. None where these are not `EVEN`."""
    usual = [at for at, follows in enumerate(followed) if follows]
    shortest_ns, longest_ns = min(lengths[at] for at in usual), max(lengths[at] for at in usual)
    least_ns = min(sum(own.behind_its_work_ns for own, _ in steps[at].values()) for at in usual)
    if longest_ns > EVEN * shortest_ns or least_ns < max(LACKS * shortest_ns, 1):
        return []
    mean_ns = fmean(lengths[at] for at in usual)
    return [at for at, follows in enumerate(followed) if not follows and lengths[at] <= mean_ns]


def _is_shorter_on_half(step: Windows, others: Sequence[Windows]) -> bool:
    """Return whether the window of a step is shorter than all of these on half of its ranks or more."""
    shorter = [
        (its.window_ns or 0) <= (1 - LACKS) * min(other[rank][1].window_ns or 0 for other in others if rank in other)
        for rank, (_, its) in step.items()
        if any(rank in other for other in others)
    ]
    return 2 * sum(shorter) >= len(shorter)


def causes_cut(steps: Sequence[Windows], every: Mapping[int, Sequence[StepWindow]]) -> list[int]:
    """Return the positions of complete steps that no step follows, and whose causes are others for that.

    `every` are all windows of each rank. Such a step exposes as much as the followed ones, but what these wait for with
    the compute of the step after them is its `tail`: that is more than in any of them, and all other causes are less.
    Where a single step is followed, nobody knows how steps differ: then it must be so on each rank, with the same time
    of communication and of exposed communication.
    """
    followed = _followed(steps, every)
    exposed = [sum(its.exposed_comm_ns or 0 for _, its in step.values()) for step in steps]
    tails = [sum(its.causes.get(TAIL, 0) for _, its in step.values()) for step in steps]
    usual = [(ns, tail) for ns, tail, follows in zip(exposed, tails, followed, strict=True) if follows]
    if len(usual) < FEWEST_FOLLOWED:
        one = [step for step, follows in zip(steps, followed, strict=True) if follows]
        return [at for at, step in enumerate(steps) if one and not followed[at] and _has_other_causes(step, one[0])]
    low_ns, high_ns = min(ns for ns, _ in usual), max(ns for ns, _ in usual)
    tail_ns, others_ns = max(tail for _, tail in usual), min(ns - tail for ns, tail in usual)
    return [
        at
        for at, (ns, tail, follows) in enumerate(zip(exposed, tails, followed, strict=True))
        if not follows
        and (1 - ALIKE) * low_ns <= ns <= (1 + ALIKE) * high_ns
        and min(tail - tail_ns, others_ns - (ns - tail)) >= max(MOVED * high_ns, 1)
    ]  # fmt: skip


def _has_other_causes(last: Windows, other: Windows) -> bool:
    """Return whether the tail of a step is another cause in a followed step that exposes the same, on each rank."""
    if last.keys() != other.keys():
        return False
    for rank, (_, its) in last.items():
        own = other[rank][1]
        pairs = [(its.comm_ns or 0, own.comm_ns or 0), (its.exposed_comm_ns or 0, own.exposed_comm_ns or 0)]
        if any(abs(ns - other_ns) > SAME * other_ns for ns, other_ns in pairs):
            return False
        tail_ns, other_tail_ns = its.causes.get(TAIL, 0), own.causes.get(TAIL, 0)
        (_, (ns, other_ns)) = pairs
        if min(tail_ns - other_tail_ns, (other_ns - other_tail_ns) - (ns - tail_ns)) < max(MOVED * other_ns, 1):
            return False
    return True


def lead_of(steps: Sequence[Windows], timelines: Mapping[int, RankTimeline], late_ns: int = 0) -> Lead | None:
    """Return what came before the first launch of the first of these steps, in runs with devices, without `late_ns`:
    what is known to be idle of it, as ranks began later than others, mean over ranks.

    None where it is little, or no more than every step idles: then the windows hold as much of the steps after it.
    """
    if not steps or not all(timelines[rank].has_device for rank in steps[0]):
        return None
    ranks = steps[0].keys()
    idle_ns = max(sum(step[rank][1].idle_ns or 0 for rank in ranks) for step in steps) / len(ranks)
    mean_ns = sum(step[rank][1].window_ns or 0 for step in steps for rank in ranks) / len(ranks) / len(steps)
    least_ns = late_ns + idle_ns + max(LEAST_NS, OF_STEP * mean_ns)
    for looked_at in (_before_window_ns, _quiet_before_ns):  # most end at the first, for which no spans are read
        quiet_ns = sum(looked_at(timelines[rank], at) for rank, (at, _) in steps[0].items()) / len(ranks)
        if quiet_ns < least_ns:
            return None
    return Lead(step=next(iter(steps[0].values()))[0].step, quiet_ns=round(quiet_ns - late_ns))


def _followed(steps: Sequence[Windows], every: Mapping[int, Sequence[StepWindow]]) -> list[bool]:
    """Return whether another step follows each of these at once, on all its ranks."""
    begins = {
        rank: {(each.recording, each.window[0]) for each in own if each.window is not None}
        for rank, own in every.items()
    }
    return [all(_is_followed(at, begins.get(rank, set())) for rank, (at, _) in step.items()) for step in steps]


def _is_followed(at: StepWindow, begins: set[tuple[int, int]]) -> bool:
    if at.window is None or at.window[1] <= at.window[0]:
        return False
    return at.unmarked_follows or (at.recording, at.window[1]) in begins


def _without_compute_ns(step: Windows) -> int:
    return sum((its.window_ns or 0) - (its.compute_ns or 0) for _, its in step.values())


def _beside_ns(timeline: RankTimeline, at: StepWindow) -> int:
    """Return how much of a step's mark lies outside its window and without work of the device that was launched before.

    Where the host runs ahead, the mark begins while the device works for the steps before.
    """
    steps, spans = timeline.steps, timeline.spans
    mark = np.flatnonzero((steps.recording == at.recording) & (steps.step == at.step))[-1:]
    if not mark.size:
        return 0
    before = (spans.recording == at.recording) & (spans.launch_ns < steps.start_ns[mark])
    begin, end = (np.array([ns]) for ns in at.window or (0, 0))
    other = union((spans.start_ns[before], spans.end_ns[before]), (begin, end))
    return length(difference(union((steps.start_ns[mark], steps.end_ns[mark])), other))


def _before_window_ns(timeline: RankTimeline, at: StepWindow) -> int:
    """Return the time from the begin of a step's mark to that of its window."""
    begun = timeline.steps.start_ns[(timeline.steps.recording == at.recording) & (timeline.steps.step == at.step)]
    return max((at.window or (0, 0))[0] - int(begun[-1]), 0) if begun.size else 0


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

"""Rule: without a device, a training thread does nothing that was recorded for long, at one place of each step."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.timeline.columns import COMM, COMPUTE
from overlapscope.timeline.intervals import Intervals, difference, union
from overlapscope.timeline.run import RankTimeline

LONG_NS: Final = 12_000_000
"""Two turns on a core, of 2 to 6 ms each: shorter pauses may be those of a host whose core another one has."""
STANDS_OUT: Final = 2.0
"""It is so many times as long as the next longest of its step: the scheduler makes many of much the same length."""
FEWEST_STEPS: Final = 3
IN_STEPS: Final = 0.75
"""In this share of a rank's steps the longest pause is at one place, or of one length. A choice."""
RARE: Final = 0.1
"""Work of a name that this share of the spans has, or less, marks a place. A choice."""
STEADY: Final = 0.15
"""Pauses are of one length if they differ from their median by at most this share. A choice."""
BEGINS, ENDS = "the begin of the step", "the end of the step"


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time of a window in which a rank did nothing that was recorded."""

    start_ns: int
    end_ns: int
    after: str
    before: str
    next_longest_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


class _Paused(msgspec.Struct, frozen=True, kw_only=True):
    """The pauses of a rank at one place, or of one length, one a step."""

    rank: int
    place: str
    length_ns: int
    """Median over all its steps."""
    longest: _Pause


def pausing_host(given: RuleInput) -> Recommendation | None:
    """Return the recommendation for the ranks that pause so, where the longest pause is worth it; else None."""
    if given.run_has_device or given.job.serves or given.per != "step":
        return None
    every = [each for timeline, windows in given.some_ranks() if (each := _paused(timeline, windows)) is not None]
    worth = [each for each in every if given.is_worth(each.length_ns)]
    if not worth:
        return None
    most = max(worth, key=lambda each: each.length_ns)
    ranks = sorted(each.rank for each in worth)
    whose = f"the training thread{'s' if len(ranks) > 1 else ''} of {rank_list(ranks)}"
    waits = ", and others wait for it" if len(ranks) < len(given.run.ranks) else ""
    return recommended(
        given,
        id="pausing_host",
        title=f"Find why {whose} {'do' if len(ranks) > 1 else 'does'} nothing that was recorded for "
        f"{ms(most.length_ns)} of a {ms(given.step_ns)} {given.per}, each time {most.place}{waits}",
        verdict="look",
        loss_ns=most.length_ns,
        apply={
            "python": "py-spy dump --pid PID  # while it pauses: a sleep, a file, a lock, a service that answers late\n"
            "torch.profiler.profile(with_stack=True)  # which function it is in",
            "torch": "with torch.profiler.record_function('logging'): ...  # name the parts of the loop",
        },
        evidence={
            "ranks": ranks,
            "paused_ns": {str(each.rank): each.length_ns for each in worth},
        },
        shown_by=ShownBy(
            rank=most.rank, start_ns=most.longest.start_ns, end_ns=most.longest.end_ns, call=None, op=None, chain=[]
        ),
        measured=["the longest time of each step in which the thread neither computed nor communicated"],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the rank is idle for less",
    )


def _paused(timeline: RankTimeline, windows: Windows) -> _Paused | None:
    """Return the pauses of a rank, if those of most steps are long and at one place."""
    if len(windows) < FEWEST_STEPS:
        return None
    spans = timeline.spans
    busy = np.isin(spans.kind, (COMM, COMPUTE))
    done = union((spans.start_ns[busy], spans.end_ns[busy]))
    found = [_longest(timeline, done, start, end) for start, end in windows]
    long = [each for each in found if each and each.length_ns >= max(LONG_NS, STANDS_OUT * each.next_longest_ns)]
    fewest = IN_STEPS * len(windows)
    place = _place(timeline, long, fewest) or _length(long, fewest)
    if place is None:
        return None
    lengths = [0 if each is None else each.length_ns for each in found]
    return _Paused(
        rank=timeline.rank, place=place, length_ns=round(float(np.median(lengths))),
        longest=max(long, key=lambda each: each.length_ns),
    )  # fmt: skip


def _place(timeline: RankTimeline, pauses: Sequence[_Pause], fewest: float) -> str | None:
    """Return in words where at least so many of the pauses are; None where they are at no one place."""
    for names in ([each.before for each in pauses], [each.after for each in pauses]):
        name, number = Counter(names).most_common(1)[0] if names else ("", 0)
        if number < fewest:
            continue
        if name in (BEGINS, ENDS):
            return f"at {name}"
        if np.mean(timeline.spans.name == timeline.names.index(name)) <= RARE:
            return "at one place"
    return None


def _length(pauses: Sequence[_Pause], fewest: float) -> str | None:
    """Return in words that at least so many of the pauses are of one length; None where they are not."""
    lengths = np.array([each.length_ns for each in pauses], np.int64)
    usual = float(np.median(lengths)) if lengths.size else 0.0
    return "for as long" if (np.abs(lengths - usual) <= STEADY * usual).sum() >= fewest else None


def _longest(timeline: RankTimeline, done: Intervals, start: int, end: int) -> _Pause | None:
    idle = difference(Intervals(np.array([start]), np.array([end])), done)
    if not idle.starts.size:
        return None
    lengths = idle.ends - idle.starts
    at = int(lengths.argmax())
    begin, until = int(idle.starts[at]), int(idle.ends[at])
    spans, names = timeline.spans, timeline.names
    before, after = np.flatnonzero(spans.end_ns == begin), np.flatnonzero(spans.start_ns == until)
    return _Pause(
        start_ns=begin, end_ns=until, next_longest_ns=int(np.delete(lengths, at).max(initial=0)),
        after=names[spans.name[before[0]]] if before.size and begin > start else BEGINS,
        before=names[spans.name[after[0]]] if after.size and until < end else ENDS,
    )  # fmt: skip

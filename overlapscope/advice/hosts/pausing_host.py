"""Rule: without a device, a training thread does nothing that was recorded for a long time of each step."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.advice.training_thread import training_lane
from overlapscope.analysis.common.host_work import work_of_stack
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation, ShownBy
from overlapscope.timeline.intervals import Intervals, complement, union
from overlapscope.timeline.python_stack import stack_at

LONG_NS: Final = 12_000_000
"""Two turns on a core, of 2 to 6 ms each: shorter pauses may be those of a host whose core another one has."""
STANDS_OUT: Final = 2.0
"""It is so many times as long as the next longest of its step: the scheduler makes many of much the same length."""
EDGE: Final = 0.01
"""It is at the begin or the end of a step also where so little of the step lies before or after it. A choice: gradients
are set to none there, or the loop's own counters."""
FEWEST_STEPS: Final = 3
IN_STEPS: Final = 0.75
"""In this share of a rank's steps the longest pause is at one place, or of one length. A choice."""
STEADY: Final = 0.15
"""Pauses are of one length if they differ from their median by at most this share. A choice."""
ON_PATH: Final = 0.75
"""A path that holds a pause is without work for at least this share of it: a step may end in it."""
NAMED: Final = frozenset({"data_loading", "garbage_collection"})
"""Idle time that other recommendations name, where it was recorded."""


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time of a window in which a rank did nothing that was recorded."""

    start_ns: int
    end_ns: int
    begins: bool
    """Whether it is at the begin of the window."""
    ends: bool
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
    every = [each for rank in given.windows if (each := _of_rank(given, rank)) is not None]
    worth = [each for each in every if given.is_worth(each.length_ns)]
    if not worth or not _may_be_on_path(given, worth):
        return None
    most = max(worth, key=lambda each: each.length_ns)
    ranks = sorted(each.rank for each in worth)
    whose = f"the training thread{'s' if len(ranks) > 1 else ''} of {rank_list(ranks)}"
    computes, stack = "compute" if len(ranks) > 1 else "computes", _stack(given, most)
    work = work_of_stack(stack)
    inside = f": it is in {stack[-1]}" if stack else ""
    return recommended(
        given,
        id="pausing_host",
        title=f"Find why {whose} {computes} nothing for {ms(most.length_ns)} of a "
        f"{ms(_own_step_ns(given, most.rank))} {given.per}, {most.place}{inside}",
        verdict="look",
        loss_ns=most.length_ns,
        apply=dict(work.apply)
        if work is not None
        else {
            "python": "py-spy dump --pid PID  # while it pauses: a sleep, a file, a lock, a service that answers late\n"
            "torch.profiler.profile(with_stack=True)  # which function it is in: overlapscope analyze --stacks TRACES",
            **_named_parts(given),
        },
        evidence={
            "ranks": ranks,
            "paused_ns": {str(each.rank): each.length_ns for each in worth},
        },
        shown_by=ShownBy(rank=most.rank, start_ns=most.longest.start_ns, end_ns=most.longest.end_ns),
        measured=["the longest time of each step in which the thread neither computed nor communicated"],
        assumed=[],
        verify="overlapscope analyze NEW_RUN: the rank is idle for less",
    )


def _stack(given: RuleInput, paused: _Paused) -> list[str]:
    """Return the Python stack that a rank's training thread was in amid its longest pause, the outermost function
    first; empty where no stacks were recorded."""
    timeline = given.run.ranks[paused.rank]
    if timeline.host_is_lost:
        return []
    middle = (paused.longest.start_ns + paused.longest.end_ns) // 2
    return stack_at(timeline, training_lane(timeline), middle)


def _named_parts(given: RuleInput) -> dict[str, str]:
    """Return code that names the parts of the loop, in a way that this kind of recording keeps."""
    if any(timeline.basis == "events" for timeline in given.run.ranks.values()):
        return {"overlapscope": "with scope.region('logging'): ...  # name the parts of the loop"}
    return {"torch": "with torch.profiler.record_function('logging'): ...  # name the parts of the loop"}


def _own_step_ns(given: RuleInput, rank: int) -> float:
    """Return the median step of a rank; that of the job lasts from its begin on one rank to its end on another."""
    return float(np.median([end - start for start, end in given.windows[rank]]))


def _may_be_on_path(given: RuleInput, paused: Sequence[_Paused]) -> bool:
    """Return whether the pause of one of the ranks lies on the critical paths of most steps, or these are not known."""
    paths = given.analysis.critical_path.steps
    on = [
        any(path.without_work_ns.get(str(each.rank), 0) >= ON_PATH * each.length_ns for each in paused)
        for path in paths
    ]
    return 2 * sum(on) >= len(paths)


def _of_rank(given: RuleInput, rank: int) -> _Paused | None:
    """Return the pauses of a rank, if those of most steps are long, and at one place or of one length."""
    windows, covered = given.windows[rank], given.coverage[rank]
    if len(windows) < FEWEST_STEPS:
        return None
    named = [each.when for each in given.host_losses.get(rank, ()) if each.kind in NAMED]
    done = union(covered.compute, covered.comm, covered.copy, *named)
    idle = complement(done, min(start for start, _ in windows), max(end for _, end in windows))
    found = [_longest(idle, start, end) for start, end in windows]
    long = [each for each in found if each and each.length_ns >= max(LONG_NS, STANDS_OUT * each.next_longest_ns)]
    place = _place(long, IN_STEPS * len(windows))
    if place is None:
        return None
    lengths = [0 if each is None else each.length_ns for each in found]
    return _Paused(
        rank=rank, place=place, length_ns=round(float(np.median(lengths))),
        longest=max(long, key=lambda each: each.length_ns),
    )  # fmt: skip


def _place(pauses: Sequence[_Pause], fewest: float) -> str | None:
    """Return in words where at least so many of the pauses are, or that they are of one length; else None."""
    for words, those in (
        ("each time at the end of the step", [each.ends for each in pauses]),
        ("each time at the begin of the step", [each.begins for each in pauses]),
    ):
        if sum(those) >= fewest:
            return words
    lengths = np.array([each.length_ns for each in pauses], np.int64)
    usual = float(np.median(lengths)) if lengths.size else 0.0
    return "equally long each time" if (np.abs(lengths - usual) <= STEADY * usual).sum() >= max(fewest, 1) else None


def _longest(idle: Intervals, start: int, end: int) -> _Pause | None:
    first, last = np.searchsorted(idle.ends, start, side="right"), np.searchsorted(idle.starts, end)
    starts, ends = np.maximum(idle.starts[first:last], start), np.minimum(idle.ends[first:last], end)
    if not starts.size:
        return None
    lengths, edge = ends - starts, EDGE * (end - start)
    at = int(lengths.argmax())
    return _Pause(
        start_ns=int(starts[at]), end_ns=int(ends[at]), begins=bool(starts[at] <= start + edge),
        ends=bool(ends[at] >= end - edge),
        next_longest_ns=int(np.delete(lengths, at).max(initial=0)),
    )  # fmt: skip

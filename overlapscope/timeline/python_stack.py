"""The Python stack of a thread at a moment: functions where they were read, else the calls of modules."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.timeline.columns import FUNCTION, HOST, NONE, PYTHON, RUNTIME, HostSpans, Ints
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.run import RankTimeline

FRAME_KINDS: Final = (PYTHON, FUNCTION)
_IN_FILE: Final = re.compile(r"\(\d+\): ")
"""As in `train.py(131): log_step`."""


def frames_around(frames: HostSpans, lane: int, time_ns: int) -> Ints:
    """Return the rows of `frames` that a thread was in at a time of the rank's own clock, the outermost first."""
    inside = (frames.lane == lane) & (frames.start_ns <= time_ns) & (frames.end_ns > time_ns)
    found: Ints = np.flatnonzero(inside)
    return found[np.lexsort((-frames.end_ns[found], frames.start_ns[found]))]


def stack_of_launch(timeline: RankTimeline, span: int, time_ns: int | None = None) -> list[str]:
    """Return the stack of the thread that launched a span (row in `Spans`), the outermost function first.

    It is that of `time_ns`, on the rank's own clock; None is the launch, or the start of work of a thread itself. Empty
    where no stack, or not the call, was recorded.
    """
    thread = _launching_thread(timeline, span)
    if thread is None:
        return []
    lane, launched_ns = thread
    at_ns = launched_ns if time_ns is None else time_ns
    return stack_at(timeline, lane, at_ns)


def stack_at(timeline: RankTimeline, lane: int, time_ns: int) -> list[str]:
    """Return the stack of a thread (row in `Lanes`) at a time of the rank's own clock, the outermost function first."""
    frames = select_host_spans(timeline.host, FRAME_KINDS, around=[(time_ns, time_ns)])
    return [timeline.name(code) or "?" for code in frames.name[frames_around(frames, lane, time_ns)].tolist()]


def innermost(stack: Sequence[str]) -> str | None:
    """Return the innermost function of a stack (outermost first): of those that name their file and line, which
    built-in ones do not, if any does; None for an empty stack."""
    named = [each for each in stack if _IN_FILE.search(each)]
    return (named or stack)[-1] if stack else None


def _launching_thread(timeline: RankTimeline, span: int) -> tuple[int, int] | None:
    """Return the thread (row in `Lanes`) that launched a span, and when; None without a record."""
    spans = timeline.spans
    lane, launch_ns, correlation = (int(each[span]) for each in (spans.lane, spans.launch_ns, spans.correlation))
    if timeline.lanes.kind[lane] == HOST:
        return lane, int(spans.start_ns[span])
    if NONE in (launch_ns, correlation):
        return None
    calls = select_host_spans(timeline.host, (RUNTIME,), around=[(launch_ns, launch_ns)])
    found = np.flatnonzero((calls.correlation == correlation) & (calls.start_ns == launch_ns))
    return (int(calls.lane[found[0]]), launch_ns) if found.size else None

"""Compute step windows on the device from the spans that each step launched (docs/definitions.md).

Device work lags behind the host, sometimes by more than a step: a window cut at host times would mix steps.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from overlapscope.timeline.columns import COMPUTE, NONE, Ints, Recordings, size
from overlapscope.timeline.rows import MOST, largest_by, smallest_by, sum_by
from overlapscope.timeline.run import RankTimeline

T = TypeVar("T")
FEWEST_FOLLOWED: Final = 2
"""Steps that others follow, at least: of one nobody knows by its length whether it is like the others."""
LACKS: Final = 0.02
"""A step is cut short if it, and its time without compute, are shorter than in any step that another one follows by
this share of that step. A choice: two recordings of unchanged code differ by as much."""
BEGINS_ALIKE: Final = 8
"""An unmarked step follows the last marked one where what was launched after it begins with as many kernels, of the
same names in the same order, as the last two marked ones do. A choice: single kernels are alike by chance."""


class StepWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank; `window` is None for a step that launched no compute."""

    step: int
    recording: int
    window: tuple[int, int] | None
    complete: bool
    """False when the recording began after the step began, or ended before the last span that the step launched."""
    begun_ns: int | None = None
    """When its host began it, by its mark; None where the mark is the window."""
    ended_ns: int | None = None
    """When the last span ended that it launched; None where the mark is the window, and without such spans."""
    unmarked_follows: bool = False
    """Whether the window ends where a step begins that no mark shows."""

    @property
    def behind_its_work_ns(self) -> int:
        """Return for how long the window lasts after the last span that its step launched; 0 where that is unknown."""
        return max(self.window[1] - self.ended_ns, 0) if self.window is not None and self.ended_ns is not None else 0


def step_windows(timeline: RankTimeline) -> list[StepWindow]:
    """Return every annotated step in order of time, including incomplete ones."""
    windows: list[StepWindow] = []
    for recording in range(size(timeline.recordings)):
        build = _device_windows if timeline.has_device else _host_windows
        windows += build(timeline, recording)
    return windows


def whole_windows(timeline: RankTimeline) -> list[tuple[int, int]]:
    """Return, for each recording, the time from its first span's start to its last span's end."""
    spans = timeline.spans
    windows = []
    for recording in range(size(timeline.recordings)):
        chosen = spans.recording == recording
        if chosen.any():
            windows.append((int(spans.start_ns[chosen].min()), int(spans.end_ns[chosen].max())))
    return windows


def lack_their_end(
    lengths_ns: Sequence[float],
    without_compute_ns: Sequence[float],
    followed: Sequence[bool],
    fewest: int = FEWEST_FOLLOWED,
) -> list[int]:
    """Return the positions of steps that no step follows and that lack what the others lose before the next one begins.

    Of each step: how long it is, how long of that nothing computes, and whether another step follows at once. One that
    is no shorter than the others stays: its own loss is not to be left out. None where fewer than `fewest` are
    followed.
    """
    own = list(zip(lengths_ns, without_compute_ns, followed, strict=True))
    usual = [(length, without) for length, without, follows in own if follows]
    if len(usual) < fewest:
        return []
    shortest_ns, least_ns = (min(each) for each in zip(*usual, strict=True))
    return [
        at
        for at, (length, without, follows) in enumerate(own)
        if not follows and length <= (1 - LACKS) * shortest_ns and without <= least_ns - LACKS * shortest_ns
    ]


def complete_steps(steps: Mapping[int, Sequence[tuple[int, bool, T]]]) -> list[dict[int, T]]:
    """Return what belongs to each step that the most ranks recorded completely, by rank; `steps` holds, by rank and in
    order of time, the number of each step, whether it is complete, and what belongs to it.

    Several recordings of a rank may use the same step numbers: their first ones belong together, then the second ones.
    """
    columns: dict[tuple[int, int], dict[int, T]] = defaultdict(dict)
    for rank, theirs in steps.items():
        seen: Counter[int] = Counter()
        for number, complete, its in theirs:
            if complete:
                columns[number, seen[number]][rank] = its
                seen[number] += 1
    most = max(map(len, columns.values()), default=0)
    return [columns[key] for key in sorted(columns) if len(columns[key]) == most]


def of_the_same_ranks(steps: Sequence[dict[int, T]]) -> list[dict[int, T]]:
    """Return the steps that the same ranks completed: of several such sets of ranks, that with the most steps."""
    members = Counter(frozenset(step) for step in steps).most_common(1)
    return [step for step in steps if members and frozenset(step) == members[0][0]]


def _host_windows(timeline: RankTimeline, recording: int) -> Iterator[StepWindow]:
    """Yield the windows of a run without device spans, where the annotation itself is the window."""
    steps, spans = timeline.steps, timeline.spans
    rows = np.flatnonzero(steps.recording == recording)
    launched, of_step = _launched(timeline, recording, steps.step[rows])
    last = np.maximum(steps.end_ns[rows], largest_by(of_step, spans.end_ns[launched], rows.size))
    for at, row in enumerate(rows.tolist()):
        start, end = int(steps.start_ns[row]), int(steps.end_ns[row])
        yield StepWindow(
            step=int(steps.step[row]),
            recording=recording,
            window=(start, end),
            complete=not steps.cut[row] and _is_complete(timeline.recordings, recording, start, end, int(last[at])),
        )


def _device_windows(timeline: RankTimeline, recording: int) -> Iterator[StepWindow]:
    steps, spans = timeline.steps, timeline.spans
    rows = np.flatnonzero(steps.recording == recording)
    number = steps.step[rows]
    main = _main_lane(timeline, recording)
    launched, of_step = _launched(timeline, recording, number)
    computes = (spans.kind[launched] == COMPUTE) & (spans.lane[launched] == main)
    first = smallest_by(of_step[computes], spans.start_ns[launched[computes]], rows.size)
    last = largest_by(of_step, spans.end_ns[launched], rows.size)
    has_window = first < MOST
    unmarked = _unmarked_begin(timeline, recording, main) if rows.size and has_window[-2:].all() else None
    for at, row in enumerate(rows.tolist()):
        window, after = None, unmarked if at + 1 == rows.size else None
        if has_window[at]:
            follows = at + 1 < rows.size and number[at + 1] == number[at] + 1 and has_window[at + 1]
            end = int(first[at + 1]) if follows else int(last[at]) if after is None else after
            window = (int(first[at]), max(end, int(first[at])))
        yield StepWindow(
            step=int(number[at]),
            recording=recording,
            window=window,
            complete=not steps.cut[row]
            and _is_complete(
                timeline.recordings, recording, int(steps.start_ns[row]), int(steps.end_ns[row]), int(last[at])
            ),
            begun_ns=int(steps.start_ns[row]),
            ended_ns=int(last[at]) if window else None,
            unmarked_follows=window is not None and after is not None,
        )


def _unmarked_begin(timeline: RankTimeline, recording: int, main: int) -> int | None:
    """Return when a step begins that no mark shows, right after the last marked one of a recording; None without.

    A recording that is stopped within a step has no mark of it. What else may follow the marks, as an optimizer outside
    of them or a checkpoint, does not begin with the kernels that the last two marked steps begin with.
    """
    steps, spans = timeline.steps, timeline.spans
    last = np.flatnonzero(steps.recording == recording)[-2:]
    if last.size < 2:
        return None
    computes = (spans.recording == recording) & (spans.kind == COMPUTE) & (spans.lane == main)
    after = computes & (spans.step == NONE) & (spans.launch_ns >= steps.end_ns[last[-1]])
    begins = [np.flatnonzero(after), *(np.flatnonzero(computes & (spans.step == step)) for step in steps.step[last])]
    if min(each.size for each in begins) < BEGINS_ALIKE:
        return None
    begins = [each[np.argsort(spans.start_ns[each], kind="stable")[:BEGINS_ALIKE]] for each in begins]
    names = [spans.name[each].tolist() for each in begins]
    return int(spans.start_ns[begins[0][0]]) if names[0] == names[1] == names[2] else None


def _launched(timeline: RankTimeline, recording: int, number: Ints) -> tuple[Ints, Ints]:
    """Return the spans that a recording's steps launched, and the position of each span's step.

    Of several steps with the same number it is the last one.
    """
    spans = timeline.spans
    order = np.argsort(number, kind="stable")
    ascending = np.append(number[order], NONE)
    place = np.searchsorted(ascending[:-1], spans.step, side="right") - 1
    launched = np.flatnonzero((spans.recording == recording) & (place >= 0) & (ascending[place] == spans.step))
    return launched, order[place[launched]]


def _main_lane(timeline: RankTimeline, recording: int) -> int:
    """Return the lane with the most compute time; the first one of equals."""
    spans = timeline.spans
    computes = (spans.kind == COMPUTE) & (spans.recording == recording)
    taken = spans.end_ns[computes] - spans.start_ns[computes]
    return int(sum_by(spans.lane[computes], taken, size(timeline.lanes) + 1).argmax())


def _is_complete(recordings: Recordings, recording: int, start: int, end: int, last_span_end: int) -> bool:
    """Return whether the recording holds all of a step that its host ran from `start` to `end`.

    A launch without a device span, later than every launch with one, shows that the recording ended before the device
    work did. A truncated file may have lost events of any step.
    """
    lost = int(recordings.lost_launch_ns[recording])
    return bool(
        not recordings.truncated[recording]
        and recordings.start_ns[recording] <= start
        and last_span_end <= recordings.end_ns[recording]
        and (lost == NONE or lost >= end)
    )

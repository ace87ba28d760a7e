"""What each rank's spans tell by themselves, in one pass over them: what compares ranks needs no spans any more."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.breakdown import Breakdown, Coverage
from overlapscope.analysis.exposed_causes import OwnParts, own_parts
from overlapscope.analysis.kernels import Kernels, kernels_of
from overlapscope.analysis.pipeline import Stage, groups_by_rank, own_stages
from overlapscope.analysis.steps import StepWindow, step_windows, whole_windows
from overlapscope.analysis.straggler_cause import before_first_launch
from overlapscope.files.spill import Aside, PutFields
from overlapscope.timeline.columns import FUSED, NONE, UNCLASSIFIED, size
from overlapscope.timeline.intervals import Intervals, WindowSets
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.read_ahead import read_ahead

LISTED: Final = (UNCLASSIFIED, FUSED)
"""Notes of spans that a reader should know of."""


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, as its own spans show it."""

    windows: list[StepWindow]
    whole: list[tuple[int, int]]
    """What its recordings span; empty where it has no times."""
    figures: list[Breakdown]
    """Of the whole, then of each step, without causes."""
    coverage: Coverage
    parts: PutFields[OwnParts]
    kernels: Kernels
    noted: Mapping[int, Sequence[tuple[str, int, int]]]
    """Spans of each of the notes `LISTED`: their names, how many, how long in all."""
    linkage: tuple[int, int] | None
    """Device spans, and of these those without a launch; None for a CPU run."""
    not_launched: Intervals
    """When a step had begun and its host had launched nothing."""
    stages: Mapping[str, Stage]
    """What stage it is of each pipeline, by the name of its group."""

    @property
    def sets(self) -> WindowSets:
        """The windows of `figures`."""
        return WindowSets.of(_sets(self.whole, self.windows))


def alone_of(run: Run) -> dict[int, Alone]:
    """Look at every rank, one after the other: the spans of one are needed at a time."""
    groups = groups_by_rank(run.groups)
    aside = Aside()
    return {rank: look_at(timeline, groups.get(rank, ()), aside) for rank, timeline in read_ahead(run.ranks)}


def look_at(timeline: RankTimeline, groups: Sequence[Group], aside: Aside) -> Alone:
    """Look at one rank; `groups` are those that it is in with others. What there is much of is put aside."""
    spans = timeline.spans
    windows, whole, covered = step_windows(timeline), whole_windows(timeline), Coverage.of(spans)
    linkage = (size(spans), int((spans.launch_ns == NONE).sum())) if timeline.has_device else None
    return Alone(
        windows=windows,
        whole=whole,
        figures=_figures(covered, _sets(whole, windows)),
        coverage=covered.put_aside(aside),
        parts=aside.put_fields(own_parts(timeline)),
        kernels=kernels_of(timeline),
        noted={note: _noted(timeline, note) for note in LISTED},
        linkage=linkage,
        not_launched=before_first_launch(timeline),
        stages=own_stages(timeline, groups, windows),
    )


def _sets(whole: Sequence[tuple[int, int]], windows: Sequence[StepWindow]) -> list[Sequence[tuple[int, int]]]:
    return [whole, *((each.window,) if each.window else () for each in windows)]


def _figures(covered: Coverage, sets: Sequence[Sequence[tuple[int, int]]]) -> list[Breakdown]:
    """Break down each set of windows; one without windows has no figures."""
    found = zip(sets, covered.breakdowns(WindowSets.of(sets)), strict=True)
    return [figures if windows else Breakdown() for windows, figures in found]


def _noted(timeline: RankTimeline, note: int) -> list[tuple[str, int, int]]:
    spans = timeline.spans
    rows = np.flatnonzero(spans.note == note)
    if not rows.size:
        return []
    codes, place = np.unique(spans.name[rows], return_inverse=True)
    counts = np.bincount(place, minlength=codes.size)
    totals = sum_by(place, spans.end_ns[rows] - spans.start_ns[rows], codes.size)
    names = [timeline.names[code] for code in codes.tolist()]
    return list(zip(names, counts.tolist(), totals.tolist(), strict=True))

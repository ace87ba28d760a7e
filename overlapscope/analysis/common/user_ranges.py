"""Name the range, of the user or a framework, in which a host paused or spent its time, or that one step alone has."""

import re
from collections.abc import Set
from typing import Final

import numpy as np

from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import is_one_of, unique
from overlapscope.timeline.run import RankTimeline

_NO_WORDS: Final = re.compile(
    r"^(?:(?:ProfilerStep|overlapscope\.step)#|overlapscope\.comm:|(?:nccl|hccl|rccl):|(?:cuda|hip|cu)[A-Z]"
    r"|Torch-Compiled Region|## Call CompiledFxGraph)"
)
"""Marks of steps, communication of devices and compiled code, and calls of the runtime: they say nothing of what a host
did in a pause."""
_OF_HOST: Final = re.compile(r"^(?:gloo|mpi|ucc):")
"""Collectives of hosts: what the host of a device did in a pause, but no reason for its rank to be late, as it waits in
them for others; without a device they are the job's communication."""
MOST: Final = 0.5
"""A range is that of a pause if it covers this share of it."""
_NUMBER: Final = re.compile(r"[0-9]+")
"""Ranges whose names differ in numbers alone, as those of batches, are the same."""


def range_of_pause(timeline: RankTimeline, lane: int, begin_ns: int, end_ns: int) -> str | None:
    """Return the name of the range that `row_of_pause` finds; None for none."""
    row = row_of_pause(timeline, lane, begin_ns, end_ns)
    return None if row is None else timeline.name(int(timeline.annotations.name[row]))


def row_of_pause(timeline: RankTimeline, lane: int, begin_ns: int, end_ns: int) -> int | None:
    """Return the row of the innermost range of a thread that covers most of a pause, on the rank's own clock.

    Ranges around whole steps are none, collectives of the host of a device may be. None where no range covers half of
    it.
    """
    return next(iter(rows_of_pause(timeline, lane, begin_ns, end_ns, MOST).tolist()), None)


def rows_of_pause(timeline: RankTimeline, lane: int, begin_ns: int, end_ns: int, share: float) -> Ints:
    """Return the rows of all ranges, of those that `row_of_pause` looks at, which cover this share of a pause or more,
    the innermost first."""
    notes = timeline.annotations
    covered = np.minimum(notes.end_ns, end_ns) - np.maximum(notes.start_ns, begin_ns)
    chosen = (notes.lane == lane) & (covered >= share * (end_ns - begin_ns))
    around = _telling_rows(timeline, chosen, of_host=timeline.has_device)
    return around[np.argsort((notes.end_ns - notes.start_ns)[around], kind="stable")]


def innermost_told(timeline: RankTimeline, lane: Ints, at_ns: Ints) -> Ints:
    """Return the row of the innermost range around each moment of a thread, on the rank's own clock, of those that
    `row_of_pause` knows; NONE where there is none."""
    chosen = np.zeros(timeline.annotations.name.size, np.bool_)
    chosen[_telling_rows(timeline, ~chosen, of_host=timeline.has_device)] = True
    found = innermost_range(timeline.annotations, lane, at_ns, chosen)
    return np.where(found == NOWHERE, NONE, found)


def range_of_step(timeline: RankTimeline, step: int) -> tuple[str, int] | None:
    """Return name and length (ns) of the longest range that a step has and the others lack, in a thread of the steps'
    marks; None for none."""
    notes, steps = timeline.annotations, timeline.steps
    if not steps.start_ns.size:
        return None
    order = np.argsort(steps.start_ns, kind="stable")
    at = order[np.maximum(np.searchsorted(steps.start_ns[order], notes.start_ns, side="right") - 1, 0)]
    in_steps = (notes.start_ns >= steps.start_ns[at]) & (notes.end_ns <= steps.end_ns[at])
    own, marked = steps.step[at] == step, notes.lane[np.isin(notes.start_ns, steps.start_ns)]
    usual = {family(timeline, name) for name in unique(notes.name[in_steps & ~own]).tolist()}
    found = _telling_rows(timeline, in_steps & own & np.isin(notes.lane, marked)).tolist()
    alone = [row for row in found if family(timeline, notes.name[row]) not in usual]
    if not alone:
        return None
    longest = max(alone, key=lambda row: notes.end_ns[row] - notes.start_ns[row])
    return timeline.names[notes.name[longest]], int(notes.end_ns[longest] - notes.start_ns[longest])


def times_in_ranges(
    timeline: RankTimeline, least_ns: float = 0.0, names: Set[str] | None = None, lanes: Ints | None = None
) -> dict[str, Intervals]:
    """Return when the host was in ranges of each name, numbers in it as `#`: of those that say what it did, and last
    for `least_ns` in sum; only of some `names`, and on some threads (`lanes`), if given."""
    notes = timeline.annotations
    every = np.ones(notes.name.size, np.bool_)
    rows = _telling_rows(timeline, every if lanes is None else is_one_of(notes.lane, lanes.tolist()))
    codes = notes.name[rows]
    families: dict[str, list[int]] = {}
    for code in unique(codes).tolist():
        families.setdefault(family(timeline, code), []).append(code)
    found = {}
    for name, own in families.items():
        if names is not None and name not in names:
            continue
        of_name = rows[np.isin(codes, own)]
        if (notes.end_ns[of_name] - notes.start_ns[of_name]).sum() >= least_ns:
            found[name] = union((notes.start_ns[of_name], notes.end_ns[of_name]))
    return found


def family(timeline: RankTimeline, name: int) -> str:
    """Return a name (code) with its numbers as `#`."""
    return _NUMBER.sub("#", timeline.names[name])


def _telling_rows(timeline: RankTimeline, chosen: Flags, *, of_host: bool = False) -> Ints:
    """Return the rows of the chosen annotations that say what a host did, with `of_host` its collectives, too."""
    rows = np.flatnonzero(chosen)
    rows = rows[~_around_steps(timeline, rows)]

    def tells(name: str) -> bool:
        return not _NO_WORDS.match(name) and (of_host or not _OF_HOST.match(name))

    return rows[rows_named(timeline.annotations.name[rows], timeline.names, tells)]


def _around_steps(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which of these annotations hold a whole step."""
    notes, steps = timeline.annotations, timeline.steps
    order = np.argsort(steps.start_ns, kind="stable")
    first = np.searchsorted(steps.start_ns[order], notes.start_ns[rows])
    ends = np.append(np.minimum.accumulate(steps.end_ns[order][::-1])[::-1], np.iinfo(np.int64).max)
    around: Flags = ends[first] <= notes.end_ns[rows]
    return around

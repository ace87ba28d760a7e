"""Find the pauses of hosts that are in a known kind of host work, such as a checkpoint, by ranges and functions."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

import numpy as np

from overlapscope.analysis.common.host_work import EVERY, HostWork, work_of_names, work_of_stack
from overlapscope.analysis.common.user_ranges import rows_of_pause
from overlapscope.analysis.pauses.costly_pauses import AT_ONE_PLACE, CostlyPause, costliest_place
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.python_stack import stack_at
from overlapscope.timeline.run import Run

MOST_OF_PAUSE: Final = 0.9
"""A range is what a host does in its pauses if it covers this share of each. A choice: collections and locks come
wherever the host is."""
USUAL: Final = 0.5
"""A range that lasts for this share of the pauses in its median is not one that an accident falls in. A choice."""


def known_work(run: Run, found: Sequence[CostlyPause]) -> tuple[HostWork, list[CostlyPause]] | None:
    """Return the kind of host work in which devices idle for `AT_ONE_PLACE` of the idle time of all pauses, and the
    pauses in it; None without one, and where ranges of that kind are usually far shorter: an accident may fall in one.

    Functions are looked up for the longest pause of the place where devices idle for longest, and stand for all there.
    """
    between, _ = costliest_place(found)
    there = [each for each in found if (each.before, each.after) == between]
    at_place = _work_of_function(run, max(there, key=lambda each: each.paused_ns))
    usual_ns = cache(partial(_usual_ns, run))  # many pauses are of one rank, in one kind of work
    inside: defaultdict[str, list[CostlyPause]] = defaultdict(list)
    for each in found:
        by_range = _work_of_range(run, each)
        work = by_range or (at_place if (each.before, each.after) == between else None)
        if work is not None and (by_range is None or usual_ns(each.rank, work.named) >= USUAL * each.paused_ns):
            inside[work.id].append(each)
    least_ns = AT_ONE_PLACE * sum(each.idle_ns for each in found)
    for work in EVERY:
        if sum(each.idle_ns for each in inside[work.id]) >= least_ns > 0:
            return work, inside[work.id]
    return None


def _work_of_range(run: Run, pause: CostlyPause) -> HostWork | None:
    """Return the work that the innermost range tells which covers a pause and tells any."""
    timeline = run.ranks[pause.rank]
    rows = rows_of_pause(timeline, pause.lane, pause.start_ns, pause.end_ns, MOST_OF_PAUSE)
    return work_of_names(timeline.names[code] for code in timeline.annotations.name[rows].tolist())


def _usual_ns(run: Run, rank: int, named: re.Pattern[str]) -> float:
    """Return how long the ranges of a rank are in whose names this is found, in the median, in ns."""
    return float(np.median(range_lengths(run, rank, named.search)))


def range_lengths(run: Run, rank: int, named: Callable[[str], object]) -> Ints:
    """Return how long each range of a rank is whose name `named` accepts, in ns."""
    notes, names = run.ranks[rank].annotations, run.ranks[rank].names
    lengths: Ints = (notes.end_ns - notes.start_ns)[rows_named(notes.name, names, named)]
    return lengths


def _work_of_function(run: Run, pause: CostlyPause) -> HostWork | None:
    return work_of_stack(stack_at(run.ranks[pause.rank], pause.lane, pause.start_ns + pause.paused_ns // 2))

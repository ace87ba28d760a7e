"""A rank that was not recorded and is slower, as the calls of its peers show: each gets longer than the one before.

Where calls of one kind wait for nothing but the last member, their ends follow each other as that member arrives. A
recorded rank begins them by its own pace. If it is the faster one, the time from its begin to the common end grows by
the difference with each call of a step, until something joins the ranks again. Transfers of one size do not grow so.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SYMMETRIC
from overlapscope.timeline.rows import factorize_rows, sort_order, split_by, values_in
from overlapscope.timeline.run import RankTimeline

LEAST_CALLS: Final = 4
"""Fewest calls of one kind in a step, and ..."""
LEAST_STEPS: Final = 3
"""... fewest steps, in each of which they get longer. Choices: three points are on a line by chance too often."""
SLOWER: Final = 0.03
"""By this share of the time between their begins calls get longer. A choice: devices of one type differ by less."""
GAP: Final = 0.1
"""A call queued that begins within this share of its time after the one before it. A choice."""
ON_A_LINE: Final = 0.95
"""Least correlation of how long calls take with when they begin. A choice: what disturbs single calls is on none."""


class SlowerUnseen(msgspec.Struct, frozen=True, kw_only=True):
    """How much slower a rank that was not recorded is than the slowest recorded one of its group."""

    group: str | None
    share: float
    """Of the time between two calls."""
    first_ns: int
    """How long the first call of a kind takes in a step, and ..."""
    last_ns: int
    """... the last one, medians."""
    at_end_ns: int
    """How far it is behind when the last call of its group in a step begins, if it was so all the step, the median."""


def slower_unseen(
    timelines: Sequence[RankTimeline], windows: Mapping[int, tuple[tuple[int, int], ...]]
) -> SlowerUnseen | None:
    """Return the slower rank that calls of a group show on each recorded member, which `timelines` are; of several
    groups the one that shows most. None where calls queue, as they then begin when others end."""
    by_group: dict[str | None, list[SlowerUnseen | None]] = {}
    for timeline in timelines:
        for group, found in _of_rank(timeline, windows.get(timeline.rank, ())).items():
            by_group.setdefault(group, []).append(found)
    least = []
    for each in by_group.values():
        known = [one for one in each if one is not None]
        if len(known) == len(each):
            least.append(min(known, key=lambda one: one.share))
    return max(least, key=lambda one: one.share, default=None)


def _of_rank(timeline: RankTimeline, windows: tuple[tuple[int, int], ...]) -> dict[str | None, SlowerUnseen | None]:
    """Return by group, of all that the rank made calls of, what its most frequent kind of call shows; None of groups
    with few."""
    calls = timeline.collectives
    begin, until = np.array(sorted(windows), np.int64).reshape(-1, 2).T
    step = np.searchsorted(begin, calls.start_ns, side="right") - 1
    rows = rows_named(calls.op, timeline.names, SYMMETRIC.__contains__) & (calls.bytes != NONE)
    rows &= (calls.start_ns != NONE) & (calls.end_ns != NONE) & (step >= 0)
    own = np.flatnonzero(rows)
    own = own[calls.start_ns[own] < until[step[own]]]
    found: dict[str | None, SlowerUnseen | None] = {
        timeline.name(each): None for each in values_in(calls.group).tolist()
    }
    for of_group in split_by(factorize_rows([calls.group[own]])[0]):
        every = own[of_group]
        kinds = split_by(factorize_rows([calls.op[every], calls.dtype[every], calls.bytes[every]])[0])
        most = every[max(kinds, key=lambda each: each.size)]
        of_steps = [most[each] for each in split_by(factorize_rows([step[most]])[0]) if each.size >= LEAST_CALLS]
        name, enough = timeline.name(int(calls.group[most[0]])), len(of_steps) >= LEAST_STEPS
        found[name] = _of_steps(timeline, name, of_steps, every, begin, step) if enough else None
    return found


def _of_steps(
    timeline: RankTimeline, group: str | None, of_steps: Sequence[Ints], every: Ints, begin: Ints, step: Ints
) -> SlowerUnseen | None:
    """Return what calls of one kind show, given by step, if they do in each; `every` are all calls of the group."""
    calls = timeline.collectives
    ends = np.sort(calls.end_ns[every])
    slopes, firsts, lasts, behind = [], [], [], []
    for unordered in of_steps:
        rows = unordered[sort_order(calls.start_ns[unordered])]
        start, lasted = calls.start_ns[rows], (calls.end_ns - calls.start_ns)[rows]
        ended_before = ends[np.maximum(np.searchsorted(ends, calls.end_ns[rows]) - 1, 0)]
        queue = bool((start - ended_before <= GAP * lasted)[1:].any())
        if queue or not np.ptp(lasted) or not np.ptp(start) or np.corrcoef(start, lasted)[0, 1] < ON_A_LINE:
            return None
        at = step[rows[0]]
        slopes.append(float(np.polyfit(start - start[0], lasted, 1)[0]))
        firsts.append(int(lasted[0]))
        lasts.append(int(lasted[-1]))
        behind.append(slopes[-1] * float(calls.start_ns[every[step[every] == at]].max() - begin[at]))
    if min(slopes) < SLOWER:
        return None
    return SlowerUnseen(
        group=group,
        share=float(np.median(slopes)),
        first_ns=round(float(np.median(firsts))),
        last_ns=round(float(np.median(lasts))),
        at_end_ns=round(float(np.median(behind))),
    )

"""Assign each moment of a rank's communication to one collective, or to a span that belongs to none."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import COMM, NONE, Flags, Ints
from overlapscope.timeline.intervals import (
    Intervals,
    union,
)
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline


class OwnedComm(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of one rank, each moment owned by one collective or lone span: it owns `[start, until)`."""

    row: Ints
    """Row in `Collectives`; NONE for a span that belongs to no collective."""
    start_ns: Ints
    end_ns: Ints
    until_ns: Ints


def own_communication(timeline: RankTimeline) -> OwnedComm:
    """Assign each moment of a rank's communication to one owner.

    Owners are sorted by end, latest first. One that ends later owns everything from its start on, so each owns the time
    before the earliest start of those that end later.
    """
    calls, spans = timeline.collectives, timeline.spans
    timed = np.flatnonzero((calls.start_ns != NONE) & (calls.end_ns != NONE))
    lone = np.flatnonzero((spans.kind == COMM) & (spans.collective == NONE))
    row = np.concatenate([timed, np.full(lone.size, NONE, np.int64)])
    start = np.concatenate([calls.start_ns[timed], spans.start_ns[lone]])
    end = np.concatenate([calls.end_ns[timed], spans.end_ns[lone]])
    order = sort_order(-end, start)
    row, start, end = row[order], start[order], end[order]
    earliest = np.minimum.accumulate(start) if start.size else start
    taken_from = np.concatenate([np.full(min(1, start.size), np.iinfo(np.int64).max), earliest[:-1]])
    until = np.maximum(np.minimum(end, taken_from), start)
    return OwnedComm(row=row, start_ns=start, end_ns=end, until_ns=until)


def of_rows(column: npt.NDArray[Any], own_comm: OwnedComm, otherwise: int | bool) -> npt.NDArray[Any]:
    """Return the value of a `Collectives` column for each owner, and `otherwise` for a lone span."""
    return np.append(column, otherwise)[np.where(own_comm.row == NONE, -1, own_comm.row)].astype(column.dtype)


def cut(own_comm: OwnedComm, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the part of [begin, end) that each owner owns; an empty part has begin >= end."""
    return np.maximum(begin, own_comm.start_ns), np.minimum(end, own_comm.until_ns)


def only(parts: tuple[Ints, Ints], chosen: Flags | None = None) -> Intervals:
    """Return the chosen parts, all without a choice, as sorted disjoint intervals."""
    return union(parts) if chosen is None else union((parts[0][chosen], parts[1][chosen]))

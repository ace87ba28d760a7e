"""Join an execution trace to a timed recording of the same rank, by the id of the operation that made each call."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE, Ints, column_kinds, recode
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline

FILLED: Final = ("op", "group", "group_size", "seq", "dtype", "elements", "bytes")
UNKNOWN_OP: Final = "unknown"


def join_execution_trace(timed: RankTimeline, log: RankTimeline) -> RankTimeline:
    """Fill what the timed collectives do not know of themselves from the log's calls of the same id.

    Nothing that is known is replaced, and no call is added. An id that stands more than once in either tells nothing.
    Raises InputError when a joined call is known to both and they disagree: then the two are not of one recording,
    and no id of theirs means the same.
    """
    row, source = _joined(timed.collectives.record_function_id, log.collectives.record_function_id)
    if row.size == 0:
        return timed
    names = NameTable(timed.names)
    told = recode(log.collectives, log.names, names)
    unknown_op = names.code(UNKNOWN_OP)
    kinds = column_kinds(timed.collectives)
    columns: dict[str, Any] = {}
    for column in FILLED:
        here, there = getattr(timed.collectives, column), getattr(told, column)[source]
        missing = -1 if kinds[column] == "name" else NONE
        absent = [missing, unknown_op] if column == "op" else [missing]
        lacks, gives = np.isin(here[row], absent), ~np.isin(there, absent)
        clash = np.flatnonzero(~lacks & gives & (here[row] != there))
        if clash.size:
            at = clash[0]
            spelled = names.to_list()
            ours, theirs = (int(each) for each in (here[row][at], there[at]))
            if missing == -1:
                ours, theirs = spelled[ours], spelled[theirs]  # type: ignore[assignment]
            raise InputError(
                f"rank {timed.rank}: the execution trace is not of this recording: the call with record function id "
                f"{timed.collectives.record_function_id[row[at]]} has {column} {ours} here and {theirs} there"
            )
        filled = here.copy()
        filled[row[lacks & gives]] = there[lacks & gives]
        columns[column] = filled
    return replace(timed, names=tuple(names.to_list()), collectives=replace(timed.collectives, **columns))


def _joined(ours: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Give the rows of both sides whose id is the same and stands once on each side."""
    ids, counts = np.unique(ours[ours != NONE], return_counts=True)
    other, other_counts = np.unique(theirs[theirs != NONE], return_counts=True)
    shared = np.intersect1d(ids[counts == 1], other[other_counts == 1])
    return _rows(ours, shared), _rows(theirs, shared)


def _rows(column: Ints, wanted: Ints) -> Ints:
    order = np.argsort(column, kind="stable")
    return order[np.searchsorted(column[order], wanted)]

"""Join an execution trace to a timed recording of the same rank, by the id of the operation that made each call."""

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

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
    spelled = names.to_list()
    kinds = column_kinds(timed.collectives)
    columns: dict[str, Any] = {}
    for column in FILLED:
        here, there = getattr(timed.collectives, column), getattr(told, column)[source]
        is_name = kinds[column] == "name"
        absent = [-1 if is_name else NONE, unknown_op if column == "op" else NONE]
        lacks, gives = np.isin(here[row], absent), ~np.isin(there, absent)
        for at in np.flatnonzero(~lacks & gives & (here[row] != there)).tolist():
            ours, theirs = (spelled[each[at]] if is_name else int(each[at]) for each in (here[row], there))
            if column != "group" or not _may_be_one(str(ours), str(theirs)):
                raise InputError(
                    f"rank {timed.rank}: the execution trace is not of this recording: the call with record function "
                    f"id {timed.collectives.record_function_id[row[at]]} has {column} {ours} here and {theirs} there"
                )
        filled = here.copy()
        filled[row[lacks & gives]] = there[lacks & gives]
        columns[column] = filled
    return replace(timed, names=tuple(spelled), collectives=replace(timed.collectives, **columns))


def _may_be_one(a: str, b: str) -> bool:
    """Whether two names may be of one group: groups of one name get their ranks behind it, where those are known."""
    same = a.partition(" [")[0] == b.partition(" [")[0]
    return same and not (a.endswith("]") and b.endswith("]"))


def _joined(ours: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Give the rows of both sides whose id is the same and stands once on each side."""
    ids, counts = np.unique(ours[ours != NONE], return_counts=True)
    other, other_counts = np.unique(theirs[theirs != NONE], return_counts=True)
    shared = np.intersect1d(ids[counts == 1], other[other_counts == 1])
    return _rows(ours, shared), _rows(theirs, shared)


def _rows(column: Ints, wanted: Ints) -> Ints:
    order = np.argsort(column, kind="stable")
    return order[np.searchsorted(column[order], wanted)]

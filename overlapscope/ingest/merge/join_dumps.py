"""Join a flight recorder's dump or an execution trace to a timed recording of the same rank.

A dump is joined by torch's own sequence numbers, else by the order of calls; an execution trace by the id of the
operation that made each call.
"""

from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.merge.call_sequences import calls_of, contradictions, describe_call, locate, rows_in_call_order
from overlapscope.ingest.merge.join_log import VOLUME_COLUMNS, join_calls
from overlapscope.ingest.merge.one_log import Note
from overlapscope.timeline.columns import NONE, UNKNOWN, Flags, Ints, column_kinds, recode
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import SEND_OPS
from overlapscope.timeline.run import RankTimeline

COLUMNS: Final = ("state", "group_size", *VOLUME_COLUMNS)
FILLED: Final = ("op", "group", "group_size", "seq", "dtype", "elements", "bytes")
UNKNOWN_OP: Final = "unknown"


def join_flight_recorder(timed: RankTimeline, dump: RankTimeline) -> tuple[RankTimeline, list[Note]]:
    """Return the timeline with the state of each call and other values missing in it, from the dump.

    The dump holds the last calls before it was written; earlier calls stay unchanged.
    """
    notes: list[Note] = []
    for code in np.unique(timed.collectives.group).tolist():
        name = timed.names[code] if code >= 0 else None
        mine = rows_in_call_order(timed, timed.collectives.group == code)
        there = _group_is(dump, name)
        its = rows_in_call_order(dump, there)
        if not mine.size or not its.size:
            continue
        known = timed.collectives.seq[mine] != NONE
        if known.any() and (dump.collectives.seq[its] != NONE).any():
            timed, reasons = _by_number(timed, mine[known], dump, its)
        else:
            timed, reasons = _by_order(timed, mine, dump, its, name)
        notes += [Note(rank=timed.rank, group=name, kind=f"dump {kind}", text=text) for kind, text in reasons]
    return timed, notes


def _group_is(dump: RankTimeline, name: str | None) -> Flags:
    if name is None:
        return np.ones(dump.collectives.group.size, np.bool_)
    flags: Flags = dump.collectives.group == (dump.names.index(name) if name in dump.names else NONE)
    return flags


def _by_number(
    timed: RankTimeline, mine: Ints, dump: RankTimeline, its: Ints
) -> tuple[RankTimeline, list[tuple[str, str]]]:
    a, b = _same_key(_numbers(timed, mine), _numbers(dump, its))
    if not a.size:
        seqs = (timed.collectives.seq[mine], dump.collectives.seq[its])
        spans = [f"{each[each != NONE].min()} to {each.max()}" for each in seqs]
        return timed, [
            (
                "apart",
                f"the flight recorder's dump holds calls {spans[1]}, the trace {spans[0]}: nothing to join; "
                "raise TORCH_FR_BUFFER_SIZE to keep more",
            )
        ]
    mine, its = mine[a], its[b]
    names = NameTable()
    short, long = calls_of(timed, mine, names), calls_of(dump, its, names)
    every = np.arange(mine.size)
    wrong = contradictions(short, every, long, every, names)
    reasons = []
    if wrong.any():
        at = int(np.argmax(wrong))
        reasons.append(
            (
                "contradiction",
                f"call number {timed.collectives.seq[mine[at]]} is {describe_call(short, at, names)} in the trace and "
                f"{describe_call(long, at, names)} in the flight recorder's dump, and {int(wrong.sum()) - 1} more "
                "like it: not joined; are both of one run?",
            )
        )
    mine, its = mine[~wrong], its[~wrong]
    state = timed.collectives.state.copy()
    state[mine] = np.where(state[mine] == UNKNOWN, dump.collectives.state[its], state[mine])
    return replace(timed, collectives=replace(timed.collectives, state=state)), reasons


def _numbers(timeline: RankTimeline, rows: Ints) -> Ints:
    """Return a unique number for each call: torch counts sends and receives separately from collectives."""
    sent = [code for code, name in enumerate(timeline.names) if name in SEND_OPS]
    seq = timeline.collectives.seq[rows]
    return np.where(seq == NONE, NONE, 2 * seq + np.isin(timeline.collectives.op[rows], sent))


def _same_key(ours: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the keys that occur once on each side: the calls of a coalesced group share a number."""

    def once(keys: Ints) -> Ints:
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return np.asarray(first[(counts == 1) & (keys[first] != NONE)])

    first, second = once(ours), once(theirs)
    _, a, b = np.intersect1d(ours[first], theirs[second], assume_unique=True, return_indices=True)
    return first[a], second[b]


def _by_order(
    timed: RankTimeline, mine: Ints, dump: RankTimeline, its: Ints, name: str | None
) -> tuple[RankTimeline, list[tuple[str, str]]]:
    sizes = dump.collectives.group_size[its]
    found = locate(timed, mine, dump, its, int(sizes[0]) if sizes[0] != NONE else None)
    if found.reason:
        return timed, [("nowhere", f"not joined with its flight recorder's dump: {found.reason}")]
    columns = COLUMNS if name is not None else ("group", *COLUMNS)
    joined = join_calls(timed, dump, found, columns, with_seq=True)
    return joined.timeline, list(joined.refused)


def join_execution_trace(timed: RankTimeline, log: RankTimeline) -> RankTimeline:
    """Fill missing values of the timed collectives from the log's calls with the same id.

    No known value is replaced, and no call is added. An id that occurs more than once on either side is not used.
    Raises InputError when both sides know a value and disagree: then the two are not of one recording, and equal ids
    do not mean equal calls.
    """
    row, source = _same_key(timed.collectives.record_function_id, log.collectives.record_function_id)
    if row.size == 0:
        return timed
    names = NameTable(timed.names)
    logged = recode(log.collectives, log.names, names)
    unknown_op = names.code(UNKNOWN_OP)
    texts = names.to_list()
    kinds = column_kinds(timed.collectives)
    columns: dict[str, Any] = {}
    for column in FILLED:
        here, there = getattr(timed.collectives, column), getattr(logged, column)[source]
        is_name = kinds[column] == "name"
        absent = [-1 if is_name else NONE, unknown_op if column == "op" else NONE]
        lacks, gives = np.isin(here[row], absent), ~np.isin(there, absent)
        for at in np.flatnonzero(~lacks & gives & (here[row] != there)).tolist():
            ours, theirs = (texts[each[at]] if is_name else int(each[at]) for each in (here[row], there))
            if column != "group" or not _may_be_one(str(ours), str(theirs)):
                raise InputError(
                    f"rank {timed.rank}: the execution trace is not of this recording: the call with record function "
                    f"id {timed.collectives.record_function_id[row[at]]} has {column} {ours} here and {theirs} there"
                )
        filled = here.copy()
        filled[row[lacks & gives]] = there[lacks & gives]
        columns[column] = filled
    return replace(timed, names=tuple(texts), collectives=replace(timed.collectives, **columns))


def _may_be_one(a: str, b: str) -> bool:
    """Return whether two names may be of one group: the group's ranks, where known, may be appended."""
    same = a.partition(" [")[0] == b.partition(" [")[0]
    return same and not (a.endswith("]") and b.endswith("]"))

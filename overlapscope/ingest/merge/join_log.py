"""A timeline gains what a log knows of its calls: only what is certain, and nothing that it says itself is replaced."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.merge.call_sequences import ANY_CALL, Located, contradict, spelled
from overlapscope.timeline.columns import MISSING, NONE, UNKNOWN, Ints, column_kinds
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import VOLUMELESS
from overlapscope.timeline.run import RankTimeline

CHOSEN: Final = ("algorithm", "protocol", "channels")
"""What the library chose: known to its log alone."""
VOLUME: Final = ("elements", "dtype", "bytes")


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline with what a log added to it."""

    timeline: RankTimeline
    refused: tuple[tuple[str, str], ...]
    """Kind of reason, and the reason."""


def join_calls(
    timeline: RankTimeline, log: RankTimeline, located: Located, columns: Sequence[str], *, with_seq: bool
) -> Joined:
    """Fill `columns` of the calls from their only place in the log, and the sequence number where `with_seq` allows it.

    Where one of them contradicts the log, none is joined.
    """
    short, long = located.short, located.long
    rows = short.rows
    every = np.arange(rows.size)
    partner = located.places[0] + every
    wrong = contradict(short, every, long, partner, located.names)
    if wrong.any():
        return Joined(timeline=timeline, refused=(_contradiction(located, int(np.argmax(wrong)), int(wrong.sum())),))
    refused = []
    names = NameTable(timeline.names)
    changed: dict[str, Any] = {}
    differ = []
    volumeless = np.isin(short.op, [located.names.code(op) for op in (*VOLUMELESS, *ANY_CALL)])
    for column in columns:
        kind = column_kinds(log.collectives)[column]
        mine = getattr(timeline.collectives, column)
        values = long.value(getattr(log.collectives, column))[partner]
        told = (values != NONE) & (values != MISSING[kind])
        if kind == "name":
            codes = np.append(names.encode(log.names), np.int32(-1))
            values = np.where(told, codes[np.where(told, values, -1)], MISSING[kind])
        if column in VOLUME:
            told &= ~volumeless
        missing = mine[rows] == (UNKNOWN if kind == "enum" else MISSING[kind])
        fill = told & missing
        column_changed = mine.copy()
        column_changed[rows[fill]] = values[fill]
        changed[column] = column_changed
        if column not in VOLUME and (told & ~missing & (mine[rows] != values)).any():
            differ.append(column)
    if with_seq:
        changed["seq"] = _with_seq(timeline.collectives.seq, rows, long.value(log.collectives.seq)[partner])
    if differ:
        listed = " and ".join(differ)
        refused.append(("differ", f"the log names another {listed} than the trace for some calls: the trace's is kept"))
    result = replace(timeline, names=tuple(names.to_list()), collectives=replace(timeline.collectives, **changed))
    return Joined(timeline=result, refused=tuple(refused))


def _with_seq(mine: Ints, rows: Ints, found: Ints) -> Ints:
    """Return the sequence numbers with those found in the log; all as they were where the log's own numbers repeat:
    some versions do not count every call.
    """
    if (found == NONE).any() or (np.diff(found) <= 0).any() or (mine[rows] != NONE).any():
        return mine
    changed = mine.copy()
    changed[rows] = found
    return changed


def _contradiction(located: Located, call: int, count: int) -> tuple[str, str]:
    mine = spelled(located.short, call, located.names)
    its = spelled(located.long, located.places[0] + call, located.names)
    more = f", and {count - 1} more like it" if count > 1 else ""
    return (
        "contradiction",
        f"call {call + 1} of {located.short.size} is {mine} in the trace and {its} in the log{more}: not joined; "
        "are they of one run?",
    )

"""Fill missing values of a timeline's calls from a log: only certain values, and never replacing the timeline's own."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.merge.call_sequences import ANY_CALL, Located, contradictions, describe_call
from overlapscope.timeline.columns import MISSING, NONE, UNKNOWN, Ints, column_kinds
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME
from overlapscope.timeline.run import RankTimeline

TUNING_COLUMNS: Final = ("algorithm", "protocol", "channels")
"""What the library chose for a call; only its log records this."""
VOLUME_COLUMNS: Final = ("elements", "dtype", "bytes")


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline with what a log added to it."""

    timeline: RankTimeline
    refused: tuple[tuple[str, str], ...]
    """(kind of reason, reason) for each part that was not joined."""


def join_calls(
    timeline: RankTimeline, log: RankTimeline, located: Located, columns: Sequence[str], *, with_seq: bool
) -> Joined:
    """Fill missing values in `columns` of the calls from their place in the log; also sequence numbers if `with_seq`.

    If one of the calls contradicts the log, none is joined.
    """
    short, long = located.short, located.long
    rows = short.rows
    every = np.arange(rows.size)
    partner = located.places[0] + every
    wrong = contradictions(short, every, long, partner, located.names)
    if wrong.any():
        return Joined(timeline=timeline, refused=(_contradiction(located, int(np.argmax(wrong)), int(wrong.sum())),))
    refused = []
    names = NameTable(timeline.names)
    changed: dict[str, Any] = {}
    differ = []
    volumeless = np.isin(short.op, [located.names.code(op) for op in (*OPS_WITHOUT_VOLUME, *ANY_CALL)])
    for column in columns:
        kind = column_kinds(log.collectives)[column]
        mine = getattr(timeline.collectives, column)
        values = long.value(getattr(log.collectives, column))[partner]
        known = (values != NONE) & (values != MISSING[kind])
        if kind == "name":
            codes = np.append(names.encode(log.names), np.int32(-1))
            values = np.where(known, codes[np.where(known, values, -1)], MISSING[kind])
        if column in VOLUME_COLUMNS:
            known &= ~volumeless
        missing = mine[rows] == (UNKNOWN if kind == "enum" else MISSING[kind])
        fill = known & missing
        column_changed = mine.copy()
        column_changed[rows[fill]] = values[fill]
        changed[column] = column_changed
        if column not in VOLUME_COLUMNS and (known & ~missing & (mine[rows] != values)).any():
            differ.append(column)
    if with_seq:
        changed["seq"] = _with_seq(timeline.collectives.seq, rows, long.value(log.collectives.seq)[partner])
    if differ:
        listed = " and ".join(differ)
        text = f"for some calls the log and the trace name a different {listed}: the trace's value is kept"
        refused.append(("differ", text))
    result = replace(timeline, names=tuple(names.to_list()), collectives=replace(timeline.collectives, **changed))
    return Joined(timeline=result, refused=tuple(refused))


def _with_seq(mine: Ints, rows: Ints, found: Ints) -> Ints:
    """Return the sequence numbers with those from the log.

    Unchanged if the timeline has numbers, or if the log's are missing or do not rise: some versions do not count every
    call.
    """
    if (found == NONE).any() or (np.diff(found) <= 0).any() or (mine[rows] != NONE).any():
        return mine
    changed = mine.copy()
    changed[rows] = found
    return changed


def _contradiction(located: Located, call: int, count: int) -> tuple[str, str]:
    mine = describe_call(located.short, call, located.names)
    its = describe_call(located.long, located.places[0] + call, located.names)
    more = f", and {count - 1} more like it" if count > 1 else ""
    return (
        "contradiction",
        f"call {call + 1} of {located.short.size} is {mine} in the trace and {its} in the log{more}: not joined; "
        "are both of one run?",
    )

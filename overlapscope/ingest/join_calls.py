"""A timeline gains what a log knows of its calls: only what is certain, and nothing that it says itself is replaced."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from overlapscope.ingest.align import Alignment
from overlapscope.ingest.call_sequences import ANY_CALL, contradict, spelled
from overlapscope.ingest.locate import Located
from overlapscope.timeline.columns import MISSING, NONE, UNKNOWN, Flags, Ints, column_kinds
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline
from overlapscope.timeline.volume import VOLUMELESS
from overlapscope.values import dataclass

CHOSEN: Final = ("algorithm", "protocol", "channels")
"""What the library chose: known to its log alone."""
VOLUME: Final = ("elements", "dtype", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A timeline with what a log added to it."""

    timeline: RankTimeline
    refused: tuple[tuple[str, str], ...]
    """Kind of reason, and the reason."""


def join_calls(
    timeline: RankTimeline, log: RankTimeline, located: Located, columns: Sequence[str], *, with_seq: bool
) -> Joined:
    """Fill `columns` of the located calls where all possible places agree, and the sequence number where the place
    itself is certain and `with_seq` allows it.
    """
    short, long, alignment = located.short, located.long, located.alignment
    rows = short.rows
    partner = alignment.rows()
    certain = np.flatnonzero(partner != NONE)
    wrong = np.zeros(rows.size, np.bool_)
    wrong[certain] = contradict(short, certain, long, partner[certain], located.names)
    refused = [*_gaps(located, partner), *_contradictions(located, partner, wrong)]
    names = NameTable(timeline.names)
    changed: dict[str, Any] = {}
    unsure = np.zeros(rows.size, np.bool_)
    differ = []
    volumeless = np.isin(short.op, [located.names.code(op) for op in (*VOLUMELESS, *ANY_CALL)])
    for column in columns:
        kind = column_kinds(log.collectives)[column]
        mine = getattr(timeline.collectives, column)
        values = long.value(getattr(log.collectives, column))
        agreed, sure = alignment.agreed(np.where(values == MISSING[kind], NONE, values))
        told = sure & (agreed != NONE) & ~wrong
        if kind == "name":
            codes = np.append(names.encode(log.names), np.int32(-1))
            agreed = np.where(told, codes[np.where(told, agreed, -1)], MISSING[kind])
        if column in VOLUME:
            told &= ~volumeless
        missing = mine[rows] == (UNKNOWN if kind == "enum" else MISSING[kind])
        fill = told & missing
        column_changed = mine.copy()
        column_changed[rows[fill]] = agreed[fill]
        changed[column] = column_changed
        if column not in VOLUME and (told & ~missing & (mine[rows] != agreed)).any():
            differ.append(column)
        if column not in VOLUME:
            unsure |= ~sure & ~alignment.left_out & ~wrong
    if with_seq:
        changed["seq"] = _with_seq(timeline.collectives.seq, rows, long.value(log.collectives.seq), partner, wrong)
    open_ = int(((partner == NONE) & ~alignment.left_out).sum())
    refused += _uncertain(alignment, open_, int(unsure.sum()))
    if differ:
        listed = " and ".join(differ)
        refused.append(("differ", f"the log names another {listed} than the trace for some calls: the trace's is kept"))
    result = replace(timeline, names=tuple(names.to_list()), collectives=replace(timeline.collectives, **changed))
    return Joined(timeline=result, refused=tuple(refused))


def _with_seq(mine: Ints, rows: Ints, seq: Ints, partner: Ints, wrong: Flags) -> Ints:
    """Give the sequence numbers, from the log where they are certain; all as they were where the log's own numbers
    repeat: some versions do not count every call.
    """
    certain = (partner != NONE) & ~wrong
    found = seq[partner[certain]]
    if (found == NONE).any() or (np.diff(found) <= 0).any() or (mine[rows] != NONE).any():
        return mine
    changed = mine.copy()
    changed[rows[certain]] = found
    return changed


def _uncertain(alignment: Alignment, unplaced: int, unsure: int) -> list[tuple[str, str]]:
    """Say which calls are not placed, for which the places differ, and what either side lacks."""
    places, calls = alignment.count, alignment.left_out.size
    reasons = []
    if unsure:
        reasons.append(
            (
                "values",
                f"its calls fit the log at {places} places, which differ in what the library chose for {unsure} of "
                f"{calls} calls: left out there; record a step that no other is like, e.g. the first",
            )
        )
    if unplaced:
        which = "its" if unplaced == calls else f"{unplaced} of its"
        reasons.append(
            (
                "places",
                f"{which} {calls} calls fit the log at {places} places, as steps repeat: joined where all agree, "
                "without sequence numbers; record from the first step on if they matter",
            )
        )
    if alignment.gaps:
        only = "call" if alignment.gaps == 1 else "calls"
        reasons.append(
            (
                "gaps",
                f"trace and log differ by {alignment.gaps} {only} that only one of them has: the others are joined; "
                "look for lost lines of the log, or kernels that the trace lacks",
            )
        )
    return reasons


def _gaps(located: Located, partner: Ints) -> list[tuple[str, str]]:
    """Name a call without a partner whose neighbours' partners leave room for exactly one: both are the same call."""
    alone = np.flatnonzero(partner[1:-1] == NONE) + 1
    between = (partner[alone - 1] != NONE) & (partner[alone + 1] == partner[alone - 1] + 2)
    found = alone[between & located.alignment.left_out[alone]]
    return [_contradiction(located, int(found[0]), int(partner[found[0] - 1]) + 1, found.size)] if found.size else []


def _contradictions(located: Located, partner: Ints, wrong: Flags) -> list[tuple[str, str]]:
    found = np.flatnonzero(wrong)
    return [_contradiction(located, int(found[0]), int(partner[found[0]]), found.size)] if found.size else []


def _contradiction(located: Located, call: int, partner: int, count: int) -> tuple[str, str]:
    mine = spelled(located.short, call, located.names)
    its = spelled(located.long, partner, located.names)
    more = f", and {count - 1} more like it" if count > 1 else ""
    return (
        "contradiction",
        f"call {call + 1} of {located.short.size} is {mine} in the trace and {its} in the log{more}: not joined; "
        "are they of one run?",
    )

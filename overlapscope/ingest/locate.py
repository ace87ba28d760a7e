"""Where the calls of one source lie among those of another, of one rank and one group."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.ingest.align import Alignment, Nowhere, align
from overlapscope.ingest.call_sequences import Calls, as_groups, calls_of, spelled, tokens
from overlapscope.ingest.correlate import WILD, best_place
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline
from overlapscope.values import dataclass

MAX_GAPS: Final = 4
CALLS_PER_GAP: Final = 8
"""Fewer calls than this for each gap could lie anywhere."""
MIN_TOLD: Final = 0.5
"""Share of the calls that must tell their operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Calls of a timeline with all their possible places in a log."""

    short: Calls
    long: Calls
    alignment: Alignment
    names: NameTable
    """What the codes in both stand for."""


def in_order(timeline: RankTimeline, chosen: Flags) -> Ints:
    """Give the rows of the chosen calls in the order in which they were made, without those that only wait."""
    calls = timeline.collectives
    waits = [code for code, name in enumerate(timeline.names) if name == "wait"]
    rows = np.flatnonzero(chosen & ~np.isin(calls.op, waits))
    if timeline.basis != "log":
        for times in (calls.launch_ns[rows], calls.start_ns[rows]):
            if not (times == NONE).any():
                return rows[np.argsort(times, kind="stable")]
    return rows


def locate(timeline: RankTimeline, rows: Ints, log: RankTimeline, log_rows: Ints, members: int | None) -> Located | str:
    """Find calls of a timeline among those of a log, else give the reason and what to do.

    They are compared call by call, and with what the library was given at once taken as one call: the way with the
    fewest gaps counts.
    """
    names = NameTable()
    short, single = calls_of(timeline, rows, names), calls_of(log, log_rows, names)
    seq = log.collectives.seq[log_rows]
    best: Located | None = None
    reason = ""
    for long in _ways(single, seq, members, names):
        pattern, text = tokens(short, long, names)
        if (pattern != WILD).mean() < MIN_TOLD:
            return "most of its calls do not tell their operation: record with torch 2.4 or later"
        found = align(pattern, text, min(MAX_GAPS, short.size // CALLS_PER_GAP))
        if isinstance(found, Nowhere):
            reason = reason or _reason(found, short, long, pattern, text, names)
        elif best is None or found.gaps < best.alignment.gaps:
            best = Located(short=short, long=long, alignment=found, names=names)
        if best is not None and best.alignment.gaps == 0:
            break
    return best or reason


def _ways(single: Calls, seq: Ints, members: int | None, names: NameTable) -> Iterator[Calls]:
    """Give the calls one by one, then grouped; each only where it differs from the one before."""
    yield single
    size = single.size
    for collectives in (False, True):
        together = as_groups(single, seq, members, names, collectives=collectives)
        if together.size < size:
            yield together
        size = together.size


def _reason(found: Nowhere, short: Calls, long: Calls, pattern: Ints, text: Ints, names: NameTable) -> str:
    if found.why == "too_many":
        return (
            f"its {short.size} calls fit the log's {long.size} nearly, at too many places to tell them apart; "
            "record more steps, or a log that lacks no lines"
        )
    where = ""
    place = best_place(pattern, text)
    if place is not None:
        fits = (
            (pattern == text[place : place + short.size])
            | (pattern == WILD)
            | (text[place : place + short.size] == WILD)
        )
        wrong = int(np.argmin(fits))
        where = (
            f"; at the nearest place {int(fits.sum())} fit, and the first that does not, call {wrong + 1}, is "
            f"{spelled(short, wrong, names)} against {spelled(long, place + wrong, names)}"
        )
    return (
        f"its {short.size} calls are not among the log's {long.size}{where}: are they of one run, and is the log whole "
        "(NCCL_DEBUG_SUBSYS with COLL from the start)?"
    )

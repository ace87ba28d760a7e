"""Number calls that were recorded without sequence numbers, by their order, which is the same on all ranks of a group.

The ranks with the most calls must have equally many calls of each kind. A cut recording holds only a part of these
calls: it is placed where the kinds of call agree, and where the times between the ends agree far better than elsewhere.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.group_calls import EXCHANGE, GroupCalls
from overlapscope.display import list_some
from overlapscope.timeline.columns import Codes, Ints

FEWEST: Final = 8
"""Fewer calls than this cannot be placed in the order."""
TRIED: Final = 4
"""Positions at which the kinds agree that are compared: so many of the first and of the last ones."""
CLEARLY: Final = 4.0
"""At the right position the times between ends differ less than elsewhere by this factor ..."""
OF_INTERVAL: Final = 0.1
"""... and by less than this share of the usual time between calls."""


class NumberedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a group, and the number of each, the same on all ranks; -1 where it is not known."""

    calls: GroupCalls
    number: Ints
    reasons: tuple[str, ...] = ()


def by_order(calls: GroupCalls) -> NumberedCalls:
    """Number the calls by their order within their kind; reasons name the ranks that could not be placed."""
    counts = _counts(calls, calls.kind)
    totals = counts.sum(axis=1)
    most = np.flatnonzero(totals == totals.max())
    exchanges = [at for at, kind in enumerate(calls.kinds) if kind.op == EXCHANGE]
    if (counts[most][:, exchanges] != counts[most[0], exchanges]).any():
        calls = replace(calls, kind=calls.loose)
        counts = _counts(calls, calls.kind)
    number = np.full(calls.row.size, -1, np.int64)
    wrong = np.flatnonzero((counts[most] != counts[most[0]]).any(axis=0))
    if wrong.size:
        return NumberedCalls(calls=calls, number=number, reasons=(_uneven_counts(calls, counts, most, int(wrong[0])),))
    for place in most.tolist():
        part = calls.of(place)
        number[part] = calls.kind[part].astype(np.int64) * int(totals.max()) + _occurrence(calls.kind[part])
    whole = calls.of(int(most[0]))
    lost = []
    for place in np.flatnonzero(totals < totals.max()).tolist():
        part = calls.of(place)
        at = _place_of(calls.loose[part], calls.end_ns[part], calls.loose[whole], calls.end_ns[whole])
        if at is None:
            lost.append(place)
        else:
            number[part] = number[whole][at : at + totals[place]]
    return NumberedCalls(calls=calls, number=number, reasons=tuple(_lost(calls, totals, lost)))


def _counts(calls: GroupCalls, kind: Codes) -> Ints:
    """Count the calls by rank and kind."""
    kinds, ranks = len(calls.kinds), len(calls.ranks)
    counted = np.bincount(calls.place.astype(np.int64) * kinds + kind, minlength=ranks * kinds).reshape(ranks, kinds)
    return counted.astype(np.int64)


def _occurrence(kind: Codes) -> Ints:
    """Return for each call how many calls of its kind came before it."""
    order = np.argsort(kind, kind="stable")
    begins = np.searchsorted(kind[order], kind[order])
    found = np.empty(kind.size, np.int64)
    found[order] = np.arange(kind.size) - begins
    return found


def _place_of(kinds: Codes, ends: Ints, all_kinds: Codes, all_ends: Ints) -> int | None:
    """Return the position of a rank's calls among all calls; None where it is ambiguous."""
    if kinds.size < FEWEST:
        return None
    starts = np.lib.stride_tricks.sliding_window_view(all_kinds, FEWEST)[: all_kinds.size - kinds.size + 1]
    likely = np.flatnonzero((starts == kinds[:FEWEST]).all(axis=1)).tolist()
    places = dict.fromkeys([*_agreeing(likely, kinds, all_kinds), *_agreeing(likely[::-1], kinds, all_kinds)])
    if not places:
        return None
    interval = float(np.median(np.diff(ends)))
    differ = sorted(
        (float(np.median(np.abs(np.diff(ends) - np.diff(all_ends[at : at + ends.size])))), at) for at in places
    )
    best, place = differ[0]
    if best > OF_INTERVAL * interval or (len(differ) > 1 and CLEARLY * best >= differ[1][0]):
        return None
    return place


def _agreeing(likely: Iterable[int], kinds: Codes, all_kinds: Codes) -> list[int]:
    found: list[int] = []
    for tried, at in enumerate(likely, 1):
        if np.array_equal(all_kinds[at : at + kinds.size], kinds):
            found.append(at)
        if len(found) == TRIED or tried == TRIED * TRIED:
            break
    return found


def _uneven_counts(calls: GroupCalls, counts: Ints, places: Ints, kind: int) -> str:
    # One kind with different counts shows that the recordings hold different calls: no order can be trusted.
    of_kind = counts[places, kind]
    many, few = int(of_kind.argmax()), int(of_kind.argmin())
    return (
        f"{calls.kinds[kind]} was recorded {of_kind[many]} times on rank {calls.ranks[places[many]]} and "
        f"{of_kind[few]} times on rank {calls.ranks[places[few]]}: the recordings are sampled or cut, and calls are "
        "not paired by order"
    )


def _lost(calls: GroupCalls, totals: Ints, places: list[int]) -> list[str]:
    if not places:
        return []
    first = places[0]
    return [
        f"{totals.max()} calls were recorded on rank {calls.ranks[int(totals.argmax())]} and {totals[first]} on rank "
        f"{calls.ranks[first]}: the recordings are sampled or cut, and the calls of rank "
        f"{list_some([calls.ranks[at] for at in places])} could not be placed among them; they are not paired by order"
    ]

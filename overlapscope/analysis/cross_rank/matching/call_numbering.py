"""Number calls that were recorded without sequence numbers, by their order, which is the same on all ranks of a group.

The ranks with the most calls must have equally many calls of each kind. A cut recording holds only a part of these
calls: it is placed where the kinds of call agree, and where the times between the ends agree far better than elsewhere.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.matching.group_calls import EXCHANGE, GroupCalls
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


CUT: Final = "the recordings are sampled or cut"
OTHER: Final = "the ranks made different calls (they are of other groups, or the recordings are sampled or cut)"


class NumberedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a group, and the number of each, the same on all ranks; -1 where it is not known."""

    calls: GroupCalls
    number: Ints
    reasons: tuple[str, ...] = ()


def by_order(calls: GroupCalls, *, one_group: bool) -> NumberedCalls:
    """Number the calls by their order within their kind; reasons name the ranks that could not be placed.

    `one_group` is whether their source says that they are of one group.
    """
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
        return NumberedCalls(
            calls=calls,
            number=number,
            reasons=(_uneven_counts(calls, counts, most, int(wrong[0]), one_group=one_group),),
        )
    for place in most.tolist():
        part = calls.of(place)
        number[part] = calls.kind[part].astype(np.int64) * int(totals.max()) + _occurrence(calls.kind[part])
    whole = calls.of(int(most[0]))
    lost = []
    for place in np.flatnonzero(totals < totals.max()).tolist():
        part = calls.of(place)
        at = place_of(calls.loose[part], calls.end_ns[part], calls.loose[whole], calls.end_ns[whole])
        if at is None:
            lost.append(place)
        else:
            number[part] = number[whole][at : at + totals[place]]
    return NumberedCalls(calls=calls, number=number, reasons=tuple(_lost(calls, totals, lost, one_group=one_group)))


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


def place_of(kinds: Codes, ends: Ints, all_kinds: Codes, all_ends: Ints) -> int | None:
    """Return the position of a rank's calls among all calls; None where it is ambiguous."""
    if kinds.size < FEWEST:
        return None
    likely = _likely(kinds, all_kinds)
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


def is_part(kinds: Codes, all_kinds: Codes) -> bool:
    """Return whether calls are of the kinds of successive ones of more calls, as those of a cut recording."""
    if not 0 < kinds.size < all_kinds.size:
        return False
    likely = _likely(kinds, all_kinds)
    return bool(_agreeing(likely, kinds, all_kinds) or _agreeing(likely[::-1], kinds, all_kinds))


def _likely(kinds: Codes, all_kinds: Codes) -> list[int]:
    """Return where the first kinds are those of successive calls."""
    few = min(FEWEST, kinds.size)
    starts = np.lib.stride_tricks.sliding_window_view(all_kinds, few)[: all_kinds.size - kinds.size + 1]
    found: list[int] = np.flatnonzero((starts == kinds[:few]).all(axis=1)).tolist()
    return found


def _agreeing(likely: Iterable[int], kinds: Codes, all_kinds: Codes) -> list[int]:
    found: list[int] = []
    for tried, at in enumerate(likely, 1):
        if np.array_equal(all_kinds[at : at + kinds.size], kinds):
            found.append(at)
        if len(found) == TRIED or tried == TRIED * TRIED:
            break
    return found


def _uneven_counts(calls: GroupCalls, counts: Ints, places: Ints, kind: int, *, one_group: bool) -> str:
    # One kind with different counts shows that the recordings hold different calls: no order can be trusted.
    of_kind = counts[places, kind]
    many, few = int(places[of_kind.argmax()]), int(places[of_kind.argmin()])
    known = one_group or _is_cut(calls, few, many)
    return (
        f"{calls.kinds[kind]} was recorded {of_kind.max()} times on rank {calls.ranks[many]} and {of_kind.min()} times "
        f"on rank {calls.ranks[few]}: {CUT if known else OTHER}, and calls are not paired by order"
    )


def _lost(calls: GroupCalls, totals: Ints, places: list[int], *, one_group: bool) -> list[str]:
    if not places:
        return []
    first, whole = places[0], int(totals.argmax())
    return [
        could_not_place(
            (int(totals[whole]), calls.ranks[whole]),
            (int(totals[first]), calls.ranks[first]),
            [calls.ranks[at] for at in places],
            known=one_group or _is_cut(calls, first, whole),
        )
    ]


def could_not_place(most: tuple[int, int], fewer: tuple[int, int], ranks: Sequence[int], *, known: bool = True) -> str:
    """Return a reason for ranks whose calls could not be placed among others, each of which is given as the number of
    calls and a rank; `known` is whether recordings are known to lack calls."""
    why = CUT if known else OTHER
    return (
        f"{most[0]} calls were recorded on rank {most[1]} and {fewer[0]} on rank {fewer[1]}: {why}, "
        f"and the calls of rank {list_some(ranks)} could not be placed among them; they are not paired by order"
    )


def _is_cut(calls: GroupCalls, few: int, many: int) -> bool:
    """Return whether a rank's calls are successive ones of another's: its recording lacks the first or the last."""
    return is_part(calls.loose[calls.of(few)], calls.loose[calls.of(many)])

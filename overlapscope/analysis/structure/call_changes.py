"""Compare the collectives of two steps of one rank: which were added or removed, and what differs in the others."""

import math
from collections.abc import Sequence as SequenceOf
from fractions import Fraction
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.analysis.structure.alignment import Pairs, Sequence, align, numbered
from overlapscope.analysis.structure.kinds import ChangeKind
from overlapscope.analysis.structure.rank_structure import Calls
from overlapscope.analysis.structure.workload import SAME, scaled_back
from overlapscope.timeline.columns import NONE, Flags, Ints
from overlapscope.timeline.dimensions import BACKWARD
from overlapscope.timeline.operations import ITEM_BYTES

REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")
GATHERS: Final = ("all_gather", "broadcast", "gather")


class CallPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of two steps that belong together, by row of `Calls`, in the order of the candidate."""

    base: Ints
    candidate: Ints
    removed: Ints
    added: Ints
    moved: Flags
    """Of the pairs, those whose order on the group differs."""
    scales: Flags
    """For each call of the candidate, whether its size follows the workload."""
    elements: Ints
    """For each call of the candidate, its elements as the base's workload would have them."""


class CallDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One call that differs; `base` and `candidate` are rows, NONE where a side has none."""

    kind: ChangeKind
    base: int = NONE
    candidate: int = NONE


def pair_calls(base: Calls, candidate: Calls, ratio: Fraction = SAME) -> CallPairs:
    """Pair the calls of two steps; `ratio` is how many times the base's workload the candidate has.

    Calls are aligned within each group and stream by operation, size, dtype and phase; names of modules and groups
    decide nothing. What is left is paired with an equal call elsewhere: in another order, or on another group.
    """
    elements, scales = scaled_back(base, candidate, ratio)
    sides = base, msgspec.structs.replace(candidate, elements=elements)
    key = _codes(sides, "op", "peer", "group", "dtype", "elements", "phase")
    sort = _codes(sides, "op", "peer")
    place = _codes(sides, "group", "stream")
    traits = [np.stack(each, axis=1) for each in zip(*(_codes(sides, name) for name in
              ("elements", "dtype", "phase")), strict=True)]  # fmt: skip
    hints = [np.stack(each, axis=1) for each in zip(*(_codes(sides, name) for name in ("module", "context")),
             strict=True)]  # fmt: skip
    found: list[tuple[Ints, Ints]] = []
    for at in np.unique(np.concatenate(place)).tolist():
        rows = [np.flatnonzero(each == at) for each in place]
        if not rows[0].size or not rows[1].size:
            continue
        pairs: Pairs = align(*(
            Sequence(key[side][own], sort[side][own], traits[side][own], hints[side][own], sides[side].position[own])
            for side, own in enumerate(rows)
        ))  # fmt: skip
        found.append((rows[0][pairs.base], rows[1][pairs.candidate]))
    ours, theirs = _joined(found)
    moved = np.zeros(ours.size, np.bool_)
    removed, added = _left(base, ours), _left(candidate, theirs)
    for columns, is_order in (
        (("op", "peer", "group", "stream", "dtype", "elements", "phase"), True),
        (("op", "peer", "group", "stream", "dtype", "elements"), True),
        (("op", "peer", "group", "dtype", "elements", "phase"), False),
        (("op", "peer", "group", "dtype", "elements"), False),
        (("op", "peer", "dtype", "elements", "phase"), False),
    ):
        again = _equal_left(_codes(sides, *columns), removed, added)
        ours, theirs = np.append(ours, again[0]), np.append(theirs, again[1])
        moved = np.append(moved, np.full(again[0].size, is_order))
        removed, added = _left(base, ours), _left(candidate, theirs)
    again = _of_replaced_groups(sides, removed, added)
    ours, theirs = np.append(ours, again[0]), np.append(theirs, again[1])
    moved = np.append(moved, np.zeros(again[0].size, np.bool_))
    order = np.argsort(theirs, kind="stable")
    return CallPairs(
        base=ours[order],
        candidate=theirs[order],
        removed=_left(base, ours),
        added=_left(candidate, theirs),
        moved=moved[order],
        scales=scales,
        elements=elements,
    )


def call_differences(
    base: Calls, candidate: Calls, pairs: CallPairs, *, scheduled: bool = True
) -> list[CallDifference]:
    """Return all differences of paired calls, and the calls that have no partner.

    Without `scheduled`, what a schedule says (overlap, prefetch) is not compared.
    """
    found = [CallDifference(kind="collective_added", candidate=row) for row in pairs.added.tolist()]
    gone: ChangeKind = "reduction_removed" if _reduces_less(base, candidate, pairs) else "collective_removed"
    for row in pairs.removed.tolist():
        reduces = base.op[row] in REDUCTIONS and base.phase[row] == BACKWARD
        found.append(CallDifference(kind=gone if reduces else "collective_removed", base=row))
    ours, theirs = pairs.base, pairs.candidate

    def add(kind: ChangeKind, rows: Flags) -> None:
        found.extend(
            CallDifference(kind=kind, base=a, candidate=b)
            for a, b in zip(ours[rows].tolist(), theirs[rows].tolist(), strict=True)
        )

    widths = [_item_bytes(each) for each in (base.dtype[ours], candidate.dtype[theirs])]
    sizes = base.elements[ours], pairs.elements[theirs]
    add("dtype_widened", widths[1] > widths[0])
    other = base.dtype[ours] != candidate.dtype[theirs]
    add("dtype_narrowed", other & (widths[1] <= widths[0]))
    add("bytes_grew", sizes[1] > sizes[0])
    add("bytes_shrank", sizes[1] < sizes[0])
    add("group_changed", base.group[ours] != candidate.group[theirs])
    behind = np.zeros(ours.size, np.bool_)
    if scheduled:
        behind = _moved_behind(base, candidate, ours, theirs)
        add("moved_behind_backward", behind)
        _add_overlap(base, candidate, ours, theirs, ~behind, add)
    add("order_changed", pairs.moved & ~behind)
    add("phase_changed", ~behind & ~pairs.moved & (base.phase[ours] != candidate.phase[theirs]))
    return found


def _moved_behind(base: Calls, candidate: Calls, ours: Ints, theirs: Ints) -> Flags:
    """Return which reductions were launched while backward had compute left, and are launched after it now."""
    reduces = np.isin(base.op[ours], REDUCTIONS) & (base.phase[ours] == BACKWARD)
    found: Flags = reduces & base.before_backward_ends[ours] & ~candidate.before_backward_ends[theirs]
    return found


def _add_overlap(base: Calls, candidate: Calls, ours: Ints, theirs: Ints, rows: Flags, add: Any) -> None:
    known = rows & base.known[ours] & candidate.known[theirs]
    gathers = np.isin(base.op[ours], GATHERS)
    before, after = (
        (side.overlappable[rows_of], side.prefetched[rows_of]) for side, rows_of in ((base, ours), (candidate, theirs))
    )
    # A reduction is launched when its gradients are ready: only what is gathered can be launched ahead of need.
    for some, lost, gained, columns in (
        (known & gathers, "prefetch_lost", "prefetch_gained", (0, 1)),
        (known & ~gathers, "overlap_lost", "overlap_gained", (0,)),
    ):
        fell = np.any([before[at] & ~after[at] for at in columns], axis=0)
        add(lost, some & fell)
        add(gained, some & ~fell & np.any([after[at] & ~before[at] for at in columns], axis=0))


def _reduces_less(base: Calls, candidate: Calls, pairs: CallPairs) -> bool:
    """Return whether fewer elements are reduced in backward, so that a gradient may have been left out."""
    ours, theirs = (
        int(elements[np.isin(side.op, REDUCTIONS) & (elements != NONE)].sum())
        for side, elements in ((base, base.elements), (candidate, pairs.elements))
    )
    return theirs < ours


def _of_replaced_groups(sides: tuple[Calls, Calls], removed: Ints, added: Ints) -> tuple[Ints, Ints]:
    """Pair calls of groups that only the base has with those of groups that only the candidate has, in order."""
    base, candidate = sides
    kept = set(base.group.tolist()) & set(candidate.group.tolist())
    rows = [
        own[~np.isin(side.group[own].astype(str), [str(each) for each in kept])]
        for side, own in ((base, removed), (candidate, added))
    ]
    return _equal_left(_codes(sides, "op", "phase"), *rows)


def _equal_left(codes: tuple[Ints, Ints], removed: Ints, added: Ints) -> tuple[Ints, Ints]:
    """Pair rows without a partner that have the same code, the first with the first."""
    ours, theirs = (numbered(code[rows]) for code, rows in zip(codes, (removed, added), strict=True))
    _, rows, columns = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    return removed[rows], added[columns]


def _codes(sides: tuple[Calls, Calls], *columns: str) -> tuple[Ints, Ints]:
    """Return one code a call for the combination of these columns, shared by both sides."""
    parts = []
    for name in columns:
        both = np.concatenate([getattr(side, name) for side in sides])
        text = both.astype(str)
        for each in text.reshape(text.shape[0], math.prod(text.shape[1:])).T:
            parts.append(np.unique(each, return_inverse=True)[1].reshape(-1))
    _, which = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    codes = which.reshape(-1).astype(np.int64)
    return codes[: sides[0].op.size], codes[sides[0].op.size :]


def _joined(found: SequenceOf[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *(a for a, _ in found)]), np.concatenate([empty, *(b for _, b in found)])


def _left(calls: Calls, paired: Ints) -> Ints:
    return np.setdiff1d(np.arange(calls.op.size), paired)


def _item_bytes(dtypes: npt.NDArray[np.object_]) -> Ints:
    return np.array([ITEM_BYTES.get(each, 0) if each is not None else 0 for each in dtypes.tolist()], np.int64)

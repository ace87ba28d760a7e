"""Align two sequences of calls: most equal calls first, then most alike ones, then those of equal places."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overlapscope.timeline.columns import Ints

MOST_CELLS: Final = 50_000_000
"""Pairs of calls that are weighed at most; longer sequences are paired by equal calls alone, in order."""
_EQUAL: Final = 1 << 40
_ALIKE: Final = 1 << 24
_HINT: Final = 16
_NEAR: Final = 64
_SAME_POSITION: Final = 1e-6
"""One equal pair outweighs all alike ones, one alike pair all hints; sequences are shorter than 100,000 calls there."""


class Sequence(NamedTuple):
    """One sequence of calls, as columns of codes that both sequences share."""

    key: Ints
    """Calls with the same code are equal."""
    sort: Ints
    """Only calls with the same code are alike."""
    traits: npt.NDArray[np.int64]
    """Shape (calls, traits): the more of these are equal, the more alike two calls are."""
    hints: npt.NDArray[np.int64]
    """Shape (calls, hints): the same, where it only decides which of several equal calls is meant, such as modules."""
    position: npt.NDArray[np.float64]
    """Where in the step a call is, from 0 to 1: the nearer, the better; also a hint."""


class Pairs(NamedTuple):
    """Rows of both sequences that belong together, in order, and rows that have no partner."""

    base: Ints
    candidate: Ints
    removed: Ints
    added: Ints


def align(base: Sequence, candidate: Sequence) -> Pairs:
    """Return the best alignment of two sequences: pairs keep the order of both.

    As many calls as possible are paired with an equal one (a longest common subsequence); others, if they are alike, in
    between; hints decide among alignments that are equally good.
    """
    first, last = _ends(base, candidate)
    ours, theirs = len(base.key) - first - last, len(candidate.key) - first - last
    pair = _in_order if ours * theirs > MOST_CELLS else _weighed
    middle = pair(_cut(base, first, ours), _cut(candidate, first, theirs))
    rows, columns = np.arange(len(base.key)), np.arange(len(candidate.key))
    found = np.concatenate([rows[:first], middle[0] + first, rows[first + ours :]])
    other = np.concatenate([columns[:first], middle[1] + first, columns[first + theirs :]])
    return Pairs(found, other, np.setdiff1d(rows, found), np.setdiff1d(columns, other))


def _ends(base: Sequence, candidate: Sequence) -> tuple[int, int]:
    """Return how many calls at the beginning, and at the end, are equal with all their hints."""
    ours = np.column_stack([base.key, base.hints])
    theirs = np.column_stack([candidate.key, candidate.hints])
    shorter = min(len(ours), len(theirs))
    near = np.abs(base.position[:shorter] - candidate.position[:shorter]) < _SAME_POSITION
    same = (ours[:shorter] == theirs[:shorter]).all(axis=1) & near
    first = shorter if same.all() else int(np.argmin(same))
    left = shorter - first
    ends = base.position[len(ours) - left :], candidate.position[len(theirs) - left :]
    near = np.abs(ends[0] - ends[1]) < _SAME_POSITION
    same = ((ours[len(ours) - left :] == theirs[len(theirs) - left :]).all(axis=1) & near)[::-1]
    return first, left if same.all() else int(np.argmin(same))


def _cut(sequence: Sequence, first: int, calls: int) -> Sequence:
    part = slice(first, first + calls)
    return Sequence(
        sequence.key[part], sequence.sort[part], sequence.traits[part], sequence.hints[part], sequence.position[part]
    )


def _weighed(base: Sequence, candidate: Sequence) -> tuple[Ints, Ints]:
    """Pair by dynamic programming, a row of the table at a time (Needleman and Wunsch 1970, gaps without a price)."""
    rows, columns = len(base.key), len(candidate.key)
    best = np.zeros(columns + 1, np.int64)
    paired = np.zeros((rows + 1, columns + 1), np.bool_)
    skipped = np.zeros((rows + 1, columns + 1), np.bool_)
    for row in range(rows):
        away = np.abs(candidate.position - base.position[row])
        hints = _HINT * (candidate.hints == base.hints[row]).sum(axis=1) + (_NEAR * (1 - away)).astype(np.int64)
        traits = 1 + (candidate.traits == base.traits[row]).sum(axis=1)
        weight = np.where(candidate.key == base.key[row], _EQUAL, traits * _ALIKE) + hints
        with_pair = np.where(candidate.sort == base.sort[row], best[:-1] + weight, -1)
        paired[row + 1, 1:] = with_pair > best[1:]
        reached = np.concatenate([[0], np.maximum(with_pair, best[1:])])
        best = np.maximum.accumulate(reached)
        skipped[row + 1] = best > reached
    ours, theirs = [], []
    row, column = rows, columns
    while row and column:
        if skipped[row, column]:
            column -= 1
        elif paired[row, column]:
            row, column = row - 1, column - 1
            ours.append(row)
            theirs.append(column)
        else:
            row -= 1
    return np.array(ours[::-1], np.int64), np.array(theirs[::-1], np.int64)


def _in_order(base: Sequence, candidate: Sequence) -> tuple[Ints, Ints]:
    """Pair the n-th call of each key with the n-th of the other sequence."""
    _, rows, columns = np.intersect1d(
        numbered(base.key), numbered(candidate.key), assume_unique=True, return_indices=True
    )
    order = np.argsort(rows, kind="stable")
    return rows[order], columns[order]


def numbered(codes: Ints) -> Ints:
    """Return one number for each row: its code, and how often the code occurred before."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    number = np.empty(codes.size, np.int64)
    number[order] = np.arange(codes.size) - np.searchsorted(ordered, ordered, side="left")
    found: Ints = codes * (1 << 32) + number
    return found

"""Find out whether two steps differ in batch or sequence alone, and by how much."""

from fractions import Fraction
from typing import Final

import numpy as np

from overlapscope.analysis.structure.rank_structure import Calls, RankStructure
from overlapscope.timeline.columns import NONE, Flags, Ints

LEAST_SHARE: Final = 0.9
"""Least share of the FLOPs that must scale with the workload; the rest may not change."""
SAME: Final = Fraction(1)


def workload_ratio(base: RankStructure, candidate: RankStructure) -> Fraction:
    """Return how many times the base's batch or sequence the candidate computes; 1 if nothing else can be shown.

    It is shown where the same operations compute in the same order on the same parameters, and the FLOPs of each are
    r times those of the base: for all, or but for attention (r squared) and what does not depend on the batch (once).
    """
    ours, theirs = base.computes, candidate.computes
    same_rows = ours.flops.size == theirs.flops.size and ours.flops.size > 0
    if not same_rows or not (ours.name == theirs.name).all() or not (ours.phase == theirs.phase).all():
        return SAME
    if (ours.flops == theirs.flops).all() or _parameters(base) != _parameters(candidate):
        return SAME
    ratio = _most_common(ours.flops, theirs.flops)
    scaled = _scaled(ours.flops, theirs.flops, ratio) | _scaled(ours.flops, theirs.flops, ratio**2)
    fits = scaled | (ours.flops == theirs.flops)
    share = int(ours.flops[scaled].sum()) / int(ours.flops.sum())
    return ratio if fits.all() and share >= LEAST_SHARE else SAME


def _parameters(structure: RankStructure) -> tuple[int | None, int]:
    held = structure.at_peak_bytes.get("parameters")
    known = structure.calls.parameters != NONE
    return held, int(structure.calls.parameters[known].sum())


def _most_common(ours: Ints, theirs: Ints) -> Fraction:
    """Return the ratio that most FLOPs of matrix products changed by."""
    common = np.gcd(ours, theirs)
    pairs, which = np.unique(np.stack([theirs // common, ours // common], axis=1), axis=0, return_inverse=True)
    weights = np.bincount(which.reshape(-1), weights=ours)
    changed = pairs[:, 0] != pairs[:, 1]
    above, below = pairs[np.argmax(np.where(changed, weights, -1))].tolist()
    return Fraction(above, below)


def _scaled(ours: Ints, theirs: Ints, ratio: Fraction) -> Flags:
    found: Flags = theirs.astype(object) * ratio.denominator == ours.astype(object) * ratio.numerator
    return found.astype(np.bool_)


def scaled_back(base: Calls, candidate: Calls, ratio: Fraction) -> tuple[Ints, Flags]:
    """Return the candidate's elements as the base's workload would have them, and which of them scale with it.

    Bytes of parameters and their gradients do not scale. Of other calls, those of one operation, group, dtype and phase
    scale if they then equal the base's.
    """
    elements, scales = candidate.elements.copy(), np.zeros(candidate.elements.size, np.bool_)
    if ratio == SAME:
        return elements, scales
    at_base, at_candidate = _families(base, candidate)
    for family in np.unique(at_candidate).tolist():
        rows = np.flatnonzero((at_candidate == family) & (candidate.parameters == NONE))
        known = base.elements[(at_base == family) & (base.parameters == NONE)]
        values = candidate.elements[rows]
        if not rows.size or (np.sort(known).tolist() == np.sort(values).tolist()):
            continue
        exact = values % ratio.numerator == 0
        back = np.where(exact, values // ratio.numerator * ratio.denominator, values)
        fits = exact & np.isin(back, known)
        if not fits.all():
            fits &= ~np.isin(values, known)
        elements[rows[fits]], scales[rows[fits]] = back[fits], True
    return elements, scales


def _families(base: Calls, candidate: Calls) -> tuple[Ints, Ints]:
    columns = [
        np.concatenate([getattr(base, name), getattr(candidate, name)]).astype(str)
        for name in ("op", "group", "dtype", "phase")
    ]
    _, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    codes = which.reshape(-1).astype(np.int64)
    return codes[: base.op.size], codes[base.op.size :]

"""Exposed time by where it belongs: dimension, phase and module of the collectives that own it (DESIGN section 2)."""

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.collectives import chosen_rows
from overlapscope.analysis.steps import StepWindow
from overlapscope.timeline.by_group import sum_by
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.run import RankTimeline

PLACES: Final = ("dimension", "phase", "module")
UNKNOWN: Final = "unknown"


class ExposedBy(msgspec.Struct, kw_only=True, frozen=True):
    """Exposed nanoseconds of the calls of a step (without complete steps: of a recording), mean over steps and ranks.

    Each of the three shares out the same sum; `unknown` is what could not be placed. Empty without timed collectives.
    """

    dimension: dict[str, int] = {}
    phase: dict[str, int] = {}
    module: dict[str, int] = {}


def exposed_by(
    ranks: Mapping[int, RankTimeline], windows: Mapping[int, list[StepWindow]], exposed_ns: Mapping[int, Ints]
) -> ExposedBy:
    """Sum up the exposed time that collectives own, the largest first.

    Covers what the rows of collectives cover: each rank's complete steps where it has any, else all it recorded.
    """
    sums: dict[str, dict[str, int]] = {place: {} for place in PLACES}
    number = 0
    for rank, timeline in ranks.items():
        calls, names = timeline.collectives, timeline.names
        rows = chosen_rows(timeline, windows[rank])
        exposed = exposed_ns[rank][rows]
        number += sum(each.complete for each in windows[rank]) or 1
        for place in PLACES if exposed.any() else ():
            codes, at = np.unique(getattr(calls, place)[rows], return_inverse=True)
            totals = sum_by(at, exposed, codes.size)
            for code, total in zip(codes.tolist(), totals.tolist(), strict=True):
                name = names[code] if code >= 0 else UNKNOWN
                sums[place][name] = sums[place].get(name, 0) + total
    return ExposedBy(**{place: _means(found, number) for place, found in sums.items()})


def _means(sums: Mapping[str, int], number: int) -> dict[str, int]:
    ordered = sorted(sums, key=lambda name: (-sums[name], name))
    return {name: round(sums[name] / number) for name in ordered if sums[name]}

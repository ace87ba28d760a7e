"""Cost curves of the collectives that were recorded: one for each operation, dimension and size of group."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.collectives import CollectiveRow
from overlapscope.timeline.columns import Floats
from overlapscope.timeline.operations import bus_factor
from overlapscope.whatif.curves import Curve, curve

MOST: Final = 1_000
"""A kind of call weighs by its calls, up to so many."""


class RecordedCurve(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What calls of one operation reached, by size."""

    op: str
    ranks: int
    dimension: str | None
    rows: tuple[CollectiveRow, ...]
    """Kinds of call whose bandwidth is known, by size; those with estimate `upper_bound` are bounds from below."""
    curve: Curve | None
    """Through the matched ones, whose transfer is told from waiting; None without two sizes of them."""

    def busbw_gbs(self, sizes_bytes: Floats) -> Floats:
        """Return the curve's bus bandwidth at sizes."""
        assert self.curve is not None
        found: Floats = sizes_bytes / self.curve.at(sizes_bytes) * bus_factor(self.op, self.ranks)
        return found


def recorded_curves(rows: Sequence[CollectiveRow]) -> list[RecordedCurve]:
    """Return the curves of an analysis' collectives, in the order in which their operations stand there."""
    kinds: dict[tuple[str, int, str | None], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.busbw_gbs and row.group_size:
            kinds[row.op, row.group_size, row.dimension].append(row)
    found = []
    for (op, ranks, dimension), own in kinds.items():
        ordered = tuple(sorted(own, key=lambda row: row.bytes or 0))
        matched = [row for row in ordered if row.estimate == "matched"]
        through = _through(op, ranks, matched) if len({row.bytes for row in matched}) > 1 else None
        found.append(RecordedCurve(op=op, ranks=ranks, dimension=dimension, rows=ordered, curve=through))
    return found


def _through(op: str, ranks: int, rows: Sequence[CollectiveRow]) -> Curve:
    weight = [min(row.count, MOST) for row in rows]
    told = all(row.algorithm for row in rows)
    choice = [f"{row.algorithm} {row.protocol or ''}".strip() for row in rows] if told else []
    return curve(
        op,
        np.repeat([float(row.bytes or 0) for row in rows], weight),
        np.repeat([float(row.transfer_ns_median or 0) for row in rows], weight),
        ranks=ranks,
        choice=np.repeat(choice, weight).tolist() if choice else (),
        source="the recording",
    )

"""Cost curves of the recorded collectives: one for each operation, dimension and group size."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.timeline.columns import Floats
from overlapscope.timeline.operations import bus_factor
from overlapscope.whatif.cost.curves import Curve, curve

MOST: Final = 1_000
"""A kind of call is weighted by its number of calls, up to this many."""


class RecordedCurve(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Time and bandwidth of the calls of one operation, by size."""

    op: str
    ranks: int
    dimension: str | None
    rows: tuple[CollectiveRow, ...]
    """Rows whose bandwidth is known, by size; with estimate `upper_bound` the bandwidth is a lower bound."""
    curve: Curve | None
    """The curve through the matched rows, whose wait time is separated; None with fewer than two sizes."""

    def busbw_gbs(self, sizes_bytes: Floats) -> Floats:
        """Return the bus bandwidth of the curve at sizes, in GB/s."""
        assert self.curve is not None
        found: Floats = sizes_bytes / self.curve.at(sizes_bytes) * bus_factor(self.op, self.ranks)
        return found


def recorded_curves(rows: Sequence[CollectiveRow]) -> list[RecordedCurve]:
    """Return the curves of the collectives of an analysis, in the order of their operations there."""
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
    known = all(row.algorithm for row in rows)
    choice = [f"{row.algorithm} {row.protocol or ''}".strip() for row in rows] if known else []
    return curve(
        op,
        np.repeat([float(row.bytes or 0) for row in rows], weight),
        np.repeat([float(row.transfer_ns_median or 0) for row in rows], weight),
        ranks=ranks,
        choice=np.repeat(choice, weight).tolist() if choice else (),
        source="the recording",
    )

"""Curves of collectives from a measured table: nccl-tests' output, or a CSV."""

from typing import Final

import numpy as np

from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE, Flags
from overlapscope.timeline.facts import Facts
from overlapscope.whatif.curves import Curve, curve

OTHERS: Final = ("reduce_scatter", "all_gather")
"""What steps that are no DistributedDataParallel's also call."""


def table_curve(tables: Facts, file: str, ranks: int) -> tuple[Curve, list[str]]:
    """Give the curve of a table's all-reduces over so many ranks, with what is to be said of it.

    Raises InputError where it holds none; one that does not say over how many ranks is taken to be over these.
    """
    rows = tables.measurements
    wanted = _of(tables, "all_reduce")
    exact = wanted & (rows.ranks == ranks)
    untold = wanted & (rows.ranks == NONE)
    if not exact.any() and not untold.any():
        if rows.op.size and (rows.op < 0).all():
            raise InputError(
                f"{file}: does not say which operation was measured; name the file after it, such as all_reduce.txt"
            )
        others = sorted({int(each) for each in rows.ranks[wanted]})
        held = f"its all-reduces are over {', '.join(map(str, others))} ranks" if others else "it holds no all-reduce"
        raise InputError(f"{file}: {held}, and the plan is for {ranks}; measure one over {ranks}, or give a formula")
    chosen = exact if exact.any() else untold
    notes = [] if exact.any() else [f"{file} does not say over how many ranks it was measured; taken to be {ranks}"]
    names = [
        "/".join(filter(None, (tables.name(a), tables.name(p))))
        for a, p in zip(rows.algorithm[chosen].tolist(), rows.protocol[chosen].tolist(), strict=True)
    ]
    made = curve(
        "all_reduce", rows.bytes[chosen], rows.time_ns[chosen], ranks=ranks,
        choice=names if all(names) else (), source=file,
    )  # fmt: skip
    return made, notes


def other_curves(tables: Facts, ranks: int) -> tuple[Curve, ...]:
    """Give the curves of other operations that a table holds for exactly so many ranks."""
    rows = tables.measurements
    chosen = {op: _of(tables, op) & (rows.ranks == ranks) for op in OTHERS}
    return tuple(
        curve(op, rows.bytes[which], rows.time_ns[which], ranks=ranks, source="the table")
        for op, which in chosen.items()
        if which.any()
    )


def _of(tables: Facts, op: str) -> Flags:
    rows = tables.measurements
    named = np.array([tables.name(code) == op for code in rows.op.tolist()], np.bool_)
    found: Flags = named & (rows.bytes > 0) & (rows.time_ns > 0)
    return found

"""Whether the overlap that a source reports itself is the overlap that we find."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.breakdown import Breakdown
from overlapscope.analysis.findings import Finding
from overlapscope.timeline.columns import NONE, or_none
from overlapscope.timeline.facts import Facts

OVERLAPPED: Final = "overlapped_us"
ROUNDING_US: Final = 1.0
"""Sums of rounded parts differ by nanoseconds a part ..."""
ROUNDING_SHARE: Final = 1e-3
"""... so that long steps of many parts are given a thousandth."""


def reported_overlap(facts: Facts, ours: Mapping[tuple[int, int | None], Breakdown]) -> list[Finding]:
    """Report each overlap that a source states and that differs from ours by more than rounding.

    `ours` holds the breakdown of each (rank, step), of whole recordings under step None.
    """
    figures = facts.figures
    if OVERLAPPED not in facts.names:
        return []
    findings = []
    for row in np.flatnonzero(figures.name == facts.names.index(OVERLAPPED)).tolist():
        rank, step = int(figures.rank[row]), int(figures.step[row])
        found = ours.get((rank, or_none(step)))
        stated = float(figures.value[row])
        if found is None or found.overlapped_ns is None or not math.isfinite(stated):
            continue
        here = found.overlapped_ns / 1000
        if abs(here - stated) <= max(ROUNDING_US, ROUNDING_SHARE * max(here, stated)):
            continue
        place = f"rank {rank}" if step == NONE else f"step {step} of rank {rank}"
        source = facts.name(int(figures.source[row]))
        findings.append(
            Finding(
                id=f"reported_overlap:rank{rank}" + ("" if step == NONE else f":step{step}"),
                severity="warning",
                title=f"{source} says that {stated / 1000:.3f} ms of {place} is overlapped; its trace holds "
                f"{here / 1000:.3f} ms",
                evidence={"rank": rank, "step": or_none(step), "stated_us": stated, "found_us": here},
                known_from="trace",
            )
        )
    return findings

"""Ranks that hold the others up on one side of a comparison and not on the other.

Means over ranks thin out what one rank does; whoever compares wants its number.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

from overlapscope.analysis.findings import Finding
from overlapscope.analysis.held_words import HELD_BY
from overlapscope.analysis.replicate import Replicate

MOST_RUNS: Final = 0.5
"""A rank is a side's straggler when more than this share of its runs name it."""


def straggler_changes(base: Sequence[Replicate], candidate: Sequence[Replicate]) -> list[Finding]:
    """Give a finding for each rank and cause that only one side names: `straggler_appeared`, `straggler_vanished`."""
    before, after = _named(base), _named(candidate)
    found = []
    for appeared, own, other in ((True, after, before), (False, before, after)):
        for (rank, held_by), blame_ns in sorted(own.items(), key=lambda each: (-each[1], each[0])):
            if (rank, held_by) in other:
                continue
            when = "now holds the others up" if appeared else "no longer holds the others up"
            found.append(
                Finding(
                    id=f"straggler_{'appeared' if appeared else 'vanished'}:rank{rank}",
                    severity="warning" if appeared else "info",
                    title=f"rank {rank} {when}, {blame_ns / 1e6:.3f} ms in all: {HELD_BY[held_by]}",
                    evidence={"rank": rank, "held_by": held_by, "blame_ns": blame_ns},
                    known_from="comparison",
                )
            )
    return found


def _named(runs: Sequence[Replicate]) -> dict[tuple[int, str], int]:
    """Give the ranks that most runs of a side name, by cause, with the median of their blame."""
    blamed: dict[tuple[int, str], list[int]] = {}
    for run in runs:
        for each in run.stragglers:
            blamed.setdefault((each.rank, each.held_by), []).append(each.blame_ns)
    return {key: round(median(each)) for key, each in blamed.items() if len(each) > MOST_RUNS * len(runs)}

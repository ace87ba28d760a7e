"""Find pauses of the host of one rank of a CPU run that come between the same operations in each step, and that other
ranks lack: Python, a sleep or a file in the middle of a forward."""

from collections.abc import Mapping
from typing import Final

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.operation_gaps import OperationGaps
from overlapscope.timeline.run import Run

WORTH: Final = 0.04
"""Least share of a step that its pauses between the same operations take in all."""
OF_PEER: Final = 1 / 3
"""A rank has a pause to itself where each other rank does nothing for at most this share of it in the mean step, in
gaps of any length between the same operations."""


def recurring_pauses(run: Run, known: Mapping[int, OperationGaps], step_ns: float | None) -> list[Finding]:
    """Return a finding for each rank with such pauses, of the operations between which most of them lie.

    `known` holds the gaps of ranks whose operations are known. Empty where a rank lacks: it may have the same pauses.
    """
    if len(run.ranks) < 2 or not step_ns or known.keys() < run.ranks.keys():
        return []
    found = []
    for rank, gaps in known.items():
        others = [theirs.mean_ns for each, theirs in known.items() if each != rank]
        alone = {
            between: each
            for between, each in gaps.pauses.items()
            if each.ns >= WORTH * step_ns and all(its.get(between, 0) <= OF_PEER * each.ns for its in others)
        }
        if not alone:
            continue
        (before, after), most = max(alone.items(), key=lambda item: item[1].ns)
        times = "" if most.number <= 1 else f" in {most.number:g} pieces"
        found.append(
            Finding(
                id=f"recurring_pause:rank{rank}",
                severity="warning",
                title=f"rank {rank} does nothing that was recorded for {format_ms(most.ns)} of each step{times}, "
                f"between {before} and {after}, and the others next to none there: Python, a sleep, a file, a lock",
                evidence={"rank": rank, "before": before, "after": after, "paused_ns": round(most.ns),
                          "number": most.number, "steps": most.steps},
                known_from=run.ranks[rank].basis,
            )
        )  # fmt: skip
    return found

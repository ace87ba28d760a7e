"""Drop calls paired by order that cannot be the same calls, as aligned clocks show: so no clock is aligned by them."""

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.group_calls import named
from overlapscope.analysis.cross_rank.wait_transfer import counts_from
from overlapscope.display import list_some
from overlapscope.timeline.run import Run

FEW: Final = 2
"""More calls than this ..."""
SHARE: Final = 0.05
"""... and than this share of all that the same ranks made may not end on one rank before another has begun ..."""
RESIDUAL_NS: Final = 1e6
"""... nor may ends of calls without a group's name be so far apart, in the median, where devices run them: kernels of
one call end together."""
MOST_ROUNDS: Final = 16
_Calls = tuple[str | None, tuple[int, ...]]
"""Group and ranks."""


def drop_impossible(
    run: Run, matching: Matching, clocks: Clocks, align: Callable[[Matching], Clocks]
) -> tuple[Matching, Clocks]:
    """Remove the calls paired by order that the clocks contradict, and align the clocks anew without them.

    The calls of one group and of the same ranks are kept or removed together, the worst first: they may have spoilt the
    clocks of others.
    """
    for _ in range(MOST_ROUNDS):
        worst = _worst(run, matching, clocks)
        if worst is None:
            break
        group, ranks, reason = worst
        kept = tuple(
            each for each in matching.blocks if not each.by_order or (each.group, each.ranks) != (group, ranks)
        )
        lost = sum(each.rows.size for each in matching.blocks) - sum(each.rows.size for each in kept)
        matching = replace(
            matching, blocks=kept, unmatched=matching.unmatched + lost, reasons=(*matching.reasons, reason)
        )
        clocks = align(matching)
    return matching, clocks


def _worst(run: Run, matching: Matching, clocks: Clocks) -> tuple[str | None, tuple[int, ...], str] | None:
    """Return the group and the ranks whose calls contradict the clocks most, with a reason; None where none do."""
    threshold = counts_from(clocks)
    calls: dict[_Calls, list[MatchedCalls]] = {}
    for block in matching.blocks:
        if block.by_order:
            calls.setdefault((block.group, block.ranks), []).append(block)
    found = []
    for (group, ranks), blocks in calls.items():
        starts, ends = (np.concatenate([of(each) for each in blocks], axis=1) for of in (clocks.starts, clocks.ends))
        early = starts.max(axis=0) - ends.min(axis=0)
        impossible = int(np.count_nonzero(early > threshold))
        residual = float(np.median(np.abs(ends - np.median(ends, axis=0))))
        on_devices = all(run.ranks[rank].has_device for rank in ranks)
        what = f"{named(group)}: {early.size} calls on ranks {list_some(ranks)} are not paired by order: "
        if impossible > max(FEW, SHARE * early.size):
            why = (
                f"{impossible} of them would end on one rank before another has begun, by up to "
                f"{early.max() / 1e6:.1f} ms, which is impossible: they are not the same calls"
            )
            found.append((impossible / early.size, residual, group, ranks, what + why))
        elif group is None and on_devices and residual > RESIDUAL_NS:
            why = f"their ends are {residual / 1e6:.1f} ms apart, so they are not the same calls"
            found.append((0.0, residual, group, ranks, what + why))
    if not found:
        return None
    _, _, group, ranks, reason = max(found, key=lambda each: each[:2])
    return group, ranks, reason

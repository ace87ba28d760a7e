"""Clocks of ranks that only uneven exchanges tie, from the ends of these.

Members of an uneven exchange end apart by what more bytes take, so that their ends tell clocks less well than those of
even calls: they join sets of ranks that nothing else ties, and leave each set as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.clocks import Clocks, clock_offsets, from_the_middle
from overlapscope.analysis.matched import Matched
from overlapscope.analysis.ties import tied


def joined(clocks: Clocks, uneven: Sequence[Matched], hosts: Mapping[int, str]) -> Clocks:
    """Give the clocks with the sets of ranks joined that `uneven` exchanges tie; the others stay as they are."""
    if uneven and not clocks.offset_ns:
        return clock_offsets(uneven, hosts)
    loose = [block for block in uneven if not clocks.comparable(block.ranks)]
    if not loose:
        return clocks
    begin = clocks.reference_ns
    aligned = [block.with_values(end_ns=begin + np.rint(clocks.ends(block)).astype(np.int64)) for block in loose]
    ranks = sorted({*clocks.tied, *(rank for block in loose for rank in block.ranks)})
    of_set = {rank: str(clocks.tied.get(rank, rank)) for rank in ranks}
    between = clock_offsets(aligned, of_set)
    # One after the other: what `clocks` makes of a time, then what `between` makes of that.
    earlier = begin - between.reference_ns
    offsets, drift = {}, {}
    for rank in ranks:
        own, gains = clocks.offset_ns.get(rank, 0.0), between.drift.get(rank, 0.0)
        offsets[rank] = own * (1 - gains) + earlier * gains + between.offset_ns.get(rank, 0.0)
        drift[rank] = 1 - (1 - clocks.drift.get(rank, 0.0)) * (1 - gains)
    members = tied((block.ranks for block in loose), of_set)
    return replace(
        clocks,
        offset_ns=from_the_middle(offsets, members),
        drift=drift if any(drift.values()) else {},
        tied=members,
    )

"""Waiting told from transferring, and who was waited for (DESIGN section 2).

A collective's duration on a rank is waiting for the last member, then transferring. The last member waits for nobody,
so the least of the durations is the transfer, whatever the clocks show: in a simulation with jitter and skew it was off
by 3 %, where means over ranks were off by 70 to 850 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.clocks import Clocks
from overlapscope.analysis.matching import Matched

LEADS_COUNT_NS = 50_000
"""Leads up to this, or three residuals of the clocks, do not count as being last."""
RESIDUALS = 3.0
BASELINE_QUANTILE = 0.10
BASELINE_CALLS = 5
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A block of matched calls, split: rows are its ranks, columns its calls. Nanoseconds."""

    block: Matched
    transfer_ns: npt.NDArray[np.int64]
    """One for each call; a bound from above where not every member was recorded."""
    wait_ns: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    """Row of the rank that arrived last."""
    lead_ns: Reals
    """How much later than the second-latest."""
    early_ends: int
    """Calls that ended on some rank before its last member had started: the clocks, or the pairing, are wrong there."""

    @property
    def baseline_ns(self) -> float | None:
        """What this kind of call takes when nothing slows it: the 10th percentile of five or more transfers."""
        if self.transfer_ns.size < BASELINE_CALLS:
            return None
        return float(np.quantile(self.transfer_ns, BASELINE_QUANTILE))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """What a rank waited in matched calls, and what others waited for it."""

    collective_ns: int = 0
    wait_ns: int = 0
    blame_ns: int = 0
    times_last: int = 0


def split(blocks: Sequence[Matched], clocks: Clocks) -> list[Split]:
    """Split every block of matched calls."""
    threshold = _counts_from(clocks)
    found = []
    for block in blocks:
        durations = block.end_ns - block.start_ns
        transfer = durations.min(axis=0)
        starts, ends = clocks.starts(block), clocks.ends(block)
        ordered = np.sort(starts, axis=0)
        found.append(
            Split(
                block=block,
                transfer_ns=transfer,
                wait_ns=durations - transfer,
                last=starts.argmax(axis=0),
                lead_ns=ordered[-1] - ordered[-2],
                early_ends=int((ends.min(axis=0) + threshold < ordered[-1]).sum()),
            )
        )
    return found


def ended_early(splits: Sequence[Split], clocks: Clocks) -> tuple[str, ...]:
    """Say in how many calls a member ended before the last had started, which cannot be; nothing where none did."""
    odd = [each for each in splits if each.early_ends]
    if not odd:
        return ()
    worst = (0.0, 0, 0)
    for each in odd:
        ranks = each.block.ranks
        starts, ends = clocks.starts(each.block), clocks.ends(each.block)
        early = starts.max(axis=0) - ends.min(axis=0)
        at = int(early.argmax())
        worst = max(worst, (float(early[at]), ranks[int(ends[:, at].argmin())], ranks[int(starts[:, at].argmax())]))
    count, of = (sum(numbers) for numbers in ((each.early_ends for each in odd), (s.block.calls for s in splits)))
    return (
        f"{count} of {of} matched calls ended on one rank before another had started, by up to {worst[0] / 1e6:.1f} ms "
        f"(rank {worst[1]} before rank {worst[2]}), which cannot be: there the clocks or the pairing are wrong, and so "
        "may be who is told to have come last",
    )


def by_rank(splits: Sequence[Split], clocks: Clocks) -> Mapping[int, RankWait]:
    """Sum up what each rank waited and what it is to blame for: its leads over the second-latest."""
    threshold = _counts_from(clocks)
    sums: dict[int, list[float]] = {}
    for each in splits:
        for row, rank in enumerate(each.block.ranks):
            mine = each.last == row
            figures = (
                (each.block.end_ns[row] - each.block.start_ns[row]).sum(),
                each.wait_ns[row].sum(),
                each.lead_ns[mine].sum(),
                (each.lead_ns[mine] > threshold).sum(),
            )
            before = sums.setdefault(rank, [0.0] * len(figures))
            sums[rank] = [a + float(b) for a, b in zip(before, figures, strict=True)]
    return {
        rank: RankWait(
            collective_ns=round(collective), wait_ns=round(wait), blame_ns=round(blame), times_last=round(times)
        )
        for rank, (collective, wait, blame, times) in sorted(sums.items())
    }


def _counts_from(clocks: Clocks) -> float:
    return max(float(LEADS_COUNT_NS), RESIDUALS * (clocks.residual_ns or 0.0))

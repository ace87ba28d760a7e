"""Separate wait time from transfer time in matched calls, and find the rank that was waited for (docs/definitions.md).

The duration of a collective on a rank is the wait for the last member, then the transfer. The last member does not
wait, so the shortest duration is the transfer time, independent of the clocks: in a simulation with jitter and skew its
error was 3 %, where means over ranks had errors of 70 to 850 %.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import (
    MatchedCalls,
    block_bounds,
    join_columns,
    positions_by_ranks,
)
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.operations import move_as_much
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run

LEADS_COUNT_NS = 50_000
"""Leads up to this, or up to RESIDUALS times the residual of the clocks, do not count as being last."""
RESIDUALS = 3.0
BESIDE_START = 0.25
"""A rank was late, though the recordings began apart, where that explains at most this share of its lead."""
BASELINE_QUANTILE = 0.10
BASELINE_CALLS = 5
NOT_BETWEEN = 0.25
"""From this share of the shortest durations outside of it, the transfer of calls is the time between the last begin and
the first end by one clock: members that left together would be seen in it for all of the shortest duration. A choice:
on jobs with a core for each rank it is 2 to 6 %, where two ranks take turns on one core 45 %."""
MOSTLY = 0.6
"""Ranks wait mostly for one that has this share of the blame: with about half of it, another one may have as much."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A block of matched calls, split into wait and transfer; rows are its ranks, columns its calls; nanoseconds."""

    block: MatchedCalls
    transfer_ns: Ints
    """Transfer time of each call, see `on_one_clock`; an upper bound where not every member was recorded."""
    last: Ints
    """Row of the rank that arrived last."""
    lead_ns: Floats
    """How much later than the second-latest rank the last one arrived; `beyond_start` where recordings began apart."""
    early_ends: int
    """Calls that ended on a rank before their last member had started: there the clocks or the pairing are wrong."""
    start_wait_ns: Ints | None = None
    """What of each wait (as `wait_ns`) the spread of the recordings' starts explains; None for nothing."""
    began_ns: Ints | None = None
    """When the last member of each call began, where no device computes and all members share a clock: else None."""
    for_unseen: Flags | None = None
    """Calls whose last recorded member waited on for as long as it leads (`without_unseen`), or longer: if that was for
    a member that was not recorded, nobody waited for it. Their leads are 0. None where there are none."""

    @property
    def wait_ns(self) -> Ints:
        """Wait time of each rank (row) in each call (column)."""
        waited: Ints = self.block.end_ns - self.block.start_ns - self.transfer_ns
        return waited

    @property
    def late_end_ns(self) -> Ints:
        """What of each wait lies after the last member began: the call ended later than where it was shortest."""
        if self.began_ns is None:
            return np.zeros_like(self.block.start_ns)
        begun = 0 if self.start_wait_ns is None else self.start_wait_ns
        since = np.maximum(self.block.start_ns + begun, self.began_ns)
        ended: Ints = np.maximum(self.block.end_ns - self.transfer_ns - since, 0)
        return ended

    @property
    def baseline_ns(self) -> float | None:
        """Transfer time when nothing slows it down: the 10th percentile of five or more transfers; else None.

        Calls of unknown size are not alike: the quickest may be the smallest.
        """
        if not move_as_much(self.block.op, self.block.bytes) or self.transfer_ns.size < BASELINE_CALLS:
            return None
        return float(np.quantile(self.transfer_ns, BASELINE_QUANTILE))


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long a rank waited in matched calls, and the others for it."""

    collective_ns: int = 0
    wait_ns: int = 0
    start_wait_ns: int = 0
    """Of it, what the spread of the recordings' starts explains."""
    late_end_ns: int = 0
    """Of it, what lies after the last member began, where one clock shows that."""
    blame_ns: int = 0
    times_last: int = 0
    waited_for_ns: int = 0
    """How long the other members waited in the calls that this rank came last to, by however little; less what the
    starts explain and what lies after it began: over all ranks, the sum of `wait_ns` less these."""
    mean_waited_for_ns: int = 0
    """As `waited_for_ns`, but the mean over the other members of each call, summed over the calls."""


class StepWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How long all ranks waited in the matched calls of one step, less what the starts explain and what lies after the
    last member began, and for whom."""

    collective_ns: int = 0
    wait_ns: int = 0
    blame_ns: Mapping[int, int] = {}


def split_waits(blocks: Sequence[MatchedCalls], clocks: Clocks) -> list[Split]:
    """Split every block of matched calls."""
    found: dict[int, Split] = {}
    for places in positions_by_ranks(blocks).values():
        found |= zip(places, _of_one_set([blocks[at] for at in places], clocks), strict=True)
    return [found[at] for at in range(len(blocks))]


def _of_one_set(blocks: Sequence[MatchedCalls], clocks: Clocks) -> Iterator[Split]:
    """Split blocks of the same ranks."""
    threshold, ranks = counts_from(clocks), blocks[0].ranks
    start, end = (join_columns([getattr(each, side) for each in blocks]) for side in ("start_ns", "end_ns"))
    transfer = (end - start).min(axis=0)
    starts = clocks.rows(ranks, start)
    latest = starts.max(axis=0)
    found = leads(starts)
    early = clocks.rows(ranks, end).min(axis=0) + threshold < latest
    cuts = block_bounds(blocks).tolist()
    for block, begin, until in zip(blocks, cuts[:-1], cuts[1:], strict=True):
        part = slice(begin, until)
        yield Split(
            block=block,
            transfer_ns=transfer[part],
            last=found["last"][part],
            lead_ns=found["lead_ns"][part],
            early_ends=int(np.count_nonzero(early[part])),
        )


def on_one_clock(splits: Sequence[Split]) -> list[Split]:
    """Return splits of ranks that share a clock, with when the last member of each call began.

    Where shortest durations lie much (`NOT_BETWEEN`) before that, or after another member's end, the last member is
    often the one that ends last, too, as where ranks take turns on a core: the shortest duration holds a wait.
    """
    found: dict[int, Split] = {}
    for places in positions_by_ranks([each.block for each in splits]).values():
        theirs = [splits[at] for at in places]
        began = [each.block.start_ns.max(axis=0) for each in theirs]
        between = [np.clip(each.block.end_ns.min(axis=0) - came, 0, each.transfer_ns)
                   for each, came in zip(theirs, began, strict=True)]  # fmt: skip
        took = [each.transfer_ns for each in theirs]
        inside, shortest = (sum(int(each.sum()) for each in times) for times in (between, took))
        chosen = between if inside <= (1 - NOT_BETWEEN) * shortest else took
        for at, each, came, transfer in zip(places, theirs, began, chosen, strict=True):
            found[at] = replace(each, began_ns=came, transfer_ns=transfer)
    return [found[at] for at in range(len(splits))]


def leads(starts: Floats, start_wait_ns: Ints | None = None) -> dict[str, Any]:
    """Return for each call (column) the row that arrived last, and its lead; as `Split` names them.

    `start_wait_ns` holds waits that the spread of the recordings' starts explains.
    """
    second, latest = np.partition(starts, -2, axis=0)[-2:]
    lead = latest - second
    if start_wait_ns is not None:
        lead = beyond_start(lead, start_wait_ns.max(axis=0))
    return {"last": starts.argmax(axis=0), "lead_ns": lead}


def beyond_start(lead_ns: Floats, start_wait_ns: Floats | Ints) -> Floats:
    """Return what of each lead is lateness where the spread of the recordings' starts explains so much of the waits.

    0 where that is more than a small part: what a rank did before its recording is then most of it, or as much.
    """
    return np.where(start_wait_ns <= BESIDE_START * lead_ns, lead_ns - start_wait_ns, 0.0)


def early_end_reasons(splits: Sequence[Split], clocks: Clocks) -> tuple[str, ...]:
    """Return a reason if calls ended on a member before the last one had started, which is impossible."""
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
        f"(rank {worst[1]} before rank {worst[2]}), which is impossible: the clocks or the pairing are wrong there, so "
        "the rank that arrived last may be wrong too",
    )


def mostly_waited_for(blame_ns: Mapping[int, int]) -> int | None:
    """Return the rank with MOSTLY of all blame, for which the others waited; None where none has so much."""
    most = max(blame_ns, key=blame_ns.__getitem__, default=None)
    return most if most is not None and blame_ns[most] >= MOSTLY * sum(blame_ns.values()) > 0 else None


def waits_by_rank(splits: Sequence[Split], clocks: Clocks) -> Mapping[int, RankWait]:
    """Sum the wait time of each rank and its blame: its leads over the second-latest rank."""
    threshold = counts_from(clocks)
    sums: dict[int, Floats] = {}
    for ranks, places in positions_by_ranks([each.block for each in splits]).items():
        theirs = [splits[at] for at in places]
        lead, last = (np.concatenate([getattr(each, name) for each in theirs]) for name in ("lead_ns", "last"))
        collective = sum((each.block.end_ns - each.block.start_ns).sum(axis=1) for each in theirs)
        transfer = sum(int(each.transfer_ns.sum()) for each in theirs)
        blame, times = (
            np.bincount(last, weights=weights, minlength=len(ranks)) for weights in (lead, lead > threshold)
        )
        starts = sum(0 if each.start_wait_ns is None else each.start_wait_ns.sum(axis=1) for each in theirs)
        begun = np.broadcast_to(starts, blame.shape)
        late_ends = sum(each.late_end_ns.sum(axis=1) for each in theirs)
        waited = np.concatenate([_waited_for_others(each) for each in theirs])
        waited_for = np.bincount(last, weights=waited, minlength=len(ranks))
        columns = [collective, collective - transfer, begun, late_ends, blame, times]
        columns += [waited_for, waited_for / (len(ranks) - 1)]
        figures = np.stack(columns, axis=1).astype(np.float64)
        for rank, its in zip(ranks, figures, strict=True):
            sums[rank] = sums[rank] + its if rank in sums else its
    return {
        rank: RankWait(
            collective_ns=round(collective),
            wait_ns=round(wait),
            start_wait_ns=round(begun),
            late_end_ns=round(ended),
            blame_ns=round(blame),
            times_last=round(times),
            waited_for_ns=round(waited_for),
            mean_waited_for_ns=round(mean),
        )
        for rank, (collective, wait, begun, ended, blame, times, waited_for, mean) in sorted(
            (rank, its.tolist()) for rank, its in sums.items()
        )
    }


def _waited_for_others(split: Split) -> Ints:
    """Return how long the members of each call waited for its last one, less what the starts explain."""
    begun = 0 if split.start_wait_ns is None else split.start_wait_ns
    waited: Ints = (split.wait_ns - split.late_end_ns - begun).sum(axis=0)
    return waited


def waits_by_step(
    run: Run,
    splits: Sequence[Split],
    windows: Mapping[int, Sequence[tuple[int, int]]],
    numbers: Mapping[int, Sequence[int]],
) -> dict[int, StepWaits]:
    """Sum the waits of all ranks by the step in whose window the middle of the call lies on its first rank, as figures
    of steps are of windows: the first call of a step may run before the window opens. Calls in no window are of the
    step that launched them; without calls of no step.

    `windows` are (start, end) in ns by rank, in order, disjoint, with the `numbers` of their steps.
    """
    found: dict[int, StepWaits] = {}
    for split in splits:
        rank = split.block.ranks[0]
        launched_in = run.ranks[rank].collectives.step[split.block.rows[0]]
        steps = _step_of_window(split.block, windows.get(rank, ()), numbers.get(rank, ()), launched_in)
        lasted = (split.block.end_ns - split.block.start_ns).sum(axis=0)
        waited = _waited_for_others(split)
        for step in set(unique(steps).tolist()) - {NONE}:
            own = steps == step
            before = found.get(step, StepWaits())
            blame = np.bincount(split.last[own], weights=split.lead_ns[own], minlength=len(split.block.ranks)).tolist()
            theirs = dict(zip(split.block.ranks, map(round, blame), strict=True))
            found[step] = StepWaits(
                collective_ns=before.collective_ns + int(lasted[own].sum()),
                wait_ns=before.wait_ns + int(waited[own].sum()),
                blame_ns={rank: before.blame_ns.get(rank, 0) + theirs.get(rank, 0)
                          for rank in sorted({*before.blame_ns, *theirs})},
            )  # fmt: skip
    return found


def _step_of_window(
    block: MatchedCalls, windows: Sequence[tuple[int, int]], numbers: Sequence[int], otherwise: Ints
) -> Ints:
    """Return the step in whose window each call of a block lies on its first rank; in none, what it is `otherwise`."""
    starts, ends = np.array(windows, np.int64).reshape(-1, 2).T
    middle = (block.start_ns[0] + block.end_ns[0]) // 2
    at = np.searchsorted(starts, middle, side="right") - 1
    inside = (at >= 0) & (middle < np.append(ends, NONE)[at])
    return np.where(inside, np.append(np.array(numbers, np.int64), NONE)[at], otherwise)


def counts_from(clocks: Clocks) -> float:
    """Return the least lead in nanoseconds that counts: beyond jitter and the error of the clocks."""
    return late_from_ns(clocks.residual_ns)


def late_from_ns(residual_ns: float | None) -> float:
    """Return the same by the residual of the clocks."""
    return max(float(LEADS_COUNT_NS), RESIDUALS * (residual_ns or 0.0))

"""Analysis across ranks: match the collectives, align the clocks, separate wait time from transfer time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.call_index import CallIndex
from overlapscope.analysis.cross_rank.clocks.clock_offsets import clock_offsets, join_by_uneven
from overlapscope.analysis.cross_rank.clocks.clock_steps import remove_clock_steps
from overlapscope.analysis.cross_rank.clocks.host_clocks import clock_reasons, shared_clocks
from overlapscope.analysis.cross_rank.impossible_calls import drop_impossible
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls, Matching
from overlapscope.analysis.cross_rank.matching.match import drop_disagreeing, match
from overlapscope.analysis.cross_rank.matching.point_to_point import PairMatching, exchanges, match_pairs
from overlapscope.analysis.cross_rank.matching.several_groups import drop_of_several_groups
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import explain_unmatched
from overlapscope.analysis.cross_rank.rooted_calls import left_together
from overlapscope.analysis.cross_rank.start_delays import StepsAndCompute, began, start_reasons, with_start_delays
from overlapscope.analysis.cross_rank.unseen_members import unseen_reasons, waited_for_unseen, without_unseen
from overlapscope.analysis.cross_rank.wait_transfer import (
    RankWait,
    Split,
    early_end_reasons,
    on_one_clock,
    split_waits,
    waits_by_rank,
)
from overlapscope.timeline.columns import NONE, Collectives, Ints
from overlapscope.timeline.operations import ROOTED, UNNAMED
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import Run


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """One row for each row of a rank's `Collectives`; NONE where wait and transfer could not be separated."""

    transfer_ns: Ints
    baseline_ns: Ints
    """Transfer time of this kind of call when nothing slows it down; NONE with too few calls."""
    last: Ints
    """The rank that arrived last."""
    call: Ints
    """Number of the matched call, the same on all its members."""
    group_size: Ints
    """As recorded; else as the matched calls of the group have members; NONE where neither is known."""


class CrossRank(msgspec.Struct, frozen=True, kw_only=True):
    """Result of matching and aligning all ranks of a run."""

    matching: Matching = msgspec.field(default_factory=Matching)
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    splits: tuple[Split, ...] = ()
    uneven: tuple[Split, ...] = ()
    """Exchanges of different sizes: their last rank is valid, their transfer time is not."""
    clock_set: bool = False
    """Whether a clock was set during the recording: `clocks` hold for one side of that moment alone."""
    rooted: tuple[MatchedCalls, ...] = ()
    """Matched calls with a root that are not in `splits`, but which all members left together."""
    not_split: int = 0
    """Number of timed calls with a root that are not in `splits`, as their members were not seen to wait; of the rank
    that recorded most of them."""
    waits: Mapping[int, RankWait] = {}
    began_ns: Mapping[int, float] = {}
    """When each rank began to record, on the common clock."""
    pairs: PairMatching = msgspec.field(default_factory=PairMatching)
    waited_for_unseen_ns: Mapping[int, int] = {}
    """By rank, at least how long it waited in calls whose last member was not recorded, as their own tasks show."""

    @property
    def matched(self) -> int:
        """Number of matched collectives, each counted once."""
        return sum(block.calls for block in (*self.matching.blocks, *self.matching.uneven, *self.rooted))

    def transfers(self, run: Run) -> dict[int, Transfers]:
        """Return the transfers of each rank's collectives."""
        index = CallIndex.of(run, self.splits)
        return {rank: _transfers(index, rank, timeline.collectives) for rank, timeline in run.ranks.items()}

    def ended_late_ns(self, run: Run) -> dict[int, Ints]:
        """Return for each row of a rank's `Collectives` how long before its end the call had ended on another member; 0
        with a device, without a common clock, or where that was before the last member began.

        `run` may have some of the ranks alone.
        """
        found = {rank: np.zeros(timeline.collectives.op.size, np.int64) for rank, timeline in run.ranks.items()}
        for split in self.splits:
            if split.began_ns is None:
                continue
            ends = self.clocks.ends(split.block)
            first = ends.min(axis=0)
            known = first >= self.clocks.starts(split.block).max(axis=0)
            for rank, rows, late in zip(split.block.ranks, split.block.rows, ends - first, strict=True):
                if rank in found:
                    found[rank][rows] = np.where(known, np.rint(late), 0)
        return found


def _transfers(index: CallIndex, rank: int, calls: Collectives) -> Transfers:
    call = index.call[rank]
    rows = np.flatnonzero(call >= 0)
    rows = rows[index.whole[call[rows]]]
    number = call[rows]

    def of_calls(values: npt.NDArray[Any]) -> Ints:
        found = np.full(call.size, NONE, np.int64)
        found[rows] = values
        return found

    return Transfers(
        transfer_ns=of_calls(index.transfer_ns[number]),
        baseline_ns=of_calls(index.baseline_ns[number]),
        last=of_calls(index.last[number]),
        call=of_calls(number),
        group_size=_group_sizes(calls, of_calls(index.members[number])),
    )


def _group_sizes(calls: Collectives, members: Ints) -> Ints:
    """Return the size of each call's group; `members` are those of matched calls, else NONE."""
    found = calls.group_size
    unknown = found == NONE
    for group in unique(calls.group[unknown]).tolist() if unknown.any() else ():
        own = calls.group == group
        sizes = set(unique(members[own]).tolist()) - {NONE}
        of_calls = sizes.pop() if len(sizes) == 1 else members  # calls without a name are of several groups
        found = np.where(own & unknown, of_calls, found)
    return found


def match_and_align(run: Run, known: Mapping[int, StepsAndCompute] | None = None) -> CrossRank:
    """Match the calls of all ranks, align the clocks, and split each call into wait and transfer.

    The result is empty with one recorded rank: there is nothing to match. `known` are steps and compute by rank, where
    the caller has them: no spans are read then.
    """
    if len(run.ranks) < 2:
        return CrossRank()
    matching = drop_of_several_groups(run, match(run))
    hosts, rooted = shared_clocks(run, matching.blocks), None
    if not (hosts or matching.uneven or match_pairs(run, Clocks()).pairs):
        rooted = drop_of_several_groups(run, match(run, ROOTED))
        hosts = shared_clocks(run, (*matching.blocks, *rooted.blocks), by_rooted=True)
    end_together = partial(
        drop_disagreeing,
        one_clock=lambda block: _on_one_host(block.ranks, hosts),
        same_steps=lambda block: _in_same_steps(run, block),
    )
    checked, clocks, clock_set = _checked_on_clocks(run, matching, hosts, end_together)
    joined = join_by_uneven(clocks, checked.uneven, hosts)
    rooted_blocks: tuple[MatchedCalls, ...] = ()
    if not clock_set:
        rooted = end_together(rooted or drop_of_several_groups(run, match(run, ROOTED)), clocks.spread_ns)
        together = left_together(rooted.blocks, clocks)
        checked, rooted_blocks = replace(checked, blocks=(*checked.blocks, *together.waited)), together.others
    split = [*split_waits(checked.blocks, clocks), *split_waits(checked.uneven, joined)]
    every = with_start_delays(run, split, joined, known or {})
    splits = tuple(without_unseen(run, checked, every[: len(checked.blocks)]))
    uneven = tuple(every[len(checked.blocks) :])
    if not clock_set:
        splits = with_begins(run, splits, hosts)
    pairs = match_pairs(run, clocks)
    if not clock_set:
        joined = join_by_uneven(joined, exchanges(run, pairs.pairs), hosts)
    reasons = (
        *clock_reasons(run, hosts), *early_end_reasons(splits, clocks), *start_reasons(every),
        *unseen_reasons(splits), *explain_unmatched(run, checked, pairs),
    )  # fmt: skip
    checked = replace(checked, reasons=(*checked.reasons, *reasons))
    return CrossRank(
        matching=checked,
        clocks=joined,
        clock_set=clock_set,
        splits=splits,
        uneven=uneven,
        rooted=rooted_blocks,
        not_split=_not_split(run, checked.blocks),
        waits=waits_by_rank(splits, clocks),
        began_ns=began(run.ranks, 0, joined),
        pairs=pairs,
        waited_for_unseen_ns={
            rank: int(waited_ns.sum()) for rank, (_, waited_ns) in waited_for_unseen(run, splits).items()
        },
    )


def _checked_on_clocks(
    run: Run,
    matching: Matching,
    hosts: Mapping[int, str],
    end_together: Callable[[Matching, Callable[[MatchedCalls], Ints]], Matching],
) -> tuple[Matching, Clocks, bool]:
    """Return the matching without calls that clocks contradict, the clocks by the others, and whether a clock was set
    during the recording."""
    clocks = clock_offsets(matching.blocks, hosts)
    checked = end_together(matching, join_by_uneven(clocks, matching.uneven, hosts).spread_ns)
    if len(checked.blocks) < len(matching.blocks):
        clocks = clock_offsets(checked.blocks, hosts)
    steady = remove_clock_steps(checked, clocks, hosts)
    clock_set = steady is not checked
    if clock_set:
        clocks = clock_offsets(steady.blocks, hosts)
    checked, clocks = drop_impossible(run, steady, clocks, lambda each: clock_offsets(each.blocks, hosts))
    return _without_early_leaves(checked, clocks), clocks, clock_set


def _without_early_leaves(matching: Matching, clocks: Clocks) -> Matching:
    """Return the matching with those calls of an unknown operation alone that all members left together once the last
    one had come: the others may have a root."""
    unnamed = [each for each in matching.blocks if each.op == UNNAMED]
    if not unnamed:
        return matching
    together = left_together(unnamed, clocks)
    kept = (*together.waited, *together.others)
    lost = sum(each.rows.size for each in unnamed) - sum(each.rows.size for each in kept)
    named = [each for each in matching.blocks if each.op != UNNAMED]
    return replace(matching, blocks=(*named, *kept), unmatched=matching.unmatched + lost)


def _not_split(run: Run, blocks: Sequence[MatchedCalls]) -> int:
    """Return how many timed calls with a root are not in these blocks, of the rank that recorded most of them."""
    counts = []
    for rank, timeline in run.ranks.items():
        codes = [code for code, name in enumerate(timeline.names) if name in ROOTED]
        calls = timeline.collectives
        recorded = int((np.isin(calls.op, codes) & (calls.end_ns != NONE)).sum())
        counts.append(recorded - sum(each.calls for each in blocks if each.op in ROOTED and rank in each.ranks))
    return max(counts)


def with_begins(run: Run, splits: Sequence[Split], hosts: Mapping[int, str]) -> tuple[Split, ...]:
    """Return the splits with when the last member of each call began, where one clock shows it (`on_one_clock`).

    `hosts` holds the host of each rank whose clock is that of the other ranks there.
    """
    known = [
        at for at, each in enumerate(splits)
        if _on_one_host(each.block.ranks, hosts) and not any(run.ranks[rank].has_device for rank in each.block.ranks)
    ]  # fmt: skip
    found = dict(zip(known, on_one_clock([splits[at] for at in known]), strict=True))
    return tuple(found.get(at, each) for at, each in enumerate(splits))


def _on_one_host(ranks: Sequence[int], hosts: Mapping[int, str]) -> bool:
    return len({hosts.get(rank) for rank in ranks}) == 1 and ranks[0] in hosts


def _in_same_steps(run: Run, block: MatchedCalls) -> bool:
    """Return whether each call of a block is in the step of one number on all ranks, in two steps or more."""
    steps = [run.ranks[rank].collectives.step[rows] for rank, rows in zip(block.ranks, block.rows, strict=True)]
    first = steps[0]
    return bool((first != NONE).all() and all((each == first).all() for each in steps) and unique(first).size > 1)


def first_span_ns(run: Run, clocks: Clocks) -> int:
    """Return when the first span of any rank began, on the aligned clock: all moments that are shown are after that.

    Raises ValueError where there is no span.
    """
    return min(
        int(clocks.aligned_ns(rank, np.array([each.spans.start_ns.min()]))[0])
        for rank, each in run.ranks.items()
        if each.num_spans
    )

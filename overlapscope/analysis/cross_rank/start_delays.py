"""How much of the waits is the spread with which the ranks' recordings began: nobody's lateness.

Ranks begin to record at moments of their own (profilers start apart, and so does the first recorded step). Until calls
have joined the ranks, a rank that began later arrives later. A delay lasts until a call that the rank's compute waits
for: after it, the rank is delayed by as much as the call was. What computes on beside a call, as backward does beside
the calls of its buckets, comes to the next one as late as before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import LEADS_COUNT_NS, Split, beyond_start, counts_from
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow, step_windows
from overlapscope.timeline.columns import NONE, Floats, Ints, size
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.run import RankTimeline, Run

MOST_CALLS: Final = 256
"""Calls of each kind that are looked at: those of one kind have joined their ranks long before."""
CHECKED_EVERY: Final = 64
StepsAndCompute = tuple[Sequence[StepWindow], Intervals]
"""The steps of a rank, and when it computed."""
NEVER: Final = int(np.iinfo(np.int64).max)
JOINED_NS: Final = 1_000.0


class _Compute(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """When a rank computes at the begin of a recording, gaps shorter than `LEADS_COUNT_NS` closed, and when its calls
    end; on its own clock."""

    starts_ns: Sequence[int] = ()
    ends_ns: Sequence[int] = ()
    calls_ns: Sequence[int] = ()
    until_ns: int = 0
    """The end of the first step that it computes: until then, at the latest, it waited for the calls of its gradients.
    Without steps, or a device, nobody knows, and it counts as waiting for each call."""

    @classmethod
    def of(cls, timeline: RankTimeline, recording: int, known: StepsAndCompute | None) -> "_Compute":
        if not timeline.has_device or not (timeline.steps.recording == recording).any():
            return cls()
        steps, compute = known or (step_windows(timeline), Coverage.of(timeline.spans).compute)
        until = min((each.window[1] for each in steps if each.recording == recording and each.window), default=0)
        own, calls = compute.starts < until, timeline.collectives
        computes = union((compute.starts[own], compute.ends[own] + LEADS_COUNT_NS))
        ends = calls.end_ns[(calls.recording == recording) & (calls.end_ns != NONE)]
        return cls(
            starts_ns=computes.starts.tolist(), ends_ns=(computes.ends - LEADS_COUNT_NS).tolist(),
            calls_ns=np.sort(ends).tolist(), until_ns=until,
        )  # fmt: skip

    def waits_for(self, end_ns: int) -> bool:
        """Return whether the next compute waits for the call that ends then: none runs, nor begins only after another
        call has ended."""
        if end_ns >= self.until_ns:
            return True
        at = bisect_left(self.starts_ns, end_ns)
        if at and self.ends_ns[at - 1] > end_ns:
            return False
        begins = self.starts_ns[at : at + 1]
        after = bisect_right(self.calls_ns, end_ns)
        ends = self.calls_ns[after : after + 1]
        return not begins or not ends or begins[0] < ends[0]


def with_start_delays(
    run: Run, splits: Sequence[Split], clocks: Clocks, known: Mapping[int, StepsAndCompute]
) -> list[Split]:
    """Return the splits with the part of each wait that the start of the recordings explains.

    `known` are steps and compute by rank; where they are needed of others, these ranks' spans are read.
    """
    found: list[Floats | None] = [None] * len(splits)
    for recording in range(max((size(timeline.recordings) for timeline in run.ranks.values()), default=0)):
        begun = began(run.ranks, recording, clocks)
        if max(begun.values(), default=0.0) > min(begun.values(), default=0.0):
            _add(run, splits, clocks, recording, begun, found, known)
    threshold = counts_from(clocks)
    return [each if wait is None else _with(each, wait, threshold) for each, wait in zip(splits, found, strict=True)]


def _with(split: Split, wait_ns: Floats, threshold: float) -> Split:
    apart = wait_ns.max(axis=0) > threshold
    if not apart.any():
        return split
    waits = np.rint(np.where(apart, wait_ns, 0.0)).astype(np.int64)
    return replace(split, start_wait_ns=waits, lead_ns=beyond_start(split.lead_ns, waits.max(axis=0)))


def start_reasons(splits: Sequence[Split]) -> tuple[str, ...]:
    """Return a reason where calls are left out of blame because the ranks began to record apart."""
    calls = [_left_out(each, each.start_wait_ns) for each in splits if each.start_wait_ns is not None]
    apart, begun = np.concatenate([np.zeros((2, 0), np.int64), *calls], axis=1)
    if not begun.size:
        return ()
    most = int(apart.argmax())
    before, whole = f"{begun[most] / 1e6:.1f} ms", f"{apart[most] / 1e6:.1f} ms"
    of_it = "" if before == whole else f" for {before} of it"
    return (
        f"{begun.size} of {sum(each.block.calls for each in splits)} matched calls came before the ranks, which began "
        f"to record apart, had met: why ranks came apart to them, by up to {whole}, is not recorded{of_it}, and no "
        "rank is blamed for these calls",
    )


def _left_out(split: Split, start_wait_ns: Ints) -> Ints:
    """Return of each call for which no rank is blamed the longest wait, and the longest that the starts explain."""
    begun = start_wait_ns.max(axis=0)
    chosen = (split.lead_ns == 0) & (begun > 0)
    return np.array([split.wait_ns.max(axis=0)[chosen], begun[chosen]])


def began(ranks: Mapping[int, RankTimeline], recording: int, clocks: Clocks) -> dict[int, float]:
    """Return when each rank began a recording, on the common clock: its first step, where steps were recorded.

    What a host was seen to do between the first of these steps and its own, such as loading data, is its lateness. So
    is, without marks of steps, what devices did since their first recorded spans.
    """
    found, seen = {}, {}
    for rank, timeline in ranks.items():
        if size(timeline.recordings) <= recording:
            continue
        steps, notes = timeline.steps.start_ns[timeline.steps.recording == recording], timeline.annotations
        ranges = notes.start_ns[notes.recording == recording]
        start = steps.min() if steps.size else timeline.recordings.start_ns[recording]
        first = min(start, ranges.min()) if steps.size and ranges.size else start
        found[rank], seen[rank] = clocks.aligned(rank, np.array([start, first])).tolist()
    earliest = min(found.values(), default=0.0)
    begun = {rank: min(start, max(seen[rank], earliest)) for rank, start in found.items()}
    marked = any((ranks[rank].steps.recording == recording).any() for rank in found)
    return begun if marked else _until_first_spans(ranks, recording, clocks, begun)


def _until_first_spans(
    ranks: Mapping[int, RankTimeline], recording: int, clocks: Clocks, begun: Mapping[int, float]
) -> dict[int, float]:
    """Return when each rank began: where all have devices, no longer after the earliest one than their first spans are
    apart, as from these on it is recorded what devices did, and why ranks came to a call apart."""
    first: dict[int, float] = {}
    for rank in begun:
        spans = ranks[rank].spans
        starts = spans.start_ns[spans.recording == recording] if ranks[rank].has_device else spans.start_ns[:0]
        if not starts.size:
            return dict(begun)
        (first[rank],) = clocks.aligned(rank, starts.min()[None]).tolist()
    earliest, span = min(begun.values(), default=0.0), min(first.values(), default=0.0)
    return {rank: min(at, earliest + first[rank] - span) for rank, at in begun.items()}


def _add(
    run: Run, splits: Sequence[Split], clocks: Clocks, recording: int, begun: Mapping[int, float],
    found: list[Floats | None], known: Mapping[int, StepsAndCompute],
) -> None:  # fmt: skip
    """Follow the delays from call to call, in the order of their last arrivals, until they are the same everywhere."""
    first = min(begun.values())
    delay = {rank: at - first for rank, at in begun.items()}
    arrivals: dict[int, dict[int, Floats]] = {}
    order: list[tuple[float, int, int]] = []
    for at, split in enumerate(splits):
        block = split.block
        if not clocks.comparable(block.ranks) or not begun.keys() >= set(block.ranks):
            continue
        calls = np.flatnonzero(_recording_of(run, block) == recording)[:MOST_CALLS]
        arrivals[at] = dict(zip(calls.tolist(), clocks.rows(block.ranks, block.start_ns[:, calls]).T, strict=True))
        order += [(float(came.max()), at, call) for call, came in arrivals[at].items()]
    sets = {splits[at].block.ranks for at in arrivals}
    fresh = {rank: _first_call_ns(run.ranks[rank], recording) for rank in begun}
    compute = cache(lambda rank: _Compute.of(run.ranks[rank], recording, known.get(rank)))
    for number, (_, at, call) in enumerate(sorted(order)):
        if number % CHECKED_EVERY == 0 and all(_joined(delay, ranks) for ranks in sets):
            break
        block = splits[at].block
        came = arrivals[at][call]
        # Calls that were not matched, as messages, may have joined a rank with others before.
        met = [rank for row, rank in enumerate(block.ranks) if block.start_ns[row, call] > fresh.get(rank, NEVER)]
        delay |= dict.fromkeys(met, max((delay[rank] for rank in block.ranks if rank not in met), default=0.0))
        for rank in block.ranks:
            fresh.pop(rank, None)
        late = np.array([delay[rank] for rank in block.ranks])
        without = came - late
        waits, would_wait = came.max() - came, without.max() - without
        wait = found[at]
        if wait is None:
            found[at] = wait = np.zeros(block.rows.shape)
        wait[:, call] = np.clip(waits - would_wait, 0.0, waits)
        of_call = float(came.max() - without.max())
        ends = zip(block.ranks, block.end_ns[:, call].tolist(), strict=True)
        delay |= {rank: of_call for rank, end in ends if compute(rank).waits_for(end)}


def _first_call_ns(timeline: RankTimeline, recording: int) -> int:
    """Return when a rank began its first call of a recording, on its own clock."""
    calls = timeline.collectives
    starts = calls.start_ns[(calls.recording == recording) & (calls.start_ns != NONE)]
    return int(starts.min()) if starts.size else NEVER


def _recording_of(run: Run, block: MatchedCalls) -> Ints:
    column: Ints = run.ranks[block.ranks[0]].collectives.recording[block.rows[0]]
    return column


def _joined(delay: Mapping[int, float], ranks: Sequence[int]) -> bool:
    values = [delay[rank] for rank in ranks]
    return max(values) - min(values) < JOINED_NS

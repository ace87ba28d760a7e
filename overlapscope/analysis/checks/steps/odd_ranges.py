"""Find ranges of the user in which one step alone spends long, though its length is not far from the others': a pause
while data are fetched, an evaluation, a checkpoint."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.streams import compute_lane
from overlapscope.analysis.common.user_ranges import times_in_ranges
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.timeline.columns import COMM, NONE, Ints, Spans, take
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.rows import sort_order, unique, values_in
from overlapscope.timeline.run import RankTimeline, Run

FEWEST_STEPS: Final = 3
LONGER: Final = 10
"""So many times as long as in any other step. A choice: a slower step has slower ranges, by far less."""
WORTH: Final = 0.08
"""Least share of the rank's median step."""
AS_LONG, SEVERAL = 0.5, 2
"""Where a peer spends this share of it in the range in so many other steps, that is no event of the one step: a host
that is held back, as its queue is full, waits now in this range, now in that. Choices."""
SEEN: Final = 0.5
"""Least share of a range in which work of the device was recorded before and after, for its idle time to be known: what
was launched before a recording began may run at first without being in it. A choice."""
_EVERY_STEPS: Final = re.compile(r"Optimizer\.|FSDP::|DistributedDataParallel|torch::|autograd|PP:")
"""Ranges of frameworks, which steps that accumulate gradients lack."""


class _OddRange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    step: int
    rank: int
    ns: int
    most_of_others_ns: int
    idle_ns: int | None
    """For how long the device did nothing meanwhile, as far as it was recorded; None without one."""
    unseen: bool
    """Whether there is a device of which most of that time was not recorded."""
    lead: "_Lead | None" = None
    """Where the device had work enough through all of it, so that it delayed nothing."""


class _Lead(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a host is ahead of its device as a range ends."""

    ns: int
    sure: bool
    """Whether work that was launched before the range was recorded; else only that what followed it had to wait."""


def odd_ranges(run: Run, said: Collection[Finding]) -> list[Finding]:
    """Return a finding for each step that alone spends long in a range; none for steps whose length was `said` to be
    odd already."""
    named = {each.evidence.get("step") for each in said if each.id.startswith("odd_step:")}
    every = [each for timeline in run.ranks.values() for each in _of_rank(timeline) if each.step not in named]
    spent = _spent(run, {each.name for each in every})
    found: dict[tuple[int, str], list[_OddRange]] = defaultdict(list)
    for each in every:
        if not _is_of_several_steps(each, spent[each.name]):
            found[each.step, each.name].append(each)
    longest: dict[int, list[_OddRange]] = {}
    for (step, _), ranks in found.items():
        longest[step] = max(longest.get(step, ranks), ranks, key=lambda each: (max(one.ns for one in each), len(each)))
    return [_finding(ranks, run) for _, ranks in sorted(longest.items())]


def _of_rank(timeline: RankTimeline) -> Iterator[_OddRange]:
    """Yield the ranges in which one step, by its mark on the host, alone spends long, on the threads of these marks."""
    whole = _whole_steps(timeline)
    if whole.size < FEWEST_STEPS:
        return
    steps = timeline.steps
    begin, end, number = steps.start_ns[whole], steps.end_ns[whole], steps.step[whole].tolist()
    least_ns = WORTH * float(np.median(end - begin))
    odd = []
    for name, times in times_in_ranges(timeline, least_ns, lanes=_lanes_of_marks(timeline)).items():
        inside = BusyTime(times).within(begin, end)
        at = int(inside.argmax())
        others = int(np.delete(inside, at).max())
        if inside[at] >= max(least_ns, LONGER * others) and not _EVERY_STEPS.match(name):
            within = intersection(times, Intervals(begin[at : at + 1], end[at : at + 1]))
            odd.append((name, number[at], int(inside[at]), others, within))
    recorded = _recorded(timeline) if odd and timeline.has_device else None
    for name, step, ns, others, within in odd:
        idle_ns = None if recorded is None else _idle_ns(timeline.spans, recorded, within)
        yield _OddRange(
            name=name, step=step, rank=timeline.rank, ns=ns, most_of_others_ns=others, idle_ns=idle_ns,
            unseen=timeline.has_device and idle_ns is None,
            lead=_lead(timeline.spans, within) if timeline.has_device else None,
        )  # fmt: skip


def _whole_steps(timeline: RankTimeline) -> Ints:
    """Return the rows of the steps that were recorded whole, by begin."""
    whole = np.flatnonzero(~timeline.steps.cut)
    return whole[sort_order(timeline.steps.start_ns[whole])]


def _lanes_of_marks(timeline: RankTimeline) -> Ints | None:
    """Return the threads of the marks of steps; None where these are of none."""
    notes = timeline.annotations
    lanes = unique(notes.lane[np.isin(notes.start_ns, timeline.steps.start_ns)])
    return lanes if lanes.size else None


def _spent(run: Run, names: Set[str]) -> dict[str, Ints]:
    """Return, by range, for how long each rank is in it in each whole step: columns of rank, step and ns."""
    found: dict[str, list[Ints]] = defaultdict(list)
    for rank, timeline in run.ranks.items() if names else ():
        steps, whole = timeline.steps, _whole_steps(timeline)
        for name, times in times_in_ranges(timeline, 0.0, names, _lanes_of_marks(timeline)).items():
            inside = BusyTime(times).within(steps.start_ns[whole], steps.end_ns[whole])
            found[name].append(np.stack([np.full(whole.size, rank), steps.step[whole], inside]))
    return {name: np.concatenate(columns, axis=1) for name, columns in found.items()}


def _is_of_several_steps(odd: _OddRange, spent: Ints) -> bool:
    """Return whether a peer spends about as long in the range in SEVERAL other steps."""
    rank, step, ns = spent
    peers = rank[(ns >= AS_LONG * odd.ns) & (step != odd.step) & (rank != odd.rank)]
    return bool((np.bincount(peers) >= SEVERAL).any())


def _lead(spans: Spans, within: Intervals) -> _Lead | None:
    """Return by how much the host leads the stream that computes for longest as the last of one or more ranges of a
    step ends; None where it may not have led through all of them.

    It leads where what was launched before them runs until their end, or later. Where no such launch was recorded, what
    follows may show it: it runs first in the recording, and has waited for longer than they lasted, so for what was
    launched before. Ranges that launch work themselves take time of the device, too, whoever leads.
    """
    begin_ns, end_ns = int(within.starts[0]), int(within.ends[-1])
    main = compute_lane(spans.lane, spans.kind, spans.end_ns - spans.start_ns)
    if main == NONE or ((spans.launch_ns >= begin_ns) & (spans.launch_ns < end_ns)).any():
        return None
    own = take(spans, (spans.lane == main) & (spans.launch_ns != NONE))
    before, after = own.launch_ns < begin_ns, own.launch_ns >= end_ns
    if before.any():
        lead = _Lead(ns=int(own.end_ns[before].max()) - end_ns, sure=True)
        return lead if lead.ns > 0 else None
    if not after.any() or own.start_ns[after].min() != spans.start_ns.min():
        return None
    lead = _Lead(ns=int(own.start_ns[after].min() - own.launch_ns[after].min()), sure=False)
    return lead if lead.ns > end_ns - begin_ns else None


def _recorded(timeline: RankTimeline) -> Intervals:
    """Return when it is known what the device did: between the first and the last span of each recording."""
    spans, recordings = timeline.spans, timeline.recordings
    first, last = [], []
    for start, end in zip(recordings.start_ns.tolist(), recordings.end_ns.tolist(), strict=True):
        own = (spans.end_ns > start) & (spans.start_ns < end)
        if own.any():
            first.append(max(int(spans.start_ns[own].min()), _calls_known_from_ns(take(spans, own))))
            last.append(int(spans.end_ns[own].max()))
    return union((np.array(first, np.int64), np.array(last, np.int64)))


def _idle_ns(spans: Spans, recorded: Intervals, within: Intervals) -> int | None:
    """Return for how long the device did nothing, as far as that was recorded; None where it was not for most of these
    times."""
    seen = intersection(within, recorded)
    if length(seen) < SEEN * length(within):
        return None
    return length(difference(seen, union((spans.start_ns, spans.end_ns))))


def _calls_known_from_ns(spans: Spans) -> int:
    """Return from when on it is known which calls ran, of the spans of one recording: on a stream that begins with a
    call which was launched before the recording, another one may have run until it began, and is not recorded."""
    calls = spans.kind == COMM
    known = []
    for lane in values_in(spans.lane[calls]).tolist():
        on_lane = np.flatnonzero(spans.lane == lane)
        first = on_lane[spans.start_ns[on_lane].argmin()]
        if calls[first] and spans.launch_ns[first] == NONE and (spans.launch_ns[on_lane] != NONE).any():
            known.append(int(spans.start_ns[first]))
    return max(known, default=NONE)


def _finding(ranks: Sequence[_OddRange], run: Run) -> Finding:
    most = max(ranks, key=lambda each: each.ns)
    others_ns = max(each.most_of_others_ns for each in ranks)
    others = f"in no other step for more than {format_ms(others_ns)}" if others_ns else "in no other step"
    late = [each for each in ranks if each.lead is None]
    idle = {str(each.rank): each.idle_ns for each in late if each.idle_ns is not None}
    unknown = not idle and any(each.unseen for each in late)
    evidence: dict[str, Any] = {
        "step": most.step, "range": most.name, "range_ns": {str(each.rank): each.ns for each in ranks},
        "most_of_others_ns": others_ns, "idle_ns": idle,
        "lead_ns": {str(each.rank): each.lead.ns for each in ranks if each.lead is not None},
    }  # fmt: skip
    return Finding(
        id=f"odd_range:step{most.step}",
        severity="info" if unknown or not late or (idle and not any(idle.values())) else "warning",
        title=f"step {most.step} alone is in {short(most.name)} for {format_ms(most.ns)} "
        f"({rank_list(each.rank for each in ranks)}), {others}{_meanwhile(ranks, idle, unknown=unknown)}",
        evidence=evidence,
        known_from=run.ranks[most.rank].basis,
    )


def _meanwhile(ranks: Sequence[_OddRange], idle: Mapping[str, int], *, unknown: bool) -> str:
    """Return what the devices of these ranks did in their ranges, where that is known: nothing for the times `idle`."""
    leads = [each.lead for each in ranks if each.lead is not None]
    if len(leads) == len(ranks):
        least = min(leads, key=lambda each: each.ns)
        if all(each.sure for each in leads):
            return f"; nothing is lost: as it ends the host still leads its device by {format_ms(least.ns)}"
        return f"; probably nothing is lost: what it launches next waits {format_ms(least.ns)} for the device"
    if unknown:
        return "; what the device did meanwhile was not recorded"
    if not idle:
        return ""
    which = "the device is idle for" if len(ranks) == 1 else "a device is idle for up to"
    longest_ns = max(idle.values())
    return f"; meanwhile {which} {format_ms(longest_ns)}" if longest_ns else "; no device is idle meanwhile"

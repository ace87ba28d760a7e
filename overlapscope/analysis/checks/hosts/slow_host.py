"""Find hosts that take much longer than their peers for the same calls, and do not get ahead of their devices.

How long a host takes for a call, such as a launch, does not depend on the size of what it launches, so that ranks of
other groups can be compared, too. A host that hardly waits for its device is busy all the time: it may be what all wait
for, though its device seems to wait like the others. A launch that blocks, because the queue of its device is full,
lasts long as well; but then the host is far ahead.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import host_of_ranks
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.graph.building.host_calls import ALLOCATES, SYNCHRONIZES
from overlapscope.display import list_some
from overlapscope.timeline.columns import COMPUTE, NONE, OPERATION, PYTHON, RUNTIME, Codes, HostSpans, Ints, size
from overlapscope.timeline.intervals import length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline, Run

SLOW: Final = 2.0
"""A host is slow from so many times as long as its peers. A choice: equal hosts differed by up to 1.1 times."""
MOST: Final = 2 / 3
"""It is slow in at least this share of the names of calls, and of operations. A choice: some wait for something."""
FEWEST_CALLS, FEWEST_NAMES = 20, 2
"""Of a name, on each rank; and names of calls. A choice."""
WAITS: Final = 0.1
"""A host hardly waits for its device for less than this share of the recording. A choice."""
AHEAD: Final = 0.5
"""It is far less ahead than its peers at this share of what they are ahead, or below ..."""
AT_ONCE_NS: Final = 50_000
"""... this, in ns: its device starts what it is given at once."""
COPIES: Final = re.compile(r"Memcpy")
"""A copy may wait for the device."""


class _Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of one rank did."""

    calls_ns: Mapping[str, float]
    """By name of calls that wait for nothing, how long one takes: the median."""
    counts: Mapping[str, int]
    waits: float
    """Share of the recording in calls that may wait for the device."""
    blocks: bool
    """Whether most launches return only when what they launched has ended."""


class _Slow(msgspec.Struct, frozen=True, kw_only=True):
    """A slow host beside those that are not."""

    times: float
    """How many times as long as the others it takes for `call`."""
    call: str
    """The call that it spends most in, of those for which it is slow, and what one takes."""
    call_ns: float
    others_call_ns: float
    waits: float
    ahead_ns: float
    """How long before their starts its kernels were launched: the median."""
    others_ahead_ns: float


class HostTimes:
    """How many times as long as the median of the others each name takes a rank, for the names that all ranks have."""

    def __init__(self, taken_ns: Mapping[int, Mapping[str, float]]) -> None:
        self._names = sorted(set.intersection(*map(set, taken_ns.values()))) if taken_ns else []
        self._of_rank = {rank: np.array([own[name] for name in self._names]) for rank, own in taken_ns.items()}
        every = np.stack([*self._of_rank.values()]) if taken_ns else np.zeros((0, 0))
        self._sorted = np.sort(every, axis=0)  # (ranks, names)

    def times(self, rank: int) -> dict[str, float]:
        """Return it by name, but for names that take the others no time."""
        own, others = self._of_rank[rank], len(self._sorted) - 1
        if others < 1 or not own.size:
            return {}
        places = (self._sorted < own).sum(axis=0)  # without one value at or before it, the others move down by one
        low, high = (
            np.take_along_axis(self._sorted, np.where(at < places, at, at + 1)[None], axis=0)[0]
            for at in (np.full(own.size, (others - 1) // 2), np.full(own.size, others // 2))
        )
        usual = (low + high) / 2
        return {
            name: float(one / ns)
            for name, one, ns in zip(self._names, own.tolist(), usual.tolist(), strict=True)
            if ns > 0
        }


def slow_host(run: Run) -> list[Finding]:
    """Return at most one finding: the hosts that take SLOW times as long as the median of the others for the same
    calls, and for the same operations where they were recorded, hardly wait for their devices, and are far less ahead
    of these than the others."""
    ahead_ns = {rank: ns for rank, each in run.ranks.items() if (ns := _ahead_ns(each)) is not None}
    near = [rank for rank, ns in ahead_ns.items() if ns <= max(AHEAD * _others(rank, ahead_ns), AT_ONCE_NS)]
    if not near or len(ahead_ns) == 1:
        return []
    hosts = {rank: own for rank in ahead_ns if (own := _host(run.ranks[rank])) is not None}
    calls = HostTimes({rank: own.calls_ns for rank, own in hosts.items()})
    slow = {rank: call for rank in near if rank in hosts and (call := _slow_call(rank, hosts, calls)) is not None}
    if not slow:
        return []
    operations = HostTimes({rank: _operations(run.ranks[rank]) for rank in hosts})
    stacks = {size(select_host_spans(run.ranks[rank].host, (PYTHON,))) > 0 for rank in hosts}
    alike = len(stacks) == 1  # a profiler that records stacks slows its host down itself
    slow = {rank: call for rank, call in slow.items() if alike and _is_slow(operations.times(rank), fewest=0)}
    others = [*hosts.keys() - slow.keys()]
    if not slow or not others:
        return []
    return [_finding(run, {rank: _slow(rank, call, others, hosts, ahead_ns) for rank, call in slow.items()})]


def slow_hosts(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that names slow hosts, if there is one."""
    return next((each for each in findings if each.id == "slow_host"), None)


def _others(rank: int, values: Mapping[int, float]) -> float:
    """Return the median of the other ranks; 0 without any."""
    return median([each for other, each in values.items() if other != rank] or [0.0])


def _ahead_ns(timeline: RankTimeline) -> float | None:
    """Return how long before their starts kernels were launched, in the median; None without host events of a trace."""
    if not timeline.has_device or timeline.basis != "trace" or timeline.host_is_lost or not timeline.has_host_events:
        return None
    spans = timeline.spans
    linked = (spans.kind == COMPUTE) & (spans.launch_ns != NONE)
    return float(np.median(spans.start_ns[linked] - spans.launch_ns[linked])) if linked.any() else None


def _host(timeline: RankTimeline) -> _Host | None:
    """Return what a host did; None where it made no calls of its runtime that wait for nothing."""
    recordings, spans = timeline.recordings, timeline.spans
    calls = select_host_spans(timeline.host, (RUNTIME,))
    copies, allocates, synchronizes = (
        rows_named(calls.name, timeline.names, each.search) for each in (COPIES, ALLOCATES, SYNCHRONIZES)
    )
    waiting, plain = copies | synchronizes, ~(copies | allocates | synchronizes)
    window_ns = int((recordings.end_ns - recordings.start_ns).sum())
    if not plain.any() or window_ns <= 0:
        return None
    calls_ns, counts = _medians(timeline, calls.name[plain], (calls.end_ns - calls.start_ns)[plain])
    return _Host(
        calls_ns=calls_ns,
        counts=counts,
        waits=length(union((calls.start_ns[waiting], calls.end_ns[waiting]))) / window_ns,
        blocks=_blocks(calls, spans.correlation[spans.kind == COMPUTE], spans.end_ns[spans.kind == COMPUTE]),
    )


def _operations(timeline: RankTimeline) -> Mapping[str, float]:
    """Return how long an operation of each name takes, what is inside of it included: the median, in ns."""
    host = select_host_spans(timeline.host, (OPERATION,))
    return _medians(timeline, host.name, host.end_ns - host.start_ns)[0]


def _medians(timeline: RankTimeline, name: Codes, taken_ns: Ints) -> tuple[dict[str, float], dict[str, int]]:
    """Return the median of each name, and how many it has; of names with FEWEST_CALLS or more."""
    order = sort_order(name, taken_ns)
    codes, first, counts = np.unique(name[order], return_index=True, return_counts=True)
    middle = taken_ns[order][first + (counts - 1) // 2] if codes.size else codes
    rows = zip(codes.tolist(), middle.tolist(), counts.tolist(), strict=True)
    kept = [(timeline.names[code], ns, count) for code, ns, count in rows if code >= 0 and count >= FEWEST_CALLS]
    return {name: float(ns) for name, ns, _ in kept}, {name: count for name, _, count in kept}


def _blocks(calls: HostSpans, correlation: Ints, end_ns: Ints) -> bool:
    """Return whether most launches of spans, by their correlations, return only when these have ended."""
    order = sort_order(calls.correlation)
    known = calls.correlation[order]
    at = np.minimum(np.searchsorted(known, correlation), known.size - 1)
    own = (known[at] == correlation) & (correlation != NONE)
    return bool(own.any() and np.mean(calls.end_ns[order][at[own]] >= end_ns[own]) > 1 / 2)


def _is_slow(times: Mapping[str, float], fewest: int) -> bool:
    """Return whether a host is slow in most names, of which there are enough."""
    return len(times) >= fewest and sum(each >= SLOW for each in times.values()) >= MOST * len(times)


def _slow_call(rank: int, hosts: Mapping[int, _Host], calls: HostTimes) -> str | None:
    """Return the call that a slow host spends most in, of those for which it is slow; None where the host is not slow
    by its calls, or waits, or its launches wait for the device."""
    own = hosts[rank]
    if own.blocks or own.waits > WAITS or len(hosts) == 1 or not _is_slow(times := calls.times(rank), FEWEST_NAMES):
        return None
    return max((name for name in times if times[name] >= SLOW), key=lambda name: own.counts[name] * own.calls_ns[name])


def _slow(
    rank: int, call: str, others: Sequence[int], hosts: Mapping[int, _Host], ahead_ns: Mapping[int, float]
) -> _Slow:
    """Return how slow a host is in a call beside those of the ranks that are not slow."""
    own_ns, others_ns = hosts[rank].calls_ns[call], median(hosts[other].calls_ns[call] for other in others)
    return _Slow(
        times=own_ns / max(others_ns, 1.0), call=call, call_ns=own_ns, others_call_ns=others_ns,
        waits=hosts[rank].waits, ahead_ns=ahead_ns[rank], others_ahead_ns=median(ahead_ns[other] for other in others),
    )  # fmt: skip


def _finding(run: Run, found: Mapping[int, _Slow]) -> Finding:
    ranks, named = sorted(found), host_of_ranks(run)
    worst = max(found.values(), key=lambda each: each.times)
    machines = sorted({named[rank] for rank in ranks if rank in named})
    where = f" ({list_some(machines)})" if machines else ""
    one = len(ranks) == 1
    host, takes, device, its, it = (
        ("host", "takes", "its device", "its machine", "it")
        if one
        else ("hosts", "take up to", "their devices", "their machines", "they")
    )
    ends = (end(each.ahead_ns for each in found.values()) for end in (min, max))
    ahead_ms = " to ".join(dict.fromkeys(f"{ns / 1e6:.3f}" for ns in ends))
    waits = f"{'' if one else 'at most '}{100 * max(each.waits for each in found.values()):.1f} %"
    unseen = f", or a rank of {its} that was not recorded," if run.missing_ranks else ""
    return Finding(
        id="slow_host",
        severity="warning",
        title=f"the {host} of {rank_list(ranks)}{where} {takes} {worst.times:.1f} times as long as the others for the "
        f"same calls ({worst.call} {worst.call_ns / 1e3:.2f} us, on the others {worst.others_call_ns / 1e3:.2f} us), "
        f"and hardly wait{'s' * one} for {device} ({waits} of the time); kernels are launched "
        f"{ahead_ms} ms before they start, on the others {worst.others_ahead_ns / 1e6:.3f} ms: "
        f"{it}{unseen} may pace all ranks",
        evidence={
            "ranks": ranks, "hosts": machines,
            "of_rank": {str(rank): msgspec.structs.asdict(found[rank]) for rank in ranks},
        },
        known_from="trace",
    )  # fmt: skip

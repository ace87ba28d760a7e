"""Find links that slow collectives down, from the counters of connections or from the durations of equal transfers.

A link is slow in comparison with something: the job's other connections, the stated rate of the interface, other groups
that make the same call, or the same calls at other times. Without any of these there is no finding. In a ring every
call is as slow as its slowest link, so durations alone do not show whose link it is; a rank is named only where all
slow transfers are its own, and no other transfer is.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.checks.links.tcp_counters import compare_connections, flows
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.matching.point_to_point import MessagePairs
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.operations import move_as_much
from overlapscope.timeline.run import Run

FEWEST_CALLS: Final = 5
FEWEST_GROUPS: Final = 3
LONGER: Final = 2.0
"""A group is slow when its 10th percentile is so many times the 90th percentile of a quick group ..."""
AT_LEAST_NS: Final = 50_000
"""... and this much more; the same rule compares a group's calls after a moment with those before, and calls of some
steps with those of the others."""
LONGER_ON_ONE_RANK: Final = 1.4
"""Groups of one rank are slow from so many times on, if all of them are. A choice: less than for a single group, as
several that differ in their calls must agree ..."""
OF_TIME: Final = 0.02
"""... where the excess of all of them is this share of the time: as little as is worth a recommendation."""
MOSTLY: Final = 0.5
"""So much of a group's transfer time is in calls that are slow: short calls hardly depend on a link's bandwidth."""
QUICK: Final = 4
"""The quick group is at the quarter (1 / QUICK) of all groups: a rank's slow link makes all of its groups slow."""
MOMENTS: Final = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Moments of a recording at which a link may have become slow, as shares of its calls."""
MAX_LISTED: Final = 16
Ranks = tuple[int, ...]


def slow_links(run: Run, splits: Sequence[Split], pairs: Sequence[MessagePairs] = ()) -> list[Finding]:
    """Return at most one finding, from the best evidence: connections, then equal groups, then the calls of other
    times, then all groups of one rank."""
    return (
        compare_connections(flows(run))
        or compare_groups(run, splits, pairs)
        or compare_with_earlier(run, splits)
        or compare_steps(run, splits)
        or compare_replicas(run, splits)
    )


def with_cores(run: Run, found: Sequence[Finding], shared: Sequence[Finding]) -> list[Finding]:
    """Return the findings on links without those from transfers of a CPU run whose hosts lack cores, by the findings
    `shared`: threads that transfer need cores, too."""
    on_cpu = not any(timeline.has_device for timeline in run.ranks.values())
    return [each for each in found if each.known_from != "transfers" or not (on_cpu and lack_cores(shared))]


def compare_with_earlier(run: Run, splits: Sequence[Split]) -> list[Finding]:
    """Compare each group's calls with its earlier calls, to find a link that became slow during the recording.

    Only for device runs: in CPU runs, transfers take longer when anything else runs on the cores.
    """
    slow: dict[Ranks, float] = {}
    usual: set[Ranks] = set()
    steps: list[int] = []
    for each in splits:
        if not each.block.whole or each.transfer_ns.size < 2 * FEWEST_CALLS:
            continue
        ranks = each.block.ranks
        found = _became_slow(each) if all(run.ranks[rank].has_device for rank in ranks) else None
        if found is None:
            usual.add(ranks)
            continue
        slow[ranks] = max(slow.get(ranks, 0.0), found[1])
        steps.append(int(run.ranks[ranks[0]].collectives.step[each.block.rows[0, found[0]]]))
    slow = {ranks: times for ranks, times in slow.items() if ranks not in usual}
    since = min(steps, default=NONE)
    if not slow:
        return []
    compared = f"as before step {since}" if since != NONE else "as before"
    return [_of_transfers(slow, usual, compared, {"since_step": None if since == NONE else since})]


def _became_slow(split: Split) -> tuple[int, float] | None:
    """Return the call from which transfers take longer, and the factor; None where they do not."""
    order: Ints = np.argsort(split.block.start_ns[0], kind="stable")
    transfer = split.transfer_ns[order]
    best = None
    for share in MOMENTS:
        at = round(share * transfer.size)
        if min(at, transfer.size - at) < FEWEST_CALLS:
            continue
        before, after = float(np.quantile(transfer[:at], 0.9)), float(np.quantile(transfer[at:], 0.1))
        times = after / max(before, 1.0)
        if times >= LONGER and after - before >= AT_LEAST_NS and (best is None or times > best[1]):
            best = int(order[at]), times
    return best


def compare_steps(run: Run, splits: Sequence[Split]) -> list[Finding]:
    """Compare each group's calls of a few steps in a row with those before and after them, to find a link that was slow
    for a while, as when other traffic shares it.

    Only for device runs, as `compare_with_earlier`. Groups count whose slow steps meet those of the slowest one.
    """
    found: dict[Ranks, list[tuple[float, int, int]]] = defaultdict(list)
    usual: set[Ranks] = set()
    for each in splits:
        ranks = each.block.ranks
        if not each.block.whole or each.transfer_ns.size < 2 * FEWEST_CALLS:
            continue
        steps = run.ranks[ranks[0]].collectives.step[each.block.rows[0]]
        known = steps != NONE
        slow = _slow_steps(each.transfer_ns[known], steps[known])
        if slow is None or not all(run.ranks[rank].has_device for rank in ranks):
            usual.add(ranks)
        else:
            found[ranks].append(slow)
    most = {ranks: max(each) for ranks, each in found.items() if ranks not in usual}
    if not most:
        return []
    _, first, last = max(most.values())
    met = {ranks: times for ranks, (times, begin, end) in most.items() if begin <= last and end >= first}
    which = f"steps {first} to {last}" if last > first else f"step {first}"
    others = usual | (most.keys() - met.keys())
    return [_of_transfers(met, others, f"in {which} as before and after", {"steps": [first, last]}, "was")]


def _slow_steps(transfer_ns: Ints, steps: Ints) -> tuple[float, int, int] | None:
    """Return how many times as long transfers take in some steps in a row as before and after them, the first and the
    last of these steps; None where there are none, or no steps before or after them.

    Most calls are outside of them: so the median is not of the slow ones.
    """
    if transfer_ns.size < 2 * FEWEST_CALLS:
        return None
    long = steps[transfer_ns >= LONGER * float(np.median(transfer_ns))]
    if not long.size:
        return None
    first, last = int(long.min()), int(long.max())
    inside = (steps >= first) & (steps <= last)
    if min(int(inside.sum()), int((~inside).sum())) < FEWEST_CALLS or first == steps.min() or last == steps.max():
        return None
    least = float(np.quantile(transfer_ns[inside], 0.1, method="lower"))
    most = float(np.quantile(transfer_ns[~inside], 0.9, method="higher"))
    times = least / max(most, 1.0)
    return (times, first, last) if times >= LONGER and least - most >= AT_LEAST_NS else None


def compare_groups(run: Run, splits: Sequence[Split], pairs: Sequence[MessagePairs] = ()) -> list[Finding]:
    """Compare the transfers of groups of one size that make the same call, and of pairs that send equal messages."""
    kinds: dict[tuple[Any, ...], list[tuple[Ranks, Ints]]] = defaultdict(list)
    whole = [each for each in splits if each.block.whole]
    hosts = {ranks: spans_hosts(run, ranks) for ranks in {each.block.ranks for each in whole}}
    for each in whole:
        block = each.block
        kinds[*_kind(block), hosts[block.ranks]].append((block.ranks, each.transfer_ns))
    for pair in pairs:
        ends = (pair.sender, pair.receiver)
        between = spans_hosts(run, ends)
        for volume, times in _messages(run, pair) if between is not None else ():  # else see `slower_messages`
            kinds["message", pair.both_ways, volume, 2, between].append((ends, times))
    slow: dict[Ranks, float] = {}
    usual: set[Ranks] = set()
    for equals in kinds.values():
        alike = [(ranks, times) for ranks, times in equals if times.size >= FEWEST_CALLS]
        if len({ranks for ranks, _ in alike}) < FEWEST_GROUPS:
            continue
        low, high = (np.array([np.quantile(times, q) for _, times in alike]) for q in (0.1, 0.9))
        quick = float(np.sort(high)[high.size // QUICK])
        for (ranks, _), least in zip(alike, low.tolist(), strict=True):
            if least >= LONGER * quick and least - quick >= AT_LEAST_NS:
                slow[ranks] = max(slow.get(ranks, 0.0), least / quick)
            else:
                usual.add(ranks)
    slow = {ranks: times for ranks, times in slow.items() if ranks not in usual}
    if not slow:
        return []
    if _own(slow, usual) is None and len(slow) > len(usual):
        return []  # more likely the other groups are fast, for example within a host
    return [_of_transfers(slow, usual, "as equal groups for the same data", {})]


def _kind(block: MatchedCalls) -> tuple[Any, ...]:
    """Return what equal calls of groups of one size have in common; of unknown sizes, that they are as many."""
    known = move_as_much(block.op, block.bytes)
    return block.op, block.dtype, block.bytes, None if known else block.calls, len(block.ranks)


class _Compared(msgspec.Struct):
    """The calls of a group that could be compared with those of other groups."""

    transfer_ns: int = 0
    slow_ns: int = 0
    """Of that, of calls that are slow."""
    slow_calls: int = 0
    excess_ns: float = 0.0
    """How much longer the slow ones took at least than those of a quick group."""

    @property
    def is_slow(self) -> bool:
        return self.slow_calls >= FEWEST_CALLS and self.slow_ns > MOSTLY * self.transfer_ns


def compare_replicas(run: Run, splits: Sequence[Split]) -> list[Finding]:
    """Compare the transfers of groups of which no two share a rank and that make the same calls, to find a rank of
    which all groups are slower: its link may be so by less than the link of a single group must be.

    Only for device runs, as `compare_with_earlier`. It takes two groups of the rank, which differ in their calls. So
    late members that were not recorded are an unlikely explanation: each of these groups would have to wait for one, as
    long at every call. Where a group may have such members, the title says so.
    """
    kinds: dict[tuple[Any, ...], list[Split]] = defaultdict(list)
    for each in splits:
        ranks = each.block.ranks
        if len(ranks) > 1 and all(run.ranks[rank].has_device for rank in ranks):
            kinds[*_kind(each.block), spans_hosts(run, ranks)].append(each)
    compared: dict[Ranks, _Compared] = defaultdict(_Compared)
    for equals in kinds.values():
        ranks_of = [each.block.ranks for each in equals]
        if len(ranks_of) >= FEWEST_GROUPS and len(set().union(*ranks_of)) == sum(map(len, ranks_of)):
            _compare(equals, compared)
    slow = {
        ranks: each.transfer_ns / (each.transfer_ns - each.excess_ns)
        for ranks, each in compared.items()
        if each.is_slow
    }
    usual = compared.keys() - slow.keys()
    rank = _own(slow, usual)
    if rank is None:
        return []
    ends = [(each.block.start_ns.min(), each.block.end_ns.max()) for each in splits if rank in each.block.ranks]
    lasted_ns = max(end for _, end in ends) - min(start for start, _ in ends)
    if sum(compared[ranks].excess_ns for ranks in slow) < OF_TIME * lasted_ns:
        return []
    whole = all(each.block.whole for each in splits if each.block.ranks in slow)
    said = "as groups of other ranks that make the same calls" + ", if no member is missing" * (not whole)
    return [_of_transfers(slow, usual, said, {})]


def _compare(equals: Sequence[Split], compared: dict[Ranks, _Compared]) -> None:
    """Add which of these groups, of equal calls, are slow."""
    low, high = (np.array([np.quantile(each.transfer_ns, q) for each in equals]) for q in (0.1, 0.9))
    quick = float(np.sort(high)[high.size // QUICK])
    for each, least in zip(equals, low.tolist(), strict=True):
        own, calls = compared[each.block.ranks], each.transfer_ns.size
        took_ns = int(each.transfer_ns.sum())
        own.transfer_ns += took_ns
        if least >= LONGER_ON_ONE_RANK * max(quick, 1.0):
            own.slow_ns += took_ns
            own.slow_calls += calls
            own.excess_ns += min(least * calls, took_ns) - max(quick, 1.0) * calls  # below what they took


def _messages(run: Run, pair: MessagePairs) -> Iterator[tuple[int, Ints]]:
    """Yield (bytes, transfer times) of a pair's messages by size; a transfer time is the shorter of both durations."""
    sent, got = run.ranks[pair.sender].collectives, run.ranks[pair.receiver].collectives
    volumes = sent.bytes[pair.send_rows]
    times = np.minimum(
        sent.end_ns[pair.send_rows] - sent.start_ns[pair.send_rows],
        got.end_ns[pair.recv_rows] - got.start_ns[pair.recv_rows],
    )
    for volume in np.unique(volumes[volumes != NONE]).tolist():
        yield volume, times[volumes == volume]


def _own(slow: Collection[Ranks], usual: Collection[Ranks]) -> int | None:
    """Return the only rank that is in all slow groups and in no other group; None for a single group."""
    if len(slow) < 2:
        return None
    shared = set.intersection(*(set(ranks) for ranks in slow)) - {rank for ranks in usual for rank in ranks}
    return shared.pop() if len(shared) == 1 else None


def _of_transfers(
    slow: Mapping[Ranks, float],
    usual: Collection[Ranks],
    compared: str,
    evidence: Mapping[str, Any],
    is_slow: str = "is",
) -> Finding:
    rank = _own(slow, usual)
    slowest = sorted(slow.items(), key=lambda each: (-each[1], each[0]))
    where = f"the link of rank {rank}" if rank is not None else "a link"
    groups = "the group" if len(slow) == 1 else f"{len(slow)} groups, such as that"
    return Finding(
        id="slow_link" if rank is None else f"slow_link:rank{rank}",
        severity="warning",
        title=f"{where} {is_slow} slow: {groups} of ranks {list_some(slowest[0][0])} "
        f"{'take' if len(slow) > 1 else 'takes'} {slowest[0][1]:.1f} times as long {compared} "
        "(transfer time, without wait time)",
        evidence={
            "rank": rank,
            "groups": [
                {"ranks": list(ranks[:MAX_LISTED]), "times_as_long": times} for ranks, times in slowest[:MAX_LISTED]
            ],
            "groups_as_usual": len(usual),
            **evidence,
        },
        known_from="transfers",
    )


def spans_hosts(run: Run, ranks: Sequence[int]) -> int | None:
    """Return the number of hosts that a group spans; None where capture did not record all of them."""
    hosts = set()
    for rank in ranks:
        settings = run.ranks[rank].recorded.get("settings") if rank in run.ranks else None
        host = settings.get("host") if isinstance(settings, Mapping) else None
        if not isinstance(host, str):
            return None
        hosts.add(host)
    return len(hosts)

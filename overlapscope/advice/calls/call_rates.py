"""At which rate the calls run that most of the exposed time is of, and whether sizes show that it is transfer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, time_of, window_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.longer_than_like import LIKE_CALLS
from overlapscope.display import size_text
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, difference, intersection
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import bus_factor
from overlapscope.timeline.rows import factorize_rows, sort_order, values_in
from overlapscope.timeline.run import RankTimeline

MOSTLY: Final = 0.5
MOST_ALIKE: Final = 0.8
"""Nearly all time is of calls that are alike. A choice."""
ALIKE: Final = 0.2
"""Bandwidths that differ by less are one. A choice: sizes above LARGE_BYTES come within this of a link's peak."""
OTHER_SIZES: Final = 1.5
"""Sizes with this ratio show that the time follows the bytes."""
FEW: Final = 0.1
SIZED: Final = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations whose members send as much each, so that a size and a time give a rate."""
SOCKET_BYTES: Final = 10_000_000
SOCKET_GBS: Final = 3.0
"""Calls of so many bytes between hosts that are slower look like TCP sockets. A choice: one link of 25 Gbit/s, the
slowest of usual clusters, carries as much."""
MOST_OF_HOST: Final = 8
"""Devices of a host at most, by which ranks are on several where no trace says their hosts. A choice: of usual ones."""
SOCKETS: Final = "NCCL_DEBUG=INFO  # its log says which transport carries these calls: NET/Socket, or NET/IB"
LABELS: Final = {"data": "DP", "tensor": "TP", "pipeline": "PP", "expert": "EP", "context": "CP"}


class DominantCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of call that most of the exposed time is of."""

    op: str
    dimension: str | None
    group_size: int | None
    least_bytes: int
    most_bytes: int
    calls: float
    """A step of a rank, or a recording."""
    busbw_gbs: float | None
    """None of small calls, whose latency it would be."""
    at_least: bool
    """Whether times hold waiting."""

    def words(self, per: str, *, rate: bool = True) -> str:
        """Return which they are, how many, how large, and, with `rate`, how fast."""
        of = f" of {LABELS.get(self.dimension, self.dimension)}" if self.dimension else ""
        sizes = size_text(self.most_bytes)
        if self.least_bytes < self.most_bytes:
            sizes = f"{size_text(self.least_bytes)} to {sizes}"
        among = f" among {self.group_size} ranks" if self.group_size else ""
        least = "at least " if self.at_least else ""
        fast = f", {least}{self.busbw_gbs:.3g} GB/s on the bus" if rate and self.busbw_gbs is not None else ""
        return f"mostly {self.op}{of}{among}, {self.calls:.3g} a {per} of {sizes}{fast}"


def dominant_calls(given: RuleInput) -> DominantCalls | None:
    """Return the operation and dimension whose calls most of the exposed time is of; None where there is none, or their
    sizes are not known."""
    rows = given.analysis.collectives
    kinds = {(row.op, row.dimension, row.group_size) for row in rows}
    own = {kind: [row for row in rows if (row.op, row.dimension, row.group_size) == kind] for kind in kinds}
    exposed = {kind: given.exposed_ns(each) for kind, each in own.items()}
    most = max(sorted(exposed, key=str), key=lambda kind: exposed[kind], default=None)
    if most is None or not exposed[most] or exposed[most] < MOSTLY * sum(exposed.values()):
        return None
    op, dimension, group_size = most
    heavy = _heavy(own[most])
    if op not in SIZED or not heavy:
        return None
    members = {group.name: group.ranks for group in given.run.groups}
    calls = Counter[int | str | None]()  # a rank may be in several such groups
    for row in heavy:
        for each in members.get(row.group or "") or [row.group]:
            calls[each] += row.count
    moved = sum((row.bytes or 0) * row.count for row in heavy)
    took = sum((row.transfer_ns_median or 0) * row.count for row in heavy)
    sizes = [row.bytes or 0 for row in heavy]
    known = group_size is not None and took > 0 and min(sizes) >= LARGE_BYTES
    return DominantCalls(
        op=op,
        dimension=dimension,
        group_size=group_size,
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        calls=max(calls.values()) / max(given.steps, 1),
        busbw_gbs=moved / took * bus_factor(op, group_size) if known and group_size is not None else None,
        at_least=any(row.estimate == "upper_bound" for row in heavy),
    )


def _heavy(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the rows with most of the exposed time of these, the longest first; none where a size is missing."""
    ordered = sorted(rows, key=lambda row: -(row.exposed_ns or 0))
    until = np.cumsum([row.exposed_ns or 0 for row in ordered])
    enough = int(np.searchsorted(until, MOST_ALIKE * until[-1])) + 1
    sizes = {row.bytes for row in ordered[:enough]}
    return [] if None in sizes else [row for row in ordered if row.bytes in sizes]


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a rank whose members send as much each, of `LARGE_BYTES` or more; times in ns."""

    bus_bytes: Floats
    lasted_ns: Ints
    exposed_ns: Ints
    computed_ns: Ints
    """Compute since the call before it in its group began."""
    every_ns: int
    """Exposed time of all calls of the rank."""


def transfer_rate_gbs(given: RuleInput) -> float | None:
    """Return the bus bandwidth at which calls transfer, where members were not recorded, so that their times may hold
    waiting; None where nothing shows it.

    It is shown where nearly all exposed time, and nearly all time in calls, is of large calls at one bandwidth,
    although their bytes differ, with which no waiting grows, and so does the compute before them for each byte, with
    which waiting for a slower rank grows.
    """
    if given.is_whole or not given.run_has_device:
        return None
    found = [_large_calls(given, timeline, windows) for timeline, windows in given.some_at_hand()]
    exposed, lasted, computed = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(each, name) for each in found)])
        for name in ("exposed_ns", "lasted_ns", "computed_ns")
    )
    bus = np.concatenate([np.zeros(0), *(each.bus_bytes for each in found)])
    if not exposed.sum() or exposed.sum() < MOST_ALIKE * sum(each.every_ns for each in found):
        return None
    rate = bus / np.maximum(lasted, 1)
    order = np.argsort(rate)
    usual = float(rate[order][np.searchsorted(np.cumsum(exposed[order]), exposed.sum() / 2)])
    alike = np.abs(rate - usual) <= ALIKE * usual
    nearly_all = all(each[alike].sum() >= MOST_ALIKE * each.sum() for each in (exposed, lasted))
    if not nearly_all or alike.sum() < 2 * LIKE_CALLS:
        return None
    spread = [_spread(bus[alike]), _spread(computed[alike] / bus[alike])]
    return usual if min(spread) >= OTHER_SIZES else None


def _spread(values: Floats) -> float:
    """Return how many times as large as the smaller values the larger ones are, without a tenth at either end."""
    low, high = np.quantile(values, [FEW, 1 - FEW], method="nearest")
    return float(high / low) if low > 0 else float("inf") if high > 0 else 1.0


def _large_calls(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Calls:
    calls, compute = timeline.collectives, BusyTime(given.coverage[timeline.rank].compute)
    exposed = exposed_of_calls_ns(given, timeline, windows)
    own = _sized(timeline, windows, LARGE_BYTES)
    own = own[sort_order(calls.group[own], calls.start_ns[own])]
    group, start = calls.group[own], calls.start_ns[own]
    follows = np.append(False, group[1:] == group[:-1])[: own.size]
    before = np.where(follows, np.append(start[:1], start[:-1]), start)
    return _Calls(
        bus_bytes=_bus_bytes(timeline, own),
        lasted_ns=calls.end_ns[own] - start,
        exposed_ns=exposed[own],
        computed_ns=compute.within(before, start),
        every_ns=int(exposed.sum()),
    )


def exposed_of_calls_ns(given: RuleInput, timeline: RankTimeline, windows: Windows) -> Ints:
    """Return the time of each call in the windows in which nothing is computed, in ns; 0 where it is not known."""
    calls, cover = timeline.collectives, given.coverage[timeline.rank]
    timed = (calls.start_ns != NONE) & (calls.end_ns != NONE)
    found = np.zeros(calls.op.size, np.int64)
    exposed = BusyTime(intersection(difference(cover.comm, cover.compute), time_of(windows)))
    found[timed] = exposed.within(calls.start_ns[timed], calls.end_ns[timed])
    return found


def like_sockets(given: RuleInput, dominant: DominantCalls | None) -> tuple[float, int] | None:
    """Return the fastest rate of such calls of a device between hosts, in GB/s on the bus, and how many these are,
    where even that is as slow as TCP sockets; None elsewhere."""
    hosts = {each.rank: each.host for each in given.analysis.ranks}
    if dominant is None or not given.run_has_device or dominant.least_bytes < SOCKET_BYTES:
        return None
    rates = []
    for timeline, windows in given.some_ranks():
        calls, names = timeline.collectives, timeline.names
        own = _sized(timeline, windows, SOCKET_BYTES)
        own = own[rows_named(calls.op[own], names, dominant.op.__eq__)]
        own = own[calls.group_size[own] == (dominant.group_size or NONE)]
        named = rows_named(calls.dimension[own], names, lambda name: dominant.dimension in (None, name))
        own = own[~named if dominant.dimension is None else named]
        groups = {timeline.name(code) for code in values_in(calls.group[own]).tolist()}
        if not all(_spans_hosts(given, group, hosts) for group in groups):
            return None
        rates.append(_bus_bytes(timeline, own) / np.maximum(calls.end_ns[own] - calls.start_ns[own], 1))
    every = np.concatenate([np.zeros(0), *rates])
    fastest = float(every.max(initial=0))
    return (fastest, every.size) if every.size >= LIKE_CALLS and fastest < SOCKET_GBS else None


def _spans_hosts(given: RuleInput, group: str | None, hosts: Mapping[int, str | None]) -> bool:
    """Return whether a group lies on several hosts, by their names, or, where one is not known, numbers of ranks."""
    ranks = given.analysis.run.ranks
    members = next((each.ranks for each in given.run.groups if each.name == group), None) or ranks
    names = {hosts.get(rank) for rank in members}
    by_numbers = None in names and len({rank // MOST_OF_HOST for rank in members}) > 1
    return len(names - {None}) > 1 or by_numbers


def _sized(timeline: RankTimeline, windows: Windows, least_bytes: int) -> Ints:
    """Return the calls in the windows that are as large, or larger, with times and a group whose size is known."""
    calls = timeline.collectives
    rows = rows_named(calls.op, timeline.names, SIZED.__contains__) & (calls.bytes >= least_bytes)
    rows &= (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.group_size > 1)
    return np.flatnonzero(rows & (window_of(windows, calls.start_ns) != NONE))


def _bus_bytes(timeline: RankTimeline, rows: Ints) -> Floats:
    """Return what each call moves on a link, as nccl-tests count it."""
    calls = timeline.collectives
    kind, first = factorize_rows([calls.op[rows], calls.group_size[rows]])
    kinds = zip(calls.op[rows[first]].tolist(), calls.group_size[rows[first]].tolist(), strict=True)
    factors = [bus_factor(timeline.names[op], ranks) for op, ranks in kinds]
    return np.asarray(calls.bytes[rows] * np.array(factors, np.float64)[kind], np.float64)

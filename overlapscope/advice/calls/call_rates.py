"""At which rate the calls run that most of the exposed time is of, and whether sizes show that it is transfer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.rule_input import LARGE_BYTES, RuleInput, Windows, ms, time_of, window_of
from overlapscope.analysis.common.one_host import MOST_OF_HOST, device_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.longer_than_like import LIKE_CALLS
from overlapscope.analysis.job_step.longer_calls import ONE_LONG_CALL
from overlapscope.display import size_text
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.intervals import BusyTime, difference, intersection
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import bus_factor
from overlapscope.timeline.rows import factorize_rows, sort_order, values_in
from overlapscope.timeline.run import RankTimeline

MOSTLY: Final = 0.5
ONE_CALL: Final = 0.4
"""A size of which there is one call a step, with this share of the exposed time, is named alone. A choice."""
MOST_ALIKE: Final = 0.8
"""Nearly all time is of calls that are alike. A choice."""
ALIKE: Final = 0.2
"""Bandwidths that differ by less are one. A choice: sizes above LARGE_BYTES come within this of a link's peak."""
OTHER_SIZES: Final = 1.5
"""Sizes with this ratio show that the time follows the bytes ..."""
MOST_IN_EACH: Final = 0.1
"""... and so do kinds of calls whose rates are so alike that what each may wait, all of them as long, is at most this
share of the transfer of the smallest ones. A choice."""
FEW: Final = 0.1
OTHER_RATES: Final = 1.5
"""Steps whose rates differ so many times have no rate in common. A choice: no figure of both is right of either."""
SAME_RATE: Final = 1.05
"""Rates of operations that differ by less are one. A choice: short waits of each call make as much."""
SPREAD: Final = 1.1
"""Calls of one operation have no one rate where the faster ones are so many times as fast as the slower ones. A choice:
twice what those of operations may differ by."""
SIZED: Final = ("all_reduce", "all_gather", "reduce_scatter")
"""Operations whose members send as much each, so that a size and a time give a rate."""
SOCKET_BYTES: Final = 10_000_000
SOCKET_GBS: Final = 3.0
"""Calls of so many bytes between hosts that are slower look like TCP sockets. A choice: one link of 25 Gbit/s, the
slowest of usual clusters, carries as much."""
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
    largest: tuple[int, float] | None
    """Bytes and exposed ns of the one call of these that has `ONE_CALL` of the exposed time; None where none has."""
    longest_ns: int | None = None
    """Duration of the single call that has most of the exposed time of these, as a finding names it; None without
    one."""
    busbw_gbs: tuple[float, float] | None
    """Of the slower and of the faster steps, or ranks, where these differ by `OTHER_RATES`, else the usual one twice;
    None of small calls, whose latency it would be."""
    differs_by: str
    """What these rates are of: steps, ranks, or both; empty where they are one."""
    at_least: bool
    """Whether times hold waiting."""

    def words(self, per: str, *, rate: bool = True) -> str:
        """Return which they are, how many, how large, and, with `rate`, how fast."""
        of = f" of {LABELS.get(self.dimension, self.dimension)}" if self.dimension else ""
        sizes = size_text(self.most_bytes)
        if self.least_bytes < self.most_bytes:
            sizes = f"{size_text(self.least_bytes)} to {sizes}"
        among = f" among {self.group_size} ranks" if self.group_size else ""
        if self.largest is not None:
            sizes += f", one of {size_text(self.largest[0])} exposed for {ms(self.largest[1])}"
        elif self.longest_ns is not None:
            sizes += f", one of {ms(self.longest_ns)}"
        fast = f", {self.rate_words()}" if rate and self.busbw_gbs is not None else ""
        return f"mostly {self.op}{of}{among}, {self.calls:.3g} a {per} of {sizes}{fast}"

    def rate_words(self, over: str = "") -> str:
        """Return how fast they are, with words on the bus's ranks; empty where that is not known."""
        if self.busbw_gbs is None:
            return ""
        differs = f", by {self.differs_by}" * (self.busbw_gbs[0] < self.busbw_gbs[1])
        return f"{'at least ' * self.at_least}{gbs_words(self.busbw_gbs)} on the bus{over}{differs}"


def gbs_words(rates_gbs: tuple[float, float]) -> str:
    """Return a rate in words, or two that differ as a range."""
    low, high = (f"{each:.3g}" for each in rates_gbs)
    return f"{high} GB/s" if low == high else f"{low} to {high} GB/s"


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
    moved = sum((row.bytes or 0) * row.count for row in heavy)
    took = sum((row.transfer_ns_median or 0) * row.count for row in heavy)
    sizes = [row.bytes or 0 for row in heavy]
    rates, by = None, ""
    if group_size is not None and took > 0 and min(sizes) >= LARGE_BYTES:
        rates, by = _rates_of(given, most, sizes, moved / took * bus_factor(op, group_size))
    return DominantCalls(
        op=op,
        dimension=dimension,
        group_size=group_size,
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        calls=_calls_a_step(given, heavy),
        largest=_largest(given, heavy, sum(exposed.values())),
        longest_ns=_longest_ns(given, heavy, exposed[most]),
        busbw_gbs=rates,
        differs_by=by,
        at_least=any(row.estimate == "upper_bound" for row in heavy),
    )


def _calls_a_step(given: RuleInput, rows: Sequence[CollectiveRow]) -> float:
    """Return how many of these calls a rank makes in a step, or a recording: it may be in several such groups."""
    members = {group.name: group.ranks for group in given.run.groups}
    calls = Counter[int | str | None]()
    for row in rows:
        for each in members.get(row.group or "") or [row.group]:
            calls[each] += row.count
    return max(calls.values()) / max(given.steps, 1)


def _largest(given: RuleInput, rows: Sequence[CollectiveRow], every_ns: float) -> tuple[int, float] | None:
    """Return size and exposed time of the one call among several of other sizes that has `ONE_CALL` of all of it."""
    of_size = {size: [row for row in rows if row.bytes == size] for size in {row.bytes for row in rows}}
    exposed = {size: given.exposed_ns(own) for size, own in of_size.items()}
    size = max(exposed, key=lambda each: exposed[each])
    found = len(exposed) > 1 and exposed[size] >= ONE_CALL * every_ns
    return (size or 0, exposed[size]) if found and round(_calls_a_step(given, of_size[size])) == 1 else None


def _longest_ns(given: RuleInput, rows: Sequence[CollectiveRow], exposed_ns: float) -> int | None:
    """Return how long the single call took that the findings name, if it has most of what these are exposed."""
    ranks, kinds = len(given.run.ranks), {(row.op, row.group, row.bytes) for row in rows}
    for each in (found.evidence for found in given.analysis.findings if found.id.startswith(ONE_LONG_CALL)):
        mean_ns = each["exposed_longer_ns"] * len(each["ranks"]) / ranks
        kind = each["op"], each["group"], each["bytes"]
        if kind in kinds and mean_ns >= MOSTLY * exposed_ns * max(given.steps, 1):
            return int(each["duration_ns"])
    return None


def _rates_of(
    given: RuleInput, kind: tuple[str, str | None, int | None], sizes: Sequence[int], usual_gbs: float
) -> tuple[tuple[float, float], str]:
    """Return the slower and the faster rates of calls of a kind and these sizes, without a tenth at either end, where
    they differ by `OTHER_RATES`, and by what they do: steps, in the median over ranks; else ranks, in the median over
    steps; else both. Where they do not differ, return the usual rate twice."""
    found: list[tuple[Ints, Floats]] = []
    for timeline, windows in given.some_ranks() if given.per == "step" else ():
        calls, transfer_ns = timeline.collectives, given.transfers[timeline.rank].transfer_ns
        own = _of_kind(timeline, sized_calls(timeline, windows, LARGE_BYTES), *kind)
        own = own[np.isin(calls.bytes[own], sizes)]
        took = np.where(transfer_ns[own] == NONE, calls.end_ns[own] - calls.start_ns[own], transfer_ns[own])
        step = window_of(windows, calls.start_ns[own])
        moved, lasted = (np.bincount(step, each, len(windows)) for each in (bytes_on_bus(timeline, own), took))
        has = np.flatnonzero(lasted > 0)
        if has.size:
            found.append((np.array(given.numbers[timeline.rank])[has], moved[has] / lasted[has]))
    if not found:
        return (usual_gbs, usual_gbs), ""
    steps, rates = map(np.concatenate, zip(*found, strict=True))
    by_step = np.array([np.median(rates[steps == each]) for each in values_in(steps).tolist()])
    by_rank = np.array([np.median(own) for _, own in found])
    for by, values in ("step", by_step), ("rank", by_rank), ("rank and step", rates):
        low, high = np.quantile(values, [FEW, 1 - FEW], method="nearest").tolist()
        if high >= OTHER_RATES * low:
            return (low, high), by
    return (usual_gbs, usual_gbs), ""


def _of_kind(timeline: RankTimeline, rows: Ints, op: str, dimension: str | None, group_size: int | None) -> Ints:
    """Return those of the calls that are of an operation, a dimension (None: where none is known), and a group of a
    size."""
    calls, names = timeline.collectives, timeline.names
    rows = rows[rows_named(calls.op[rows], names, op.__eq__)]
    rows = rows[calls.group_size[rows] == (group_size or NONE)]
    named = rows_named(calls.dimension[rows], names, lambda name: dimension in (None, name))
    return rows[~named if dimension is None else named]


def _heavy(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Return the rows with most of the exposed time of these, the longest first; none where a size is missing."""
    ordered = sorted(rows, key=lambda row: -(row.exposed_ns or 0))
    until = np.cumsum([row.exposed_ns or 0 for row in ordered])
    enough = int(np.searchsorted(until, MOST_ALIKE * until[-1])) + 1
    sizes = {row.bytes for row in ordered[:enough]}
    return [] if None in sizes else [row for row in ordered if row.bytes in sizes]


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a rank whose members send as much each, of `LARGE_BYTES` or more; times in ns."""

    op: Ints
    """Number in `SIZED`."""
    bus_bytes: Floats
    lasted_ns: Ints
    exposed_ns: Ints
    computed_ns: Ints
    """Compute since the call before it in its group began."""
    every_ns: int
    """Exposed time of all calls of the rank."""


def transfer_rate_gbs(given: RuleInput) -> tuple[float, float] | None:
    """Return the bus bandwidth at which calls transfer, where members were not recorded, so that their times may hold
    waiting; None where nothing shows it.

    It is that of the operation whose calls are slowest, in the median, and that of the fastest, which short waits lower
    least: the latter twice where they differ by less than `SAME_RATE`. Where the slower and the faster calls of the
    operation with most exposed time differ by `SPREAD`, their rates count, too.

    It is shown where nearly all exposed time, and nearly all time in calls, is of large calls at one bandwidth,
    although their bytes differ (`waits_little`), with which no waiting grows, and so does the compute before them for
    each byte, with which waiting for a slower rank grows.
    """
    if given.is_whole or not given.run_has_device:
        return None
    found = [_large_calls(given, timeline, windows) for timeline, windows in given.some_at_hand()]
    op, exposed, lasted, computed = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(each, name) for each in found)])
        for name in ("op", "exposed_ns", "lasted_ns", "computed_ns")
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
    follows = _spread(bus[alike]) >= OTHER_SIZES or waits_little(op[alike], bus[alike], rate[alike])
    follows &= _spread(computed[alike] / bus[alike]) >= OTHER_SIZES
    return _of_ops(op[alike], rate[alike], exposed[alike]) if follows else None


def waits_little(op: Ints, bus_bytes: Floats, rate_gbs: Floats, fewest: int = LIKE_CALLS) -> bool:
    """Return whether calls that all wait as long, whatever their size, would run at rates that differ by more.

    Of kinds (operation and size) with `fewest` calls or more the median rate counts. A wait of x times the transfer of
    the smallest size makes the rate of one r times as large (r + r x) / (r + x) times as high.
    """
    kind, first = factorize_rows([op, bus_bytes])
    many = np.flatnonzero(np.bincount(kind, minlength=first.size) >= fewest)
    if many.size < 2:
        return False
    sizes, rates = bus_bytes[first[many]], [float(np.median(rate_gbs[kind == each])) for each in many.tolist()]
    larger, faster = float(sizes.max() / sizes.min()), max(rates) / min(rates)
    return larger > faster and larger * (faster - 1) <= MOST_IN_EACH * (larger - faster)


def _of_ops(op: Ints, rate_gbs: Floats, exposed_ns: Ints) -> tuple[float, float]:
    """Return the lowest and the highest rate; the latter twice where they are about one.

    Rates are the medians of operations with enough calls and of the one with most exposed time, and of the latter also
    those of its slower and its faster calls, where these differ.
    """
    most = int(np.bincount(op, exposed_ns).argmax())
    many = {*np.flatnonzero(np.bincount(op) >= LIKE_CALLS).tolist(), most}
    rates = [float(np.median(rate_gbs[op == each])) for each in many]
    if _spread(rate_gbs[op == most]) >= SPREAD:
        rates += np.quantile(rate_gbs[op == most], [FEW, 1 - FEW], method="nearest").tolist()
    low, high = min(rates), max(rates)
    return (low, high) if high > SAME_RATE * low else (high, high)


def _spread(values: Floats) -> float:
    """Return how many times as large as the smaller values the larger ones are, without a tenth at either end."""
    low, high = np.quantile(values, [FEW, 1 - FEW], method="nearest")
    return float(high / low) if low > 0 else float("inf") if high > 0 else 1.0


def _large_calls(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Calls:
    calls, compute = timeline.collectives, BusyTime(given.coverage[timeline.rank].compute)
    exposed = exposed_of_calls_ns(given, timeline, windows)
    own = sized_calls(timeline, windows, LARGE_BYTES)
    own = own[sort_order(calls.group[own], calls.start_ns[own])]
    group, start = calls.group[own], calls.start_ns[own]
    follows = np.append(False, group[1:] == group[:-1])[: own.size]
    before = np.where(follows, np.append(start[:1], start[:-1]), start)
    named = [rows_named(calls.op[own], timeline.names, each.__eq__) for each in SIZED]
    return _Calls(
        op=np.argmax(named, axis=0),
        bus_bytes=bytes_on_bus(timeline, own),
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


def like_sockets(given: RuleInput, dominant: DominantCalls | None) -> tuple[float, int, bool] | None:
    """Return the fastest rate of such calls of a device between hosts, in GB/s on the bus, how many these are, and
    whether they are known to be between hosts, where even that rate is as slow as TCP sockets; None elsewhere."""
    if dominant is None or not given.run_has_device or dominant.least_bytes < SOCKET_BYTES:
        return None
    hosts = {each.rank: each.host for each in given.analysis.ranks}
    devices = {rank: device_of(own) for rank, own in given.run.ranks.items()} if None in hosts.values() else {}
    rates, certain = [], True
    for timeline, windows in given.some_ranks():
        calls = timeline.collectives
        own = sized_calls(timeline, windows, SOCKET_BYTES)
        own = _of_kind(timeline, own, dominant.op, dominant.dimension, dominant.group_size)
        groups = {timeline.name(code) for code in values_in(calls.group[own]).tolist()}
        spans = [_spans_hosts(given, group, hosts, devices) for group in groups]
        if False in spans:
            return None
        certain &= None not in spans
        rates.append(bytes_on_bus(timeline, own) / np.maximum(calls.end_ns[own] - calls.start_ns[own], 1))
    every = np.concatenate([np.zeros(0), *rates])
    fastest = float(every.max(initial=0))
    return (fastest, every.size, certain) if every.size >= LIKE_CALLS and fastest < SOCKET_GBS else None


def _spans_hosts(
    given: RuleInput, group: str | None, hosts: Mapping[int, str | None], devices: Mapping[int, str | None]
) -> bool | None:
    """Return whether a group lies on several hosts, by their names; None where one is not known, and numbers of ranks,
    or of their devices, make it likely: processes that share a device, or see it by another number, are on one."""
    ranks = given.analysis.run.ranks
    members = next((each.ranks for each in given.run.groups if each.name == group), None) or ranks
    names = {hosts.get(rank) for rank in members}
    if len(names - {None}) > 1:
        return True
    likely = len({rank // MOST_OF_HOST for rank in members}) > 1 or _share_devices(members, devices)
    return None if None in names and likely else False


def _share_devices(members: Sequence[int], devices: Mapping[int, str | None]) -> bool:
    """Return whether several ranks use a device of one number, where ranks use others. Where each process sees its own
    device alone, as number 0, that says nothing."""
    times = Counter(device for rank in members if (device := devices.get(rank)) is not None)
    return len({*devices.values()} - {None}) > 1 and max(times.values(), default=0) > 1


def sized_calls(timeline: RankTimeline, windows: Windows, least_bytes: int) -> Ints:
    """Return the calls in the windows that are as large, or larger, with times and a group whose size is known."""
    calls = timeline.collectives
    rows = rows_named(calls.op, timeline.names, SIZED.__contains__) & (calls.bytes >= least_bytes)
    rows &= (calls.start_ns != NONE) & (calls.end_ns != NONE) & (calls.group_size > 1)
    return np.flatnonzero(rows & (window_of(windows, calls.start_ns) != NONE))


def bytes_on_bus(timeline: RankTimeline, rows: Ints) -> Floats:
    """Return what each call moves on a link, as nccl-tests count it."""
    calls = timeline.collectives
    kind, first = factorize_rows([calls.op[rows], calls.group_size[rows]])
    kinds = zip(calls.op[rows[first]].tolist(), calls.group_size[rows[first]].tolist(), strict=True)
    factors = [bus_factor(timeline.names[op], ranks) for op, ranks in kinds]
    return np.asarray(calls.bytes[rows] * np.array(factors, np.float64)[kind], np.float64)

"""Compare the measured bus bandwidth with the possible one: of a benchmark at that size, of the links, or, without
either, with what as many such devices of one host reach elsewhere.

Only matched calls are compared, since their transfer time is known, and only groups placed like the benchmark's ranks:
neighbouring ranks on as few hosts as can be, or the whole job, which alone is compared with a curve that does not say
of how many ranks it is: a part of a machine may reach less, or more, than all of it. Between two measured sizes the
curve is interpolated on logarithmic axes; sizes above the largest use its value, sizes below the smallest are not
compared.
"""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.common.job_identity import ranks_of_hosts
from overlapscope.analysis.common.one_host import are_on_one_host, device_of
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.timeline.columns import NONE, or_none, size
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Run

FAR_BELOW: Final = 0.5
ELSEWHERE_BYTES: Final = 8_000_000
"""A choice: smaller calls depend on the library's version and settings as much as on the links."""
MIN_CALLS: Final = 5
MIN_BYTES: Final = 1_000_000
LINK_BYTES: Final = 64 << 20
"""Smaller calls do not reach the speed of their links."""
_ALIKE: Final = {"all_gather": ("reduce_scatter", "all_reduce"), "reduce_scatter": ("all_gather", "all_reduce")}
"""Operations whose bus bandwidth is used where an operation was not measured: they use the same ring, once."""
_LANE_GBS: Final = 25.0
_LANE_OF: Final = re.compile(r"\b(?:[VA]100|H[128]00|H20|GH200)\b")
"""Devices whose NVLinks (2.0 to 4.0) carry 25 GB/s in each direction."""


LINKS: Final = "NVLinks a device"


class BandwidthCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Bus bandwidth by size, of one operation on a number of ranks (None: not reported), measured by one source."""

    source: str
    op: str
    ranks: int | None
    sizes: tuple[int, ...]
    busbw_gbs: tuple[float, ...]

    def at(self, size_bytes: int) -> float | None:
        """Return the bandwidth in GB/s at a size; None below the smallest measured size."""
        place = bisect_left(self.sizes, size_bytes)
        if place == len(self.sizes):
            return self.busbw_gbs[-1]
        if self.sizes[place] == size_bytes:
            return self.busbw_gbs[place]
        if place == 0:
            return None
        (a, b), (low, high) = self.sizes[place - 1 : place + 1], self.busbw_gbs[place - 1 : place + 1]
        share = math.log(size_bytes / a) / math.log(b / a)
        return math.exp(math.log(low) + share * math.log(high / low))


def possible_bandwidth(run: Run, rows: Sequence[CollectiveRow], reference: Facts | None = None) -> list[Finding]:
    """Find collectives that reach less than half of the possible bandwidth.

    `reference` has priority over the run's own measurements; with it, one more finding says what was compared with it.
    """
    curves = [*curves_of(reference or Facts()), *curves_of(run.facts)]
    links = link_speed(run)
    if not curves and links is None:
        return _below_others(run, rows)
    against = [
        held
        for (op, group, ranks, volume), kinds in _compared(run, rows).items()
        if (possible := _possible(run, _curves_for(run, curves, ranks), links, op, ranks, volume)) is not None
        and (held := _Against(op=op, group=group, ranks=ranks, volume=volume, kinds=kinds, possible=possible)).calls
        >= MIN_CALLS
    ]
    found = [_low(each) for each in against if each.measured_gbs < FAR_BELOW * each.possible[0]]
    return [*found, _held_against(rows, curves, against)] if reference is not None else found


class _Against(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operation, group and size, with the possible bus bandwidth in GB/s and its source."""

    op: str
    group: str | None
    ranks: int
    volume: int
    kinds: Sequence[CollectiveRow]
    possible: tuple[float, str]

    @property
    def calls(self) -> int:
        return sum(row.count for row in self.kinds)

    @property
    def measured_gbs(self) -> float:
        return median([row.busbw_gbs for row in self.kinds for _ in range(min(row.count, 1000)) if row.busbw_gbs])

    @property
    def fastest_gbs(self) -> float:
        """Bus bandwidth of the fastest calls (`BASELINE_QUANTILE`), or the median where too few have one."""
        fastest = [
            row.busbw_gbs * row.transfer_ns_median / row.baseline_ns
            for row in self.kinds
            if row.busbw_gbs and row.transfer_ns_median and row.baseline_ns
        ]
        return max(fastest, default=self.measured_gbs)


def _below_others(run: Run, rows: Sequence[CollectiveRow]) -> list[Finding]:
    """Return the finding that most of the large calls over all devices of one host are far below what a published table
    has of another host with such devices; of calls that are alike, the fastest count, as links were free for these."""
    device = str(run.fingerprint.get("device") or "")
    large = {key: each for key, each in _compared(run, rows).items() if key[3] >= ELSEWHERE_BYTES} if device else {}
    of_host = _groups_of_one_host(run) if large else set()
    large = {key: each for key, each in large.items() if key[1] in of_host}
    if not large:
        return []
    from overlapscope.ingest.reference_bandwidth import bandwidths_elsewhere  # noqa: PLC0415 - few have such calls

    sizes_of_groups = sorted({ranks for _, _, ranks, _ in large})
    curves = [curve for ranks in sizes_of_groups for curve in curves_of(bandwidths_elsewhere(device, ranks))]
    against = [
        _Against(op=op, group=group, ranks=members, volume=volume, kinds=kinds, possible=possible)
        for (op, group, members, volume), kinds in large.items()
        if (possible := _reference(curves, op, members, volume)) is not None
    ]
    low = [each for each in against if each.fastest_gbs < FAR_BELOW * each.possible[0]]
    calls = sum(each.calls for each in low)
    if calls < MIN_CALLS or 2 * calls <= sum(each.calls for each in against):
        return []
    sizes = _from_to([each.volume / 1e6 for each in low], "MB")
    reached = _from_to([each.fastest_gbs for each in low], "GB/s")
    there, source = _from_to([each.possible[0] for each in low], "GB/s"), low[0].possible[1]
    return [
        Finding(
            id="below_other_machines",
            severity="info",
            title=f"{calls} large collectives of {sizes} on {low[0].ranks} ranks of a host reach {reached} bus "
            f"bandwidth at their fastest; another machine with as many such devices reaches {there} at these sizes "
            f"({source}): are all links up, and fast, and is peer access on?",
            evidence={
                "source": source,
                "kinds": [
                    {"op": each.op, "group": each.group, "ranks": each.ranks, "bytes": each.volume,
                     "calls": each.calls, "busbw_gbs": each.measured_gbs, "fastest_busbw_gbs": each.fastest_gbs,
                     "elsewhere_busbw_gbs": each.possible[0]}
                    for each in low
                ],
            },
            known_from="measured transfers against another machine's benchmark",
        )
    ]  # fmt: skip


def _from_to(values: Sequence[float], unit: str) -> str:
    low, high = (f"{value:.3g}" for value in (min(values), max(values)))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _groups_of_one_host(run: Run) -> set[str | None]:
    """Return the groups that are all of one host, as far as sources show it, and None, for calls without a group, where
    the job is."""
    hosts = ranks_of_hosts(run)
    members: dict[str | None, Sequence[int]] = {group.name: group.ranks for group in run.groups if group.ranks}
    members[None] = range(run.world_size or 0)
    of_host = {
        each: are_on_one_host(run, hosts, each) and not _is_part_of_host(run, hosts, each)
        for each in {tuple(each) for each in members.values()}
    }
    return {name for name, each in members.items() if of_host[tuple(each)]}


def _is_part_of_host(run: Run, hosts: Mapping[str, Collection[int]], members: Sequence[int]) -> bool:
    """Return whether a host of these ranks is known to have more devices: other ranks use them, or numbers go on."""
    others = any({*members} & {*ranks} and {*ranks} - {*members} for ranks in hosts.values())
    numbers = [device_of(run.ranks[rank]) for rank in members if rank in run.ranks]
    return others or any(each is not None and each.isdecimal() and int(each) >= len(members) for each in numbers)


def _are_spread(hosts: Mapping[str, Collection[int]], members: Sequence[int]) -> bool:
    """Return whether ranks are known to be on more hosts than they need, a part of each."""
    theirs = [{*ranks} & {*members} for ranks in hosts.values()]
    most = max(map(len, hosts.values()), default=1)
    known = sum(map(len, theirs)) == len(members)
    return known and sum(map(bool, theirs)) > math.ceil(len(members) / most)


def _curves_for(run: Run, curves: Sequence[BandwidthCurve], ranks: int) -> list[BandwidthCurve]:
    """Return the curves for groups of so many ranks: of a part of the job those that say so."""
    return [each for each in curves if each.ranks == ranks or (each.ranks is None and ranks == run.world_size)]


def _possible(
    run: Run, curves: Sequence[BandwidthCurve], links: tuple[float, str] | None, op: str, ranks: int, volume: int
) -> tuple[float, str] | None:
    measured = _reference(curves, op, ranks, volume)
    if measured is None and ranks == run.world_size and volume >= LINK_BYTES:
        return links
    return measured


def _low(each: _Against) -> Finding:
    possible, source = each.possible
    measured = each.measured_gbs
    spent = median([row.transfer_ns_median for row in each.kinds if row.transfer_ns_median])
    named = f"group {each.group}" if each.group else "an unnamed group"
    return Finding(
        id=f"low_bandwidth:{each.op}:{each.group or '?'}:{each.volume}",
        severity="warning",
        title=f"{each.op} of {each.volume / 1e6:.1f} MB on {each.ranks} ranks ({named}) reaches {measured:.3g} GB/s "
        f"bus bandwidth ({each.calls} calls of {spent / 1e6:.3f} ms); {possible:.3g} GB/s are possible ({source})",
        evidence={
            "op": each.op, "group": each.group, "ranks": each.ranks, "bytes": each.volume, "calls": each.calls,
            "busbw_gbs": measured, "possible_busbw_gbs": possible, "source": source,
            "lost_ns_a_call": round(spent * (1 - measured / possible)),
        },
        known_from="measured transfers against " + ("the links" if LINKS in source else "a benchmark"),
    )  # fmt: skip


def _held_against(
    rows: Sequence[CollectiveRow], curves: Sequence[BandwidthCurve], against: Sequence[_Against]
) -> Finding:
    """Return a finding that says which calls were compared with the given table, or why none."""
    if against:
        worst = min(against, key=lambda each: each.measured_gbs / each.possible[0])
        kinds = "1 kind" if len(against) == 1 else f"{len(against)} kinds"
        title = (
            f"{kinds} of collective compared with the reference table: the slowest relative to it is {worst.op} of "
            f"{worst.volume / 1e6:.1f} MB on {worst.ranks} ranks with {worst.measured_gbs:.3g} of "
            f"{worst.possible[0]:.3g} GB/s ({worst.possible[1]})"
        )
    else:
        of_table = ", ".join(
            sorted({"an unknown number of" if each.ranks is None else str(each.ranks) for each in curves})
        )
        of_run = ", ".join(map(str, sorted({each.group_size for each in rows if each.group_size}))) or "?"
        title = (
            f"no collective could be compared with the reference table: it is for {of_table} ranks, the groups "
            f"recorded here have {of_run}; a comparison needs {MIN_CALLS} or more matched calls of at least "
            f"{MIN_BYTES / 1e6:.0f} MB"
        )
    return Finding(
        id="bandwidth_compared",
        severity="info",
        title=title,
        evidence={
            "kinds": [
                {"op": each.op, "group": each.group, "ranks": each.ranks, "bytes": each.volume,
                 "busbw_gbs": each.measured_gbs, "possible_busbw_gbs": each.possible[0], "source": each.possible[1]}
                for each in against
            ]
        },
        known_from="measured transfers against a benchmark",
    )  # fmt: skip


def curves_of(facts: Facts) -> Iterator[BandwidthCurve]:
    """Yield the measured curves of benchmarks, one for each source, operation and number of ranks.

    Figures of single ranks or calls are not from benchmarks. Repetitions and both placements (in place, out of place)
    of a size are reduced to their median.
    """
    table = facts.measurements
    rows = np.flatnonzero((table.rank == NONE) & (table.seq == NONE) & (table.communicator < 0) & (table.bytes > 0))
    found: dict[tuple[int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows.tolist():
        busbw = float(table.busbw_gbs[row])
        if busbw > 0 and table.op[row] >= 0:
            key = (int(table.source[row]), int(table.op[row]), int(table.ranks[row]))
            found[key][int(table.bytes[row])].append(busbw)
    for (source, op, ranks), by_size in found.items():
        sizes = tuple(sorted(by_size))
        yield BandwidthCurve(
            source=facts.name(source) or "a table of the run",
            op=facts.name(op) or "",
            ranks=or_none(ranks),
            sizes=sizes,
            busbw_gbs=tuple(median(by_size[each]) for each in sizes),
        )


def _compared(run: Run, rows: Sequence[CollectiveRow]) -> dict[tuple[str, str | None, int, int], list[CollectiveRow]]:
    """Return the matched rows of comparable groups, grouped by (operation, group, ranks, size)."""
    members = {group.name: group.ranks for group in run.groups if group.ranks is not None}
    hosts = ranks_of_hosts(run)
    found: dict[tuple[str, str | None, int, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.estimate != "matched" or not row.busbw_gbs or not row.group_size or (row.bytes or 0) < MIN_BYTES:
            continue
        ranks = members.get(row.group or "")
        is_job = row.group_size == run.world_size
        neighbours = len(ranks) > 1 and set(np.diff(ranks).tolist()) == {1} if ranks else is_job
        if neighbours and (is_job or not _are_spread(hosts, ranks or ())):
            found[row.op, row.group, row.group_size, row.bytes or 0].append(row)
    return found


def _reference(curves: Sequence[BandwidthCurve], op: str, ranks: int, volume: int) -> tuple[float, str] | None:
    """Return (bandwidth, source) of the first curve for an operation, else for a similar operation."""
    for wanted in (op, *_ALIKE.get(op, ())):
        for curve in curves:
            possible = curve.at(volume) if curve.op == wanted and curve.ranks in (ranks, None) else None
            if possible is not None:
                return possible, curve.source + ("" if wanted == op else f"; there of {wanted}")
    return None


def link_speed(run: Run) -> tuple[float, str] | None:
    """Return the bandwidth of one device's NVLinks in GB/s, and as text, where the job uses all devices of one host.

    A topology matrix shows the lanes of each pair; behind switches every pair shares the same lanes. So the maximum
    over the pairs is a lower bound in both cases.
    """
    facts, links = run.facts, run.facts.links
    if size(links) == 0 or np.unique(links.host).size != 1 or not _LANE_OF.search(str(run.fingerprint.get("device"))):
        return None
    lanes: dict[str, list[int]] = defaultdict(list)
    for row in range(size(links)):
        if facts.name(int(links.kind[row])) == "NVLink" and links.lanes[row] > 0:
            lanes[facts.name(int(links.a[row])) or ""].append(int(links.lanes[row]))
    gpus = [name for name in lanes if name.startswith("GPU")]
    if len(gpus) != run.world_size:
        return None
    least = min(max(lanes[name]) for name in gpus)
    return least * _LANE_GBS, f"{least} {LINKS}, 25 GB/s each"

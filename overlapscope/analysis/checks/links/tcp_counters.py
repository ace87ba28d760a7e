"""Find slow links from the counters of the job's own TCP connections, which capture reads from the kernel.

A pair of ranks is slow compared with the other pairs, or all pairs compared with the stated rate of their interface. A
rank is named only where all slow pairs are its own, and no fast pair uses its link in the same direction.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.run import RankTimeline, Run

SLOW: Final = 0.25
"""A pair of ranks is slow at or below this share of the fastest pair's rate ..."""
BESIDE: Final = 0.5
"""... and fast from this share on."""
OF_STATED: Final = 0.1
"""All pairs are slow where none exceeds this share of its interface's stated rate; low, since one stream often cannot
fill a fast interface."""
LEAST_BYTES: Final = 4 << 20
"""Bytes that a connection must have sent to be used; also, at least LEAST_SHARE of those of the busiest connection."""
LEAST_SHARE: Final = 0.05
UNREAD: Final = 0.5
"""A connection may have been limited by its receiver for up to this share of its busy time."""
WEIGHS: Final = 0.1
"""A connection is relevant when it had data to send for this share of the recording."""
MAX_LISTED: Final = 16
AMBIGUOUS: Final = -1
Pair = tuple[int, int]


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic from one rank to another on the connection that carried most."""

    sender: int
    receiver: int
    sent_bytes: int
    rate_bytes_s: float
    """Bytes sent over the time with data to send."""
    seen_bytes_s: float | None
    """The kernel's delivery rate when the link was the limit; None where it never was."""
    share: float | None
    """Share of the recording with data to send."""
    interface: str | None
    stated_bytes_s: float | None
    local: bool
    """Whether both ends are on one host, so that no link is used."""


def compare_connections(found: Sequence[Flow]) -> list[Finding]:
    """Compare the connections between hosts with each other, then with the stated rates of their interfaces."""
    between = [each for each in found if not each.local]
    if not between:
        return []
    rates = {(each.sender, each.receiver): each.rate_bytes_s for each in between}
    fastest = max(rates.values())
    seen = max(fastest, *(each.seen_bytes_s or 0.0 for each in between))
    slow = {
        (each.sender, each.receiver)
        for each in between
        if each.rate_bytes_s <= SLOW * fastest and _weighs(each) and (each.seen_bytes_s or seen) <= SLOW * seen
    }
    fast = {pair for pair, rate in rates.items() if rate >= BESIDE * fastest}
    if slow:
        rank = slow_rank(slow, fast)
        interfaces = {each.interface for each in between if each.interface and (each.sender, each.receiver) in slow}
        return [_of_pairs(rank, {pair: rates[pair] for pair in slow}, fastest, sorted(interfaces))]
    if not all(_weighs(each) and _far_below_stated(each) for each in between):
        return []
    least = min(each.stated_bytes_s for each in between if each.stated_bytes_s is not None)
    return [
        Finding(
            id="slow_link",
            severity="warning",
            title=f"all links are slow: no connection between ranks moves more than {fastest / 1e6:.4g} MB/s, while "
            f"their interfaces state {least / 1e6:.4g} MB/s",
            evidence={
                "rank": None,
                "fastest_bytes_s": round(fastest),
                "stated_bytes_s": round(least),
                "interfaces": sorted({each.interface for each in between if each.interface})[:MAX_LISTED],
            },
            known_from="connections",
        )
    ]


def _weighs(flow: Flow) -> bool:
    return flow.share is not None and flow.share >= WEIGHS


def _far_below_stated(flow: Flow) -> bool:
    if flow.stated_bytes_s is None or flow.seen_bytes_s is None:
        return False
    return max(flow.rate_bytes_s, flow.seen_bytes_s) <= OF_STATED * flow.stated_bytes_s


def slow_rank(slow: set[Pair], fast: set[Pair]) -> int | None:
    """Return the rank whose link is slow: the only one in all slow pairs and, in the same direction, in no fast pair.

    None for a single pair: the link may be slow at either end.
    """
    if len(slow) < 2:
        return None
    shared = set.intersection(*(set(pair) for pair in slow))
    sends = {sender for sender, _ in slow}
    receives = {receiver for _, receiver in slow}
    quick_senders, quick_receivers = {sender for sender, _ in fast}, {receiver for _, receiver in fast}
    own = [
        rank
        for rank in shared
        if not (rank in sends and rank in quick_senders) and not (rank in receives and rank in quick_receivers)
    ]
    return own[0] if len(own) == 1 else None


def _of_pairs(rank: int | None, slow: Mapping[Pair, float], fastest: float, interfaces: Sequence[str]) -> Finding:
    listed = sorted(slow.items(), key=lambda each: (each[1], each[0]))
    slowest = listed[0][1]
    pairs = ", ".join(f"{sender} to {receiver}" for (sender, receiver), _ in listed[:4])
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    whose_link = f"the link of rank {rank}" if rank is not None else "a link"
    return Finding(
        id="slow_link" if rank is None else f"slow_link:rank{rank}",
        severity="warning",
        title=f"{whose_link} is slow: data from rank {pairs}{more} moves at {slowest / 1e6:.4g} MB/s, between other "
        f"ranks at up to {fastest / 1e6:.4g} MB/s",
        evidence={
            "rank": rank,
            "pairs": [
                {"sender": sender, "receiver": receiver, "bytes_s": round(rate)}
                for (sender, receiver), rate in listed[:MAX_LISTED]
            ],
            "fastest_bytes_s": round(fastest),
            "interfaces": list(interfaces[:MAX_LISTED]),
        },
        known_from="connections",
    )


def flows(run: Run) -> list[Flow]:
    """Return the traffic between each two ranks that both recorded their end of the connection."""
    ends: dict[str, int] = {}
    for rank, timeline in run.ranks.items():
        for each in _connections(timeline):
            known_of = ends.setdefault(each["local"], rank)
            if known_of != rank:
                ends[each["local"]] = AMBIGUOUS  # an address that several hosts have, such as loopback
    found: dict[Pair, Flow] = {}
    for rank, timeline in run.ranks.items():
        lasted_ns = int((timeline.recordings.end_ns - timeline.recordings.start_ns).sum())
        for each in _connections(timeline):
            receiver = ends.get(each["peer"])
            busy, sent = _number(each.get("busy_ns")), _number(each.get("sent_bytes"))
            if (
                receiver in (None, AMBIGUOUS, rank)
                or ends[each["local"]] == AMBIGUOUS
                or not busy
                or not sent
                or sent < LEAST_BYTES
            ):
                continue
            delivered = _number(each.get("rate_bytes_s")) or None
            unread = _number(each.get("receiver_limited_ns")) or 0.0
            known = found.get((rank, receiver))
            if known is not None and known.sent_bytes >= sent:
                continue
            name = each.get("interface")
            found[rank, receiver] = Flow(
                sender=rank,
                receiver=receiver,
                sent_bytes=int(sent),
                rate_bytes_s=sent / busy * 1e9,
                seen_bytes_s=delivered if unread <= UNREAD * busy else None,
                share=busy / lasted_ns if lasted_ns > 0 else None,
                interface=name if isinstance(name, str) else None,
                stated_bytes_s=_number(each.get("interface_bytes_s")),
                local=_host(each["local"]) == _host(each["peer"]),
            )
    most = max((each.sent_bytes for each in found.values()), default=0)
    return [each for each in found.values() if each.sent_bytes >= LEAST_SHARE * most]


def _connections(timeline: RankTimeline) -> list[Mapping[str, Any]]:
    sockets = timeline.recorded.get("sockets")
    rows = sockets if isinstance(sockets, list) else []
    return [
        each
        for each in rows
        if isinstance(each, Mapping) and isinstance(each.get("local"), str) and isinstance(each.get("peer"), str)
    ]


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value) and value >= 0
    return float(value) if known else None


def _host(end: str) -> str:
    return end.rpartition(":")[0]

"""What may be changed of any recorded step: its links, its types, its late rank. Each gives another graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.whatif.formulas import ALGORITHMS, Link, time_ns
from overlapscope.whatif.graph import Busy, Call, Graph, Item, launch_order, retimed
from overlapscope.whatif.replay import Gap, Launch

HALVED: Final = frozenset({"float32"})
"""Types that 16 bits halve."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a call's time does not go with its bytes, or not with its link: nobody measured either."""

    latency_ns: float = 0.0
    host_share: float = 0.0
    """Share that is its host's, which copies to and from sockets, whatever the link."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A change to try on every recorded step."""

    knobs: Mapping[str, Any]
    change: Callable[[Graph, Parts], Graph]
    """Of a step, given what its calls' times are made of."""
    memory_bytes: int = 0
    changes_numerics: bool = False
    hypothetical: bool = False


def faster_link(speed: float) -> Trial:
    """Links so many times as fast, latency and all, but for what is the host's."""
    return Trial(
        knobs={"link_speed": speed},
        change=lambda graph, parts: retimed(
            graph, lambda call: call.own_ns * (parts.host_share + (1 - parts.host_share) / speed)
        ),
        hypothetical=True,
    )


def in_16_bits(name: str, which: Callable[[Call], bool]) -> Trial:
    """Calls of 32 bits that send 16."""

    def took(call: Call, latency: float) -> float:
        return scaled(call, 0.5, latency) if which(call) and call.dtype in HALVED else call.own_ns

    return Trial(
        knobs={name: "16-bit"},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        changes_numerics=True,
    )


def scaled(call: Call, share: float, latency_ns: float) -> float:
    """Return what a call takes with a share of its bytes: its latency stays, at most half of its time."""
    base = min(latency_ns, call.own_ns / 2)
    return base + (call.own_ns - base) * share


def more_ranks(factor: int) -> Trial:
    """So many times as many ranks with as much work each: collectives of rings through the same links (assumed)."""

    def took(call: Call, latency: float) -> float:
        now, then = call.group_size, call.group_size * factor
        if now < 2 or call.op not in ("all_gather", "reduce_scatter", "all_reduce"):
            return call.own_ns
        base = min(latency, call.own_ns / 2)
        return base * (then - 1) / (now - 1) + (call.own_ns - base) * ((then - 1) / then) / ((now - 1) / now)

    return Trial(
        knobs={"ranks": factor},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        hypothetical=True,
    )


def other_algorithm(name: str) -> Trial:
    """Another algorithm, by formula, where the recorded collectives were rings (assumed): nobody measured it here."""

    def took(call: Call, latency: float) -> float:
        if call.group_size < 2 or not call.bytes or call.op not in ("all_gather", "reduce_scatter", "all_reduce"):
            return call.own_ns
        base = min(latency, call.own_ns / 2)
        unit = Link(latency_ns=0.0, gbs=1.0)
        ring = time_ns(ALGORITHMS["ring"](call.op, call.group_size, call.bytes, "intra"), {"intra": unit})
        steps = sum(each.steps for each in ALGORITHMS["ring"](call.op, call.group_size, call.bytes, "intra"))
        link = Link(latency_ns=base / steps, gbs=ring / max(call.own_ns - base, 1.0))
        try:
            return time_ns(ALGORITHMS[name](call.op, call.group_size, call.bytes, "intra"), {"intra": link})
        except ValueError:
            return call.own_ns

    return Trial(
        knobs={"algorithm": name},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        hypothetical=True,
    )


def straggler_removed(rank: int) -> Trial:
    """The rank does what lies between two launches as fast as the others do; only where all make the same calls."""
    return Trial(
        knobs={"straggler_removed": rank},
        change=lambda graph, _: _without_hold(graph, rank),
        hypothetical=True,
    )


def alike(graph: Graph) -> bool:
    """Return whether all ranks launch the same collectives in the same order: only then their work can be compared."""
    orders = [launch_order(graph, rank) for rank in graph.programmes]
    return len(orders) > 1 and all(each == orders[0] for each in orders)


def _without_hold(graph: Graph, rank: int) -> Graph:
    if not alike(graph):
        return graph
    others = [_segments(items) for each, items in graph.programmes.items() if each != rank]
    usual = np.median(np.array(others), axis=0)
    own = np.array(_segments(graph.programmes[rank]))
    share = np.minimum(np.divide(usual, own, out=np.ones_like(own), where=own > 0), 1.0)
    return replace(graph, programmes={**graph.programmes, rank: tuple(_shortened(graph.programmes[rank], share))})


def _segments(items: Sequence[Item]) -> list[float]:
    """Return the time of compute and of the host between launches."""
    found = [0.0]
    for each in items:
        if isinstance(each, Launch):
            found.append(0.0)
        elif isinstance(each, Busy | Gap):
            found[-1] += each.ns
    return found


def _shortened(items: Sequence[Item], share: Any) -> list[Item]:
    found: list[Item] = []
    at = 0
    for each in items:
        if isinstance(each, Launch):
            at += 1
        if isinstance(each, Busy):
            found.append(Busy(ns=each.ns * float(share[at]), beside_ns=each.beside_ns * float(share[at])))
        elif isinstance(each, Gap):
            found.append(Gap(each.ns * float(share[at])))
        else:
            found.append(each)
    return found

"""Changes that can be made to any recorded step: links, dtypes, algorithm, straggler. Each makes another graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.whatif.cost.formulas import ALGORITHMS, LinkCost, time_ns
from overlapscope.whatif.replay.graph import Busy, Call, Graph, Item, launch_order, retimed
from overlapscope.whatif.replay.replay import Gap, Launch

HALVED: Final = frozenset({"float32"})
"""Dtypes whose size 16 bits halve."""


class TimeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a call's time that do not scale with its bytes, or not with its link. Both are assumed."""

    latency_ns: float = 0.0
    host_share: float = 0.0
    """Share of the time that the host needs to copy to and from sockets, whatever the link."""


class GraphChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to replay on every recorded step."""

    knobs: Mapping[str, Any]
    change: Callable[[Graph, TimeParts], Graph]
    """Return the changed step, for the given parts of its calls' times."""
    memory_bytes: int = 0
    changes_numerics: bool = False
    hypothetical: bool = False


def faster_link(speed: float) -> GraphChange:
    """Return the change to links `speed` times as fast, including latency; the host's share stays."""
    return GraphChange(
        knobs={"link_speed": speed},
        change=lambda graph, parts: retimed(
            graph, lambda call: call.own_ns * (parts.host_share + (1 - parts.host_share) / speed)
        ),
        hypothetical=True,
    )


def in_16_bits(name: str, which: Callable[[Call], bool]) -> GraphChange:
    """Return the change in which the calls that `which` selects send 16 bits instead of 32; `name` is its knob."""

    def took(call: Call, latency: float) -> float:
        return scaled_ns(call, 0.5, latency) if which(call) and call.dtype in HALVED else call.own_ns

    return GraphChange(
        knobs={name: "16-bit"},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        changes_numerics=True,
    )


def scaled_ns(call: Call, share: float, latency_ns: float) -> float:
    """Return the time of a call with a share of its bytes; its latency stays, but is at most half of the time."""
    base = min(latency_ns, call.own_ns / 2)
    return base + (call.own_ns - base) * share


def more_ranks(factor: int) -> GraphChange:
    """Return the change to `factor` times as many ranks with the same work each.

    Collectives are assumed to be rings through the same links.
    """

    def took(call: Call, latency: float) -> float:
        now, then = call.group_size, call.group_size * factor
        if now < 2 or call.op not in ("all_gather", "reduce_scatter", "all_reduce"):
            return call.own_ns
        base = min(latency, call.own_ns / 2)
        return base * (then - 1) / (now - 1) + (call.own_ns - base) * ((then - 1) / then) / ((now - 1) / now)

    return GraphChange(
        knobs={"ranks": factor},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        hypothetical=True,
    )


def other_algorithm(name: str) -> GraphChange:
    """Return the change to another algorithm, priced by its formula; recorded collectives are assumed to be rings."""

    def took(call: Call, latency: float) -> float:
        if call.group_size < 2 or not call.bytes or call.op not in ("all_gather", "reduce_scatter", "all_reduce"):
            return call.own_ns
        base = min(latency, call.own_ns / 2)
        unit = LinkCost(latency_ns=0.0, gbs=1.0)
        ring = time_ns(ALGORITHMS["ring"](call.op, call.group_size, call.bytes, "intra"), {"intra": unit})
        steps = sum(each.steps for each in ALGORITHMS["ring"](call.op, call.group_size, call.bytes, "intra"))
        link = LinkCost(latency_ns=base / steps, gbs=ring / max(call.own_ns - base, 1.0))
        try:
            return time_ns(ALGORITHMS[name](call.op, call.group_size, call.bytes, "intra"), {"intra": link})
        except ValueError:
            return call.own_ns

    return GraphChange(
        knobs={"algorithm": name},
        change=lambda graph, parts: retimed(graph, lambda call: took(call, parts.latency_ns)),
        hypothetical=True,
    )


def straggler_removed(rank: int) -> GraphChange:
    """Return the change in which a rank is as fast between two launches as the others; all must make the same calls."""
    return GraphChange(
        knobs={"straggler_removed": rank},
        change=lambda graph, _: _without_delay(graph, rank),
        hypothetical=True,
    )


def same_launch_order(graph: Graph) -> bool:
    """Return whether all ranks launch the same collectives in the same order, so that their work can be compared."""
    orders = [launch_order(graph, rank) for rank in graph.programmes]
    return len(orders) > 1 and all(each == orders[0] for each in orders)


def _without_delay(graph: Graph, rank: int) -> Graph:
    if not same_launch_order(graph):
        return graph
    others = [_segments(items) for each, items in graph.programmes.items() if each != rank]
    usual = np.median(np.array(others), axis=0)
    own = np.array(_segments(graph.programmes[rank]))
    share = np.minimum(np.divide(usual, own, out=np.ones_like(own), where=own > 0), 1.0)
    return replace(graph, programmes={**graph.programmes, rank: tuple(_shortened(graph.programmes[rank], share))})


def _segments(items: Sequence[Item]) -> list[float]:
    """Return the time of compute and gaps between launches, in ns."""
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

"""Changes that can be made to any recorded step: links, dtypes, algorithm, straggler. Each makes another graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.timeline.columns import Floats
from overlapscope.whatif.cost.formulas import ALGORITHMS, LinkCost, time_ns
from overlapscope.whatif.replay.graph import Busy, CallShape, Graph, Item, launch_order, retimed
from overlapscope.whatif.replay.replay import Gap, Launch

HALVED: Final = frozenset({"float32"})
"""Dtypes whose size 16 bits halve."""
RINGS: Final = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives that are assumed to be rings."""
LATENCY: Final = "latency_us"
HOST_SHARE: Final = "host_share"
"""Names of the assumptions on the parts of a call's time."""


class TimeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a call's time that do not scale with its bytes, or not with its link. Both are assumed."""

    latency_ns: float = 0.0
    host_share: float = 0.0
    """Share of the time that the host needs to copy to and from sockets, whatever the link."""


TransferTimes = Callable[[CallShape, Floats, TimeParts], Floats]
"""New times in ns of calls of one shape, for their recorded ones."""


class GraphChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change to replay on every recorded step: of its programme, or of its durations alone."""

    knobs: Mapping[str, Any]
    change: Callable[[Graph, TimeParts], Graph]
    """Return the changed step, for the given parts of its calls' times."""
    transfers: TransferTimes | None = None
    """Where only transfers take other times: these."""
    pause_cap_ms: float | None = None
    """Where only host pauses are capped: the longest that stays."""
    late: tuple[int, ...] = ()
    """Where only some ranks work as fast as the others: these."""
    depends_on: tuple[str, ...] = ()
    """Names of the assumptions on the parts of a call's time that the change depends on."""
    memory_bytes: int = 0
    changes_numerics: bool = False
    hypothetical: bool = False

    @property
    def keeps_programme(self) -> bool:
        """Whether only durations change, so that the run's dependency graph can answer."""
        return self.transfers is not None or self.pause_cap_ms is not None or bool(self.late)


def _of_transfers(
    knobs: Mapping[str, Any], took: TransferTimes, depends_on: str, *, changes_numerics: bool = False
) -> GraphChange:
    def changed(graph: Graph, parts: TimeParts) -> Graph:
        return retimed(graph, lambda call: float(took(call, np.array([call.own_ns]), parts)[0]))

    return GraphChange(
        knobs=knobs, change=changed, transfers=took, depends_on=(depends_on,), changes_numerics=changes_numerics,
        hypothetical=not changes_numerics,
    )  # fmt: skip


def faster_link(speed: float) -> GraphChange:
    """Return the change to links `speed` times as fast, including latency; the host's share stays."""
    return _of_transfers(
        {"link_speed": speed},
        lambda _, own_ns, parts: own_ns * (parts.host_share + (1 - parts.host_share) / speed),
        HOST_SHARE,
    )


def in_16_bits(name: str, which: Callable[[CallShape], bool]) -> GraphChange:
    """Return the change in which the calls that `which` selects send 16 bits instead of 32; `name` is its knob."""

    def took(shape: CallShape, own_ns: Floats, parts: TimeParts) -> Floats:
        halves = which(shape) and shape.dtype in HALVED
        return scaled_ns(own_ns, 0.5, parts.latency_ns) if halves else own_ns

    return _of_transfers({name: "16-bit"}, took, LATENCY, changes_numerics=True)


def scaled_ns(own_ns: Floats, share: float, latency_ns: float) -> Floats:
    """Return the times of calls with a share of their bytes; latency stays, but is at most half of the time."""
    base = np.minimum(latency_ns, own_ns / 2)
    scaled: Floats = base + (own_ns - base) * share
    return scaled


def more_ranks(factor: int) -> GraphChange:
    """Return the change to `factor` times as many ranks with the same work each.

    Collectives are assumed to be rings through the same links.
    """

    def took(shape: CallShape, own_ns: Floats, parts: TimeParts) -> Floats:
        now, then = shape.group_size, shape.group_size * factor
        if now < 2 or shape.op not in RINGS:
            return own_ns
        base = np.minimum(parts.latency_ns, own_ns / 2)
        longer: Floats = base * (then - 1) / (now - 1) + (own_ns - base) * ((then - 1) / then) / ((now - 1) / now)
        return longer

    return _of_transfers({"ranks": factor}, took, LATENCY)


def other_algorithm(name: str) -> GraphChange:
    """Return the change to another algorithm, priced by its formula; recorded collectives are assumed to be rings."""

    def took(shape: CallShape, own_ns: Floats, parts: TimeParts) -> Floats:
        if shape.group_size < 2 or not shape.bytes or shape.op not in RINGS:
            return own_ns
        return np.array([_priced(name, shape, own, parts.latency_ns) for own in own_ns.tolist()])

    return _of_transfers({"algorithm": name}, took, LATENCY)


def _priced(name: str, shape: CallShape, own_ns: float, latency_ns: float) -> float:
    base = min(latency_ns, own_ns / 2)
    unit = LinkCost(latency_ns=0.0, gbs=1.0)
    of_ring = ALGORITHMS["ring"](shape.op, shape.group_size, shape.bytes, "intra")
    link = LinkCost(
        latency_ns=base / sum(each.steps for each in of_ring),
        gbs=time_ns(of_ring, {"intra": unit}) / max(own_ns - base, 1.0),
    )
    try:
        return time_ns(ALGORITHMS[name](shape.op, shape.group_size, shape.bytes, "intra"), {"intra": link})
    except ValueError:
        return own_ns


def pauses_capped(cap_ms: float) -> GraphChange:
    """Return the change in which no host pauses for longer; the steps of this room do not hold the host's pauses."""
    return GraphChange(
        knobs={"host_pauses_ms": cap_ms}, change=lambda graph, _: graph, pause_cap_ms=cap_ms, hypothetical=True
    )


def straggler_removed(rank: int, late: tuple[int, ...]) -> GraphChange:
    """Return the change in which a rank is as fast between two launches as the others; all must make the same calls.

    `late` holds all ranks that are late together, which a dependency graph removes together.
    """
    return GraphChange(
        knobs={"straggler_removed": rank if len(late) < 2 else "+".join(map(str, late))},
        change=lambda graph, _: _without_delay(graph, rank),
        late=late or (rank,),
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

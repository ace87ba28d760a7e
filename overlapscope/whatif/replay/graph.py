"""A recorded step of any kind of parallelism as a graph: what each rank computes, launches and waits for, in order.

Nothing here depends on a framework. Collectives connect the ranks; the programme of a rank says after which compute it
launched a collective, and which compute had to wait for it. `graph_job` removes interference and makes a job to replay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.whatif.replay.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload.workload import Interference

P2P: Final = frozenset({"send", "recv", "send_recv"})


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the time of a collective depends on, besides its link."""

    op: str
    bytes: int
    """0 where it was not recorded."""
    dtype: str | None
    group_size: int


class Call(CallShape, frozen=True, kw_only=True):
    """A collective, or a point-to-point message, of a step."""

    group: str
    ranks: tuple[int, ...]
    """The recorded ranks that took part."""
    own_ns: float
    """Link time of the call, until the first member had the result."""
    recorded_ns: float
    """The recorded link time; changes of the graph do not touch it."""
    beside: float
    """Share of the link time in which a member computed."""
    stream: str
    link: str
    dimension: str | None = None
    phase: str | None = None
    module: str | None = None
    late_ns: Mapping[int, float] = {}
    """By rank, the recorded link time from the first member's end to this rank's end; only ranks that ended later."""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded compute; during `beside_ns` of it a collective moved data on the rank."""

    ns: float
    beside_ns: float


class LateEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How much later than the first rank a rank without a device saw a collective end: because of its link or CPU."""

    ns: float
    collective: int


Item = Busy | Gap | Launch | Wait | LateEnd


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded step."""

    calls: tuple[Call, ...]
    programmes: Mapping[int, tuple[Item, ...]]
    measured_ns: float
    """From the start of the first rank to the end of the last."""
    width: int
    """Number of collectives that a stream runs at once."""


class MutualSlowdown(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long compute takes beside a transfer, and a transfer beside compute."""

    compute: float = 1.0
    comm: float = 1.0


def graph_job(graph: Graph, slowed: MutualSlowdown, *, transfer_time: float = 1.0, late_share: float = 0.0) -> Job:
    """Return the job to replay, where collectives take `transfer_time` times as long.

    `late_share` is the share of the recorded late ends that is link time; the rest is the rank's own time.
    """
    return Job(
        programmes={rank: _free(items, slowed.compute, late_share) for rank, items in graph.programmes.items()},
        transfers=[_transfer(each, slowed.comm, transfer_time, late_share) for each in graph.calls],
        interference=Interference(compute=slowed.compute, comm=slowed.comm),
        width=graph.width,
    )


def _transfer(call: Call, slowed: float, transfer_time: float, late_share: float) -> Transfer:
    pace = transfer_time / (1 + (slowed - 1) * call.beside)
    later = late_share * (call.own_ns / call.recorded_ns if call.recorded_ns else 1.0)
    total = call.own_ns + later * max(call.late_ns.values(), default=0.0)
    had = {rank: call.own_ns + later * call.late_ns.get(rank, 0.0) for rank in call.ranks}
    return Transfer(
        ranks=call.ranks,
        alone_ns=total * pace,
        stream=call.stream,
        link=call.link,
        early={rank: ns / total for rank, ns in had.items() if 0 < ns < total},
    )


def _free(items: Sequence[Item], slowdown: float, late_share: float) -> list[Instruction]:
    lost = 1 - 1 / slowdown
    found: list[Instruction] = []
    for each in items:
        if isinstance(each, Busy):
            found.append(Work(each.ns - each.beside_ns * lost))
        elif isinstance(each, LateEnd):
            found.append(Gap(each.ns * (1 - late_share)))
        else:
            found.append(each)
    return found


def without(graph: Graph, calls: Iterable[int]) -> Graph:
    """Return the step without these calls: no rank launches them or waits for them."""
    gone = set(calls)
    return replace(
        graph,
        programmes={
            rank: tuple(
                each for each in items if not (isinstance(each, Launch | Wait | LateEnd) and each.collective in gone)
            )
            for rank, items in graph.programmes.items()
        },
    )


def retimed(graph: Graph, time_ns: Callable[[Call], float]) -> Graph:
    """Return the step with the link times of its collectives replaced by `time_ns`."""
    return replace(graph, calls=tuple(replace(each, own_ns=time_ns(each)) for each in graph.calls))


def launch_order(graph: Graph, rank: int) -> list[int]:
    """Return the calls of a rank in the order in which it launches them."""
    return [each.collective for each in graph.programmes[rank] if isinstance(each, Launch)]

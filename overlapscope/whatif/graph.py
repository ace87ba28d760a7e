"""A recorded step of any kind of parallelism as tasks: what each rank computes, launches and waits for, in order.

Nothing here knows a framework. Collectives join the ranks; a rank's programme says where its compute had come when it
launched one, and where it could not go on without one. `graph_job` frees it of interference and gives it to the replay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.whatif.replay import Gap, Instruction, Job, Launch, Transfer, Wait, Work
from overlapscope.whatif.workload import Interference

P2P: Final = frozenset({"send", "recv", "send_recv"})


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or a message, of a step."""

    op: str
    bytes: int
    """0 where it was not recorded."""
    dtype: str | None
    group: str
    ranks: tuple[int, ...]
    """Those that were recorded."""
    group_size: int
    own_ns: float
    """Time of its link that it took for itself, until the first member had it."""
    recorded_ns: float
    """The same as recorded, whatever was changed since."""
    beside: float
    """Share of it in which some member computed."""
    stream: str
    link: str
    dimension: str | None = None
    phase: str | None = None
    module: str | None = None
    late_ns: Mapping[int, float] = {}
    """How much more time of the link went by until other members had it, as recorded; those that had it last."""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """Compute as it was recorded; `beside_ns` of it while a collective moved data on the rank."""

    ns: float
    beside_ns: float


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """How much later than the first a rank without a device saw a collective end: for its link, or for a core."""

    ns: float
    collective: int


Item = Busy | Gap | Launch | Wait | Late


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded step."""

    calls: tuple[Call, ...]
    programmes: Mapping[int, tuple[Item, ...]]
    measured_ns: float
    """From the start of the first rank to the end of the last."""
    width: int
    """Collectives that a stream runs at once."""


class Slowed(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer compute takes beside a transfer, and a transfer beside compute."""

    compute: float = 1.0
    comm: float = 1.0


def graph_job(graph: Graph, slowed: Slowed, *, transfer_time: float = 1.0, late_share: float = 0.0) -> Job:
    """Return the job to replay, where collectives take `transfer_time` times as long.

    Of what a rank saw them end late, `late_share` is time of the link, the rest its own.
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
        elif isinstance(each, Late):
            found.append(Gap(each.ns * (1 - late_share)))
        else:
            found.append(each)
    return found


def without(graph: Graph, calls: Iterable[int]) -> Graph:
    """Return the step without these calls: nobody launches them or waits for them."""
    gone = set(calls)
    return replace(
        graph,
        programmes={
            rank: tuple(
                each for each in items if not (isinstance(each, Launch | Wait | Late) and each.collective in gone)
            )
            for rank, items in graph.programmes.items()
        },
    )


def retimed(graph: Graph, time_ns: Callable[[Call], float]) -> Graph:
    """Return the step with other times of its collectives."""
    return replace(graph, calls=tuple(replace(each, own_ns=time_ns(each)) for each in graph.calls))


def launch_order(graph: Graph, rank: int) -> list[int]:
    """Return the calls of a rank in the order in which it launches them."""
    return [each.collective for each in graph.programmes[rank] if isinstance(each, Launch)]

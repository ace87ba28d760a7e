"""Cost of the known algorithms of collectives: steps, and bytes through each rank's busiest link.

Every function returns the `Stage`s of an algorithm, one after the other; `time_ns` prices them with `LinkCost`s. Sizes
are whole buffers as nccl-tests counts them: the gathered size of all-gather, the size before the reduction of
reduce-scatter, what one rank sends in all of all-to-all. Bytes are those that one rank sends; links carry as much the
other way at the same time. Tests run each schedule chunk by chunk and count.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2
from typing import Final

import msgspec

INTRA, INTER = "intra", "inter"
"""Inside a node, or along the first dimension of a torus; between nodes, or along the second."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an algorithm on one level of the topology."""

    level: str
    steps: int
    """Number of messages one after the other."""
    bytes: float
    """Bytes that the busiest rank sends."""
    reduced_bytes: float = 0.0
    """Bytes that the busiest rank adds up."""


class LinkCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one level for one rank: latency of a message, bandwidth each way, time of adding a byte."""

    latency_ns: float
    gbs: float
    """GB/s, which is bytes per nanosecond."""
    reduce_ns_per_byte: float = 0.0


Stages = tuple[Stage, ...]


def time_ns(stages: Sequence[Stage], links: Mapping[str, LinkCost]) -> float:
    """Return the time of stages in ns. Raises KeyError for a level without a link."""
    latency = sum(each.steps * links[each.level].latency_ns for each in stages)
    moving = 0.0
    for each in stages:
        link = links[each.level]
        moving += each.bytes / link.gbs + each.reduced_bytes * link.reduce_ns_per_byte
    return latency + moving


def ring(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of the ring. All-reduce: Patarasuk and Yuan, JPDC 69 (2009): reduce-scatter, then all-gather.

    All-gather, reduce-scatter: half of that each. Broadcast: a chain of many small pieces, so that each link carries
    the size once (the number of pieces goes to infinity). All-to-all: an exchange with every other rank in turn
    (pairwise exchange).
    """
    part = (ranks - 1) / ranks * size_bytes
    if op == "all_reduce":
        return (*ring("reduce_scatter", ranks, size_bytes, level), *ring("all_gather", ranks, size_bytes, level))
    if op == "broadcast":
        return (Stage(level=level, steps=ranks - 1, bytes=size_bytes if ranks > 1 else 0.0),)
    reduced = part if op == "reduce_scatter" else 0.0
    _known(op, "all_gather", "reduce_scatter", "all_to_all")
    return (Stage(level=level, steps=ranks - 1, bytes=part, reduced_bytes=reduced),)


def double_binary_tree(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of two trees, each with half of the data; an inner rank of one is a leaf of the other.

    Sanders, Speck and Träff, Parallel Computing 35 (2009); NCCL since 2.4. Data go in many small pieces: latency is the
    depth, up for a reduction and down for a broadcast, and every rank sends the size once in each direction used.
    """
    _known(op, "all_reduce", "broadcast", "reduce")
    depth = ceil(log2(ranks)) if ranks > 1 else 0
    size = size_bytes if ranks > 1 else 0.0
    up = Stage(level=level, steps=depth, bytes=size, reduced_bytes=size)
    down = Stage(level=level, steps=depth, bytes=size)
    return {"all_reduce": (up, down), "broadcast": (down,), "reduce": (up,)}[op]


def recursive_halving_doubling(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of Rabenseifner's algorithm: halves are exchanged at doubling distances, then gathered back.

    Rabenseifner, ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005). All-reduce where the number of ranks
    is not a power of two: the extra ranks send their data to a neighbour first and get the result last. The other
    operations are for powers of two. Raises ValueError for others.
    """
    _known(op, "all_reduce", "all_gather", "reduce_scatter")
    inner = 1 << (ranks.bit_length() - 1)
    if op != "all_reduce" and inner != ranks:
        raise ValueError(f"recursive halving of {op} is for powers of two, not {ranks} ranks")
    steps, part = inner.bit_length() - 1, (inner - 1) / inner * size_bytes
    halving = Stage(level=level, steps=steps, bytes=part, reduced_bytes=part)
    doubling = Stage(level=level, steps=steps, bytes=part)
    if op != "all_reduce":
        return (halving,) if op == "reduce_scatter" else (doubling,)
    if inner == ranks:
        return (halving, doubling)
    before = Stage(level=level, steps=1, bytes=size_bytes, reduced_bytes=size_bytes)
    after = Stage(level=level, steps=1, bytes=size_bytes)
    return (before, halving, doubling, after)


def bruck(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of Bruck's algorithm for any number of ranks: few steps, for small messages.

    Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8 (1997). All-gather doubles what it holds; all-to-all sends in
    step k all blocks whose distance has bit k, so it moves more bytes than the ring.
    """
    _known(op, "all_gather", "all_to_all")
    steps = (ranks - 1).bit_length()
    if op == "all_gather":
        return (Stage(level=level, steps=steps, bytes=(ranks - 1) / ranks * size_bytes),)
    blocks = sum(1 for distance in range(ranks) for bit in range(steps) if distance >> bit & 1)
    return (Stage(level=level, steps=steps, bytes=blocks / ranks * size_bytes),)


def binomial(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of the broadcast's binomial tree (Thakur et al. 2005): ranks with data double each round."""
    _known(op, "broadcast")
    steps = (ranks - 1).bit_length()
    return (Stage(level=level, steps=steps, bytes=steps * size_bytes),)


def hierarchical(ranks: tuple[int, int], size_bytes: float) -> Stages:
    """Return the stages of an all-reduce by rings inside nodes and rings between them.

    `ranks` is (ranks of a node, nodes). Cho et al., BlueConnect, MLSys 2019. Each rank of a node communicates with the
    same rank of the other nodes, so the data between nodes are split over the ranks of a node (and its network cards).
    A two-dimensional torus is the same, with the ranks of its two dimensions (Mikami et al., arXiv 1811.05233, 2018).
    """
    local, nodes = ranks
    return (
        *ring("reduce_scatter", local, size_bytes, INTRA),
        *ring("all_reduce", nodes, size_bytes / local, INTER),
        *ring("all_gather", local, size_bytes, INTRA),
    )


def in_network(op: str, ranks: int, size_bytes: float, level: str = INTRA) -> Stages:
    """Return the stages of reduction and multicast in the switch: every rank sends its data once, gets the result once.

    Graham et al., SHARP, COM-HPC 2016; NVLink SHARP inside a node. One step up and one down; both directions are used
    at the same time, so the larger counts.
    """
    _known(op, "all_reduce", "all_gather", "reduce_scatter", "broadcast")
    # Sent up by the busiest rank, received by it: all-gather sends a share and gets all, reduce-scatter the reverse.
    return (Stage(level=level, steps=2 if ranks > 1 else 0, bytes=size_bytes if ranks > 1 else 0.0),)


ALGORITHMS: Final[Mapping[str, Callable[[str, int, float, str], Stages]]] = {
    "ring": ring,
    "double_binary_tree": double_binary_tree,
    "recursive_halving_doubling": recursive_halving_doubling,
    "bruck": bruck,
    "binomial": binomial,
    "in_network": in_network,
}
"""Algorithms with one level; `hierarchical` has two."""


def _known(op: str, *ops: str) -> None:
    if op not in ops:
        raise ValueError(f"this algorithm has no known schedule for {op}, only for {', '.join(ops)}")

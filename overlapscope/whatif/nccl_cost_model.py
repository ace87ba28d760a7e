"""Predict which algorithm and protocol NCCL chooses for a collective, by its own cost model for each version.

NCCL prices each pair as latency + size / bandwidth, from its own constants and the machine that it detected, and takes
the cheapest (`ncclTopoTuneModel` and `ncclTopoGetAlgoTime` in src/graph/tuning.cc, 2.24 to 2.30). Its times
are off by 25 % and more: use them for *which* algorithm, and measured curves for *how long*.
"""

from collections.abc import Mapping
from math import log2
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.errors import UsageError

LL, LL128, SIMPLE = "LL", "LL128", "SIMPLE"
PROTOCOLS: Final = (LL, LL128, SIMPLE)
TREE, RING, NVLS, NVLS_TREE, PAT = "TREE", "RING", "NVLS", "NVLS_TREE", "PAT"
NVLINK, PCI, NET = "nvlink", "pci", "net"
GPUS: Final = ("volta", "ampere", "hopper", "blackwell")
OLDEST: Final = (2, 24)
NEWEST: Final = (2, 30)
_Triple = tuple[float, float, float]


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a version: microseconds by protocol (LL, LL128, Simple), GB/s by 1, 2 and more nodes."""

    base_latency: Mapping[str, _Triple]
    latency: Mapping[str, Mapping[str, _Triple]]
    ll_most: tuple[_Triple, _Triple, _Triple, _Triple]
    """By GPU on one node, by CPU vendor (Intel, AMD) on several."""
    ring_ll128_channel: _Triple | tuple[float, ...]
    tree_channel: tuple[_Triple, _Triple, _Triple, _Triple]
    tree_ll128_channel: tuple[_Triple, _Triple, _Triple, _Triple]
    nvls_tree_channel: tuple[_Triple, _Triple, _Triple, _Triple] | None
    """None where a version's values are not known here."""
    nvls_efficiency: tuple[float, float, float, float]


_V2_29: Final = Constants(
    base_latency={TREE: (6.8, 14, 8.4), RING: (6.6, 14, 8.4), NVLS: (0, 0, 0), NVLS_TREE: (0, 0, 0), PAT: (8, 8, 8)},
    latency={
        NVLINK: {TREE: (0.6, 1.25, 4), RING: (0.6, 1.9, 3.4), NVLS: (0, 0, 25), NVLS_TREE: (0, 0, 25), PAT: (0, 0, 4)},
        PCI: {TREE: (1, 1.9, 4), RING: (1, 2.5, 5.7), NVLS: (0, 0, 0), NVLS_TREE: (0, 0, 0), PAT: (0, 0, 4)},
        NET: {
            TREE: (5, 8.5, 14), RING: (2.7, 4, 14), NVLS: (0, 0, 18), NVLS_TREE: (0, 0, 20.9), PAT: (0, 0, 14),
        },
    },
    ll_most=((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70)),
    ring_ll128_channel=(20, 20, 36.7, 40),
    tree_channel=((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24)),
    tree_ll128_channel=((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20)),
    nvls_tree_channel=((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5), (0, 96, 80)),
    nvls_efficiency=(0, 0, 0.85, 0.74),
)  # fmt: skip
_EARLIER_NVLS_TREE: Final = {
    **_V2_29.latency,
    NET: {**_V2_29.latency[NET], NVLS_TREE: (0, 0, 14)},
}
_V2_28_9: Final = replace(_V2_29, ring_ll128_channel=(20, 20, 36.7, 36.7))
_V2_28_3: Final = replace(_V2_28_9, latency=_EARLIER_NVLS_TREE)
_V2_24: Final = replace(_V2_28_3, nvls_tree_channel=None)
VERSIONS: Final[tuple[tuple[tuple[int, int, int], Constants], ...]] = (
    ((2, 29, 0), _V2_29),
    ((2, 28, 9), _V2_28_9),
    ((2, 28, 3), _V2_28_3),
    ((2, 24, 0), _V2_24),
)
"""The newest entry that is not newer than the version applies. Blackwell's ring LL128 before 2.29 is assumed to be
Hopper's."""
_TREE_CORRECTION: Final[Mapping[str, tuple[float, ...]]] = {
    LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip
"""Correction by power of two from 64 bytes on: trees do not follow the model at medium sizes."""


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as NCCL detected it; `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=GRAPH` prints it."""

    ranks: int
    nodes: int
    gpu: Literal["volta", "ampere", "hopper", "blackwell"]
    channels: int
    channel_gbs: float
    """Bandwidth of one channel inside a node."""
    inter_channel_gbs: float | None = None
    """Bandwidth of one channel between nodes; None is the same as inside."""
    inside: Literal["nvlink", "pci"] = "nvlink"
    cpu: Literal["intel", "amd", "other"] = "intel"
    nvls: bool = False
    """Whether the switch reduces (NVLink SHARP)."""
    nvls_channels: int | None = None
    net_latency_us: float = 0.0
    """Latency that the network plugin reports; InfiniBand's reports 0."""
    ll128: bool | None = None
    """Whether LL128 is allowed; None is NCCL's rule: with NVLink, on a GPU that supports it."""


class NcclChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of NCCL's own model."""

    algorithm: str
    protocol: str
    model_ns: float
    """The model's estimate; not a measurement."""


def choose(op: str, size_bytes: int, fabric: Fabric, version: tuple[int, ...]) -> NcclChoice | None:
    """Return NCCL's choice for one collective, with its size as nccl-tests counts it; None without a known model.

    Raises UsageError for a version without a table and an operation without a model.
    """
    constants = constants_of(version)
    if op not in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        raise UsageError(f"NCCL has no cost model for {op}; it has for all_reduce, all_gather, reduce_scatter, "
                         "broadcast and reduce")  # fmt: skip
    if op == "all_reduce" and fabric.nvls and fabric.nodes > 1 and constants.nvls_tree_channel is None:
        return None
    best: NcclChoice | None = None
    for algorithm in _algorithms(op, fabric):
        for protocol in PROTOCOLS:
            time = _time_us(op, algorithm, protocol, size_bytes, fabric, constants)
            if time is not None and (best is None or time * 1000 < best.model_ns):
                best = NcclChoice(algorithm=algorithm, protocol=protocol, model_ns=time * 1000)
    return best


def constants_of(version: tuple[int, ...]) -> Constants:
    """Return the constants of a version. Raises UsageError for one that is not known."""
    full = (*version, 0, 0)[:3]
    for since, constants in VERSIONS:
        if full >= since and full[:2] <= NEWEST:
            return constants
    known = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    raise UsageError(f"NCCL {'.'.join(map(str, version))}: its cost model is not known here; known are {known}")


def _algorithms(op: str, fabric: Fabric) -> tuple[str, ...]:
    one_each = fabric.ranks == fabric.nodes
    if op == "all_reduce":
        return (TREE, RING, *((NVLS,) if fabric.nvls and fabric.nodes == 1 else ()),
                *((NVLS_TREE,) if fabric.nvls and fabric.nodes > 1 else ()))  # fmt: skip
    if op in ("all_gather", "reduce_scatter"):
        return (RING, *((NVLS,) if fabric.nvls and fabric.nodes == 1 else ()), *((PAT,) if one_each else ()))
    return (RING,)


def _time_us(
    op: str, algorithm: str, protocol: str, size_bytes: int, fabric: Fabric, constants: Constants
) -> float | None:
    if protocol != SIMPLE and algorithm in (NVLS, NVLS_TREE, PAT):
        return None
    if protocol == LL128 and not _ll128(fabric):
        return None
    bandwidth = _bandwidth(op, algorithm, protocol, fabric, constants)
    if not bandwidth:
        return None
    latency = _latency(op, algorithm, protocol, fabric, constants)
    power = (size_bytes >> 6).bit_length() - 1
    corrected = _TREE_CORRECTION[protocol]
    if algorithm == TREE and op == "all_reduce" and 0 <= power < len(corrected):
        bandwidth *= corrected[power]
    far = fabric.nodes > 1 and size_bytes / (fabric.channels * fabric.ranks) >= 64
    if far and (algorithm, protocol, op) == (
        RING,
        SIMPLE,
        "all_reduce",
    ):  # the "plateau effect of ring" in NCCL's source
        latency *= 1.9 if fabric.gpu == "volta" else 1.4
    return latency + size_bytes / (1000 * bandwidth)


def _ll128(fabric: Fabric) -> bool:
    return fabric.inside == NVLINK if fabric.ll128 is None else fabric.ll128


def _steps(op: str, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


def _bandwidth(op: str, algorithm: str, protocol: str, fabric: Fabric, constants: Constants) -> float:
    """Return the bandwidth in GB/s by which the model divides the size; 0 for what the model excludes."""
    gpu, span = GPUS.index(fabric.gpu), min(fabric.nodes, 3) - 1
    inter = fabric.inter_channel_gbs if fabric.inter_channel_gbs is not None else fabric.channel_gbs
    channels, channel = fabric.channels, fabric.channel_gbs if fabric.nodes <= 2 else inter
    local = fabric.ranks / fabric.nodes
    row = gpu if fabric.nodes == 1 else int(fabric.cpu == "amd")
    if algorithm in (NVLS, NVLS_TREE):
        channels = fabric.nvls_channels or channels
        if channels < 2:
            return 0.0
        inside = fabric.channel_gbs * constants.nvls_efficiency[gpu] * (channels - 1) / channels
        inside *= 2 if op == "all_reduce" else (local - 1) / local
        between = inter * (2 if fabric.nodes <= 2 and algorithm == NVLS_TREE else 1)
        channel = min(inside, between)
        if algorithm == NVLS_TREE and constants.nvls_tree_channel is not None:
            channel = min(channel, constants.nvls_tree_channel[gpu][span])
    bus = channels * channel
    if algorithm == RING and protocol == LL:
        bus = min(constants.ll_most[row][span], bus / 2)
    if algorithm == RING and protocol == LL128:
        bus = min(0.92 * bus, channels * constants.ring_ll128_channel[gpu])
    if algorithm == TREE:
        bus = min(0.92 * bus, channels * constants.tree_channel[gpu][span])
        if protocol == LL:
            bus = min(bus / 3.8, constants.ll_most[row][span])
        elif protocol == LL128:
            share = 7 / 9 if fabric.nodes == 1 else 120 / 128
            bus = min(share * bus, channels * constants.tree_ll128_channel[gpu][span])
    if algorithm == PAT:
        bus *= 0.75
    if algorithm != RING and op in ("all_gather", "reduce_scatter"):
        return bus
    halved = algorithm in (TREE, PAT)
    return bus * (0.5 if halved else fabric.ranks / _steps(op, fabric.ranks))


def _latency(op: str, algorithm: str, protocol: str, fabric: Fabric, constants: Constants) -> float:
    """Return the latency in microseconds, by NCCL's model."""
    place, nodes, ranks = PROTOCOLS.index(protocol), fabric.nodes, fabric.ranks
    inside = constants.latency[fabric.inside][algorithm][place]
    between = constants.latency[NET][TREE if ranks == nodes else algorithm][place]
    between += fabric.net_latency_us * (2 if protocol == SIMPLE else 1)
    base = constants.base_latency[algorithm][place]
    if algorithm == RING:
        if op in ("broadcast", "reduce"):
            return base + constants.latency[fabric.inside if nodes == 1 else NET][algorithm][place]
        overhead = (2.0 if fabric.cpu == "amd" else 1.0) * (3 if protocol == SIMPLE else 1) if nodes > 1 else 0.0
        crossings = 2 * (nodes - 1) if op == "all_reduce" else nodes - 1
        steps = _steps(op, ranks)
        return base + (steps - crossings) * max(inside, overhead) + crossings * between
    levels = int(log2(nodes))
    if algorithm == TREE:
        return base + 2 * ((ranks / nodes - 1) * inside + levels * between)
    if algorithm == NVLS:
        return inside + (between if nodes > 1 else 0.0)
    if algorithm == NVLS_TREE:
        return base + inside + 2 * levels * between
    return base + levels * between / 3.5 + 2.8 * ranks

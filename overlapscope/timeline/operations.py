"""Kinds of operations: names in `Collectives.op`, how much each moves (counted as nccl-tests does), and host waits."""

import re
from typing import Final

SEND_OPS: Final = ("send", "recv")
"""One message between two ranks, as named by its sender and by its receiver."""
POINT_TO_POINT: Final = frozenset({*SEND_OPS, "send_recv"})
"""These, and several of them in one call."""
SYMMETRIC: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all"})
"""Operations that no member leaves before all have arrived: only these can be split into wait and transfer."""
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Operations with a root: a member may leave before others arrive, as the root of a broadcast that has sent all."""
UNNAMED: Final = "unknown"
"""Name of an operation that its source does not tell, such as those of RCCL's generic kernel."""
COMPUTATION: Final = "host operations"
"""Name of the compute spans of CPU runs: each is a union of operations, which have no common name."""
AUTOGRAD_NODE: Final = "autograd::engine::evaluate_function: "
"""Start of the names of ranges in which autograd runs a node and its hooks. The node's work has a range of its own."""
WAITS_FOR_DEVICE: Final = re.compile(
    r"[a-z]+(?:Device|Ctx|Context|Stream|Event|Queue)(?:Host)?Synchronize(?:_\w+)?"
    r"|(?:cuda|hip|cu)Memcpy(?:2D|3D|Peer|ToSymbol|FromSymbol|WithStream|DtoH|HtoD|DtoD)?(?:_\w+)?"
)
"""Full names of device API calls that return when the device has finished what they wait for; the timeline contains
them as annotations of this name."""
COMPILED_REGION: Final = "Torch-Compiled Region"
"""Name of the operation that is a frame compiled by torch.compile, followed by a number."""
COMPILED_GRAPH: Final = "CompiledFunction"
"""One compiled graph in forward; AOTAutograd names its function so."""
COMPILED: Final = re.compile(rf"{COMPILED_REGION}\b|{COMPILED_GRAPH}$")
"""Both; the timeline contains them as annotations of this name."""
ITEM_BYTES: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by the dtype's name in torch."""
MAX_COUNT: Final = 2**62
"""A larger count of anything is damage."""
OPS_WITHOUT_VOLUME: Final = frozenset({"wait", "barrier", "coalesced"})
"""Pseudo-collectives: their recorded sizes are not moved data."""


def move_as_much(op: str, volume: int | None) -> bool:
    """Return whether calls of one operation and size (None if unknown) are known to move as much as each other."""
    return volume is not None or op in OPS_WITHOUT_VOLUME


def possible_count(number: int) -> int | None:
    """Return the number, or None where it cannot be a count."""
    return number if 0 <= number < MAX_COUNT else None


def full_elements(op: str, moved_in: int | None, moved_out: int | None, group_size: int | None) -> int | None:
    """Return the number of elements that nccl-tests calls the size of the operation.

    That is the gathered size for all-gather, the size before reduction for reduce-scatter, what a rank sends for
    all-to-all and send, what it receives for recv. Either argument may be unknown; None if that is not enough.
    """
    if op in OPS_WITHOUT_VOLUME:
        return None
    shard = {"all_gather": moved_in, "gather": moved_in, "reduce_scatter": moved_out, "scatter": moved_out}.get(op)
    whole = {"all_gather": moved_out, "gather": moved_out, "reduce_scatter": moved_in, "scatter": moved_in}.get(op)
    if op in ("all_gather", "gather", "reduce_scatter", "scatter"):
        if whole:
            return whole
        return possible_count(shard * group_size) if shard is not None and group_size else None
    if op == "recv":
        return moved_out if moved_out else moved_in
    return moved_in if moved_in else moved_out


def volume_bytes(elements: int | None, dtype: str | None) -> int | None:
    """Return the bytes of so many elements; None where either is unknown or the product is impossible."""
    item = ITEM_BYTES.get(dtype or "")
    return possible_count(elements * item) if elements is not None and item else None


def bus_factor(op: str, ranks: int) -> float:
    """Return busbw / algbw as nccl-tests computes it (doc/PERFORMANCE.md and each test's `GetBw`)."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0

"""NCCL's table of what each algorithm and protocol would take, printed by member 0 at initialisation (TUNING).

    Latency/AlgBw |    Tree/    LL |    Tree/ LL128 | ...         before 2.18; one table
      Algorithm   |                  Tree                  | ...  since 2.18; several blocks of up to three algorithms
      Protocol    |      LL |   LL128 |  Simple | ...
        AllReduce |    27.1/  10.2 |    35.3/  40.8 | ...         latency in microseconds, bandwidth in GB/s
"""

import re
from typing import Final

from overlapscope.ingest.nccl_communicators import Thread

OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allreducewithbias": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
    "alltoall": "all_to_all",
    "alltoallpivot": "all_to_all",
    "alltoallv": "all_to_allv",
    "gather": "gather",
    "scatter": "scatter",
}
"""Our names of operations by NCCL's, in small letters."""
_SPELLINGS: Final = {"COLLNETDIRECT": "COLLNET_DIRECT", "COLLNETCHAIN": "COLLNET_CHAIN", "NVLSTREE": "NVLS_TREE"}
_CELL: Final = re.compile(rb"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)/\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*")
_PAIR: Final = re.compile(r"\s*(\w{1,20})/\s*(\w{1,20})\s*")
_PROTOCOLS: Final = 3


def operation(name: str) -> str:
    """Give our name of an operation that NCCL spells so; an unknown one in small letters with underscores."""
    known = OPERATIONS.get(name.lower())
    return known or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def spelled(name: str) -> str:
    """Give one spelling of an algorithm or protocol: `Tree`, `CollNetDirect`, `Simple` in capitals, as calls have it."""
    return _SPELLINGS.get(name.upper(), name.upper())


def cost_line(thread: Thread, body: bytes) -> bool:
    """Take a line of the table; whether it is one and could be read."""
    title, *cells = body.split(b"|")
    name = title.decode("ascii", "replace").strip()
    texts = [cell.decode("ascii", "replace") for cell in cells if cell.strip()]
    if name == "Latency/AlgBw":
        pairs = [_PAIR.fullmatch(text) for text in texts]
        thread.columns = [(spelled(pair[1]), spelled(pair[2])) for pair in pairs if pair]
        return len(thread.columns) == len(pairs)
    if name == "Algorithm":
        thread.algorithms = [spelled(text.strip()) for text in texts]
        return True
    if name == "Protocol":
        protocols = [spelled(text.strip()) for text in texts]
        thread.columns = [
            (algorithm, protocol)
            for place, algorithm in enumerate(thread.algorithms)
            for protocol in protocols[_PROTOCOLS * place : _PROTOCOLS * (place + 1)]
        ]
        return True
    if name == "Max NThreads":
        return True
    values = [_CELL.fullmatch(cell) for cell in cells if cell.strip()]
    if name.lower() not in OPERATIONS or not values:
        return False
    for (algorithm, protocol), value in zip(thread.columns, values, strict=False):
        if value is None:
            return False
        thread.told.costs.append((operation(name), algorithm, protocol, float(value[1]), float(value[2])))
    return True

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
    "alltoallgda": "all_to_all",
    "alltoallv": "all_to_allv",
    "alltoallvgda": "all_to_allv",
    "gather": "gather",
    "scatter": "scatter",
}
"""Our names of operations by NCCL's, in small letters."""
_SPELLINGS: Final = {"COLLNETDIRECT": "COLLNET_DIRECT", "COLLNETCHAIN": "COLLNET_CHAIN", "NVLSTREE": "NVLS_TREE"}
_TITLES: Final = frozenset(("Latency/AlgBw", "Algorithm", "Protocol", "Max NThreads"))
_CELL: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)/ {0,12}([0-9]{1,12}(?:\.[0-9]{1,6})?)")
_PAIR: Final = re.compile(r"(\w{1,20})/ {0,12}(\w{1,20})")
_PROTOCOLS: Final = 3


def operation(name: str) -> str:
    """Give our name of an operation that NCCL spells so; an unknown one in small letters with underscores."""
    known = OPERATIONS.get(name.lower())
    return known or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def spelled(name: str) -> str:
    """Give one spelling of an algorithm or protocol: `Tree`, `CollNetDirect` in capitals, as calls have it."""
    return _SPELLINGS.get(name.upper(), name.upper())


def cost_line(thread: Thread, body: bytes) -> bool:
    """Take a line of the table; whether it is one and could be read."""
    title, *cells = body.split(b"|")
    name = title.decode("ascii", "replace").strip()
    texts = [cell.decode("ascii", "replace").strip() for cell in cells if cell.strip()]
    if name == "Latency/AlgBw":
        pairs = [_PAIR.fullmatch(text) for text in texts]
        thread.columns = [(spelled(pair[1]), spelled(pair[2])) for pair in pairs if pair]
    elif name == "Algorithm":
        thread.algorithms = [spelled(text) for text in texts]
    elif name == "Protocol":
        thread.columns = _columns(thread.algorithms, [spelled(text) for text in texts])
    elif name.lower() in OPERATIONS:
        values = [_CELL.fullmatch(text) for text in texts]
        if None in values:
            return False
        for (algorithm, protocol), value in zip(thread.columns, values, strict=False):
            assert value is not None
            thread.told.costs.append((operation(name), algorithm, protocol, float(value[1]), float(value[2])))
    return name in _TITLES or name.lower() in OPERATIONS


def _columns(algorithms: list[str], protocols: list[str]) -> list[tuple[str, str]]:
    """Give algorithm and protocol of each column; each algorithm has as many protocols."""
    return [
        (algorithm, protocol)
        for place, algorithm in enumerate(algorithms)
        for protocol in protocols[_PROTOCOLS * place : _PROTOCOLS * (place + 1)]
    ]

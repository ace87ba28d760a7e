"""Communicating nodes of a Chakra trace, of either of its forms, to calls."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from overlapscope.ingest.call_log import Call
from overlapscope.ingest.classify import Classifier, operation
from overlapscope.ingest.collective_args import count
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK
from overlapscope.values import dataclass

SEND, RECEIVE, COLLECTIVE = 5, 6, 7
OPS: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""CollectiveCommType by number; 8 is a reduce-scatter in blocks."""
_WHOLE: Final = frozenset({"all_reduce", "reduce", "broadcast", "send", "recv"})
"""Operations whose size is the same on every member; of others `comm_size` may be a part."""
_RANK: Final = re.compile(r"\.(\d{1,7})\.(?:et|json)(?:\.gz)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraNode:
    """A node and those of its attributes that are single values."""

    number: int
    name: str
    sort: int
    attributes: Mapping[str, Any]

    @staticmethod
    def sort_communicates(sort: int) -> bool:
        """Whether nodes of this type communicate."""
        return sort in (SEND, RECEIVE, COLLECTIVE)

    @property
    def communicates(self) -> bool:
        """Whether it is a collective, a send or a receive."""
        return self.sort_communicates(self.sort)


def calls_of(nodes: Sequence[ChakraNode]) -> list[Call]:
    """Give the calls in the order of the nodes' numbers.

    A trace of host and device holds both the operation that enqueues and the kernel that runs; then the latter counts.
    """
    ran = [node for node in nodes if node.communicates and _flag(node.attributes.get("is_cpu_op")) is False]
    chosen = ran or [node for node in nodes if node.communicates]
    return [_call(node) for node in sorted(chosen, key=lambda node: node.number)]


def rank_in_name(path: Path) -> int:
    """Give the rank that Chakra's tools put before the ending: `trace.3.et`; UNKNOWN_RANK without one."""
    found = _RANK.search(path.name)
    return int(found[1]) if found and int(found[1]) <= MAX_RANKS else UNKNOWN_RANK


def _call(node: ChakraNode) -> Call:
    told = node.attributes
    op = _operation(node)
    group = told.get("pg_name")
    return Call(
        op=op,
        group=str(group) if isinstance(group, (str, int)) and not isinstance(group, bool) and group != "" else None,
        bytes=(count(told.get("comm_size")) or None) if op in _WHOLE else None,
        record_function_id=count(told.get("rf_id")) or None,
    )


def _operation(node: ChakraNode) -> str:
    if node.sort in (SEND, RECEIVE):
        return "send" if node.sort == SEND else "recv"
    number = count(node.attributes.get("comm_type"))
    if number is not None and number < len(OPS):
        return OPS[number]
    spelled = re.sub(r"^c10d::|\(\d+\)$", "", node.name)
    return operation(spelled) or Classifier().place(node.name)[0].op or "unknown"


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, (bool, int)) else None

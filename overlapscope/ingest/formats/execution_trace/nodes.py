"""Convert nodes of a PyTorch execution trace to calls of collectives.

Writer: torch/csrc/profiler/standalone/execution_trace_observer.cpp. A collective of a device backend is a node
`record_param_comms`, whose inputs are identified by position: [tensors,] sequence, process group, rank, name, two lists
of splits, [first rank, stride,] group size. Sizes and the group's name are attributes since torch 2.4 (schema 1.1.0).
gloo has no such nodes; the operation `c10d::*` that made the call is used instead.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from overlapscope.ingest.build.call_timeline import LoggedCall
from overlapscope.ingest.build.collective_args import MAX_NESTED, CollectiveArgs, dtype_name, parse_count, parse_ranks
from overlapscope.ingest.build.device_collectives import GroupBook
from overlapscope.ingest.build.kernel_names import C10D_CALL, RECORD_PARAM_COMMS, canonical_operation
from overlapscope.ingest.parsing.json_values import DECODE_ERRORS
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, full_elements, volume_bytes
from overlapscope.timeline.run import MAX_RANKS, Group

GROUPS: Final = "## process_group:init ##"
DEFAULT_GROUP: Final = "default_pg"
PSEUDO: Final = frozenset({"wait", "coalesced", "init"})
"""Recorded like collectives, but nothing runs: waiting, the end of a coalesced group, the creation of a group."""
_DTYPE: Final = re.compile(r"Tensor\(([^()]*)\)")
_TENSOR_FIELDS: Final = 6


class Node(msgspec.Struct, gc=False):
    """One node; fields that only some nodes need stay undecoded."""

    id: Any = None
    name: Any = None
    rf_id: Any = None
    inputs: msgspec.Raw = msgspec.Raw(b"null")
    input_types: msgspec.Raw = msgspec.Raw(b"null")
    attrs: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def is_relevant(self) -> bool:
        """Return whether the node may describe a collective or groups."""
        name = self.name
        return isinstance(name, str) and (name in (RECORD_PARAM_COMMS, GROUPS) or C10D_CALL.match(name) is not None)


class _Attribute(msgspec.Struct, gc=False):
    name: Any = None
    value: Any = None


_listed_attributes = msgspec.json.Decoder(list[_Attribute])
_any = msgspec.json.Decoder()


def configured_groups(nodes: Iterable[Node]) -> tuple[Group, ...]:
    """Return the process groups as torch lists them when recording starts."""
    groups: dict[str, Group] = {}
    for node in nodes:
        values = _inputs(node)[0] if node.name == GROUPS else []
        if not values or not isinstance(values[0], str):
            continue
        try:
            config = json.loads(values[0])
        except (ValueError, RecursionError):
            continue
        for each in config if isinstance(config, list) else ():
            if isinstance(each, dict) and isinstance(each.get("pg_name"), str):
                groups[each["pg_name"]] = _group(each)
    return tuple(groups.values())


def _group(config: dict[str, Any]) -> Group:
    size = parse_count(config.get("group_size", config.get("pg_size"))) or None
    listed = config.get("ranks")
    ranks, _ = parse_ranks([parse_count(rank) for rank in listed] if isinstance(listed, dict) else listed)
    if ranks == () and size is not None and size <= MAX_RANKS:
        ranks = tuple(range(size))  # torch writes no list for the group of all ranks
    description = config.get("pg_desc")
    return Group(
        name=config["pg_name"],
        description=description if isinstance(description, str) else None,
        size=size or (len(ranks) if ranks else None),
        ranks=ranks or None,
    )


def recorded_call(node: Node, book: GroupBook) -> tuple[LoggedCall, int | None] | None:
    """Return the call of a `record_param_comms` node, and the caller's rank in its group.

    None for a pseudo-collective, or when no operation can be read.
    """
    attributes = _attributes(node)
    values, types = _inputs(node)
    at = _operation_at(values)
    spelled = attributes.get("collective_name", values[at] if at is not None else None)
    op = canonical_operation(spelled)
    if not isinstance(spelled, str) or (op or spelled) in PSEUDO:
        return None
    behind = values[at + 3 :] if at is not None else []
    group, description = _process_group(values[at - 2]) if at is not None else (None, None)
    args = CollectiveArgs(
        in_elements=attributes.get("in_msg_nelems"),
        out_elements=attributes.get("out_msg_nelems"),
        dtype=attributes.get("dtype"),
        group_name=attributes.get("pg_name", group),
        group_description=attributes.get("pg_desc", description),
        group_size=attributes.get("pg_size", behind[-1] if len(behind) in (1, 3) else None),
        rank_start=attributes.get("global_rank_start", behind[0] if len(behind) == 3 else None),
        rank_stride=attributes.get("global_rank_stride", behind[1] if len(behind) == 3 else None),
    )
    name = args.group_name if isinstance(args.group_name, str) else None
    size = book.size_of(name, args)
    moved_in, moved_out = parse_count(args.in_elements), parse_count(args.out_elements)
    dtype = dtype_name(args.dtype)
    if moved_in is None and moved_out is None and at is not None and at > 3:
        moved_in, dtype = elements_of(values[0]), dtype or _dtype_of(types[:1])
    rank = parse_count(values[at - 1]) if at is not None else None
    seq = _sequence(values[at - 3]) if at is not None else None
    return _call(op or "unknown", name, size, seq, dtype, moved_in, moved_out, _function_id(node, attributes)), rank


def entered_call(node: Node, groups: tuple[Group, ...]) -> LoggedCall | None:
    """Return the call of a `c10d::*` node; its group is known where the job has only one."""
    found = C10D_CALL.match(node.name)
    op = canonical_operation(found["op"]) if found else None
    if op is None or op in PSEUDO:
        return None
    values, types = _inputs(node)
    tensors = [elements_of(value) for value in values[:2]] + [None, None]
    group = groups[0] if len(groups) == 1 else None
    # Out-of-place operations have the output first.
    moved_out, moved_in = (tensors[0], tensors[1]) if tensors[1] is not None else (None, tensors[0])
    dtype = _dtype_of(types[:2])
    size = group.size if group else None
    return _call(
        op, group.name if group else None, size, None, dtype, moved_in, moved_out, _function_id(node, _attributes(node))
    )


def _call(
    op: str,
    group: str | None,
    group_size: int | None,
    seq: int | None,
    dtype: str | None,
    moved_in: int | None,
    moved_out: int | None,
    record_function_id: int | None,
) -> LoggedCall:
    elements = full_elements(op, moved_in, moved_out, group_size)
    return LoggedCall(
        op=op,
        group=group,
        group_size=group_size,
        seq=seq,
        dtype=None if op in OPS_WITHOUT_VOLUME else dtype,
        elements=elements,
        bytes=volume_bytes(elements, dtype),
        record_function_id=record_function_id,
    )


def _attributes(node: Node) -> dict[str, Any]:
    try:
        listed = _listed_attributes.decode(node.attrs)
    except DECODE_ERRORS:
        return {}
    return {each.name: each.value for each in listed if isinstance(each.name, str)}


def _inputs(node: Node) -> tuple[list[Any], list[Any]]:
    """Return values and types of a node's inputs, of either schema; empty lists where there are none."""
    try:
        decoded = _any.decode(node.inputs)
        if isinstance(decoded, dict):
            inputs, types = decoded.get("values"), decoded.get("types")
        else:
            inputs, types = decoded, _any.decode(node.input_types)
    except DECODE_ERRORS:
        return [], []
    return (inputs if isinstance(inputs, list) else []), (types if isinstance(types, list) else [])


def _operation_at(values: list[Any]) -> int | None:
    """Return the index of the operation's name: behind a rank, and optionally tensors before the sequence number."""
    for at in (4, 3):
        if len(values) > at and isinstance(values[at], str) and parse_count(values[at - 1]) is not None:
            return at
    return None


def _process_group(value: Any) -> tuple[str | None, str | None]:
    """Return a group's name and description; before torch 2.3 it is a pointer, which has no meaning here."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0], value[1] if len(value) > 1 and isinstance(value[1], str) else None
    return (value, None) if isinstance(value, str) and not value.startswith("<") else (None, None)


def _sequence(value: Any) -> int | None:
    """Return the sequence number; sends and receives have a separate count, which is left out."""
    if isinstance(value, list):
        return parse_count(value[0]) if len(value) == 2 and value[1] is False else None
    return parse_count(value)


def elements_of(value: Any, depth: int = 0) -> int | None:
    """Return the elements of a tensor as the observer writes it, or the sum over a list of tensors; else None."""
    if not isinstance(value, list) or not value or depth > MAX_NESTED:
        return None
    if len(value) == _TENSOR_FIELDS and isinstance(value[-1], str):
        return parse_count(value[3])
    parts = [elements_of(each, depth + 1) for each in value]
    known = [part for part in parts if part is not None]
    return parse_count(sum(known)) if len(known) == len(parts) else None


def _dtype_of(types: list[Any]) -> str | None:
    found = {spelled for each in types if isinstance(each, str) for spelled in _DTYPE.findall(each)}
    return dtype_name(found.pop()) if len(found) == 1 else None


def _function_id(node: Node, attributes: dict[str, Any]) -> int | None:
    return parse_count(attributes.get("rf_id", node.rf_id)) or None

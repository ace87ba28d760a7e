"""Read a PyTorch execution trace into a rank's calls (`ExecutionTraceObserver`, schemas 1.0.1 to 1.1.1-chakra.0.0.4).

It holds every operation with its tensors, in order, but no device times (even the unit of `start_ts` differs between
versions). It adds groups, sizes and sequence numbers to a profiler's trace; the two are joined by the record-function
id.
"""

import re
from pathlib import Path

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.call_timeline import LoggedCall, call_timeline
from overlapscope.ingest.build.collective_args import parse_count
from overlapscope.ingest.build.device_collectives import GroupBook
from overlapscope.ingest.build.kernel_names import RECORD_PARAM_COMMS
from overlapscope.ingest.formats.execution_trace import NODES
from overlapscope.ingest.formats.execution_trace.nodes import (
    DEFAULT_GROUP,
    GROUPS,
    Node,
    configured_groups,
    entered_call,
    recorded_call,
)
from overlapscope.ingest.parsing.event_chunks import scan
from overlapscope.ingest.parsing.gzip_stream import ByteStream
from overlapscope.ingest.parsing.json_values import DECODE_ERRORS, MAX_BYTES, is_utf8
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.run import MAX_RANKS, UNKNOWN_RANK, Source


class _Trace(msgspec.Struct):
    nodes: list[Node]


_trace = msgspec.json.Decoder(_Trace)
_node = msgspec.json.Decoder(Node)


class _Nodes(msgspec.Struct):
    """The relevant nodes of a file, and counts of all nodes."""

    relevant: list[Node] = []
    total: int = 0
    dropped: int = 0
    truncated: bool = False


def read_execution_trace(path: Path, context: ReadContext) -> Reading:
    """Read one trace, plain or gzip, complete or cut short.

    Raises InputError when it cannot be read, is larger than json_values.MAX_BYTES, or holds no nodes.
    """
    stream = ByteStream(path, min(context.max_bytes, MAX_BYTES), context.progress)
    nodes = _decoded(b"".join(stream.blocks()), display_path(path))
    nodes.relevant.sort(key=_order)
    groups = configured_groups(nodes.relevant)
    book = GroupBook(groups)
    calls, ranks = _calls(nodes.relevant, book)
    warnings = list(stream.warnings)
    if nodes.truncated and not stream.truncated:
        warnings.append("the file ends in the middle of the nodes; read up to the last complete one")
    if not calls:
        warnings.append("none of its nodes is a collective")
    all_groups = book.groups()
    world = next((group for group in all_groups if group.description == DEFAULT_GROUP), None)
    rank = ranks.pop() if len(ranks) == 1 else UNKNOWN_RANK
    return Reading(
        timelines=(call_timeline(calls, display_path(path), rank if rank <= MAX_RANKS else UNKNOWN_RANK),),
        groups=all_groups,
        world_size=world.size if world and world.size and world.size <= MAX_RANKS else None,
        source=Source(
            path=display_path(path),
            events=nodes.total,
            dropped=nodes.dropped,
            truncated=nodes.truncated or stream.truncated,
            warnings=tuple(warnings),
        ),
    )


def _calls(relevant: list[Node], book: GroupBook) -> tuple[list[LoggedCall], set[int]]:
    """Return the calls in order, and the ranks that the calls of the group of all ranks record."""
    groups = book.groups()
    if not any(node.name == RECORD_PARAM_COMMS for node in relevant):
        entered = [entered_call(node, groups) for node in relevant if node.name != GROUPS]
        return [call for call in entered if call is not None], set()
    calls: list[LoggedCall] = []
    noted: list[tuple[str | None, int]] = []
    for node in relevant:
        found = recorded_call(node, book) if node.name == RECORD_PARAM_COMMS else None
        if found is not None:
            calls.append(found[0])
            if found[1] is not None:
                noted.append((found[0].group, found[1]))
    everybody = {group.name for group in book.groups() if group.description == DEFAULT_GROUP}
    return calls, {rank for group, rank in noted if group in everybody}


def _order(node: Node) -> int:
    """Return the node's number. Numbers are assigned when a call begins, but nodes are written when it ends."""
    number = parse_count(node.id)
    return -1 if number is None else number


def _decoded(content: bytes, path: str) -> _Nodes:
    if is_utf8(content):
        try:
            nodes = _trace.decode(content).nodes
            return _Nodes(relevant=[node for node in nodes if node.is_relevant], total=len(nodes))
        except DECODE_ERRORS:
            pass
    begin = re.search(NODES, content)
    if begin is None:
        raise InputError(f"{path}: holds no nodes; is it an execution trace?")
    found = _Nodes()
    inside = content[begin.end() :]
    whole = scan(inside)
    for start, end in whole.objects:
        node = _one(inside[start:end])
        found.total += node is not None
        found.dropped += node is None
        if node is not None and node.is_relevant:
            found.relevant.append(node)
    found.truncated = whole.end is None
    if not found.total:
        raise InputError(f"{path}: holds no complete node; is it an execution trace?")
    return found


def _one(text: bytes) -> Node | None:
    try:
        return _node.decode(text.decode("utf-8", "replace"))
    except DECODE_ERRORS:
        return None

"""Build collectives from communication spans: the call to which each span belongs, and what it moved."""

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import (
    CollectiveArgs,
    dtype_name,
    from_concrete_inputs,
    group_ranks,
    input_dtype,
    input_elements,
    named_peer_rank,
    named_places,
    parse_count,
    parse_function_id,
    peer_rank,
)
from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range, launch_context
from overlapscope.ingest.build.kernel_names import (
    API_RANGE,
    C10D_CALL,
    LIBRARY_RANGE,
    OF_SERVER,
    RECORD_PARAM_COMMS,
    SYMMETRIC_MEMORY,
    Classifier,
    canonical_operation,
)
from overlapscope.ingest.build.launch_links import DeviceSpans
from overlapscope.ingest.build.trace_columns import ApiCall, TraceColumns
from overlapscope.timeline.columns import COMM, NONE, Collectives, Ints, make
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, SEND_OPS, full_elements, volume_bytes
from overlapscope.timeline.run import Group

_NO_ARGS = CollectiveArgs()
_NUMBERS = ("group_size", "seq", "elements", "bytes", "received_bytes", "peer", "record_function_id")
_NO_CALL = ApiCall()
_RANGES = {
    "record": re.compile(rf"^{RECORD_PARAM_COMMS}$"),
    "library": LIBRARY_RANGE,
    "call": C10D_CALL,
    "symmetric": SYMMETRIC_MEMORY,
    "server": OF_SERVER,
    "api": API_RANGE,
}
"""Host ranges that describe the collective launched inside them."""
_SUMS = re.compile(r"^ncclDevKernel_(?:AllReduce|ReduceScatter|Reduce)_[A-Za-z]+_(bf16|f16|f32|f64)_")
"""Kernels of NCCL since 2.19: one of a floating type is launched for reductions of that type, though of all operators,
algorithms and protocols, whatever its name says of these (`best_kernel` of src/device/generate.py). One launch for a
group of several calls has the name of one of them; here they count as calls of one type. One of unsigned integers runs
signed ones, too (`equivalent_primary`), and one of RCCL, with older names, calls of all types."""
_SUMMED = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


class GroupBook:
    """Collects the process groups of one trace: first from its own configuration, then from collectives."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._groups = {group.name: group for group in groups}
        self._config = {group.name: group.ranks for group in groups if group.ranks is not None}

    def size_of(self, name: str | None, args: CollectiveArgs) -> int | None:
        """Return the group's size, from the collective's arguments or the group; a new group is added."""
        size = parse_count(args.group_size) or None
        if name is None:
            return size
        known = self._groups.get(name)
        if known is None or known.ranks is None:
            ranks = group_ranks(args, self._config)
            description = known.description if known else None
            if args.group_description is not None:
                description = str(args.group_description)
            known = Group(
                name=name,
                description=description,
                size=size or (known.size if known else None) or (len(ranks) if ranks else None),
                ranks=ranks,
            )
            self._groups[name] = known
        return size or known.size

    def members_of(self, name: str | None) -> tuple[int, ...]:
        """Return the ranks of a group; none where they are not known."""
        known = self._groups.get(name or "")
        return (known.ranks if known else None) or ()

    def with_places(self, own: int, peer: int, used: Collection[str]) -> tuple[str | None, int | None, int | None]:
        """Return (name, size, peer's rank) of the group in which a rank has one place and its peer another; each None
        where that is not clear.

        It is the group of the trace's other messages (`used`), if they are of one alone; else a group of the trace's
        configuration, where all with these places have the same ranks there.
        """
        if len(used) > 1:
            return None, None, None
        names = used or self._config
        fits = {name: ranks for name in names if len(ranks := self.members_of(name)) > max(own, peer)}
        if own == peer or len({(ranks[own], ranks[peer]) for ranks in fits.values()}) != 1:
            return None, None, None
        name, ranks = next(iter(fits.items()))
        return (name, len(ranks), ranks[peer]) if len(fits) == 1 else (None, None, ranks[peer])

    def groups(self) -> tuple[Group, ...]:
        """Return all groups found so far."""
        return tuple(self._groups.values())


def assemble(
    columns: TraceColumns, spans: DeviceSpans, classifier: Classifier, book: GroupBook
) -> tuple[Collectives, Ints]:
    """Return the collectives of a trace, and for each device span its row among them (NONE for other spans).

    One call may run several device spans (memcpys of a copy-engine collective); those launched within the same
    recorded call are one collective. Spans that communicate only according to our mark are not collectives. Times are
    relative to the trace's own base.
    """
    comm = np.flatnonzero((spans.kind == COMM) & ~spans.marked)
    names = columns.names.to_list()
    at = (spans.launch_lane[comm], spans.launch_ns[comm])
    ranges = {
        kind: innermost_range(columns.host, *at, rows_named(columns.host.name, names, pattern.match)).tolist()
        for kind, pattern in _RANGES.items()
    }
    call_of_span = np.full(spans.row.size, NONE, np.int64)
    rows: list[dict[str, int | str | None]] = []
    places: list[tuple[int, int] | None] = []
    seen: dict[tuple[str, int], int] = {}
    for position, span in enumerate(comm.tolist()):
        around = {kind: found[position] for kind, found in ranges.items()}
        key = next(((kind, around[kind]) for kind in ("record", "library") if around[kind] != NOWHERE), None)
        if key is None and columns.api_calls.get(around["api"], _NO_CALL).op is not None:
            key = ("api", around["api"])  # a group of different operations is not one call
        row = seen.get(key) if key else None
        if row is None:
            row = len(rows)
            rows.append(_describe(columns, names, spans, span, around, classifier, book))
            places.append(_places(columns, names, around, int(spans.device_note[span])))
            if key:
                seen[key] = row
        call_of_span[span] = row
    _fill_messages(rows, places, book)
    calls = _table(columns, spans, rows, comm, call_of_span)
    lane = _launch_lanes(spans, comm, call_of_span[comm], calls.launch_ns)
    context = launch_context(columns.host, columns.names, calls.op, lane, calls.launch_ns)
    return replace(calls, phase=context.phase, module=context.module, dimension=context.dimension), call_of_span


def _places(
    columns: TraceColumns, names: list[str], around: Mapping[str, int], device_note: int
) -> tuple[int, int] | None:
    """Return the places of a rank and its peer in their group, as the range or the device's note of a call says."""
    return next((found for each in _ranges(columns, names, around, device_note) if (found := named_places(each))), None)


def _fill_messages(
    rows: Sequence[dict[str, int | str | None]], places: Sequence[tuple[int, int] | None], book: GroupBook
) -> None:
    """Fill in group and peer of sends and receives that name neither, from the places in their ranges."""
    used = {str(row["group"]) for row in rows if row["op"] in SEND_OPS and row["group"] is not None}
    for row, ends in zip(rows, places, strict=True):
        if ends is not None and row["op"] in SEND_OPS and row["group"] is None and row["peer"] is None:
            row["group"], size, row["peer"] = book.with_places(*ends, used)
            row["group_size"] = row["group_size"] or size


def _launch_lanes(spans: DeviceSpans, comm: Ints, call: Ints, launch_ns: Ints) -> Ints:
    """Return the thread of each call's first launch; NONE without one."""
    lane = np.full(launch_ns.size, NONE, np.int64)
    first = (spans.launch_ns[comm] != NONE) & (spans.launch_ns[comm] == launch_ns[call])
    lane[call[first]] = spans.launch_lane[comm][first]
    return lane


def _describe(
    columns: TraceColumns,
    names: list[str],
    spans: DeviceSpans,
    span: int,
    around: Mapping[str, int],
    classifier: Classifier,
    book: GroupBook,
) -> dict[str, int | str | None]:
    """Return the values of one call, each from the strongest evidence that has it."""
    kernel = columns.device_collectives.get(int(spans.row[span]), _NO_ARGS)
    record = columns.host_args.get(around["record"], _NO_ARGS)
    full = kernel if kernel.collective_name is not None else record
    call = columns.host_args.get(around["call"], _NO_ARGS)
    api = columns.api_calls.get(around["api"], _NO_CALL)
    kernel_name = names[int(columns.device_name[spans.row[span]])]
    op = _operation(columns, names, full, around, int(spans.device_note[span]))
    if op is None or op == "coalesced":
        op = api.op or classifier.place(kernel_name)[0].op or op
    op = op or "unknown"

    name = next((str(args.group_name) for args in (kernel, record) if args.group_name is not None), api.group)
    seq, old_size = from_concrete_inputs(record)
    size = book.size_of(name, full) or old_size
    moved_in, moved_out, dtype = parse_count(full.in_elements), parse_count(full.out_elements), dtype_name(full.dtype)
    if moved_in is None and moved_out is None:
        moved_in, moved_out, argument_dtype = _moved_by_arguments(columns, around, call, op, size)
        dtype = dtype or argument_dtype
    dtype = dtype or _summed_dtype(kernel_name)
    elements = full_elements(op, moved_in, moved_out, size)
    moved_bytes = volume_bytes(elements, dtype)
    return {
        "op": op,
        "group": name,
        "group_size": size,
        "seq": parse_count(kernel.seq)
        if kernel.seq is not None
        else parse_count(record.seq)
        if record.seq is not None
        else seq,
        "dtype": None if op in OPS_WITHOUT_VOLUME else dtype,
        "elements": elements,
        "bytes": api.bytes if moved_bytes is None else moved_bytes,
        "received_bytes": volume_bytes(input_elements(call) if moved_out is None else moved_out, dtype)
        if op == "all_to_all"
        else None,
        "peer": _peer(columns, names, full, around, int(spans.device_note[span]), book.members_of(name), api.peer),
        "record_function_id": parse_function_id(record) or parse_function_id(call),
    }


def _summed_dtype(kernel_name: str) -> str | None:
    """Return the floating type that a kernel of NCCL adds up, as its name says; None where it is not proof of it."""
    found = _SUMS.match(kernel_name)
    return _SUMMED[found[1]] if found else None


def _peer(
    columns: TraceColumns,
    names: list[str],
    args: CollectiveArgs,
    around: Mapping[str, int],
    device_note: int,
    members: Sequence[int],
    of_library: int | None,
) -> int | None:
    """Return the peer of a send or receive as the call states it, else a range around it, else the library."""
    stated = peer_rank(args)
    if stated is not None:
        return stated
    named = (named_peer_rank(each, members) for each in _ranges(columns, names, around, device_note))
    return next((peer for peer in named if peer is not None), of_library)


def _ranges(columns: TraceColumns, names: list[str], around: Mapping[str, int], device_note: int) -> list[str]:
    """Return the names of the library's range around a call and of the device's note on it, where recorded."""
    both = ((columns.host.name, around["library"]), (columns.device_notes.name, device_note))
    return [names[int(column[row])] for column, row in both if row != NOWHERE]


def _moved_by_arguments(
    columns: TraceColumns, around: Mapping[str, int], call: CollectiveArgs, op: str, size: int | None
) -> tuple[int | None, int | None, str | None]:
    """Return elements in, elements out and dtype for older torch: from the annotation's or the caller's tensors."""
    source = columns.host_args.get(around["library"], _NO_ARGS)
    moved_in, moved_out = input_elements(source), None
    for kind in ("symmetric", "server"):
        if moved_in is None and around[kind] != NOWHERE:
            source = columns.host_args.get(around[kind], _NO_ARGS)
            moved_in = input_elements(source)
    if op in ("all_gather", "reduce_scatter") and size is None:
        # Without a group size only the caller's (output, input) gives the gathered size.
        shapes = (input_elements(call, 1), input_elements(call, 0))
        moved_in, moved_out = shapes if shapes[1] is not None else (moved_in, None)
        if op == "all_gather" and moved_out is None:
            moved_in = None
    return moved_in, moved_out, input_dtype(source) or input_dtype(call)


def _operation(
    columns: TraceColumns, names: list[str], args: CollectiveArgs, around: Mapping[str, int], device_note: int
) -> str | None:
    op = canonical_operation(args.collective_name)
    if op is not None and op != "coalesced":
        return op
    host, notes = columns.host.name, columns.device_notes.name
    spelled = (
        (LIBRARY_RANGE, host, around["library"]),
        (LIBRARY_RANGE, notes, device_note),
        (C10D_CALL, host, around["call"]),
        (SYMMETRIC_MEMORY, host, around["symmetric"]),
    )
    for pattern, column, row in spelled:
        found = pattern.match(names[int(column[row])]) if row != NOWHERE else None
        better = canonical_operation(found["op"]) if found else None
        if op == "coalesced" and better in SEND_OPS:
            return "send_recv"  # of a batch, a range of the caller names one message alone
        if better is not None and better != "coalesced":
            return better
        op = op or better
    return op


def _table(
    columns: TraceColumns, spans: DeviceSpans, rows: list[dict[str, int | str | None]], comm: Ints, call_of_span: Ints
) -> Collectives:
    total = len(rows)
    start = np.full(total, np.iinfo(np.int64).max, np.int64)
    end = np.full(total, np.iinfo(np.int64).min, np.int64)
    launch = np.full(total, np.iinfo(np.int64).max, np.int64)
    call = call_of_span[comm]
    np.minimum.at(start, call, columns.device_start_ns[spans.row[comm]])
    np.maximum.at(end, call, columns.device_end_ns[spans.row[comm]])
    launched = spans.launch_ns[comm]
    np.minimum.at(launch, call[launched != NONE], launched[launched != NONE])
    return make(
        Collectives,
        total,
        recording=0,
        start_ns=start,
        end_ns=end,
        launch_ns=np.where(launch == np.iinfo(np.int64).max, NONE, launch),
        **{key: np.array([NONE if row[key] is None else row[key] for row in rows], np.int64) for key in _NUMBERS},
        **{key: _names(columns, rows, key) for key in ("op", "group", "dtype")},
    )


def _names(columns: TraceColumns, rows: list[dict[str, int | str | None]], key: str) -> list[int]:
    return [-1 if row[key] is None else columns.names.code(str(row[key])) for row in rows]

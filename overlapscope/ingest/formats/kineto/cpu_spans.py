"""Build the spans of a CPU run, which has no device events.

Collectives run on worker threads, computation on all other threads.
"""

import re
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from overlapscope.ingest.build.collective_args import (
    CollectiveArgs,
    called_peer_rank,
    input_dtype,
    input_elements,
    parse_function_id,
)
from overlapscope.ingest.build.host_ranges import launch_context
from overlapscope.ingest.build.kernel_names import C10D_CALL, ENTERS_COLLECTIVE, HOST_COLLECTIVE, canonical_operation
from overlapscope.ingest.build.trace_columns import Mask, TraceColumns
from overlapscope.ingest.build.user_marks import comm_marks
from overlapscope.ingest.formats.kineto.transfers import EXECUTED_AS
from overlapscope.timeline.columns import COMM, COMPUTE, NONE, Collectives, Flags, Ints, Spans, make, or_missing
from overlapscope.timeline.intervals import Intervals, difference, union
from overlapscope.timeline.operations import AUTOGRAD_NODE, COMPUTATION, OPS_WITHOUT_VOLUME, full_elements, volume_bytes
from overlapscope.timeline.run import Group

_NO_ARGS = CollectiveArgs()
_MESSAGE = re.compile(r"^(?:gloo|mpi|ucc):(?:send|recv)")
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all")
"""c10d operations whose arguments are (output, input). In-place operations have the input first."""
_DIRECT_CALL = "c10d::"
_Key = tuple[str | None, int | None]
"""Operation and number of elements."""


class CpuSpans(NamedTuple):
    """What a CPU run did, in the trace's own time base and without steps."""

    spans: Spans
    collectives: Collectives
    unended: int
    """Number of collectives left out because the profiler stopped before it had recorded their end."""
    lost_launch_ns: int
    """Earliest launch of these; NONE without any."""


def cpu_spans(columns: TraceColumns, world_size: int | None, groups: Sequence[Group]) -> CpuSpans:
    """Return the spans and the collectives of a CPU run.

    `gloo:*` ranges are communication. On every thread without such ranges, computation is the union of its operations
    minus its `c10d::*` and `_c10d_functional::*` operations (enqueueing, waiting) and minus the ranges of our own
    communication marks. Annotations are neither. `Work.wait()` leaves no range: an autograd node, or an operation that
    encloses a `c10d::*` call, waits in the stretches outside of all operations inside it (a hook of FSDP2, for example)
    up to the last end of a collective in each. Functional collectives have ranges for their waits: a compiled region
    around them computes where it has no other range. A thread whose only `gloo:*` ranges are sends and receives is the
    caller's thread: it waits inside them and computes outside of them, and in operations that it begins inside of them:
    these do not block, and their ranges last until they are waited for. A collective without a recorded end is left
    out.

    If the run has exactly one group, every collective belongs to it.
    """
    host, names = columns.host, columns.names.to_list()
    talks = np.array([HOST_COLLECTIVE.match(name) is not None for name in names], np.bool_)[host.name]
    calls = np.array([C10D_CALL.match(name) is not None for name in names], np.bool_)[host.name]
    # Functional collectives have separate operations that wait.
    enters = np.array([ENTERS_COLLECTIVE.match(name) is not None for name in names], np.bool_)[host.name]
    works = ~host.is_annotation & ~talks
    waiting = (enters & works) | comm_marks(columns) | talks
    messages = np.array([_MESSAGE.match(name) is not None for name in names], np.bool_)[host.name]
    executed = np.flatnonzero(talks)
    executed = executed[np.argsort(host.start_ns[executed], kind="stable")]
    ended = ~_unended(columns, executed, messages)
    comm = executed[ended]
    calls_directly = np.array([name.startswith(_DIRECT_CALL) for name in names], np.bool_)[host.name] & works
    engine = np.array([name.startswith(AUTOGRAD_NODE) for name in names], np.bool_)[host.name] & works
    finished = np.sort(host.end_ns[comm])
    lanes, starts, ends = [], [], []
    for lane in np.setdiff1d(np.unique(host.lane[works]), np.unique(host.lane[talks & ~messages])).tolist():
        here = works & (host.lane == lane)
        waits = waiting & (host.lane == lane)
        called = np.sort(host.start_ns[calls_directly & (host.lane == lane)])
        encloses = np.searchsorted(called, host.end_ns) > np.searchsorted(called, host.start_ns)
        outer = here & ~waits & (engine | encloses)
        blocked = _blocked(columns, here & ~waits, waits, messages)
        own = difference(difference(_merged(columns, outer), _merged(columns, here & ~outer)), blocked)
        busy = difference(difference(_merged(columns, here), blocked), _waited(own, finished))
        lanes.append(np.full(busy.starts.size, lane, np.int64))
        starts.append(busy.starts)
        ends.append(busy.ends)
    none = np.empty(0, np.int64)
    compute_start = np.concatenate([none, *starts])
    entered = np.flatnonzero(calls)
    entered = entered[np.argsort(host.start_ns[entered], kind="stable")]
    calls_of = _match(columns, names, executed, ended, entered)
    call_of = [call for call, whole in zip(calls_of, ended.tolist(), strict=True) if whole]
    collectives = _collectives(columns, names, comm, call_of, world_size, groups)
    total = comm.size + compute_start.size
    spans = make(
        Spans,
        total,
        recording=0,
        lane=np.concatenate([host.lane[comm], none, *lanes]),
        kind=np.concatenate([np.full(comm.size, COMM), np.full(compute_start.size, COMPUTE)]),
        name=np.concatenate([host.name[comm], np.full(compute_start.size, columns.names.code(COMPUTATION))]),
        start_ns=np.concatenate([host.start_ns[comm], compute_start]),
        end_ns=np.concatenate([host.end_ns[comm], none, *ends]),
        launch_ns=np.concatenate([collectives.launch_ns, np.full(compute_start.size, NONE)]),
        collective=np.where(np.arange(total) < comm.size, np.arange(total), NONE),
    )
    lost = [row if call is None else call for row, call in zip(executed.tolist(), calls_of, strict=True)]
    lost_launch_ns = min(host.start_ns[np.array(lost, np.int64)[~ended]].tolist(), default=NONE)
    return CpuSpans(spans, collectives, unended=int((~ended).sum()), lost_launch_ns=lost_launch_ns)


def _unended(columns: TraceColumns, executed: Ints, messages: Flags) -> Mask:
    """Return a mask of the executed collectives whose end was not recorded.

    gloo completes a work's future, for which the training thread waits, before it ends the work's range
    (`finishWorkGloo` in ProcessGroupGloo.cpp): a profiler that is stopped in between writes the range without
    arguments and as long as 0 ns. A worker thread has none behind such a range. A message's range is of its caller's
    thread, which goes on.
    """
    host = columns.host
    last = dict(zip(host.lane[executed].tolist(), executed.tolist(), strict=True))
    is_last = np.isin(executed, list(last.values()))
    return np.asarray(is_last & (host.end_ns[executed] == host.start_ns[executed]) & ~messages[executed], np.bool_)


def _blocked(columns: TraceColumns, works: Flags, waits: Flags, messages: Flags) -> Intervals:
    """Return when a thread was in `waits`, without what it did inside of messages: those did not block it."""
    host = columns.host
    sent = _merged(columns, waits & messages)
    at = np.searchsorted(sent.starts, host.start_ns, side="left") - 1
    inside = works & (at >= 0) & (host.start_ns < np.append(sent.ends, NONE)[at])
    meanwhile = difference(_merged(columns, inside), _merged(columns, waits & ~messages))
    return difference(_merged(columns, waits), meanwhile)


def _merged(columns: TraceColumns, chosen: Flags) -> Intervals:
    return union((columns.host.start_ns[chosen], columns.host.end_ns[chosen]))


def _waited(own: Intervals, finished: Ints) -> Intervals:
    """Return the part of each stretch up to the last of the sorted ends `finished` within it."""
    last = np.searchsorted(finished, own.ends, side="right")
    has_end = last > np.searchsorted(finished, own.starts, side="right")
    return Intervals(own.starts[has_end], finished[last[has_end] - 1])


def _match(columns: TraceColumns, names: list[str], executed: Ints, ended: Mask, entered: Ints) -> list[int | None]:
    """Return for each executed collective the call it came from (row of the host ranges), or None.

    A process group executes its queue in order, so the call is the first one of the same operation and size that began
    before the execution. One without an end has no size either: its call is the first one of its operation of a size
    that was called more often than it was executed to the end. None where the call was not recorded.
    """
    start_ns = columns.host.start_ns
    waiting: dict[_Key, deque[int]] = {}
    for row in entered.tolist():
        found = C10D_CALL.match(names[int(columns.host.name[row])])
        op = canonical_operation(found["op"]) if found else None
        args = columns.host_args.get(row, _NO_ARGS)
        position = 1 if op in _OUTPUT_FIRST and input_elements(args, 1) is not None else 0
        # A barrier has a tensor that names its device, which its execution lacks.
        size = None if op in OPS_WITHOUT_VOLUME else input_elements(args, position)
        waiting.setdefault((EXECUTED_AS.get(op or "", op), size), deque()).append(row)
    keys: list[_Key] = []
    for row in executed.tolist():
        found = HOST_COLLECTIVE.match(names[int(columns.host.name[row])])
        op = canonical_operation(found["op"]) if found else None
        args = columns.host_args.get(row, _NO_ARGS)
        keys.append((op, None if op in OPS_WITHOUT_VOLUME else input_elements(args)))
    whole = Counter(key for key, is_whole in zip(keys, ended.tolist(), strict=True) if is_whole)
    left = {key for key, queue in waiting.items() if len(queue) > whole[key]}
    out: list[int | None] = []
    for row, key, is_whole in zip(executed.tolist(), keys, ended.tolist(), strict=True):
        if is_whole:
            queue = waiting.get(key) or waiting.get((key[0], None))
        else:
            queues = [waiting[each] for each in left if each[0] == key[0] and waiting[each]]
            queue = min(queues, key=lambda each: int(start_ns[each[0]]), default=None)
        out.append(queue.popleft() if queue and start_ns[queue[0]] <= start_ns[row] else None)
    return out


def _collectives(
    columns: TraceColumns,
    names: list[str],
    comm: Ints,
    call_of: list[int | None],
    world_size: int | None,
    groups: Sequence[Group],
) -> Collectives:
    only = groups[0] if len(groups) == 1 else None
    group = only.name if only else None
    members = (only.ranks if only else None) or ()
    size = (only.size or world_size) if only else None
    code = columns.names.code
    values = [
        _collective_values(columns, names, *each, size, members) for each in zip(comm.tolist(), call_of, strict=True)
    ]
    launch = [NONE if call is None else int(columns.host.start_ns[call]) for call in call_of]
    lanes = [NONE if call is None else int(columns.host.lane[call]) for call in call_of]
    ops = np.array([each.op for each in values], np.int32)
    context = launch_context(columns.host, columns.names, ops, np.array(lanes, np.int64), np.array(launch, np.int64))
    ids = [None if call is None else parse_function_id(columns.host_args.get(call, _NO_ARGS)) for call in call_of]
    return make(
        Collectives,
        comm.size,
        recording=0,
        group=code(group) if group is not None else -1,
        group_size=size if size is not None else NONE,
        op=ops,
        phase=context.phase,
        module=context.module,
        dimension=context.dimension,
        **{name: [getattr(each, name) for each in values] for name in _CollectiveValues._fields if name != "op"},
        launch_ns=launch,
        start_ns=columns.host.start_ns[comm],
        end_ns=columns.host.end_ns[comm],
        record_function_id=[or_missing(each) for each in ids],
    )


class _CollectiveValues(NamedTuple):
    """Column values of one collective."""

    op: int
    executed_op: int
    dtype: int
    elements: int
    bytes: int
    received_bytes: int
    peer: int


def _collective_values(
    columns: TraceColumns, names: list[str], row: int, call: int | None, size: int | None, members: Sequence[int]
) -> _CollectiveValues:
    """Return the column values of one executed collective.

    `row` is its execution and `call` its call (rows of the host ranges); `size` and `members` are those of its group.
    """
    code = columns.names.code
    found = HOST_COLLECTIVE.match(names[int(columns.host.name[row])])
    ran = (canonical_operation(found["op"]) if found else None) or "unknown"
    entered = C10D_CALL.match(names[int(columns.host.name[call])]) if call is not None else None
    op = (canonical_operation(entered["op"]) if entered else None) or ran
    args = columns.host_args.get(row, _NO_ARGS)
    called = columns.host_args.get(call, _NO_ARGS) if call is not None else _NO_ARGS
    # gloo's range has the input alone; the call also has what it gathers into, whatever the size of its group.
    gathered = input_elements(called) if op == "all_gather" and input_elements(called, 1) is not None else None
    count = full_elements(op, input_elements(args), gathered, size)
    dtype = None if op in OPS_WITHOUT_VOLUME else input_dtype(args)
    return _CollectiveValues(
        op=code(op),
        executed_op=code(ran),
        dtype=code(dtype) if dtype else -1,
        elements=or_missing(count),
        bytes=or_missing(volume_bytes(count, dtype)),
        received_bytes=or_missing(volume_bytes(input_elements(called), dtype) if op == "all_to_all" else None),
        peer=or_missing(called_peer_rank(called, members) if op in ("send", "recv") else None),
    )

"""Transfers of a communication hook over gloo, which our own recording adds to the metadata of a trace.

A range `gloo:*` ends behind the callbacks of its future, and what a callback does has no ranges: it runs outside of the
profiler's state. So the range holds what the callbacks compute, and what they send is missing.
"""

import re
from collections import deque
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import CollectiveArgs
from overlapscope.ingest.build.kernel_names import C10D_CALL, HOST_COLLECTIVE, canonical_operation
from overlapscope.ingest.build.trace_columns import Ranges, TraceColumns, matching
from overlapscope.timeline.columns import Ints

AFTER_NS: Final = 10_000_000_000
"""A transfer ends at most so long after the last range of its trace, which waits half a second for it."""
APART_NS: Final = 50_000
"""The clocks of a trace and of the recording beside it are less apart."""
LANE: Final = ("", "communication hook")
"""Process and thread of what callbacks send."""
EXECUTED_AS: Final = {"reduce_scatter": "all_reduce"}
"""Operations that gloo implements, and records, as another operation."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer, as the recording states it."""

    op: str
    called_ns: int
    """When it was called, and when it had ended, in nanoseconds since the epoch."""
    ended_ns: int
    elements: int | None = None
    """Of the whole buffer, as docs/definitions.md counts them."""
    dtype: str | None = None
    group_size: int | None = None


def parse_transfers(value: Any) -> tuple[Transfer, ...]:
    """Return the transfers in the order of their calls. Raises msgspec.ValidationError when they are none."""
    found = msgspec.convert(value, tuple[Transfer, ...])
    possible = (each for each in found if 0 <= each.called_ns < each.ended_ns < 1 << 62)
    return tuple(sorted(possible, key=lambda each: each.called_ns))


def inside(transfers: tuple[Transfer, ...], columns: TraceColumns, base_ns: int) -> tuple[Transfer, ...]:
    """Return the transfers in the time of the trace; the clock was set meanwhile, or is another one, for the others."""
    host = columns.host
    if not host.name.size:
        return ()
    first, last = int(host.start_ns.min()) + base_ns, int(host.end_ns.max()) + base_ns
    return tuple(
        each for each in transfers if first - APART_NS <= each.called_ns <= last and each.ended_ns <= last + AFTER_NS
    )


def with_transfers(columns: TraceColumns, transfers: tuple[Transfer, ...], base_ns: int) -> TraceColumns:
    """Return the columns with ranges of transfers up to their ends, and ranges of those that the profiler missed.

    A transfer whose call has a range is the next one of its operation: it began after the call and before the end. The
    others get a range from call to end, on a thread of their own. `transfers` are in the order of their calls.
    """
    host = columns.host
    calls, runs = _by_operation(columns, C10D_CALL), _by_operation(columns, HOST_COLLECTIVE)
    end_ns = host.end_ns.copy()
    missed: list[Transfer] = []
    for each in transfers:
        called, ended = each.called_ns - base_ns, each.ended_ns - base_ns
        call = _next(calls.get(each.op), host.end_ns, called, host.start_ns, called + APART_NS)
        if call is None:
            missed.append(each)
            continue
        run = _next(runs.get(EXECUTED_AS.get(each.op, each.op)), host.start_ns, called, host.start_ns, ended)
        if run is not None:
            end_ns[run] = min(end_ns[run], ended)
    return _added(replace(columns, host=replace(host, end_ns=end_ns)), missed, base_ns)


def _by_operation(columns: TraceColumns, pattern: re.Pattern[str]) -> dict[str | None, deque[int]]:
    """Return the rows of the host ranges whose names match, by operation and in order of their starts."""
    names, host = columns.names.to_list(), columns.host
    rows = np.flatnonzero(matching(pattern, names)[host.name])
    found: dict[str | None, deque[int]] = {}
    for row in rows[np.argsort(host.start_ns[rows], kind="stable")].tolist():
        match = pattern.match(names[int(host.name[row])])
        found.setdefault(canonical_operation(match["op"]) if match else None, deque()).append(row)
    return found


def _next(queue: deque[int] | None, early: Ints, after_ns: int, late: Ints, before_ns: int) -> int | None:
    """Take the first row whose `early` time is not before `after_ns`, if its `late` one is not after `before_ns`."""
    while queue and early[queue[0]] < after_ns - APART_NS:
        queue.popleft()
    return queue.popleft() if queue and late[queue[0]] <= before_ns else None


def _added(columns: TraceColumns, transfers: list[Transfer], base_ns: int) -> TraceColumns:
    """Return the columns with two rows more a transfer: its call, and its range."""
    if not transfers:
        return columns
    host, first = columns.host, columns.host.name.size
    names, starts, ends = list[int](), list[int](), list[int]()
    arguments: dict[int, CollectiveArgs] = {}
    for each in transfers:
        called, ended = each.called_ns - base_ns, each.ended_ns - base_ns
        own = each.elements
        if own is not None and each.op == "all_gather" and each.group_size:
            own //= each.group_size
        args = CollectiveArgs(
            input_dims=None if own is None else [[own]], input_type=None if each.dtype is None else [each.dtype]
        )
        for name, end in ((f"c10d::{each.op}", called), (f"gloo:{EXECUTED_AS.get(each.op, each.op)}", ended)):
            arguments[first + len(names)] = args
            names.append(columns.names.code(name))
            starts.append(called)
            ends.append(end)
    added = Ranges(
        lane=np.full(len(names), len(columns.lanes), np.int64),
        name=np.array(names, np.int32),
        start_ns=np.array(starts, np.int64),
        end_ns=np.array(ends, np.int64),
        is_annotation=np.arange(len(names)) % 2 == 1,
    )
    joined = {name: np.concatenate([getattr(host, name), getattr(added, name)]) for name in Ranges.__struct_fields__}
    return replace(
        columns, host=Ranges(**joined), lanes=[*columns.lanes, LANE], host_args={**columns.host_args, **arguments}
    )

"""Find the calls of one source among the calls of another source of the same rank, as sequences of tokens.

A profiler records the operation that torch requested, a library's log the calls that torch made for it: a barrier is an
all-reduce of one element, an all-to-all is a group of sends and receives, an all-gather of unequal parts is a group of
broadcasts.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.timeline.columns import NONE, Codes, Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import ITEM_BYTES, SEND_OPS
from overlapscope.timeline.run import RankTimeline

WILD: Final = -1
"""A token that matches every other token."""
MIN_KNOWN_OPS: Final = 0.5
"""Share of the calls whose operation must be known."""
ANY_CALL: Final = ("unknown", "coalesced", "gather", "scatter", "send_recv")
"""Recorded operations that may be any call, or group of calls, of the library."""
BARRIER: Final = "barrier"
BARRIER_BYTES: Final = 8
"""torch's barrier reduces one element, a float or a byte by version."""
KNOWN_SHARE: Final = 0.9
"""A column of an operation's calls is compared only if at least this share of them states it, on both sides."""
_PARTS: Final = {"broadcast": "all_gather", "reduce": "reduce_scatter"}
"""torch's name for a group of one such call for each member: parts of unequal size."""
_COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}
_ONE_BYTE: Final = "one byte"


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in order, each made of one or more rows of the source's table. Names are codes of a common table."""

    rows: Ints
    """Rows of the source's `Collectives`."""
    begin: Ints
    """Position in `rows` at which each call begins; it ends where the next one does."""
    op: Codes
    dtype: Codes
    elements: Ints
    bytes: Ints

    @property
    def size(self) -> int:
        """Number of calls."""
        return self.begin.size

    def value(self, column: Ints) -> Ints:
        """Return each call's value of a column of the source as int64, NONE where its rows differ."""
        if not self.size:
            return np.empty(0, np.int64)
        values = column[self.rows].astype(np.int64)
        least, most = np.minimum.reduceat(values, self.begin), np.maximum.reduceat(values, self.begin)
        return np.where(least == most, least, NONE)


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a timeline and their places in a log."""

    short: Calls
    """The calls of the timeline."""
    long: Calls
    """The calls of the log."""
    names: NameTable
    """Names of the codes in both."""
    places: tuple[int, ...] = ()
    """Indices of the log's calls that may be the timeline's first call; at most two are searched for."""
    reason: str = ""
    """Why the calls are not joined, and what to do; empty if there is exactly one place."""


def rows_in_call_order(timeline: RankTimeline, chosen: Flags) -> Ints:
    """Return the rows of the chosen calls in the order in which they were made, without those that only wait."""
    calls = timeline.collectives
    waits = [code for code, name in enumerate(timeline.names) if name == "wait"]
    rows = np.flatnonzero(chosen & ~np.isin(calls.op, waits))
    if timeline.basis != "log":
        for times in (calls.launch_ns[rows], calls.start_ns[rows]):
            if not (times == NONE).any():
                return rows[np.argsort(times, kind="stable")]
    return rows


def locate(timeline: RankTimeline, rows: Ints, log: RankTimeline, log_rows: Ints, members: int | None) -> Located:
    """Find the calls of a timeline as one contiguous sequence among those of a log.

    They are compared call by call; if not found, again with calls that the library received as a group taken as one.
    """
    names = NameTable()
    short, single = calls_of(timeline, rows, names), calls_of(log, log_rows, names)
    for long in _groupings(single, log.collectives.seq[log_rows], members, names):
        pattern, text = tokens(short, long, names)
        found = partial(Located, short=short, long=long, names=names)
        if (pattern != WILD).mean() < MIN_KNOWN_OPS:
            return found(reason="most of its calls do not state their operation: record with torch 2.4 or later")
        places = find_run(pattern, text)
        if len(places) > 1:
            reason = (
                f"its {short.size} calls fit the log at several places, because steps repeat; record the "
                "job's start too, or a step that is unlike the others"
            )
            return found(places=places, reason=reason)
        if places:
            return found(places=places)
    reason = (
        f"its {short.size} calls are not a contiguous part of the log's {single.size} calls: are both of one run, and "
        "is the log complete (NCCL_DEBUG_SUBSYS with COLL from the start)?"
    )
    return Located(short=short, long=single, names=names, reason=reason)


def find_run(pattern: Ints, text: Ints) -> tuple[int, ...]:
    """Return the first two places in `text` (int64 tokens) at which all of `pattern` fits, token by token.

    Comparing one row of each kind of token first, and some rows spread over the pattern, leaves few places for the full
    comparison.
    """
    places = np.arange(max(text.size - pattern.size + 1, 0))
    known = np.flatnonzero(pattern != WILD)
    kinds = np.unique(pattern[known], return_index=True)[1]
    spread = np.linspace(0, known.size - 1, min(known.size, 32)).astype(np.int64)
    for row in known[np.union1d(kinds, spread)].tolist():
        here = text[places + row]
        places = places[(here == pattern[row]) | (here == WILD)]
    found: list[int] = []
    for place in places.tolist():
        here = text[place : place + pattern.size]
        if ((here == pattern) | (here == WILD) | (pattern == WILD)).all():
            found.append(place)
            if len(found) == 2:
                break
    return tuple(found)


def _groupings(single: Calls, seq: Ints, members: int | None, names: NameTable) -> Iterator[Calls]:
    """Yield the calls one by one, then grouped; each form only if it differs from the one before."""
    yield single
    size = single.size
    for collectives in (False, True):
        together = combine_groups(single, seq, members, names, collectives=collectives)
        if together.size < size:
            yield together
        size = together.size


def calls_of(timeline: RankTimeline, rows: Ints, names: NameTable) -> Calls:
    """Return the calls in these rows, one for each row; names of operations and types are added to `names`."""
    table = timeline.collectives
    dtypes = [_plain_type(name) for name in timeline.names]
    twice = np.array([*(name in _COMPLEX for name in timeline.names), False])[table.dtype[rows]]
    elements = table.elements[rows]
    return Calls(
        rows=rows,
        begin=np.arange(rows.size),
        op=_coded(table.op[rows], [canonical_operation(name) or name for name in timeline.names], names),
        dtype=_coded(table.dtype[rows], dtypes, names),
        elements=np.where(twice & (elements != NONE), 2 * elements, elements),
        bytes=table.bytes[rows],
    )


def _plain_type(name: str) -> str:
    """Return the type that a library uses: complex numbers are sent as pairs, flags and 8-bit floats as bytes."""
    return _ONE_BYTE if ITEM_BYTES.get(name) == 1 else _COMPLEX.get(name, name)


def _coded(codes: Codes, describe_call: Sequence[str], names: NameTable) -> Codes:
    used = np.unique(codes[codes >= 0])
    new = np.full(len(describe_call) + 1, -1, np.int32)
    new[used] = [names.code(describe_call[code]) for code in used.tolist()]
    return new[codes]


def combine_groups(calls: Calls, seq: Ints, members: int | None, names: NameTable, *, collectives: bool) -> Calls:
    """Return the calls with the sends and receives of a library group combined; with `collectives`, other calls too.

    `seq` is the library's own number of each call: calls of one group share it. Newer libraries do not count calls
    that need no network, so a longer sequence of sends and receives is cut into groups of one send and one receive for
    each member, if its length is a multiple of that.
    """
    size = calls.size
    point_to_point = np.isin(calls.op, [names.code(op) for op in SEND_OPS])
    in_parts = np.isin(calls.op, [names.code(op) for op in _PARTS])
    new = np.ones(size, np.bool_)
    kind = np.where(point_to_point, -1, calls.op)
    same = (kind[1:] == kind[:-1]) & (seq[1:] == seq[:-1])
    new[1:] = ~(same & (point_to_point[1:] | (collectives & (seq[1:] != NONE))))
    run = np.cumsum(new) - 1
    begin = np.flatnonzero(new)
    length = np.diff(np.append(begin, size))[run]
    whole = np.where(point_to_point, 2 * (members or 0), np.where(in_parts, members or 0, 0))
    divides = (whole > 0) & (length % np.maximum(whole, 1) == 0)
    cut = np.where(divides, whole, np.where(point_to_point & (whole > 0) & (length > whole), 1, length))
    begin = np.flatnonzero((np.arange(size) - begin[run]) % cut == 0) if size else begin
    group_length = np.diff(np.append(begin, size))
    op = calls.op[begin].copy()
    op[point_to_point[begin] & (group_length > 1)] = names.code("all_to_all")
    for part, of in _PARTS.items():
        op[(calls.op[begin] == names.code(part)) & (group_length > 1) & (group_length == members)] = names.code(of)
    received = calls.op == names.code("recv")
    received &= group_length[np.searchsorted(begin, np.arange(size), side="right") - 1] > 1
    dtype = replace(calls, begin=begin, rows=np.arange(size)).value(calls.dtype.astype(np.int64))
    return Calls(
        rows=calls.rows,
        begin=begin,
        op=op,
        dtype=np.where(dtype == NONE, -1, dtype).astype(np.int32),
        elements=_sums(np.where(received, 0, calls.elements), begin),
        bytes=_sums(np.where(received, 0, calls.bytes), begin),
    )


def _sums(values: Ints, begin: Ints) -> Ints:
    if not begin.size:
        return begin
    missing = np.logical_or.reduceat(values == NONE, begin)
    return np.where(missing, NONE, np.add.reduceat(np.where(values == NONE, 0, values), begin))


def tokens(short: Calls, long: Calls, names: NameTable) -> tuple[Ints, Ints]:
    """Return both sequences as int64 tokens: equal tokens may be the same call, and WILD may be any call.

    Calls of one operation are compared in bytes, elements and type as far as both sides state them.
    """
    sides = np.arange(short.size + long.size) < short.size
    op = np.concatenate([short.op, long.op]).astype(np.int64)
    volume = {
        "bytes": np.concatenate([short.bytes, long.bytes]),
        "elements": np.concatenate([short.elements, long.elements]),
        "dtype": np.concatenate([short.dtype, long.dtype]).astype(np.int64),
    }
    volume["dtype"][volume["dtype"] < 0] = NONE
    barrier = names.code(BARRIER)
    if (op == barrier).any():
        small = (op == names.code("all_reduce")) & (volume["bytes"] >= 0) & (volume["bytes"] <= BARRIER_BYTES)
        op[small] = barrier
        for column in volume.values():
            column[op == barrier] = 0
    wild = np.isin(op, [names.code(name) for name in ANY_CALL]) | (op < 0)
    key = op
    for values in volume.values():
        for code in np.unique(short.op[short.op >= 0]).tolist():
            here = op == code
            if min(_known(values[here & sides]), _known(values[here & ~sides])) < KNOWN_SHARE:
                values[here] = 0
            else:
                wild |= here & (values == NONE)
        place = np.unique(values, return_inverse=True)[1]
        key = np.unique(key * (place.max(initial=0) + 1) + place, return_inverse=True)[1]
    key = np.where(wild, WILD, key)
    return key[sides], key[~sides]


def _known(values: Ints) -> float:
    return float((values != NONE).mean()) if values.size else 1.0


def contradictions(short: Calls, a: Ints, long: Calls, b: Ints, names: NameTable) -> Flags:
    """Return a mask of the pairs of calls `a[i]` of one side and `b[i]` of the other that cannot be the same call."""
    any_call = [-1, *(names.code(name) for name in (*ANY_CALL, BARRIER))]
    free = np.isin(short.op[a], any_call) | np.isin(long.op[b], any_call)
    differ: Flags = short.op[a] != long.op[b]
    for mine, its in ((short.bytes[a], long.bytes[b]), (short.elements[a], long.elements[b])):
        differ |= (mine != NONE) & (its != NONE) & (mine != its)
    differ |= (short.dtype[a] >= 0) & (long.dtype[b] >= 0) & (short.dtype[a] != long.dtype[b])
    differ &= ~free
    return differ


def describe_call(calls: Calls, call: int, names: NameTable) -> str:
    """Return one call as text: operation, bytes and type."""
    known = names.to_list()
    op, dtype = int(calls.op[call]), int(calls.dtype[call])
    volume = f" of {calls.bytes[call]} bytes" if calls.bytes[call] != NONE else ""
    typed = f" {known[dtype]}" if dtype >= 0 else ""
    return f"{known[op] if op >= 0 else 'a call'}{volume}{typed}"

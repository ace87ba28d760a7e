"""What the host threads did, and what was waited for, from the columns of one trace."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.host_ranges import nested_order
from overlapscope.ingest.build.profiler_names import MODULE_CALL
from overlapscope.ingest.build.trace_columns import Mask, Ranges, TraceColumns, matching
from overlapscope.timeline.columns import (
    ANNOTATION,
    NONE,
    OPERATION,
    PYTHON,
    RUNTIME,
    Codes,
    Flags,
    HostSpans,
    Ints,
    Small,
    Syncs,
    size,
    take,
)
from overlapscope.timeline.lazy_host_spans import Times, chosen_spans, lie_around
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order

_PYTHON: Final = re.compile(re.escape(MODULE_CALL))
_QUERY: Final = re.compile(r"(?:cuda|hip|cu)(?:Event|Stream)Query")
"""CUPTI files these under synchronisations, but they return at once."""


class HostParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the host spans of a trace are made of, as its columns hold it."""

    host: Ranges
    is_module: Mask
    """Whether each of these ranges is the call of a module."""
    call_lane: Ints
    call_name: Codes
    call_start_ns: Ints
    call_end_ns: Ints
    call_correlation: Ints
    rest: HostSpans
    base_ns: int
    """Added to all times."""

    @property
    def num_spans(self) -> int:
        """The number of host spans."""
        return self.host.name.size + self.call_name.size + size(self.rest)

    def __call__(self) -> HostSpans:
        """Return the host spans."""
        return self._of(self._range_kinds, slice(None), slice(None), slice(None))

    def select(self, kinds: Sequence[int], names: Flags | None = None, around: Times | None = None) -> HostSpans:
        """Return the host spans of some kinds, of the name codes that are flagged, around one of some times."""
        host, others, kind = self.host, self.rest, self._range_kinds
        ranges = chosen_spans(kind, host.name, kinds, names)
        calls = chosen_spans(np.full(self.call_name.size, RUNTIME, np.int8), self.call_name, kinds, names)
        rest = chosen_spans(others.kind, others.name, kinds, names)
        if around is not None:
            times = [(begin - self.base_ns, end - self.base_ns) for begin, end in around]
            ranges &= lie_around(host.start_ns, host.end_ns, times)
            calls &= lie_around(self.call_start_ns, self.call_end_ns, times)
            rest &= lie_around(others.start_ns, others.end_ns, times)
        return self._of(kind, np.flatnonzero(ranges), slice(None) if calls.all() else calls, rest)

    @property
    def _range_kinds(self) -> Small:
        kind = np.where(self.host.is_annotation, np.int8(ANNOTATION), np.int8(OPERATION))
        kind[self.is_module] = PYTHON
        return kind

    def _of(self, kinds: Small, ranges: Ints | slice, calls: Flags | slice, rest: Flags | slice) -> HostSpans:
        host, others = self.host, self.rest
        kind, correlation = kinds[ranges], self.call_correlation[calls]
        return in_order(
            lane=np.concatenate([host.lane[ranges], self.call_lane[calls], others.lane[rest]]),
            kind=np.concatenate([kind, np.full(correlation.size, RUNTIME, np.int8), others.kind[rest]]),
            name=np.concatenate([host.name[ranges], self.call_name[calls], others.name[rest]]),
            start_ns=np.concatenate([host.start_ns[ranges], self.call_start_ns[calls], others.start_ns[rest]])
            + self.base_ns,
            end_ns=np.concatenate([host.end_ns[ranges], self.call_end_ns[calls], others.end_ns[rest]]) + self.base_ns,
            correlation=np.concatenate([np.full(kind.size, NONE, np.int64), correlation, others.correlation[rest]]),
        )


def host_parts(columns: TraceColumns, base_ns: int) -> HostParts:
    """Return what the host spans are made of: all host ranges and runtime calls."""
    return HostParts(
        host=columns.host,
        is_module=rows_named(columns.host.name, columns.names.to_list(), _PYTHON.match),
        call_lane=columns.launch_lane,
        call_name=columns.launch_name,
        call_start_ns=columns.launch_start_ns,
        call_end_ns=columns.launch_end_ns,
        call_correlation=columns.launch_correlation,
        rest=columns.host_rest,
        base_ns=base_ns,
    )


def in_order(*, lane: Ints, kind: Small, name: Codes, start_ns: Ints, end_ns: Ints, correlation: Ints) -> HostSpans:
    """Return the host spans of one recording window, sorted as `HostSpans` states."""
    order = nested_order(lane, start_ns, end_ns)
    return HostSpans(
        recording=np.zeros(order.size, np.int64),
        lane=lane[order],
        kind=kind[order],
        name=name[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        correlation=correlation[order],
    )


def host_syncs(columns: TraceColumns, base_ns: int) -> Syncs:
    """Return the recorded synchronisations in order of time, `base_ns` added to their times."""
    syncs, names = columns.syncs, columns.names.to_list()
    if not size(syncs):
        return syncs
    queries = columns.launch_correlation[matching(_QUERY, names)[columns.launch_name]]
    syncs = take(syncs, ~np.isin(syncs.correlation, queries[queries != NONE]))
    syncs = replace(syncs, start_ns=syncs.start_ns + base_ns, end_ns=syncs.end_ns + base_ns)
    return take(syncs, sort_order(syncs.start_ns, syncs.end_ns))

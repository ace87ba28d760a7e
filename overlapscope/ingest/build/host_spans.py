"""What the host threads did, and what was waited for, from the columns of one trace."""

import re
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.profiler_names import MODULE_CALL
from overlapscope.ingest.build.trace_columns import TraceColumns, matching
from overlapscope.timeline.columns import (
    ANNOTATION,
    NONE,
    OPERATION,
    PYTHON,
    RUNTIME,
    HostSpans,
    Syncs,
    make,
    size,
    take,
)
from overlapscope.timeline.rows import sort_order

_PYTHON: Final = re.compile(re.escape(MODULE_CALL))
_QUERY: Final = re.compile(r"(?:cuda|hip|cu)(?:Event|Stream)Query")
"""CUPTI files these under synchronisations, but they return at once."""


def host_spans(columns: TraceColumns, base_ns: int) -> HostSpans:
    """Return all host ranges and runtime calls, `base_ns` added to their times."""
    host, rest = columns.host, columns.host_rest
    module = matching(_PYTHON, columns.names.to_list())[host.name]
    kind = np.where(module, PYTHON, np.where(host.is_annotation, ANNOTATION, OPERATION)).astype(np.int8)
    calls = columns.launch_name.size
    unlinked = np.full(host.name.size, NONE, np.int64)
    return in_order(
        make(
            HostSpans,
            host.name.size + calls + size(rest),
            recording=0,
            lane=np.concatenate([host.lane, columns.launch_lane, rest.lane]),
            kind=np.concatenate([kind, np.full(calls, RUNTIME, np.int8), rest.kind]),
            name=np.concatenate([host.name, columns.launch_name, rest.name]),
            start_ns=np.concatenate([host.start_ns, columns.launch_start_ns, rest.start_ns]) + base_ns,
            end_ns=np.concatenate([host.end_ns, columns.launch_end_ns, rest.end_ns]) + base_ns,
            correlation=np.concatenate([unlinked, columns.launch_correlation, rest.correlation]),
        )
    )


def in_order(host: HostSpans) -> HostSpans:
    """Return the spans of one recording window in the order of `HostSpans`."""
    return take(host, sort_order(host.lane, host.start_ns, -host.end_ns))


def host_syncs(columns: TraceColumns, base_ns: int) -> Syncs:
    """Return the recorded synchronisations in order of time, `base_ns` added to their times."""
    syncs, names = columns.syncs, columns.names.to_list()
    if not size(syncs):
        return syncs
    queries = columns.launch_correlation[matching(_QUERY, names)[columns.launch_name]]
    syncs = take(syncs, ~np.isin(syncs.correlation, queries[queries != NONE]))
    syncs = replace(syncs, start_ns=syncs.start_ns + base_ns, end_ns=syncs.end_ns + base_ns)
    return take(syncs, sort_order(syncs.start_ns, syncs.end_ns))

"""Communication that torch does not know of, told by a mark of ours: `overlapscope.comm:NAME`.

The thread that holds the mark waits in it for the communication, so the mark's own time communicates, and so does
device work that is launched inside it; what the thread runs inside it computes nothing.
"""

import numpy as np
import numpy.typing as npt

from overlapscope.ingest.host_steps import step_at
from overlapscope.ingest.innermost import NOWHERE, innermost
from overlapscope.ingest.kineto_dialect import COMM_MARK
from overlapscope.ingest.trace_columns import TraceColumns
from overlapscope.timeline.columns import COMM, Ints, Spans, Steps, concat, make


def marks(columns: TraceColumns) -> npt.NDArray[np.bool_]:
    """Say of each host range whether it is such a mark."""
    named = np.array([COMM_MARK.match(name) is not None for name in columns.names.to_list()], np.bool_)
    return np.asarray(named[columns.host.name] & columns.host.is_annotation, np.bool_)


def launched_inside(columns: TraceColumns, launch_lane: Ints, launch_ns: Ints) -> npt.NDArray[np.bool_]:
    """Say of each launch (lane and time) whether a mark is around it on its own thread."""
    chosen = marks(columns)
    if not chosen.any():
        return np.zeros(launch_ns.size, np.bool_)
    host = columns.host
    around = innermost(host.lane, host.start_ns, host.end_ns, launch_lane, launch_ns, chosen)
    return np.asarray(around != NOWHERE, np.bool_)


def with_marks(spans: Spans, columns: TraceColumns, steps: Steps, base_ns: int) -> Spans:
    """Add the marks to the spans, as communicating ones on the lanes of their threads.

    `base_ns` is added to the trace's times; spans and steps have it added.
    """
    rows = np.flatnonzero(marks(columns))
    if rows.size == 0:
        return spans
    host, names = columns.host, columns.names.to_list()
    found = [COMM_MARK.match(names[code]) for code in host.name[rows].tolist()]
    start_ns = host.start_ns[rows] + base_ns
    marked = make(
        Spans,
        rows.size,
        recording=0,
        lane=host.lane[rows],
        kind=COMM,
        name=columns.names.encode([each["name"] for each in found if each]),
        start_ns=start_ns,
        end_ns=host.end_ns[rows] + base_ns,
        launch_ns=start_ns,
        step=step_at(steps, start_ns),
    )
    return concat([spans, marked])

"""Find pauses that follow a gather of Python objects, by what was launched just before them.

torch's `all_gather_object` copies the pickled object to the device, gathers sizes, reads them back, gathers the bytes,
and copies those of each rank to the host, where they are unpickled (torch/distributed/distributed_c10d.py).
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.graph.building.host_waits import TO_DEVICE, TO_HOST
from overlapscope.timeline.columns import COMM, COPY, NONE, Flags, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline

SMALL_NS: Final = 100_000
"""What compares sizes, or fills and copies their tensors, takes less. A choice: kernels of a model together take more.
"""
GATHER, TO_HOST_COPY, TO_DEVICE_COPY, OTHER = b"g", b"h", b"d", b"o"
GATHERED: Final = re.compile(rb"h{2,}gh+gd")
"""What was launched last, latest first: bytes of two ranks or more copied to the host, their gather, sizes that were
read, their gather, the object copied to the device."""


def follow_gathered_objects(timeline: RankTimeline, start_ns: Ints) -> Flags:
    """Return which pauses of a rank, that begin then on its own clock, each follow a gather of Python objects."""
    launch_ns, codes = _launched(timeline)
    ends = np.searchsorted(launch_ns, start_ns)
    return np.array([GATHERED.match(codes[:end][::-1].tobytes()) is not None for end in ends.tolist()], np.bool_)


def _launched(timeline: RankTimeline) -> tuple[Ints, npt.NDArray[np.bytes_]]:
    """Return when the device's work was launched, ascending, and what each is, without what is small."""
    spans, names = timeline.spans, timeline.names
    gathers = np.append(rows_named(timeline.collectives.op, names, "all_gather".__eq__), False)
    gather = (spans.kind == COMM) & gathers[np.where(spans.collective == NONE, -1, spans.collective)]
    to_host, to_device = (
        (spans.kind == COPY) & rows_named(spans.name, names, each.search) for each in (TO_HOST, TO_DEVICE)
    )
    codes = np.select([gather, to_host, to_device], [GATHER, TO_HOST_COPY, TO_DEVICE_COPY], OTHER)
    small = (codes == OTHER) & (spans.kind != COMM) & (spans.end_ns - spans.start_ns < SMALL_NS)
    rows = np.flatnonzero((spans.launch_ns != NONE) & ~small)
    rows = rows[sort_order(spans.launch_ns[rows], spans.start_ns[rows])]
    return spans.launch_ns[rows], codes[rows]

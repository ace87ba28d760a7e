"""What the thread that trains does one thing after the other, in a CPU run: operations that no other one encloses."""

import re
from typing import Final

import numpy as np

from overlapscope.advice.rule_input import Windows
from overlapscope.timeline.columns import ANNOTATION, COMPUTE, OPERATION, PYTHON, Codes, Columns, Ints, size
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sum_by
from overlapscope.timeline.run import RankTimeline

BACKWARD: Final = re.compile(r"^(?:autograd::engine::evaluate_function: |torch\.distributed\.ddp\.reducer::)")
"""Operations of the backward pass: a node of autograd with all that it does, and DDP's copies after the last one."""
FORWARD: Final = re.compile(
    r"^(?:DistributedDataParallel\.forward$|FullyShardedDataParallel\.|FSDP::|nn\.Module: |\[pl\].*\.training_step$"
    r"|(?:overlapscope\.|## ?)?forward(?: ?##)?$)"
)
OPTIMIZER: Final = re.compile(
    r"^(?:Optimizer\.(?:step|zero_grad)#|\[pl\].*\.optimizer_step$"
    r"|(?:overlapscope\.|## ?)?optimizer(?:_step)?(?: ?##)?$)"
)
LOADER: Final = re.compile(r"^enumerate\(DataLoader\)")
NO_WORK: Final = re.compile(
    r"^aten::(?:alias|as_strided|chunk|detach_?|diagonal|empty(?:_like|_strided)?|expand(?:_as)?|lift_fresh|movedim"
    r"|narrow|permute|resize_|resolve_(?:conj|neg)|select|set_|slice|split(?:_with_sizes)?|squeeze_?|swapaxes|t"
    r"|transpose|unbind|unflatten(?:_dense_tensors)?|unsqueeze_?|view(?:_as)?|_reshape_alias|_unsafe_view)$"
)
"""Views and allocations, which touch no element."""
OUTSIDE: Final = -1
"""Window of what begins in none."""


class Outline(Columns, frozen=True, kw_only=True):
    """Operations that no other operation encloses, and ranges taken as a whole, in order of time."""

    name: Codes
    start_ns: Ints
    end_ns: Ints
    window: Ints
    """Position of the window that it begins in; OUTSIDE in none."""


def training_lane(timeline: RankTimeline) -> int:
    """Return the lane of the thread that trains in a CPU run: the one that computes most."""
    spans = timeline.spans
    computes = spans.kind == COMPUTE
    taken = (spans.end_ns - spans.start_ns)[computes]
    return int(sum_by(spans.lane[computes], taken, size(timeline.lanes) + 1).argmax())


def outline(timeline: RankTimeline, windows: Windows, whole: re.Pattern[str]) -> Outline | None:
    """Return what a rank's training thread does in a CPU run; of ranges whose names match `whole`, what they hold is
    left out. None without host operations.

    The thread is the one that computes most. `windows` are (start, end) in ns, in order of time.
    """
    if not timeline.has_host_events:
        return None
    names, lane = timeline.names, training_lane(timeline)
    host = select_host_spans(timeline.host, (OPERATION, ANNOTATION, PYTHON))
    chosen = (host.kind == OPERATION) | rows_named(host.name, names, whole.match)
    rows = np.flatnonzero(chosen & (host.lane == lane))
    start, end = host.start_ns[rows], host.end_ns[rows]
    first = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])[: rows.size]
    rows, start = rows[first], start[first]
    begin, over = (np.array(each, np.int64) for each in zip(*windows, strict=True))
    window = np.searchsorted(begin, start, side="right") - 1
    window = np.where((window >= 0) & (start < over[window]), window, OUTSIDE)
    return Outline(name=host.name[rows], start_ns=start, end_ns=host.end_ns[rows], window=window)

"""Collect gradients in the order in which autograd accumulated them, with the shapes that torch's profiler recorded.

A trace does not name parameters: a gradient is identified by its place in the backward pass and its shape.
DistributedDataParallel fills its buckets in this order. A step has as many passes as it has calls of DDP's forward, if
all of them have gradients of the same shapes in the same order.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import CollectiveArgs, dtype_name, parse_count
from overlapscope.ingest.build.trace_columns import TraceColumns
from overlapscope.ingest.build.user_marks import step_at
from overlapscope.timeline.columns import NONE, Gradients, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline

ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
FORWARD: Final = "DistributedDataParallel.forward"
"""torch's annotation around DDP's forward (1.10 and later)."""
MAX_DIMS: Final = 16


def with_ready_gradients(timeline: RankTimeline, columns: TraceColumns, base_ns: int) -> RankTimeline:
    """Return the timeline with the gradients of its steps; unchanged where the trace has no gradients or no sizes."""
    code = next((at for at, name in enumerate(columns.names.to_list()) if name == ACCUMULATE), None)
    if code is None:
        return timeline
    host = columns.host
    rows = np.flatnonzero(host.name == code)
    rows = rows[np.argsort(host.end_ns[rows], kind="stable")]
    ready = host.end_ns[rows] + base_ns
    step = step_at(timeline.steps, host.start_ns[rows] + base_ns)
    # Those of one shape share one value.
    of_row = [columns.host_args.get(row) for row in rows.tolist()]
    shape_of = {at: _shape(each) for at, each in {id(each): each for each in of_row}.items()}
    shaped = [shape_of[id(each)] for each in of_row]
    kept = [at for at, each in enumerate(shaped) if each is not None and step[at] != NONE]
    if not kept:
        return timeline
    begins = np.flatnonzero(np.diff(step[kept], prepend=NONE))
    counts = np.diff(begins, append=len(kept))
    order = np.arange(len(kept)) - np.repeat(begins, counts)
    names = NameTable(timeline.names)
    known = [each for at in kept if (each := shaped[at]) is not None]
    forwards = _forwards(timeline)
    of_pass = [
        _of_a_pass(known[begin : begin + count], forwards.get(int(step[kept[begin]]), 1))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)
    ]
    places = order % np.repeat(np.array(of_pass, np.int64), counts)
    return replace(
        timeline,
        gradients=make(
            Gradients,
            len(kept),
            step=step[kept],
            order=order,
            name=[
                names.code(f"gradient {place} ({'x'.join(map(str, shape)) or 'one number'})")
                for place, (shape, _) in zip(places.tolist(), known, strict=True)
            ],
            elements=[prod(shape) for shape, _ in known],
            dtype=[names.code(dtype) for _, dtype in known],
            ready_ns=ready[kept],
        ),
        names=tuple(names.to_list()),
    )


def _forwards(timeline: RankTimeline) -> dict[int, int]:
    """Return how often DDP's forward ran in each step."""
    notes = timeline.annotations
    ours = np.array([name == FORWARD for name in timeline.names], np.bool_)[notes.name]
    steps = step_at(timeline.steps, notes.start_ns[ours])
    return dict(zip(*(each.tolist() for each in np.unique(steps[steps != NONE], return_counts=True)), strict=True))


def _of_a_pass(shapes: Sequence[tuple[tuple[int, ...], str]], passes: int) -> int:
    """Return how many of a step's gradients belong to each pass; all of them where the passes differ."""
    each, rest = divmod(len(shapes), max(passes, 1))
    alike = each and not rest and all(shapes[at] == shapes[at % each] for at in range(len(shapes)))
    return each if alike else len(shapes)


def _shape(args: CollectiveArgs | None) -> tuple[tuple[int, ...], str] | None:
    """Return shape and dtype of an accumulated gradient; None where they are not recorded."""
    if args is None:
        return None
    dims, types = args.input_dims, args.input_type
    if not isinstance(dims, list) or not dims or not isinstance(types, list) or not types:
        return None
    shape, dtype = dims[0], dtype_name(types[0])
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or dtype is None:
        return None
    sizes = [size for each in shape if (size := parse_count(each))]
    return (tuple(sizes), dtype) if len(sizes) == len(shape) and parse_count(prod(sizes)) is not None else None

"""Collect gradients in the order in which autograd accumulated them, with the shapes that torch's profiler recorded.

A trace does not name parameters: a gradient is identified by its place in the backward pass and its shape.
DistributedDataParallel fills its buckets in this order. A step has as many passes as it has calls of DDP's forward, if
all of them have gradients of the same shapes in the same order.
"""

from math import prod
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.build.collective_args import CollectiveArgs, dtype_name, parse_count
from overlapscope.ingest.build.trace_columns import TraceColumns
from overlapscope.ingest.build.user_marks import step_at
from overlapscope.timeline.columns import NONE, Gradients, Ints, make
from overlapscope.timeline.dimensions import DDP_FORWARD
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline

ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
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
    shapes = {at: _shape(each) for at, each in {id(each): each for each in of_row}.items()}
    found = list(dict.fromkeys(each for each in shapes.values() if each is not None))
    number = {each: at for at, each in enumerate(found)}
    number_of = {at: NONE if each is None else number[each] for at, each in shapes.items()}
    shape_of = np.array([number_of[id(each)] for each in of_row], np.int64)
    kept = np.flatnonzero((shape_of != NONE) & (step != NONE))
    if not kept.size:
        return timeline
    shape_of, step, ready = shape_of[kept], step[kept], ready[kept]
    begins = np.flatnonzero(np.diff(step, prepend=NONE))
    counts = np.diff(begins, append=kept.size)
    order = np.arange(kept.size) - np.repeat(begins, counts)
    forwards = _forwards(timeline)
    of_pass = [
        _of_a_pass(shape_of[begin : begin + count], forwards.get(int(step[begin]), 1))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)
    ]
    places = order % np.repeat(np.array(of_pass, np.int64), counts)
    names = NameTable(timeline.names)
    which, first = factorize_rows([places, shape_of])
    name = [
        names.code(f"gradient {place} ({'x'.join(map(str, found[shape][0])) or 'one number'})")
        for place, shape in zip(places[first].tolist(), shape_of[first].tolist(), strict=True)
    ]
    return replace(
        timeline,
        gradients=make(
            Gradients,
            kept.size,
            step=step,
            order=order,
            name=np.array(name)[which],
            elements=np.array([prod(shape) for shape, _ in found])[shape_of],
            dtype=np.array([names.code(dtype) for _, dtype in found])[shape_of],
            ready_ns=ready,
        ),
        names=tuple(names.to_list()),
    )


def _forwards(timeline: RankTimeline) -> dict[int, int]:
    """Return how often DDP's forward ran in each step."""
    notes = timeline.annotations
    ours = np.array([name == DDP_FORWARD for name in timeline.names], np.bool_)[notes.name]
    steps = step_at(timeline.steps, notes.start_ns[ours])
    return dict(zip(*(each.tolist() for each in np.unique(steps[steps != NONE], return_counts=True)), strict=True))


def _of_a_pass(shapes: Ints, passes: int) -> int:
    """Return how many of a step's gradients belong to each pass; all of them where the passes differ."""
    each, rest = divmod(shapes.size, max(passes, 1))
    alike = each and not rest and (shapes.reshape(-1, each) == shapes[:each]).all()
    return each if alike else shapes.size


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

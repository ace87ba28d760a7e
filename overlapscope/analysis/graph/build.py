"""Build the dependency graph of one rank."""

import numpy as np

from overlapscope.analysis.graph.device_waits import device_waits
from overlapscope.analysis.graph.host_calls import host_calls, program_order
from overlapscope.analysis.graph.host_waits import host_waits, polled_spans
from overlapscope.analysis.graph.model import (
    INFERRED,
    NO_GAP,
    POLL,
    RECORDED,
    RUN_KIND,
    SYNC,
    Graph,
    RankPart,
    assemble,
    edges_of,
)
from overlapscope.timeline.columns import take
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline


def rank_graph(timeline: RankTimeline, recording: int = 0) -> Graph:
    """Return the graph of one recording of a rank."""
    rows = np.flatnonzero(timeline.spans.recording == recording)
    rows = rows[sort_order(timeline.spans.start_ns[rows], timeline.spans.end_ns[rows])]
    spans = take(timeline.spans, rows)
    host = take(timeline.host, timeline.host.recording == recording)
    syncs = take(timeline.syncs, timeline.syncs.recording == recording)
    calls = host_calls(timeline, spans, host)
    awaited, depends = host_waits(spans, calls, host, syncs)
    polled = polled_spans(spans, calls, timeline.names)
    waits = device_waits(spans, calls)
    num_calls, num_spans = calls.row.size, rows.size
    first_start = 2 * num_calls
    at = np.arange(num_spans)
    run = np.array([RUN_KIND[kind] for kind in range(3)], np.int8)[spans.kind]
    woken = np.where(awaited[depends.call] == depends.span, calls.end_ns[depends.call] - spans.end_ns[depends.span], 0)
    resumed = np.flatnonzero(polled >= 0)
    edges = [
        *program_order(calls, awaited, polled),
        edges_of(first_start + at, first_start + num_spans + at, run, RECORDED, spans.end_ns - spans.start_ns),
        edges_of(
            first_start + num_spans + depends.span, num_calls + depends.call, SYNC,
            np.where(depends.recorded, RECORDED, INFERRED).astype(np.int8), woken,
        ),
        edges_of(
            first_start + num_spans + polled[resumed], resumed, POLL, INFERRED,
            calls.begin_ns[resumed] - spans.end_ns[polled[resumed]],
        ),
        *waits.edges,
    ]
    time = np.concatenate([calls.begin_ns, calls.end_ns, spans.start_ns, spans.end_ns])
    gap = np.full(time.size, NO_GAP, np.int8)
    gap[first_start : first_start + num_spans] = waits.gap
    part = RankPart(
        rank=timeline.rank, recording=recording, offset_ns=0, first=0, call_row=calls.row, call_lane=calls.lane,
        blocks=calls.blocks, awaited=awaited, span_row=rows, span_lane=spans.lane, span_kind=spans.kind,
        launched_by=calls.launched_by, collective=spans.collective, early_launches=waits.early_launches,
    )  # fmt: skip
    return assemble(time, gap, edges, (part,))

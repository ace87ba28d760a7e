"""The DDP bucket of an all-reduce: which gradients it contains, when they were ready, when it was launched."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from overlapscope.report.formatting import count, ms, size
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.whatif.ddp.recorded_buckets import RecordedBucket, recorded_bucket
from overlapscope_dashboards.timeline.labels import format_duration
from overlapscope_dashboards.timeline.lane_rows import lower_rows
from overlapscope_dashboards.timeline.query import TimelineQuery
from overlapscope_dashboards.timeline.source import TimelineSource

MAX_NAME: Final = 60


def bucket_words(source: TimelineSource, rank: int, call: int) -> list[str]:
    """Return phrases on the bucket of a collective; empty where the recording does not determine it."""
    found = recorded_bucket(source.tables(rank), call)
    if found is None:
        return []
    parts = [f"bucket {found.number + 1} of {found.of}: {_gradients(source, rank, found)}"]
    ready = int(source.aligned(rank, np.array([found.ready_ns]))[0])
    done = "enqueued" if source.tables(rank).has_device else "ready"
    parts.append(
        f"last gradient {done} at {ms(ready)} ms, launched {format_duration(found.launch_ns - found.ready_ns)} later"
    )
    return parts


def ready_marks(
    source: TimelineSource, query: TimelineQuery, ranks: Sequence[int], calls: Sequence[int]
) -> list[dict[str, Any]]:
    """Return marks on the lanes of each selected rank where the last gradient of its bucket was ready."""
    rows = [each.rank for each in lower_rows(source, query)]
    of = dict(zip(ranks, calls, strict=True))
    marks: list[dict[str, Any]] = []
    for rank in dict.fromkeys(rows):
        found = recorded_bucket(source.tables(rank), of[rank]) if of.get(rank, NONE) != NONE else None
        if found is None:
            continue
        at = int(source.aligned(rank, np.array([found.ready_ns]))[0]) / 1e6
        first = rows.index(rank)
        marks.append({
            "type": "line", "xref": "x", "yref": "y2", "name": "link", "x0": at, "x1": at, "y0": first - 0.5,
            "y1": first + rows.count(rank) - 0.5, "line": {"color": "#111", "width": 1.5, "dash": "dot"},
        })  # fmt: skip
    return marks


def _gradients(source: TimelineSource, rank: int, bucket: RecordedBucket) -> str:
    timeline = source.tables(rank)
    table, names = timeline.gradients, timeline.names
    rows = bucket.gradients.tolist()
    first, last = (names[table.name[rows[at]]][:MAX_NAME] for at in (0, -1))
    which = first if len(rows) == 1 else f"{first} to {last}"
    types = [names[code] if code >= 0 else "" for code in table.dtype[rows].tolist()]
    known = all(each in ITEM_BYTES for each in types)
    sizes = (
        sum(int(table.elements[row]) * ITEM_BYTES[kind] for row, kind in zip(rows, types, strict=True)) if known else 0
    )
    return f"{count(len(rows), 'gradient')}{', ' + size(sizes) if known else ''}, {which}"

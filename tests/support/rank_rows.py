"""Build the timeline of a rank from rows: a dict each, with names as texts; None, or no such key, is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.timeline.columns import (
    COMM,
    Annotations,
    Collectives,
    Columns,
    Gradients,
    HostSpans,
    Lanes,
    Recordings,
    Spans,
    Steps,
    Syncs,
    Telemetry,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline

Row = Mapping[str, Any]
TABLES: Mapping[str, type[Columns]] = {
    "collectives": Collectives, "spans": Spans, "recordings": Recordings, "steps": Steps, "lanes": Lanes,
    "annotations": Annotations, "gradients": Gradients, "telemetry": Telemetry, "host": HostSpans,
    "syncs": Syncs,
}  # fmt: skip


def rank_timeline(
    rank: int = 0,
    *,
    calls: Sequence[Row] = (),
    work: Sequence[Row] = (),
    lanes: Sequence[Row] = ({},) * 3,
    names: Sequence[str] = (),
    **more: Any,
) -> RankTimeline:
    """Return a rank that made `calls`, a span of communication each, and did `work`, spans alone (compute on lane 0).

    A row of `calls` has columns of Collectives and of Spans; its lane is 1, its name its operation. `more` are rows of
    other tables, and fields of the timeline; `names` come before those of the rows. The recording lasts from the first
    span to the last.
    """
    table_names = NameTable(names)
    own = [{"lane": 1, "kind": COMM, "name": each["op"], **each, "collective": at} for at, each in enumerate(calls)]
    spans = [*own, *({"lane": 0, **each} for each in work)]
    times = {
        "start_ns": min((each["start_ns"] for each in spans), default=None),
        "end_ns": max((each["end_ns"] for each in spans), default=None),
    }
    rows = {"collectives": calls, "spans": spans, "recordings": [times], "lanes": lanes}
    tables = {
        name: fact_table(table, [{"recording": 0, **row} for row in more.pop(name, rows.get(name, ()))], table_names)
        for name, table in TABLES.items()
    }
    fields = {"basis": "trace", "has_device": True, **tables, **more}
    return RankTimeline(rank=rank, names=tuple(table_names.to_list()), **fields)

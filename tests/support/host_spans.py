"""Fill the host spans of Kineto traces straight from their JSON, as readers do."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import (
    ANNOTATION,
    HOST,
    NONE,
    OPERATION,
    RUNTIME,
    HostSpans,
    Lanes,
    concat,
    make,
    take,
)
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.rows import sort_order
from overlapscope.timeline.run import RankTimeline, Run

KINDS: Mapping[str, int] = {
    "cpu_op": OPERATION, "operator": OPERATION, "user_annotation": ANNOTATION,
    "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "runtime": RUNTIME, "driver": RUNTIME,
}  # fmt: skip


def read_with_host(paths: list[Path]) -> Run:
    """Return a run of Kineto traces, one file a rank, with host spans; names and lanes are extended for them."""
    files = [each for path in paths for each in (sorted(path.glob("*.json.gz")) if path.is_dir() else [path])]
    run = read_inputs(paths)
    ranks = dict(run.ranks)
    of_path = {Path(source.path).name: source.ranks[0] for source in run.sources if source.ranks}
    for file in files:
        with gzip.open(file) as stream:
            ranks[of_path[file.name]] = _with_host(json.load(stream), ranks[of_path[file.name]])
    return replace(run, ranks=ranks)


def _with_host(document: Any, timeline: RankTimeline) -> RankTimeline:
    events = document["traceEvents"] if isinstance(document, dict) else document
    base = document.get("baseTimeNanoseconds", 0) if isinstance(document, dict) else 0
    names, lanes = NameTable(timeline.names), timeline.lanes
    known = {
        (timeline.name(process), timeline.name(label)): row
        for row, (process, label) in enumerate(zip(lanes.process.tolist(), lanes.label.tolist(), strict=True))
    }
    rows: list[tuple[int, int, str, int, int, int]] = []
    for each in events:
        kind = KINDS.get(str(each.get("cat")).lower())
        if kind is None or each.get("ph") != "X":
            continue
        lane = known.setdefault((str(each["pid"]), str(each["tid"])), len(known))
        whole = int(each["ts"])
        start = whole * 1000 + round((each["ts"] - whole) * 1000) + base
        args = each.get("args") or {}
        correlation = args.get("correlation", NONE) if kind == RUNTIME else NONE
        rows.append((lane, kind, each["name"], start, start + round(each.get("dur", 0) * 1000), correlation))
    more = list(known)[lanes.kind.size :]
    added = make(
        Lanes, len(more), kind=HOST, process=names.encode([each[0] or "" for each in more]),
        label=names.encode([each[1] or "" for each in more]),
    )  # fmt: skip
    lane, kinds, called, start, end, correlation = zip(*rows, strict=True)
    host = make(
        HostSpans, len(rows), recording=0, lane=lane, kind=kinds, name=names.encode(called), start_ns=start,
        end_ns=end, correlation=np.array(correlation, np.int64),
    )  # fmt: skip
    host = take(host, sort_order(host.lane, host.start_ns, -host.end_ns))
    recordings = replace(timeline.recordings, host_events=np.ones(timeline.recordings.source.size, np.bool_))
    return replace(
        timeline, names=tuple(names.to_list()), lanes=concat([lanes, added]), host=host, recordings=recordings
    )

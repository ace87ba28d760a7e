"""Detect whether torch.compile split the graph of DistributedDataParallel at the ends of buckets.

Its DDPOptimizer (`torch._dynamo.config.optimize_ddp`, on unless it is switched off) reads the cap and compiles a graph
for each bucket, so that buckets need not wait for the end of one backward graph. Another cap makes other graphs, whose
times were not recorded, so no cap is replayed.

A trace shows it. The part of a frame that Dynamo compiled runs as one `Torch-Compiled Region` (a graph break begins
another), and calls one graph, a `CompiledFunction`, or none; a region that calls several was split.
"""

from typing import Final

import numpy as np

from overlapscope.ingest.build.host_ranges import NOWHERE, innermost_range
from overlapscope.timeline.operations import COMPILED_GRAPH, COMPILED_REGION
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.ddp.recorded_steps import Recorded

SPLITS: Final = "compile_splits"
"""Key in the DDP record of our own capture: whether torch.compile splits its graph."""


def split_graphs(timeline: RankTimeline, seen: Recorded) -> str:
    """Return why no cap can be replayed; empty where graphs were not split."""
    why = (
        "torch.compile split the graph at the ends of buckets (DDPOptimizer), so another cap makes other graphs: "
        "measure it, or record with torch._dynamo.config.optimize_ddp = False"
    )
    noted = timeline.recorded.get("ddp")
    if isinstance(noted, dict) and noted.get(SPLITS):
        return why
    return why if _calls_several(timeline, seen) else ""


def _calls_several(timeline: RankTimeline, seen: Recorded) -> bool:
    """Return whether a region calls several graphs in most of the steps."""
    notes, names = timeline.annotations, timeline.names
    regions = np.array([each.startswith(COMPILED_REGION) for each in names], np.bool_)[notes.name]
    graphs = np.flatnonzero(np.array([each == COMPILED_GRAPH for each in names], np.bool_)[notes.name])
    if not regions.any() or not graphs.size:
        return False
    step = np.searchsorted(timeline.steps.start_ns, notes.start_ns[graphs], side="right") - 1
    graphs = graphs[(step >= 0) & np.isin(timeline.steps.step[step], seen.steps)]
    around = innermost_range(notes, notes.lane[graphs], notes.start_ns[graphs], regions)
    called = np.unique(around[around != NOWHERE], return_counts=True)[1]
    return int((called > 1).sum()) > len(seen.steps) / 2

"""Whether torch.compile split a DistributedDataParallel's graph where its buckets end.

Its DDPOptimizer (`torch._dynamo.config.optimize_ddp`, on unless it is switched off) reads the cap and compiles a graph
for each bucket, so that buckets need not wait for the end of one backward graph. Another cap makes other graphs: what
was recorded of these tells nothing of those, and no cap is replayed.

A trace shows it. What Dynamo compiled of one frame runs as one `Torch-Compiled Region` (a graph break begins another),
which calls one graph, so that backward runs as many graphs as forward ran regions. More of them are a split region.
"""

from typing import Final

import numpy as np

from overlapscope.timeline.columns import Flags, Ints
from overlapscope.timeline.operations import COMPILED_BACKWARD, COMPILED_REGION
from overlapscope.timeline.run import RankTimeline
from overlapscope.whatif.recorded_steps import Recorded

SPLITS: Final = "compile_splits"
"""Key of what our own capture notes of DDP: whether torch.compile splits its graph."""


def split_graphs(timeline: RankTimeline, seen: Recorded) -> str:
    """Give why no cap can be replayed; empty where nothing shows that graphs were split by it."""
    why = (
        "torch.compile split the graph where buckets end (DDPOptimizer), so that another cap makes other graphs: "
        "measure it, or record with torch._dynamo.config.optimize_ddp = False"
    )
    noted = timeline.recorded.get("ddp")
    if isinstance(noted, dict) and noted.get(SPLITS):
        return why
    regions, graphs = _starts(timeline, COMPILED_REGION), _starts(timeline, COMPILED_BACKWARD)
    if not regions.size or not graphs.size:
        return ""
    table = timeline.steps
    rows = np.flatnonzero(np.isin(table.step, seen.steps))
    windows = np.stack((table.start_ns[rows], table.end_ns[rows]), axis=1)
    split: Flags = _within(graphs, windows) > np.maximum(_within(regions, windows), 1)
    return why if split.mean() > 0.5 else ""


def _starts(timeline: RankTimeline, beginning: str) -> Ints:
    notes = timeline.annotations
    named = np.array([each.startswith(beginning) for each in timeline.names], np.bool_)
    return np.sort(notes.start_ns[named[notes.name]])


def _within(starts: Ints, windows: Ints) -> Ints:
    return np.searchsorted(starts, windows[:, 1]) - np.searchsorted(starts, windows[:, 0])

"""Why a recording that holds no steps of DistributedDataParallel holds none, where the recording itself shows it."""

from typing import Final

import numpy as np

from overlapscope.analysis.graph.building.host_calls import LAUNCHES_GRAPH
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.parallelism import other_framework

APART: Final = 10
"""Where all-reduces carry so many times as many elements as all gradients have, or so many times fewer, the sizes of
gradients are not those of parameters. A choice: several passes of a step make a factor of a few."""


def why_not_ddp(run: Run) -> str | None:
    """Return why no step of a run can be replayed as DistributedDataParallel; None where its steps must say."""
    other = other_framework(run)
    if other is not None:
        return f"it shows {other}, of which no buckets are replayed"
    ranks = [each for each in run.ranks.values() if each.num_spans]
    if ranks and all(map(_is_a_graph, ranks)):
        return (
            "its steps are CUDA graphs, which record no gradients: record a few eager steps (without the graph), with "
            "record_shapes=True"
        )
    sizes = [each for each in map(_elements_of_a_step, ranks) if each is not None]
    if sizes and len(sizes) == len(ranks) and all(max(each) > APART * min(each) for each in sizes):
        gradients, sent = sizes[0]
        return (
            f"the gradients of a step have {gradients:,} elements, its all-reduces carry {sent:,}: the recorded sizes "
            "are not those of the gradients; record it with `overlapscope.profile(path, model=model)` around the "
            "training loop"
        )
    return None


def _is_a_graph(timeline: RankTimeline) -> bool:
    """Return whether a rank launches graphs, and no gradient of it has a size."""
    return any(map(LAUNCHES_GRAPH.search, timeline.names)) and not (timeline.gradients.elements > 0).any()


def _elements_of_a_step(timeline: RankTimeline) -> tuple[int, int] | None:
    """Return medians over steps of the elements of gradients and of all-reduces; None where one is not known."""
    table, calls = timeline.gradients, timeline.collectives
    known = (table.elements > 0) & (table.step != NONE)
    codes = [code for code, name in enumerate(timeline.names) if name == "all_reduce"]
    reduces = (calls.step != NONE) & np.isin(calls.op, codes)
    if not known.any() or not reduces.any() or (calls.elements[reduces] == NONE).any():
        return None
    steps = np.intersect1d(table.step[known], calls.step[reduces])
    if not steps.size:
        return None
    each = [
        [int(elements[of_step == step].sum()) for step in steps.tolist()]
        for elements, of_step in (
            (table.elements[known], table.step[known]), (calls.elements[reduces], calls.step[reduces])
        )
    ]  # fmt: skip
    gradients, sent = (int(np.median(sums)) for sums in each)
    return (gradients, sent) if gradients and sent else None

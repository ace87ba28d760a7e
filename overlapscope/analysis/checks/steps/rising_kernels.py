"""Find kernels that take longer from step to step on all ranks alike, as when clocks fall with heat or at a power
limit."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.display import percent_text
from overlapscope.timeline.columns import COMPUTE, NONE, Floats, Ints
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline, Run

RISE: Final = 0.05
"""Least share by which the last step's kernels take longer than the first one's. A choice: clocks vary by less."""
FEWEST_STEPS: Final = 5
"""Steps of which each takes longer than the one before: by chance once in 120 times."""
FALLS: Final = 0.1
"""A step may take less than the one before by this share of the rise: some noise."""
AT_ONCE: Final = 0.5
"""Largest share of the rise between two steps; else it is no slow one."""
SAME: Final = 0.8
"""Least share of compute in kernels that each step has equally often, and of these in kernels that rise, too: what a
batch or a context makes longer are some kinds of kernels, and the others are not."""
OF_RISE: Final = 0.5
"""A kernel rises by at least this share of the rise of all, and the compute of a rank by this share of `RISE`."""
MOST_RANKS: Final = 8
"""Whose kernels are read."""


def rising_kernels(run: Run, computed_ns: Mapping[int, Mapping[int, int]]) -> list[Finding]:
    """Return at most one finding; `computed_ns` holds how long each rank computed in each of its complete steps."""
    steps = sorted(set.intersection(*map(set, computed_ns.values()))) if computed_ns else []
    if len(steps) < FEWEST_STEPS or not all(run.ranks[each].has_device for each in computed_ns):
        return []
    if any(own[steps[-1]] < (1 + OF_RISE * RISE) * own[steps[0]] for own in computed_ns.values()):
        return []
    read = list(computed_ns)[:: -(-len(computed_ns) // MOST_RANKS)]
    found = [_times(run.ranks[rank].at_hand(), np.array(steps, np.int64)) for rank in read]
    if not all(times is not None and _rises(times) for times in found):
        return []
    each_ns = np.mean([times.sum(axis=0) for times in found if times is not None], axis=0)
    first, last = float(each_ns[0]), float(each_ns[-1])
    sized = all((run.ranks[rank].spans.blocks != NONE).any() for rank in read)
    some = f" (kernels of {len(read)} of them were read)" if len(read) < len(computed_ns) else ""
    ranks = f"all {len(computed_ns)} ranks alike{some}" if len(computed_ns) > 1 else f"rank {read[0]}"
    return [
        Finding(
            id="rising_kernels",
            severity="warning",
            title=f"the same kernels take longer from step to step, on {ranks}: {format_ms(first)} in step {steps[0]}, "
            f"{format_ms(last)} in step {steps[-1]} ({percent_text(last / first - 1)} more), as when clocks fall with "
            f"heat or at a power limit{'' if sized else ', or batches grow: sizes of kernels are not recorded'}",
            evidence={
                "ranks": read, "steps": steps, "kernels_ns": each_ns.round().astype(np.int64).tolist(),
                "lost_ns": round(float(each_ns.mean()) - first), "sizes_known": sized,
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _times(timeline: RankTimeline, steps: Ints) -> Floats | None:
    """Return for how long kernels of each name and grid ran in each step (kernels x steps), of those that all steps
    have equally often; None where these are not nearly all."""
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & np.isin(spans.step, steps))
    if not rows.size:
        return None
    kernel, firsts = factorize_rows([spans.name[rows], spans.blocks[rows]])
    place = kernel * steps.size + np.searchsorted(steps, spans.step[rows])
    cells = (firsts.size, steps.size)
    counts = np.bincount(place, minlength=firsts.size * steps.size).reshape(cells)
    taken = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], firsts.size * steps.size).reshape(cells)
    same = (counts == counts[:, :1]).all(axis=1)
    return taken[same] if taken[same].sum() >= SAME * taken.sum() else None


def _rises(times: Floats) -> bool:
    """Return whether a rank's kernels take longer from step to step, slowly, and nearly all of them do."""
    every = times.sum(axis=0)
    rise, steps = every[-1] - every[0], np.diff(every)
    if not every[0] or rise < RISE * every[0] or steps.min() < -FALLS * rise or steps.max() > AT_ONCE * rise:
        return False
    own = times[:, -1] >= (1 + OF_RISE * rise / every[0]) * times[:, 0]
    return bool(times[own].sum() >= SAME * times.sum())

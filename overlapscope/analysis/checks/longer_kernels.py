"""Find a device that computes longer than its peers in each step at equal counts, where kernels of one name say why."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.display import shortened
from overlapscope.timeline.columns import COMPUTE
from overlapscope.timeline.run import RankTimeline, Run

LONGER: Final = 0.03
"""It computes longer than the median of all by this share of a step, in each step: equal devices differ by less."""
FEWEST_STEPS: Final = 3
FEWEST_PEERS: Final = 2
MOST_OF_IT: Final = 0.5
"""Kernels of one name explain it by this share."""
MOST_PEERS: Final = 8
"""Whose kernels are read."""
LONGEST_NAME: Final = 60
Kernels = Mapping[int, Mapping[str, tuple[int, int]]]
"""By step and name, how many kernels and for how long, in ns."""


def longer_kernels(
    run: Run, computed_ns: Mapping[int, Mapping[int, int]], step_ns: int | None, named: Sequence[int]
) -> list[Finding]:
    """Return at most one finding: the rank that computes longest beyond its peers.

    `computed_ns` holds how long each rank computed in each of its complete steps, by number; `named` the ranks that are
    said to be late already. Pauses and waits do not count: each step has as many kernels of each name on all ranks.
    """
    steps = sorted(set.intersection(*map(set, computed_ns.values()))) if computed_ns else []
    enough = len(steps) >= FEWEST_STEPS and len(computed_ns) > FEWEST_PEERS and step_ns
    if not enough or not step_ns or not all(run.ranks[each].has_device for each in computed_ns):
        return []
    usual = {step: median(own[step] for own in computed_ns.values()) for step in steps}
    longer = {rank: min(own[step] - usual[step] for step in steps) for rank, own in computed_ns.items()}
    rank = max(longer, key=longer.__getitem__)
    if longer[rank] < LONGER * step_ns or rank in named:
        return []
    others = [each for each in computed_ns if each != rank][:MOST_PEERS]
    own, *theirs = (_kernels(run.ranks[each], steps) for each in (rank, *others))
    if any(_counts(own, step) != _counts(each, step) for each in theirs for step in steps):
        return []
    more = {
        name: float(np.mean([own[step][name][1] - median(each[step][name][1] for each in theirs) for step in steps]))
        for name in set.intersection(*(set(own[step]) for step in steps))
    }
    in_all = float(
        np.mean([computed_ns[rank][step] - median(computed_ns[each][step] for each in others) for step in steps])
    )
    name = max(more, key=lambda each: (more[each], each), default=None)
    if name is None or more[name] < MOST_OF_IT * in_all:
        return []
    called = [sum(found[step][name][at] for step in steps) for found in (own, *theirs) for at in (0, 1)]
    mean_ns, *means = (called[at + 1] / called[at] for at in range(0, len(called), 2))
    return [
        Finding(
            id=f"longer_kernels:rank{rank}",
            severity="info",
            title=f"rank {rank} computes {in_all / 1e6:.3f} ms a step longer than its peers with as many kernels: "
            f"{more[name] / 1e6:.3f} ms more in {shortened(name, LONGEST_NAME)} ({mean_ns / 1e6:.3f} ms each, on its "
            f"peers {median(means) / 1e6:.3f} ms)",
            evidence={
                "rank": rank, "kernel": name, "more_ns": round(more[name]), "computed_more_ns": round(in_all),
                "kernel_ns": round(mean_ns), "peers_kernel_ns": round(median(means)), "steps": len(steps),
                "peers": others,
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _kernels(timeline: RankTimeline, steps: Sequence[int]) -> Kernels:
    spans = timeline.spans
    rows = np.flatnonzero((spans.kind == COMPUTE) & (spans.name >= 0) & np.isin(spans.step, steps))
    key = spans.step[rows].astype(np.int64) * len(timeline.names) + spans.name[rows]
    keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    took = np.bincount(place, (spans.end_ns - spans.start_ns)[rows], keys.size)
    found: dict[int, dict[str, tuple[int, int]]] = {step: {} for step in steps}
    for at, count, ns in zip(keys.tolist(), counts.tolist(), took.tolist(), strict=True):
        step, name = divmod(at, len(timeline.names))
        found[step][timeline.names[name]] = (count, round(ns))
    return found


def _counts(kernels: Kernels, step: int) -> dict[str, int]:
    return {name: count for name, (count, _) in kernels[step].items()}

"""Findings from a framework's logged timers: ranks that differ in most iterations."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE, Floats, Ints
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import Source

FEW_ITERATIONS: Final = 5
"""Fewer logged iterations (without the first) do not show that a difference persists."""
SLOWER: Final = 1.25
"""The slowest rank takes at least this many times the time of the fastest ..."""
OF_ITERATION: Final = 0.03
"""... and the difference is at least this share of the iteration ..."""
PERSISTS: Final = 0.8
"""... in at least this share of the iterations."""
_BY_SCHEDULE: Final = re.compile(r"(?:^|[-_])(?:send|recv)(?:$|[-_])|embedding|batch-generator")
"""Timers of work that not all pipeline stages do, or in which they wait for others: ranks differ by design."""


def timer_findings(facts: Facts, sources: Sequence[Source]) -> list[Finding]:
    """Find timers whose slowest rank is persistently slower; needs the minimum and maximum, or each rank's time."""
    findings = []
    for path in dict.fromkeys(source.path for source in sources if "megatron_timers" in source.format.split("+")):
        elapsed = _elapsed(facts, path)
        first = next(iter(elapsed), NONE)  # holds the warm-up
        for timer, step, low, high, slowest in [*_extremes(facts, path), *_by_rank(facts, path)]:
            iteration = np.array([elapsed.get(each, np.nan) for each in step.tolist()])
            usable = np.isfinite(iteration) & (iteration > 0) & (low > 0) & (step != first)
            findings += _imbalance(path, timer, low[usable], high[usable], iteration[usable], slowest[usable])
    return findings


def _imbalance(path: str, timer: str, low: Floats, high: Floats, iteration: Floats, slowest: Ints) -> list[Finding]:
    if low.size < FEW_ITERATIONS:
        return []
    apart = (high >= SLOWER * low) & (high - low >= OF_ITERATION * iteration)
    if apart.mean() < PERSISTS:
        return []
    times = float(np.median(high / low))
    evidence: dict[str, Any] = {
        "timer": timer,
        "iterations": int(low.size),
        "apart_in": int(apart.sum()),
        "min_ms_median": float(np.median(low)),
        "max_ms_median": float(np.median(high)),
        "iteration_ms_median": float(np.median(iteration)),
    }
    who = ""
    ranks, counts = np.unique(slowest[slowest != NONE], return_counts=True)
    if ranks.size:
        most = int(counts.argmax())
        who = f"; rank {int(ranks[most])} is the slowest in {int(counts[most])}"
        evidence |= {"rank": int(ranks[most]), "times_slowest": int(counts[most])}
    return [
        Finding(
            id=f"timer_imbalance:{timer}:{path}",
            severity="warning",
            title=f"timer {timer}: the slowest rank takes {times:.1f} times as long as the fastest "
            f"({np.median(high):.1f} and {np.median(low):.1f} ms) in {int(apart.sum())} of {low.size} logged "
            f"iterations{who}: ranks or pipeline stages are imbalanced",
            evidence=evidence,
            known_from="log",
        )
    ]


def _elapsed(facts: Facts, path: str) -> dict[int, float]:
    """Return the time of each iteration in milliseconds."""
    rows = _rows(facts, path, "elapsed_ms")
    return dict(zip(facts.figures.step[rows].tolist(), facts.figures.value[rows].tolist(), strict=True))


_Ranked = tuple[str, Ints, Floats, Floats, Ints]
"""Timer, and for each iteration: number, smallest time, largest time, slowest rank."""


def _extremes(facts: Facts, path: str) -> Iterator[_Ranked]:
    """Yield the timers with logged minimum and maximum times."""
    low, high = _rows(facts, path, "min_ms"), _rows(facts, path, "max_ms")
    high = high[np.isin(high - 1, low)]  # a block with the largest alone has no smallest before it
    figures = facts.figures
    for code in np.unique(figures.subject[low]).tolist():
        timer = facts.names[code]
        of_low, of_high = low[figures.subject[low] == code], high[figures.subject[high] == code]
        if of_low.size == of_high.size and not _BY_SCHEDULE.search(timer):
            step = figures.step[of_low]
            yield timer, step, figures.value[of_low], figures.value[of_high], np.full(step.size, NONE)


def _by_rank(facts: Facts, path: str) -> Iterator[_Ranked]:
    """Yield the timers with logged times of each rank."""
    figures = facts.figures
    rows = _rows(facts, path, "ms")
    rows = rows[(figures.rank[rows] != NONE) & (figures.step[rows] != NONE)]
    for code in np.unique(figures.subject[rows]).tolist():
        timer = facts.names[code]
        chosen = rows[figures.subject[rows] == code]
        if _BY_SCHEDULE.search(timer):
            continue
        # Sorted by iteration, the slowest rank last; repeated iterations of a restarted job are merged.
        chosen = chosen[np.lexsort((figures.value[chosen], figures.step[chosen]))]
        step, first = np.unique(figures.step[chosen], return_index=True)
        last = np.append(first[1:], chosen.size) - 1
        several = last > first
        fastest, slowest = chosen[first[several]], chosen[last[several]]
        yield timer, step[several], figures.value[fastest], figures.value[slowest], figures.rank[slowest]


def _rows(facts: Facts, path: str, name: str) -> Ints:
    """Return the rows with one name from one source, in order."""
    figures = facts.figures
    codes = {each: code for code, each in enumerate(facts.names)}
    chosen = (figures.source == codes.get(path, -2)) & (figures.name == codes.get(name, -2))
    return np.flatnonzero(chosen).astype(np.int64)

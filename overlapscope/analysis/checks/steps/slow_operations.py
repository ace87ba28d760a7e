"""Find operations of a CPU run that take longer in most steps than in the fast ones, though they are as many."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.host_operations import StepOperations
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.timeline.columns import Floats, Ints

FEWEST: Final = 4
"""Steps: of fewer it is chance which of them was the fastest."""
AMONG_FAST: Final = 5
"""The slowest of the fastest fifth of the steps is compared: of many, the fastest is fast by chance."""
SLOWER: Final = 1.25
"""The median step takes at least so many times as long in the operation as a fast one. A choice: cores of one machine
differ by less, and so do steps of a sound job."""
EACH_SLOWER: Final = 1.15
"""Its median piece is so many times as long as in the fastest step: not a few calls alone, which lost their core."""
WORTH: Final = 0.05
"""What the median step takes longer is at least this share of it."""
MOST_NAMED: Final = 3


_Rows = tuple[Ints, Ints, Floats]
"""Of one name, in each step: its time, its calls, and its median piece."""


class _Slow(msgspec.Struct, frozen=True, kw_only=True):
    """An operation in all steps with as many of its calls; times are means over ranks, in ns a step."""

    name: str
    calls: float
    usual_ns: float
    least_ns: float
    fastest: int
    """Number of a fast step, that of `least_ns`."""

    @property
    def longer_ns(self) -> float:
        return self.usual_ns - self.least_ns


def slow_operations(
    of_ranks: Mapping[int, StepOperations],
    step_ns: float | None,
    others: Sequence[Finding] = (),
    *,
    same_inputs: bool = False,
    other_inputs: bool = False,
) -> list[Finding]:
    """Return at most one finding; `step_ns` is the length of a median step of the job, `same_inputs` says that all
    steps are known to compute as much. Without that only the number of their operations is compared.

    Steps count that all ranks recorded. There is none where `others` say that hosts lack cores or stand still, which
    says more of the same time, nor where the caller knows that steps had `other_inputs`.
    """
    if other_inputs or lack_cores(others) or any(each.id == "standing_still" for each in others):
        return []
    steps = sorted(set.intersection(*({*each.steps} for each in of_ranks.values()))) if of_ranks else []
    if len(steps) < FEWEST or not step_ns:
        return []
    own = [_by_name(each, steps) for each in of_ranks.values()]
    names = set().union(*own)
    found = [slow for name in sorted(names) if (slow := _slow(name, steps, own)) is not None]
    slowest = sorted((each for each in found if each.longer_ns >= WORTH * step_ns), key=lambda each: -each.longer_ns)
    if not slowest:
        return []
    named = [
        f"{each.name} {format_ms(each.usual_ns)} in the median, {format_ms(each.least_ns)} in step {each.fastest} "
        f"({each.calls:,.0f} calls)"
        for each in slowest
    ]
    had_more = "" if same_inputs else "they had more to do in them, or "
    return [
        Finding(
            id="slow_operations",
            severity="warning",
            title="operations take longer in most steps than in fast ones, and most of their calls do: "
            f"{list_some(named, MOST_NAMED)}; {had_more}cores were slower, or memory was slow or fresh",
            evidence={
                "operations": [
                    {"name": each.name, "calls": each.calls, "usual_ns": round(each.usual_ns),
                     "least_ns": round(each.least_ns), "fastest_step": each.fastest}
                    for each in slowest
                ],
                "lost_ns": round(sum(each.longer_ns for each in slowest)),
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _by_name(own: StepOperations, steps: list[int]) -> dict[str, _Rows]:
    """Return the time, the calls and the median piece of each name in these steps."""
    at = [own.steps.index(step) for step in steps]
    return {
        name: (own.own_ns[row, at], own.calls[row, at], own.piece_ns[row, at]) for row, name in enumerate(own.names)
    }


def _slow(name: str, steps: list[int], ranks: list[dict[str, _Rows]]) -> _Slow | None:
    """Return how long the operation takes, if it takes longer in most of the steps that make as many calls of it."""
    nothing = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64), np.zeros(len(steps))
    times, calls, pieces = (np.array(each) for each in zip(*(own.get(name, nothing) for own in ranks), strict=True))
    usual = np.median(calls, axis=1)[:, None]
    alike = np.flatnonzero((calls == usual).all(axis=0))
    if alike.size < FEWEST:
        return None
    took: Floats = times[:, alike].mean(axis=0)
    at = int(np.argsort(took, kind="stable")[math.ceil(took.size / AMONG_FAST) - 1])
    least_ns, usual_ns = float(took[at]), float(np.median(took))
    piece = pieces[:, alike].mean(axis=0)
    each_slower = bool(np.median(piece) >= EACH_SLOWER * piece[at])  # not where one has no piece of it
    if not usual.any() or not least_ns or usual_ns < SLOWER * least_ns or not each_slower:
        return None
    return _Slow(
        name=name, calls=fmean(usual.ravel().tolist()), usual_ns=usual_ns, least_ns=least_ns, fastest=steps[alike[at]]
    )

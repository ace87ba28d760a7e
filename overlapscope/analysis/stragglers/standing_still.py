"""Find hosts of CPU runs that often stood still while they computed: their core, or a lock, was taken from them.

By the system's account a training thread stands still where it neither runs nor waits for a core though it seems to
compute. Without it, inside operations that take less in other steps (`HostRuns`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.per_rank.host_operations import same_inputs
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.display import percent_text
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.intervals import Activity
from overlapscope.timeline.readings import QUEUED, reading_series
from overlapscope.timeline.run import Run

MUCH: Final = 0.1
"""A host stands still often in this share of all its complete steps, and ..."""
IN_A_STEP: Final = 0.05
"""... in this share of the median one: else it was a single event."""
SOME: Final = 0.25
"""A step counts as one with a pause from this share of the usual pause."""
LIKE_THE_MOST: Final = 0.5
"""Hosts that stand still for this share of what the most does are named, too, whatever their median step shows: what
pauses in most steps seems usual in a trace."""
MOST_NAMED: Final = 3
BY_ACCOUNT: Final = (
    "neither on a core nor waiting for one", "they slept, or a core or a lock was taken from them",
)  # fmt: skip
BY_TRACE: Final = (
    "inside operations that take less in other steps",
    "they had more to do in them, slept, touched fresh memory, or a core or a lock was taken from them",
)
"""How that is known, and what it may be."""
SAME_INPUTS: Final = "they slept, touched fresh memory, or a core or a lock was taken from them"
"""Of a trace that shows that all steps compute as much."""


class _Still(msgspec.Struct, frozen=True, kw_only=True):
    """How long a host stood still in each of its complete steps."""

    still_ns: Ints
    step_ns: Ints

    @property
    def usual_ns(self) -> float:
        return float(np.median(self.still_ns))

    @property
    def share(self) -> float:
        return float(np.median(self.still_ns / self.step_ns))

    @property
    def often(self) -> int:
        """In how many steps it stood still for at least SOME of what is usual."""
        return int((self.still_ns >= SOME * self.usual_ns).sum())

    @property
    def lost_ns(self) -> float:
        """What a mean step loses where each with a pause loses what is usual: one long pause is an event of its own."""
        return self.usual_ns * self.often / self.still_ns.size if self.is_much else self.mean_ns

    @property
    def mean_ns(self) -> float:
        return float(self.still_ns.mean())

    @property
    def mean_share(self) -> float:
        return float(self.still_ns.sum() / self.step_ns.sum())

    @property
    def is_much(self) -> bool:
        return self.mean_share >= MUCH and self.share >= IN_A_STEP


def standing_still(
    run: Run,
    stood_still: Mapping[int, Activity],
    windows: Mapping[int, Sequence[StepWindow]],
    shared: Sequence[Finding],
) -> list[Finding]:
    """Return at most one finding: ranks whose hosts stood still much of the time, and for how long others did.

    Without those that were seen to take turns on cores (`shared`): that is what they paused for.
    """
    in_turns = {rank for each in shared if each.known_from == "trace" for rank in each.evidence["ranks"]}
    known = {rank: act for rank, act in stood_still.items() if rank not in in_turns}
    found = {rank: own for rank, act in known.items() if (own := _in_steps(act, windows.get(rank, ())))}
    much = [rank for rank, own in found.items() if own.is_much]
    if not much:
        return []
    least_ns = LIKE_THE_MOST * max(found[rank].mean_ns for rank in much)
    much = sorted((rank for rank in found if rank in much or found[rank].mean_ns >= least_ns),
                  key=lambda rank: -found[rank].usual_ns)  # fmt: skip
    rest = [own.mean_ns for rank, own in found.items() if rank not in much]
    named = [f"rank {rank} for at least {_of_step(found[rank])}" for rank in much[:MOST_NAMED]]
    named += [f"{len(much) - MOST_NAMED} more"] * (len(much) > MOST_NAMED)
    others = f", the others for less, as far as is seen ({format_ms(max(rest))} in the mean)" if rest else ""
    accounted = reading_series(run.ranks[much[0]], QUEUED)[0].size > 1
    how, why = BY_ACCOUNT if accounted else BY_TRACE
    if not accounted and all(same_inputs(run.ranks[rank]) for rank in much):
        why = SAME_INPUTS
    return [
        Finding(
            id="standing_still",
            severity="warning",
            title=f"hosts stood still while they computed, {how}: {', '.join(named)}{others}; {why}",
            evidence={
                "ranks": much,
                "still_ns": {str(rank): round(own.usual_ns) for rank, own in found.items()},
                "lost_ns": {str(rank): round(own.lost_ns) for rank, own in found.items()},
                "share": {str(rank): own.share for rank, own in found.items()},
            },
            known_from="telemetry" if accounted else "trace",
        )
    ]


def _in_steps(act: Activity, windows: Sequence[StepWindow]) -> _Still | None:
    own = [each.window for each in windows if each.complete and each.window and each.window[1] > each.window[0]]
    if not own:
        return None
    starts, ends = np.array(own, np.int64).T
    return _Still(still_ns=act.within(starts, ends), step_ns=ends - starts)


def _of_step(own: _Still) -> str:
    if not own.is_much:
        return f"{format_ms(own.mean_ns)} a step in the mean ({percent_text(own.mean_share)})"
    if own.often == own.still_ns.size:
        return f"{format_ms(own.usual_ns)} a step ({percent_text(own.share)} of it)"
    often = f"in {own.often} of {own.still_ns.size} steps"
    return f"{format_ms(own.usual_ns)} {often} ({percent_text(own.share)} of one)"

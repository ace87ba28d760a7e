"""What a rule looks at: a run, its analysis, and the mean of its steps."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, Final, Literal, Self

import msgspec

from overlapscope.analysis.across_ranks import Across, Transfers
from overlapscope.analysis.breakdown import Breakdown, Coverage
from overlapscope.analysis.cause_table import CAUSES
from overlapscope.analysis.rank_summary import Alone, alone_of
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.timeline.run import RankTimeline, Run

WORTH: Final = 0.02
"""Share of a step from which on a cause is worth a change: as much do two recordings of unchanged code differ (2.2 % in
`traces/baseline`)."""
MOST_RANKS: Final = 8
"""Ranks whose spans a rule looks through one by one: of many, every so-manieth; all are there in the analysis."""
VERIFY: Final = "record the new run, then: overlapscope compare RUN NEW_RUN"
Windows = tuple[tuple[int, int], ...]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its figures; times in nanoseconds, means over complete steps and ranks."""

    run: Run
    analysis: Analysis
    transfers: Mapping[int, Transfers]
    """Of each rank's calls, as far as waiting could be split off."""
    per: Literal["step", "recording"]
    """What the means are of; a recording where no step is complete."""
    coverage: Mapping[int, Coverage]
    """Of each rank's time."""
    windows: Mapping[int, Windows]
    """(start, end) by rank, on its own clock."""
    figures: Breakdown
    """The mean; only times and causes."""

    @classmethod
    def of(cls, run: Run, analysis: Analysis, together: Across, alone: Mapping[int, Alone] | None = None) -> Self:
        """Take the means of a run's complete steps, else of its whole recordings."""
        alone = alone or alone_of(run)
        chosen = [step for info in analysis.ranks for step in info.steps if step.complete and step.window_ns]
        figures: list[Breakdown] = list(chosen) or [info.whole for info in analysis.ranks if info.whole.window_ns]
        windows = {rank: _windows(own, of_steps=bool(chosen)) for rank, own in alone.items()}
        return cls(
            run=run,
            analysis=analysis,
            transfers=together.transfers(run),
            coverage={rank: own.coverage for rank, own in alone.items()},
            per="step" if chosen else "recording",
            windows={rank: each for rank, each in windows.items() if each},
            figures=_mean(figures),
        )

    @property
    def step_ns(self) -> int:
        """Length of a step; 0 without times."""
        return self.figures.window_ns or 0

    @property
    def steps(self) -> int:
        """Steps of the rank that has most; 1 for a recording."""
        return max(map(len, self.windows.values()), default=0) if self.per == "step" else 1

    @property
    def is_whole(self) -> bool:
        """Return whether every rank of the job is known to be recorded."""
        return len(self.run.ranks) == self.run.world_size

    def cause_ns(self, cause: str) -> int:
        """Return the exposed time of one cause."""
        return self.figures.causes.get(cause, 0)

    def is_worth(self, ns: float) -> bool:
        """Return whether so much of a step is worth a change."""
        return self.step_ns > 0 and ns >= WORTH * self.step_ns

    def some_ranks(self) -> Iterator[tuple[RankTimeline, Windows]]:
        """Yield at most `MOST_RANKS` ranks that have times, with their windows."""
        ranks = list(self.windows)
        for rank in ranks[:: -(-len(ranks) // MOST_RANKS) or 1]:
            yield self.run.ranks[rank], self.windows[rank]

    def some_at_hand(self) -> Iterator[tuple[RankTimeline, Windows]]:
        """Return the same ranks, one after the other, with their spans and annotations in memory."""
        return ((timeline.at_hand(), own) for timeline, own in self.some_ranks())


def recommended(
    given: Given,
    *,
    id: str,
    title: str,
    apply: Mapping[str, str],
    evidence: Mapping[str, Any],
    at_most_ns: float | None = None,
    verdict: str = "trial",
    measured: list[str],
    assumed: list[str],
    verify: str = VERIFY,
    memory_bytes: int | None = None,
) -> Recommendation:
    """Return a recommendation whose gain nobody predicted: at most what its cause takes today, or no figure at all."""
    return Recommendation(
        id=id,
        title=title,
        verdict=verdict,
        predicted_gain_ns=None,
        gain_low_ns=None if at_most_ns is None else 0,
        gain_high_ns=None if at_most_ns is None else round(at_most_ns),
        confidence="measured" if not assumed else "mixed" if measured else "assumed",
        memory_bytes=memory_bytes,
        changes_numerics=False,
        apply=dict(apply),
        verify=verify,
        per=given.per,
        evidence=dict(evidence),
        measured=measured,
        assumed=assumed,
    )


def ms(ns: float) -> str:
    """Spell a time for a title."""
    return f"{ns / 1e6:.3g} ms" if ns < 1e9 else f"{ns / 1e6:.0f} ms"


def _windows(own: Alone, *, of_steps: bool) -> Windows:
    if of_steps and own.whole:
        return tuple(each.window for each in own.windows if each.complete and each.window)
    return tuple(own.whole)


def _mean(chosen: list[Breakdown]) -> Breakdown:
    if not chosen:
        return Breakdown()
    names = [name for name in Breakdown.__struct_fields__ if name.endswith("_ns")]
    known = {name: [value for each in chosen if (value := getattr(each, name)) is not None] for name in names}
    means = {name: round(fmean(values)) for name, values in known.items() if len(values) == len(chosen)}
    sums = {cause: sum(each.causes.get(cause, 0) for each in chosen) for cause in CAUSES}
    return Breakdown(**means, causes={cause: round(sums[cause] / len(chosen)) for cause in sums if sums[cause]})

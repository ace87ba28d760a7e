"""The input of the rules: a run, its analysis, and its headline."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from statistics import fmean
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.advice.job_kind import JobKind, job_kind
from overlapscope.analysis.checks.pipelines.stages import PipelineStage
from overlapscope.analysis.common.cause_table import NoCauses
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, Transfers
from overlapscope.analysis.cross_rank.optimizer_cycles import optimizer_cycles
from overlapscope.analysis.exposure.arrivals import Arrivals, arrivals
from overlapscope.analysis.exposure.collectives import NAMES, NUMBERS, UNKNOWN, CollectiveRow
from overlapscope.analysis.exposure.fast_calls import transfers_at_most
from overlapscope.analysis.exposure.message_links import MessageLinks, message_links
from overlapscope.analysis.exposure.own_parts import OwnParts
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.job_step.headline import FEWEST_STEPS, Headline, left_out
from overlapscope.analysis.pauses.long_pauses import LongPauses
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import GAIN_COUNTS, Analysis, MeanStep, Recommendation, ShownBy
from overlapscope.analysis.stragglers.host_work import host_work
from overlapscope.errors import HostEventsError
from overlapscope.timeline.columns import NONE, Flags, Ints, or_none
from overlapscope.timeline.intervals import BusyTime, Intervals, difference, intersection, length, union
from overlapscope.timeline.rows import factorize_rows
from overlapscope.timeline.run import RankTimeline, Run

WORTH: Final = 0.02
"""Least share of a step for a recommendation: two recordings of unchanged code differ by as much (2.2 % in
`traces/baseline`)."""
LARGE_BYTES: Final = 1 << 20
"""From this size on how long a call takes depends mostly on its bytes. A choice: below, NCCL's latency does."""
NOTHING: Final = 0.01
"""Largest share of their time in which calls are overlapped that is called none. A choice: below what two recordings
differ by."""
IN_ONE_STEP: Final = 0.75
"""A loss is one of a single step where that holds this share of it. A choice: a mean over steps is then in none."""
MOST_RANKS: Final = 8
"""Limit on the ranks whose spans a rule reads; of more ranks every n-th is taken. The analysis covers all ranks."""
MOST_COMPARED: Final = 64
"""Limit on the ranks whose spans are read to compare them: all are, or none. A choice: a few seconds."""
COMPARE: Final = "overlapscope compare RUN NEW_RUN"
VERIFY: Final = f"record the new run, then: {COMPARE}"
DAMAGED: Final[NoCauses] = "unreadable_host_events"
AGAIN_NS: Final = "again_ns"
"""In the evidence of `recomputation`: for how long kernels of forward run once more in backward."""
MAY_FIT: Final = 0.5
"""Share of that which counts beside losses. A choice: memory may hold all that is recomputed, or nothing more."""
OF_MEAN: Final = {*MeanStep.__struct_fields__}.intersection(Headline.__struct_fields__) - {"steps"}
"""Figures that a mean step has as a median one does."""
OF_MEAN_STEP: Final = ("two_kinds", "steps_overlap")
"""Why a mean step is what recommendations are of: a median of two kinds is of one, and medians of steps that overlap
count time twice."""
Windows = tuple[tuple[int, int], ...]


class RuleInput(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A run with its figures; times in ns."""

    run: Run
    job: JobKind
    analysis: Analysis
    transfers: Mapping[int, Transfers]
    """By rank, the transfer times of its calls, where wait time could be separated."""
    per: Literal["step", "recording"]
    """Whether figures are of steps, or of whole recordings because no step is complete."""
    coverage: Mapping[int, Coverage]
    """By rank, when it computed, communicated and copied."""
    parts: Mapping[int, OwnParts]
    """By rank, what its own spans say of each of its calls, and of its exposed time."""
    windows: Mapping[int, Windows]
    """By rank, (start, end) of each step in ns on its own clock, but of those that are cut short: means are of whole
    steps."""
    numbers: Mapping[int, tuple[int, ...]]
    """By rank, the numbers of these steps; those of recordings from 0."""
    host_losses: Mapping[int, tuple[HostLoss, ...]]
    """By rank, the idle time that its host decided."""
    long_pauses: Mapping[int, LongPauses]
    """By rank, the long pauses of its host that left its device idle."""
    stages: Mapping[int, Mapping[str, PipelineStage]]
    """By rank, its stage in each pipeline, by the name of the group, as `own_stages` returns them."""
    idle_ns: int
    """All idle time in these windows, but of few long ones (`is_usual`), of the ranks whose host losses are known."""
    figures: Headline
    """The main figures of a step: those that `analyze` shows first, of the mean step for `OF_MEAN_STEP`."""
    cross_rank: CrossRank
    """What is known across ranks."""

    @classmethod
    def of(
        cls, run: Run, analysis: Analysis, cross_rank: CrossRank, alone: Mapping[int, RankSummary] | None = None
    ) -> Self:
        """Find a run's complete steps, else its whole recordings."""
        alone = alone or summarize_ranks(run)
        analysis = replace(analysis, headline=_of_main_step(analysis))
        of_steps = analysis.headline.window == "step"
        cut = analysis.throughput.cut_short if analysis.throughput else ()
        windows = {rank: _windows(own, cut, of_steps=of_steps) for rank, own in alone.items()}
        numbers = {rank: _numbers(own, cut, of_steps=of_steps) for rank, own in alone.items()}
        known = [own for own in alone.values() if own.no_causes_reason != DAMAGED]
        without = {*_long_steps(analysis), *cut}
        return cls(
            run=run,
            job=job_kind(run),
            analysis=analysis,
            transfers=cross_rank.transfers(run),
            coverage={rank: own.coverage for rank, own in alone.items()},
            parts={rank: own.parts for rank, own in alone.items()},
            per="step" if of_steps else "recording",
            windows={rank: each for rank, each in windows.items() if each},
            numbers={rank: numbers[rank] for rank, each in windows.items() if each},
            host_losses={rank: own.host_losses for rank, own in alone.items() if own.host_losses},
            long_pauses={rank: own.long_pauses for rank, own in alone.items() if own.long_pauses is not None},
            stages={rank: own.stages for rank, own in alone.items()},
            idle_ns=sum(_idle_ns(own, without, of_steps=of_steps) for own in known),
            figures=analysis.headline,
            cross_rank=cross_rank,
        )

    @cached_property
    def arrivals(self) -> Mapping[int, Arrivals]:
        """By rank, when the last recorded member came to each of its calls."""
        return arrivals(self.run, self.cross_rank)

    @cached_property
    def optimizer_cycles(self) -> Mapping[int, Windows]:
        """By rank, the cycles of the optimizer, which stand for steps where none is marked; empty where there are none,
        and of more ranks than `MOST_COMPARED`, as each is read, and compared with all others."""
        marked = any(info.steps for info in self.analysis.ranks)
        if marked or len(self.run.ranks) > MOST_COMPARED:
            return {}
        return optimizer_cycles(self.run, self.cross_rank.clocks)

    @cached_property
    def transfers_at_most_ns(self) -> Mapping[int, Ints]:
        """By rank of those that rules read (`some_ranks`), for how long each call that could not be split transfers, at
        most; NONE where no others show it."""
        ranks = [timeline.rank for timeline, _ in self.some_ranks()]
        return transfers_at_most(self.run, ranks, self.transfers, self.arrivals)

    @cached_property
    def message_links(self) -> MessageLinks:
        """How fast large messages are between ranks, as far as rules read these."""
        return message_links((timeline for timeline, _ in self.some_ranks()), LARGE_BYTES)

    @cached_property
    def host_work_ns(self) -> Mapping[int, Ints]:
        """By rank at hand, for how long its host certainly worked in each of its windows; without ranks where that is
        not known."""
        found = {}
        for rank, work in self._host_works.items():
            starts, ends = np.array(self.windows[rank], np.int64).reshape(-1, 2).T
            found[rank] = work.within(starts, ends)
        return found

    @cached_property
    def _host_works(self) -> Mapping[int, BusyTime]:
        found = {}
        for timeline, _ in self.some_at_hand():
            try:
                work = host_work(timeline)
            except HostEventsError:  # the rank's other figures do not need them
                work = None
            if work is not None:
                found[timeline.rank] = BusyTime(work)
        return found

    def _work_of_step_ns(self, rank: int) -> float:
        """Return for how long the host of a rank worked for a step, in the mean: while its device ran the step, or, if
        that is less, from the mark of the step to that of the next one, if any: a host that gains on its device does
        more than a step's work in the time of one."""
        beside, marks = float(self.host_work_ns[rank].mean()), self.run.ranks[rank].steps
        own = np.isin(marks.step, self.numbers[rank]) & (self.per == "step")
        # A server also works between marks.
        follows = np.append(marks.recording[1:] == marks.recording[:-1], np.False_)[: own.size]
        until = np.where(follows, np.append(marks.start_ns[1:], 0)[: own.size], marks.end_ns)
        marked = self._host_works[rank].within(marks.start_ns[own], until[own])
        return min(beside, float(marked.mean())) if marked.size else beside

    @cached_property
    def host_free_ns(self) -> float:
        """How much shorter a step can get while hosts work as long as recorded, at most: what is left of it beside the
        work of the host that has most, mean over steps; infinite where no host's work is known."""
        free = (
            fmean(end - start for start, end in self.windows[rank]) - self._work_of_step_ns(rank)
            for rank in self.host_work_ns
        )
        return max(min(free, default=np.inf), 0.0)

    @property
    def step_ns(self) -> int:
        """Duration of a step; 0 without times."""
        return self.figures.step_ns or 0

    @property
    def of_step(self) -> str:
        """Words for the step, or recording, that times are of, with its length."""
        mean = self.analysis.mean_step
        in_mean = " in the mean" * (self.per == "step" and mean is not None and mean.because in OF_MEAN_STEP)
        return f"a {ms(self.step_ns)} {self.per}{in_mean}"

    @cached_property
    def steps(self) -> int:
        """Largest number of complete steps of a rank, those that are cut short included, as sums of calls are of all; 1
        for whole recordings."""
        complete = (sum(each.complete for each in info.steps) for info in self.analysis.ranks)
        return max(complete, default=0) if self.per == "step" else 1

    @property
    def run_has_device(self) -> bool:
        """Return whether any rank's times are of a device."""
        return self.analysis.run.has_device

    @property
    def damaged_hosts(self) -> list[int]:
        """The ranks whose host events were recorded and cannot be read."""
        return [each.rank for each in self.analysis.ranks if each.no_causes_reason == DAMAGED]

    @property
    def is_whole(self) -> bool:
        """Return whether every rank of the job is known to be recorded."""
        return len(self.run.ranks) == self.run.world_size

    @property
    def ranks_are_joined(self) -> bool:
        """Return whether a call was seen on several of the recorded ranks, so that one may wait for another's host."""
        return self.cross_rank.matched + self.cross_rank.pairs.matched > 0

    def cause_ns(self, cause: str) -> int:
        """Return the exposed time of one cause, in ns a step."""
        return self.figures.causes.get(cause, 0)

    def exposed_ns(self, rows: Iterable[CollectiveRow]) -> float:
        """Return the exposed time of rows of collectives, ns a step, mean over ranks: groups make theirs at once.

        It is at most all exposed time of a step, in the mean or as shown: calls may run on, exposed, behind the last.
        """
        ranks = self.run.ranks
        sums = sum((row.exposed_ns or 0) * self.callers.get(_kind(row), len(ranks)) for row in rows)
        mean = sums / len(ranks) / max(self.steps, 1) if ranks else 0.0
        return min(mean, max(self.all_exposed_ns, self.figures.exposed_comm_ns or 0))

    @cached_property
    def all_exposed_ns(self) -> float:
        """All exposed time, ns a step, mean over ranks and steps; infinite where it is not known."""
        ranks = self.analysis.ranks
        steps = [each for own in ranks for each in own.steps if each.complete]
        known = [each.exposed_comm_ns for each in (steps if self.per == "step" else [own.whole for own in ranks])]
        if all(each is None for each in known):
            return np.inf
        return sum(each or 0 for each in known) / len(ranks) / max(self.steps, 1)

    @cached_property
    def callers(self) -> Mapping[tuple[str | int | None, ...], int]:
        """By kind of call (`_kind`), how many ranks have such calls: its row's exposed time is their mean."""
        found: Counter[tuple[str | int | None, ...]] = Counter()
        for rank, timeline in self.run.ranks.items():
            calls, names = timeline.collectives, (*timeline.names, None)  # -1 is no name
            sizes = {"group_size": self.transfers[rank].group_size}  # as matched, where it was not recorded
            columns = [sizes.get(name, getattr(calls, name)) for name in (*NAMES, *NUMBERS)]
            _, first = factorize_rows(columns)
            texts = [[names[code] for code in column[first].tolist()] for column in columns[: len(NAMES)]]
            texts[0] = [op or UNKNOWN for op in texts[0]]
            numbers = [[or_none(value) for value in column[first].tolist()] for column in columns[len(NAMES) :]]
            found.update({*zip(*texts, *numbers, strict=True)})
        return found

    def united_ns(self, rows: Iterable[CollectiveRow]) -> tuple[float, float]:
        """Return the time in which a call of these rows runs and nothing is computed, and in which one runs at all, ns
        a step, means over ranks at hand.

        `exposed_ns` divides time in which several calls are exposed among them: what overlap of these rows alone can
        gain, while others stay exposed, is up to all of it.
        """
        asked = list(rows)
        each = [self._united_ns(timeline, windows, asked) for timeline, windows in self.some_ranks()]
        exposed, ran = zip(*each, strict=True) if each else ((0.0,), (0.0,))
        return fmean(exposed), fmean(ran)

    def _united_ns(
        self, timeline: RankTimeline, windows: Windows, rows: Iterable[CollectiveRow]
    ) -> tuple[float, float]:
        calls = timeline.collectives
        own = self.calls_of(timeline, rows) & (calls.start_ns != NONE) & (calls.end_ns != NONE)
        busy = intersection(union((calls.start_ns[own], calls.end_ns[own])), time_of(windows))
        exposed = difference(busy, self.coverage[timeline.rank].compute)
        return length(exposed) / max(len(windows), 1), length(busy) / max(len(windows), 1)

    def calls_of(self, timeline: RankTimeline, rows: Iterable[CollectiveRow]) -> Flags:
        """Return which calls of a rank are of these rows, by operation, group, type, dimension, phase and size."""
        calls, names = timeline.collectives, (*timeline.names, None)  # -1 is no name
        kinds = {(row.op, row.group, row.dtype, row.dimension, row.phase, row.bytes) for row in rows}
        columns = (calls.op, calls.group, calls.dtype, calls.dimension, calls.phase)
        which, first = factorize_rows([*columns, calls.bytes])
        named = [(*(names[column[at]] for column in columns), or_none(int(calls.bytes[at]))) for at in first.tolist()]
        return np.array([each in kinds for each in named], np.bool_)[which]

    def besides_ns(self, exposed_ns: float) -> float:
        """Return how much of exposed time can be overlapped: at most the time of a step without communication, of ranks
        that were recorded: nothing is known to be free before a rank's first span, or outside its window."""
        figures = self.figures
        parts = (figures.comm_ns, figures.start_of_recording_ns, figures.outside_ns)
        return max(min(exposed_ns, (figures.step_ns or 0) - sum(each or 0 for each in parts)), 0.0)

    def is_usual(self, rank: int) -> Flags:
        """Return which windows of a rank are of steps that the shares of causes are of: no few long ones."""
        return np.array([number not in self.long_steps for number in self.numbers[rank]], np.bool_)

    @cached_property
    def long_steps(self) -> frozenset[int]:
        """The few long steps that the shares of causes leave out; a mean step that stands for all holds them."""
        return _long_steps(self.analysis) if self.per == "step" else frozenset()

    def in_one_step(self, by_window: Mapping[int, Ints]) -> tuple[int, float] | None:
        """Return the step that holds most (`IN_ONE_STEP`) of times in the windows of ranks, with its time, mean over
        these ranks; None where none does, or steps are few."""
        by_step: dict[int, float] = {}
        for rank, own in by_window.items():
            for step, ns in zip(self.numbers[rank], own.tolist(), strict=True):
                by_step[step] = by_step.get(step, 0.0) + ns / len(by_window)
        most = max(by_step, key=by_step.__getitem__, default=0)
        if self.per != "step" or len(by_step) < FEWEST_STEPS or not by_step[most]:
            return None
        return (most, by_step[most]) if by_step[most] >= IN_ONE_STEP * sum(by_step.values()) else None

    def is_worth(self, ns: float) -> bool:
        """Return whether a time in ns is at least the share `WORTH` of a step."""
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
    given: RuleInput,
    *,
    id: str,
    title: str,
    apply: Mapping[str, str],
    evidence: Mapping[str, Any],
    at_most_ns: float | None = None,
    loss_ns: int | None = None,
    bound_from: Literal["loss"] | None = None,
    shown_by: ShownBy | None = None,
    verdict: str = "trial",
    measured: list[str],
    assumed: list[str],
    per: Literal["step", "recording"] | None = None,
    verify: str = VERIFY,
    memory_bytes: int | None = None,
) -> Recommendation:
    """Return a recommendation without a predicted gain: at most `at_most_ns`, the present cost of its cause.

    `loss_ns` is that cost where it bounds no gain; with `bound_from` a replay can say more. `per` is "recording" where
    a single step of many has that cost.
    """
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
        per=per or given.per,
        loss_ns=round(at_most_ns) if loss_ns is None and at_most_ns is not None else loss_ns,
        bound_from=bound_from,
        shown_by=shown_by,
        evidence=dict(evidence),
        measured=measured,
        assumed=assumed,
    )


def gain_ns(each: Recommendation) -> float | None:
    """Return what a recommendation is predicted to gain, else at most; None where neither is known."""
    return each.gain_high_ns if each.predicted_gain_ns is None else each.predicted_gain_ns


def counted_loss_ns(each: Recommendation) -> int | None:
    """Return the loss that counts in the order: what a replay gains where that is far more, and how much it may matter
    (`GAIN_COUNTS`)."""
    return each.gain_high_ns if each.evidence.get(GAIN_COUNTS) else each.loss_ns


def recomputed_ns(each: Recommendation) -> float:
    """Return what counts of a recommendation to recompute less beside losses; 0 for others."""
    return float(MAY_FIT * each.evidence.get(AGAIN_NS, 0))


def _long_steps(analysis: Analysis) -> frozenset[int]:
    mean = analysis.mean_step
    of_all = mean is not None and mean.because in OF_MEAN_STEP and mean.exposed_comm_ns is not None
    return frozenset() if of_all else left_out(analysis.headline)


def _of_main_step(analysis: Analysis) -> Headline:
    """Return the headline with the figures of the mean step in place of the median one's, where that stands first for
    one of `OF_MEAN_STEP`."""
    head, mean = analysis.headline, analysis.mean_step
    if mean is None or mean.because not in OF_MEAN_STEP or mean.exposed_comm_ns is None:
        return head
    return replace(
        head,
        **{name: getattr(mean, name) for name in OF_MEAN},
        comm_ns=(mean.exposed_comm_ns or 0) + mean.overlapped_ns,
        compute_ns=mean.compute_only_ns + mean.overlapped_ns,
    )


def per_step(each: Recommendation, ns: float | None, steps: int) -> float:
    """Return a figure of a recommendation in ns a step: one of the whole recording is divided by its steps."""
    return (ns or 0) / (max(steps, 1) if each.per == "recording" else 1)


def ms(ns: float) -> str:
    """Format a time in ns for a title, in ms."""
    return f"{ns / 1e6:.3g} ms" if ns < 1e9 else f"{ns / 1e6:.0f} ms"


def _kind(row: CollectiveRow) -> tuple[str | int | None, ...]:
    return tuple(getattr(row, name) for name in (*NAMES, *NUMBERS))


def _windows(own: RankSummary, cut: Collection[int], *, of_steps: bool) -> Windows:
    if of_steps and own.whole:
        return tuple(each.window for each in own.windows if each.complete and each.window and each.step not in cut)
    return tuple(own.whole)


def _numbers(own: RankSummary, cut: Collection[int], *, of_steps: bool) -> tuple[int, ...]:
    if of_steps and own.whole:
        return tuple(each.step for each in own.windows if each.complete and each.window and each.step not in cut)
    return tuple(range(len(own.whole)))


def _idle_ns(own: RankSummary, without: Collection[int], *, of_steps: bool) -> int:
    whole, *steps = own.figures
    figures = [
        each
        for window, each in zip(own.windows, steps, strict=True)
        if window.complete and window.window and window.step not in without
    ]
    return sum(each.idle_ns or 0 for each in (figures if of_steps else [whole]))


def window_of(windows: Windows, moments: Ints) -> Ints:
    """Return the position of the window that each moment lies in, in order of their begins; NONE outside of all."""
    begin, until = np.array(sorted(windows), np.int64).reshape(-1, 2).T
    at = np.searchsorted(begin, moments, side="right") - 1
    inside = (at >= 0) & (moments < np.append(until, NONE)[at])
    return np.where(inside, at, NONE)


def time_of(windows: Windows) -> Intervals:
    """Return the time in any of the windows."""
    return union((np.array([start for start, _ in windows]), np.array([end for _, end in windows])))


def lie_within(times: Intervals, moments: Ints) -> Flags:
    """Return which moments lie in one of these times; NONE lies in none."""
    if not times.starts.size:
        return np.zeros(moments.size, np.bool_)
    at = np.searchsorted(times.starts, moments, side="right") - 1
    found: Flags = (at >= 0) & (moments < times.ends[np.maximum(at, 0)])
    return found

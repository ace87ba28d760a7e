"""Render why communication is exposed: a table of causes, the largest over all steps first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Final, Self

import msgspec

from overlapscope.analysis.common.cause_table import (
    LATE_RANKS,
    MAY_BE_WAITING,
    NOTABLE,
    START_OF_RECORDING,
    TRANSFER,
    TRANSFERS,
    WAITS_FOR_LATE_RANK,
    cause_label,
)
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.mean_step import lacks_start
from overlapscope.analysis.result import (
    Analysis,
    causes_of_all_steps,
    may_wait_shares,
    usual_causes,
    without_outliers,
)
from overlapscope.analysis.unseen_waits import lacks_members
from overlapscope.report.formatting import MAX_WIDTH, NOT_APPLICABLE, aligned, count, ms, percent

WORTH_NAMING: Final = 0.01
"""Least share of idle time whose cause is named, the rest is `other`; and of other times that only some steps have."""
WORTH_DIVIDING: Final = 0.01
"""Least share of a step that waiting for late ranks takes where its parts are named: below it, they are as well due to
what differs from step to step. A choice."""
LEAST_SHOWN: Final = 0.0005
"""A smaller share of a part is 0.0 % as shown."""
OR_RANKS: Final = {
    "ahead": " (or waiting)", "dependency": ", or for other ranks", "host_waited": " (or waiting)",
    "tail": " (or waiting)",
}  # fmt: skip
"""What ends the labels of `MAY_BE_WAITING`, where calls that are not split into wait and transfer have `NOTABLE`."""
AT_LEAST: Final = ", at least"
"""What ends the label of waiting for late ranks there."""
NEARLY_ALL: Final = 0.95
"""From this share of exposed time on, it is not said how much of it calls have that are not split."""
SHARE_WITHIN: Final = 0.01
"""Shares of a median step and of all steps that are further apart are both shown."""
MEANS_FROM: Final = 1.25
"""From so many times the median exposed time on that the mean is, milliseconds are means, too: shares of all steps are
of what the longer ones expose, and the median step has little of it. A choice."""


def exposed_causes_text(analysis: Analysis) -> str:
    """Return the table of causes of a step's exposed time, and what is not known of them; empty without any.

    Several causes of waiting for late ranks stand below their sum: which of them a wait is says who was late, and why;
    of waiting that is little of a step the sum alone. Those of transfers stand below theirs, where all calls are split.
    """
    head = analysis.headline
    if not _has_causes(analysis):
        return ""
    sums = _Sums.of(analysis)
    may_wait = may_wait_shares(analysis, sums.ordered())
    rows = [sums.columns()]
    for name, causes in _parts(analysis, sums):
        rows.append(sums.row(name, causes))
        divided = len(causes) > 1 and (causes[0] not in WAITS_FOR_LATE_RANK or sums.is_worth_dividing(causes))
        shown = [each for each in causes if divided and sums.shows(each)]
        rows += [sums.row(f"  {_label(analysis, each, may_wait)}", [each]) for each in shown]
    lines = list(aligned(rows))
    if sums.mean_ns is not None:
        exposes = f"the mean step exposes {ms(sums.mean_ns)} ms, the median one {ms(head.exposed_comm_ns)} ms"
        means = f"means of {count(sums.steps, 'step')}{', without the start of the recording' * sums.without_start}"
        lines.append(f"Milliseconds are {means}: {exposes}.")
    if any(may_wait.get(cause, 0) >= NOTABLE for cause in MAY_BE_WAITING):
        lines.append(fill(_may_wait(analysis, sums, may_wait), MAX_WIDTH, break_on_hyphens=False))
    return "\n".join(lines)


class LargestCause(msgspec.Struct, frozen=True, kw_only=True):
    """The first row of the table of causes."""

    label: str
    ns: float
    share: float
    """Of the exposed time of the step that `ns` is of."""
    causes: Sequence[str]
    """The largest first."""
    of_mean: bool
    """Whether that is the mean step."""


def largest_cause(analysis: Analysis) -> LargestCause | None:
    """Return the first row of the table of causes; None without one, and where the shown step has none of it."""
    if not _has_causes(analysis):
        return None
    sums = _Sums.of(analysis)
    label, causes = _parts(analysis, sums)[0]
    ns, exposed_ns = sums.shown_ns(causes), sums.mean_ns or sums.head.exposed_comm_ns or 0
    ordered = sorted(causes, key=lambda each: sums.less_of([each]))
    if not ns or not exposed_ns:
        return None
    return LargestCause(label=label, ns=ns, share=ns / exposed_ns, causes=ordered, of_mean=sums.mean_ns is not None)


def exposed_by_cause(analysis: Analysis) -> tuple[dict[str, float], bool]:
    """Return the nanoseconds of the table of causes by single cause, and whether they are of the mean step."""
    sums = _Sums.of(analysis)
    found = {cause: sums.shown_ns([cause]) for cause in sums.ordered()}
    return {cause: ns for cause, ns in found.items() if ns}, sums.mean_ns is not None


def _has_causes(analysis: Analysis) -> bool:
    return bool({*analysis.main_figures.causes} - {"unknown"})


def _parts(analysis: Analysis, sums: "_Sums") -> list[tuple[str, tuple[str, ...]]]:
    """Return the rows of the table by label, the largest first: single causes, and those that have one sum."""
    ordered = sums.ordered()
    may_wait = may_wait_shares(analysis, ordered)
    late = [cause for cause in ordered if cause in WAITS_FOR_LATE_RANK]
    is_split = analysis.headline.exposed_wait_ns is not None
    sent = [cause for cause in ordered if cause in TRANSFERS and late and is_split]
    groups = {tuple(each): name for name, each in ((LATE_RANKS, late), (TRANSFER, sent)) if len(each) > 1}
    parts = [*groups, *((cause,) for cause in ordered if not any(cause in each for each in groups))]
    more = any(may_wait.get(cause, 0) >= NOTABLE for cause in MAY_BE_WAITING)
    names = {each: groups.get(each) or _label(analysis, each[0], may_wait) for each in parts}
    return [
        (names[each] + AT_LEAST * (more and each[0] in WAITS_FOR_LATE_RANK), each)
        for each in sorted(parts, key=sums.less_of)
    ]


def _label(analysis: Analysis, cause: str, may_wait: Mapping[str, float]) -> str:
    shown = cause_label(cause, on_cpu=not analysis.run.has_device)
    return shown + OR_RANKS[cause] if cause in OR_RANKS and may_wait.get(cause, 0) >= NOTABLE else shown


class _Sums(msgspec.Struct, frozen=True, kw_only=True):
    """The exposed time of each cause, in the columns of the table.

    The last shares are of what all complete steps exposed, without outliers: where a few steps hold most of the
    waiting, a median one does not show it. Those of the median stand before them where they differ.
    """

    head: Headline
    every: Counter[str]
    """Of all complete steps but outliers; empty without steps."""
    of_steps: str
    hours: Mapping[str, float]
    """GPU-hours a day; empty where they are not known."""
    price: float | None
    """Of a GPU-hour."""
    mean_ns: float | None
    """What the mean step exposes, where milliseconds are means; else None: they are of the median."""
    steps: int
    """Number of steps of that mean."""
    without_start: bool
    """Whether that mean is without the start of the recording, of which these steps have some."""

    @classmethod
    def of(cls, analysis: Analysis) -> Self:
        cost, head, mean = analysis.throughput, analysis.headline, analysis.mean_step
        odd_median = without_outliers(analysis) is not None
        every = causes_of_all_steps(analysis) if odd_median else usual_causes(analysis)
        hours = cost.exposed_causes_gpu_hours_a_day if cost else {}
        of_all = every == causes_of_all_steps(analysis) or mean is not None
        without = cost.cut_short if cost else []
        exposed = [each.exposed_comm_ns for each in head.job_steps if each.step not in without]
        mean_ns = sum(exposed) / len(exposed) if exposed and of_all and every else 0.0
        hides_mean = mean_ns > MEANS_FROM * (head.exposed_comm_ns or 0)
        if mean is not None and mean.causes:
            every, mean_ns, hides_mean = Counter(mean.causes), mean.exposed_comm_ns or 0, True
        return cls(
            head=head,
            every=every,
            of_steps=("of whole steps" if without or head.causes_cut else "of all steps")
            if of_all
            else "of steps but outliers",
            mean_ns=mean_ns if mean_ns and hides_mean else None,
            steps=len(exposed) if mean is None else mean.steps,
            without_start=mean is not None and lacks_start(mean, analysis),
            hours=hours,
            price=cost.price_per_gpu_hour if cost and hours else None,
        )

    @property
    def differ(self) -> bool:
        """Whether the shares of the median and of all steps do."""
        exposed_ns, total = self.head.exposed_comm_ns or 1, self.every.total()
        return (
            self.mean_ns is None
            and total > 0
            and any(
                abs(self.head.causes.get(cause, 0) / exposed_ns - ns / total) > SHARE_WITHIN
                for cause, ns in self.every.items()
            )
        )

    def ordered(self) -> list[str]:
        """Return the causes, the largest first: those of the headline, and of others what is worth naming."""
        some = [cause for cause, ns in self.every.items() if ns >= WORTH_NAMING * self.every.total()]
        # GPU-hours are of outliers, too.
        some += [cause for cause, spent in self.hours.items() if spent >= WORTH_NAMING * sum(self.hours.values())]
        of_head = self.head.causes
        left_out = {START_OF_RECORDING} if self.without_start else set[str]()
        return sorted(
            {*of_head, *some} - left_out, key=lambda cause: (self.less_of([cause]), -of_head.get(cause, 0), cause)
        )

    def shows(self, cause: str) -> bool:
        """Return whether a part of a sum has a share that is not shown as 0.0 %."""
        return self._largest_share([cause]) >= LEAST_SHOWN

    def is_worth_dividing(self, causes: Sequence[str]) -> bool:
        """Return whether the sum of some causes is enough of a step to name its parts."""
        exposed_ns, step_ns = self.mean_ns or self.head.exposed_comm_ns or 0, self.head.step_ns or 0
        return self._largest_share(causes) * exposed_ns >= WORTH_DIVIDING * step_ns

    def _largest_share(self, causes: Sequence[str]) -> float:
        """Return the share of exposed time that some causes have: in the column in which it is largest."""
        known: list[Mapping[str, float]] = [self.head.causes, self.every, self.hours]
        shares = (sum(of.get(each, 0) for each in causes) / sum(of.values()) for of in known if any(of.values()))
        return max(shares, default=0.0)

    def less_of(self, causes: Sequence[str]) -> int:
        """Return their sum, less than zero: a key that sorts the largest first."""
        sums: Mapping[str, int] = self.every or self.head.causes
        return -sum(sums.get(cause, 0) for cause in causes)

    def columns(self) -> list[str]:
        """Return the heads of the columns."""
        of_mean = "mean " if self.mean_ns is not None else ""
        found = ["why exposed", f"{of_mean}ms a {self.head.window}", *["share"] * self.differ]
        found.append(self.of_steps if self.every else "share")
        return [*found, *["GPU-hours a day"] * bool(self.hours), *["price a day"] * (self.price is not None)]

    def shown_ns(self, causes: Sequence[str]) -> float:
        """Return the sum of some causes: of a median step, or of the mean one, where milliseconds are means."""
        if self.mean_ns is None:
            return sum(self.head.causes.get(each, 0) for each in causes)
        return sum(self.every[each] for each in causes) / self.every.total() * self.mean_ns

    def row(self, label: str, causes: Sequence[str]) -> list[str]:
        """Return the cells of the sum of some causes."""
        exposed_ns = self.head.exposed_comm_ns or 1
        ns, taken = (sum(of.get(each, 0) for each in causes) for of in (self.head.causes, self.hours))
        share = sum(self.every[each] for each in causes) / self.every.total() if self.every else ns / exposed_ns
        cells = [
            label,
            ms(self.shown_ns(causes)),
            *[percent(ns / exposed_ns)] * self.differ,
            percent(share),
        ]
        costs = [f"{taken:,.1f}"] if self.hours else []
        costs += [] if self.price is None else [f"{taken * self.price:,.2f}"]
        return [*cells, *([NOT_APPLICABLE] * len(costs) if [*causes] == [START_OF_RECORDING] else costs)]


def _may_wait(analysis: Analysis, sums: _Sums, shares: Mapping[str, float]) -> str:
    """Return which causes may hold waiting for other ranks, why, and how much of the exposed time, in a sentence."""
    of_ns = {cause: share * sums.shown_ns([cause]) for cause, share in shares.items() if share >= NOTABLE}
    exposed_ns = sums.mean_ns or analysis.headline.exposed_comm_ns or 0
    of_all = f" ({ms(sum(of_ns.values()))} of {ms(exposed_ns)} ms)" * (sum(of_ns.values()) < NEARLY_ALL * exposed_ns)
    why = f"How long {_bounded_calls(analysis)} transfer is not known{of_all}"
    if lacks_members(analysis) and 0 < analysis.skew.unmatched < analysis.skew.matched:
        perhaps = "" if analysis.run.missing_ranks else "perhaps "
        why = f"Members of groups were {perhaps}not recorded, and calls may wait for these{of_all}"
    elif analysis.skew.unmatched:
        why = f"Not all calls could be matched across ranks{of_all}"
    where = "what the next compute waited for holds"
    if of_ns.get("tail", 0) > of_ns.get("dependency", 0) + of_ns.get("ahead", 0):
        where = "what no other compute than the optimizer's follows holds"
    elif "unknown" in of_ns:
        where = "what is unknown, and what the next compute waited for, may hold"
    return f"{why}: {where} waiting for other ranks, too."


def _bounded_calls(analysis: Analysis) -> str:
    """Return the operations of the exposed calls that are not split, and of which dimension all of these are, where
    calls of another one are split."""
    exposed = [row for row in analysis.collectives if row.exposed_ns]
    bounded = [row for row in exposed if row.estimate == "upper_bound"]
    dimensions = {row.dimension for row in bounded}
    others = any(row.dimension not in dimensions for row in exposed)
    one = next(iter(dimensions)) if len(dimensions) == 1 else None
    of_one = f" of {one} parallelism" if one and others else ""
    return f"{', '.join(sorted({row.op for row in bounded})) or 'some'} calls{of_one}"

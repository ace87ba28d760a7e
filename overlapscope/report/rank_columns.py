"""The columns of the table of ranks and steps, and the medians or means of a rank over its complete steps."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import Final

import msgspec

from overlapscope.analysis.common.wording import short
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import MeanStep, RankInfo, StepBreakdown
from overlapscope.report.formatting import ms, percent

TIMES: Final = (
    "window_ns", "exposed_comm_ns", "overlapped_ns", "comm_ns", "compute_ns", "compute_only_ns", "copy_only_ns",
    "idle_ns",
)  # fmt: skip
RATIOS: Final = {
    "overlap_efficiency": ("overlapped_ns", "comm_ns"), "exposed_fraction": ("exposed_comm_ns", "window_ns"),
}  # fmt: skip
"""Shares, by the times that they are of."""
Value = Callable[[Breakdown], float | None]
"""Return one figure of a breakdown: nanoseconds or a ratio, None where it is not known."""


class Column(msgspec.Struct, kw_only=True, frozen=True):
    """A column of the table of ranks and steps."""

    label: str
    value: Value
    format: Callable[[float | None], str] = ms
    ratio: tuple[str, str] | None = None
    """Of a share: the names of the two times, as a mean share is of their sums."""
    in_report: bool = True
    """Whether the table of the HTML and Markdown report shows it; that of `analyze` shows all columns."""

    def cell(self, figures: Breakdown) -> str:
        """Return the text of the table's cell."""
        return self.format(self.value(figures))

    def cell_of(self, windows: Sequence[Breakdown], *, of_mean: bool = False) -> str:
        """Return the text of the median over some windows, or of their mean; shares are of sums then."""
        return self.format((_mean if of_mean else _median)(windows, self.value, self.ratio))


COLUMNS: Final = (
    Column(label="exposed", value=attrgetter("exposed_comm_ns")),
    Column(label="overlapped", value=attrgetter("overlapped_ns")),
    Column(label="compute only", value=attrgetter("compute_only_ns")),
    Column(label="memcpy only", value=attrgetter("copy_only_ns")),
    Column(label="idle", value=attrgetter("idle_ns")),
    Column(label="window", value=attrgetter("window_ns")),
    Column(
        label="exposed %",
        value=lambda figures: figures.exposed_fraction if figures.comm_ns else None,
        format=percent,
        ratio=RATIOS["exposed_fraction"],
        in_report=False,
    ),
    Column(
        label="overlap %",
        value=attrgetter("overlap_efficiency"),
        format=percent,
        ratio=RATIOS["overlap_efficiency"],
    ),
)
"""The columns in their order. To add a column, add an entry here; nothing else changes."""


def rank_label(info: RankInfo) -> str:
    """Return the name of a rank, with its host where there are several."""
    return f"rank {info.rank}" + (f" ({short(info.host)})" if info.host else "")


def rank_figures(info: RankInfo, mean: MeanStep | None = None) -> dict[str, float | None]:
    """Return the figures of a rank by name: medians over its typical windows, or means where the main figure is the
    `mean` step.

    They are in nanoseconds or ratios; None where a figure was not recorded.
    """
    windows, typical = typical_windows(info, mean), _median if mean is None else _mean
    return {name: typical(windows, attrgetter(name), RATIOS.get(name)) for name in (*TIMES, *RATIOS)}


def complete_steps(info: RankInfo) -> list[StepBreakdown]:
    """Return the steps of a rank that were recorded from begin to end."""
    return [each for each in info.steps if each.complete and each.window_ns is not None]


def typical_windows(info: RankInfo, mean: MeanStep | None = None) -> Sequence[Breakdown]:
    """Return what the figures of a rank are of: its complete steps, those of the mean step where that is the main
    figure; else its whole recording."""
    steps = complete_steps(info)
    of_mean = [each for each in steps if mean is not None and each.step in mean.numbers]
    return of_mean or steps or [info.whole]


def _median(windows: Sequence[Breakdown], value: Value, _: tuple[str, str] | None) -> float | None:
    """Return the median over windows that know the figure; times are whole nanoseconds."""
    known = [figure for each in windows if (figure := value(each)) is not None]
    if not known:
        return None
    middle = median(known)
    return round(middle) if all(isinstance(each, int) for each in known) else middle


def _mean(windows: Sequence[Breakdown], value: Value, ratio: tuple[str, str] | None) -> float | None:
    """Return the mean over windows that know the figure; a share is of the sums of its times (`ratio`)."""
    known = [(figure, each) for each in windows if (figure := value(each)) is not None]
    if not known:
        return None
    if ratio is None:
        return round(fmean(figure for figure, _ in known))
    part, whole = (sum(getattr(each, name) for _, each in known) for name in ratio)
    return float(part / whole)

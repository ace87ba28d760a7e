"""One rank's figures for reports: medians over its complete steps, else of its whole recording."""

from statistics import median
from typing import Final

from overlapscope.analysis.analyze import RankInfo
from overlapscope.analysis.breakdown import Breakdown
from overlapscope.values import dataclass

TIMES: Final = (
    "window_ns", "exposed_comm_ns", "overlapped_ns", "comm_ns", "compute_ns", "compute_only_ns", "copy_only_ns",
    "idle_ns",
)  # fmt: skip
RATIOS: Final = ("overlap_efficiency", "exposed_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """Values by name; None where no step, or the recording, does not know one."""

    rank: int
    steps: int
    """0: of the whole recording."""
    values: dict[str, float | None]


def rank_figures(info: RankInfo) -> RankFigures:
    """Give the figures of a rank."""
    steps: list[Breakdown] = [each for each in info.steps if each.complete and each.window_ns is not None]
    values: dict[str, float | None] = {}
    for name in (*TIMES, *RATIOS):
        known = [value for each in steps or [info.whole] if (value := getattr(each, name)) is not None]
        middle = median(known) if known else None
        values[name] = round(middle) if middle is not None and name in TIMES else middle
    return RankFigures(rank=info.rank, steps=len(steps), values=values)

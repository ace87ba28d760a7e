"""Say which range an outlier step has that the other steps of its rank lack: a checkpoint, an evaluation."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from overlapscope.analysis.checks.outlier_steps import FIGURES
from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.user_ranges import range_of_step
from overlapscope.analysis.common.wording import short
from overlapscope.timeline.run import Run

EXPLAINS: Final = 0.5
"""A range is named where it lasts for at least this share of what the step takes, or idles, more than the others."""


def with_ranges(findings: Iterable[Finding], run: Run) -> list[Finding]:
    """Return the findings, with the range that explains an outlier step."""
    return [_with_range(each, run) for each in findings]


def _with_range(found: Finding, run: Run) -> Finding:
    figure = next((name for name, _, _ in FIGURES if found.id.startswith(f"odd_step:{name}:")), None)
    if figure in (None, "comm_ns") or found.id.endswith(":others"):
        return found
    rank, step = found.evidence["rank"], found.evidence["step"]
    own = range_of_step(run.ranks[rank], step)
    more_ns = found.evidence[figure] - found.evidence["median_of_others_ns"]
    if own is None or own[1] < EXPLAINS * more_ns:
        return found
    return replace(
        found, title=f"{found.title}; it alone of the rank's steps has the range {short(own[0])} ({format_ms(own[1])})",
        evidence=found.evidence | {"range": own[0], "range_ns": own[1]},
    )  # fmt: skip

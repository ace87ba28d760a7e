"""Find steps that get slower over a recording: those of its last third take longer than those of its first."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.job_step.headline import Headline, StepOfJob
from overlapscope.timeline.columns import Floats

FEWEST: Final = 12
"""Four steps a third: that all of four are longer than all of four others happens by chance once in 70 times."""
SLOWER: Final = 1.15
"""The median of the last third is at least so many times that of the first. A choice: clocks that settle cost some
percent."""
ORDERED: Final = 0.95
"""Of the pairs of a step of the first third and one of the last, in at least this share the latter is longer."""
PARTS: Final = (
    ("compute", ("compute_only_ns", "overlapped_ns")),
    ("exposed communication", ("exposed_comm_ns",)),
    ("copies", ("copy_only_ns",)),
    ("idle time", ("idle_ns",)),
    ("time outside the ranks' own windows", ("outside_ns",)),
)
"""What may take longer, and the parts of a step that it is."""


def slowing_steps(head: Headline, known_from: str) -> list[Finding]:
    """Return a finding if the steps of a job, in order of time, get slower; none of fewer than FEWEST."""
    steps = head.job_steps if head.window == "step" else []
    if len(steps) < FEWEST:
        return []
    took = np.array([each.step_ns for each in steps], np.float64)
    third = len(steps) // 3
    first, last = took[:third], took[-third:]
    before, after = float(np.median(first)), float(np.median(last))
    if after < SLOWER * before or _longer(first, last) < ORDERED:
        return []
    grew = {name: _median(steps[-third:], fields) - _median(steps[:third], fields) for name, fields in PARTS}
    most, more_ns = max(grew, key=grew.__getitem__), after - before
    mostly = (
        f"; {format_ms(min(grew[most], more_ns))} of the difference are {most}" if 2 * grew[most] >= more_ns else ""
    )
    return [
        Finding(
            id="slowing_steps",
            severity="warning",
            title=f"steps get slower: the last third of them take {format_ms(after)} in the median, the first third "
            f"{format_ms(before)}{mostly}",
            evidence={
                "first_third_ns": before, "last_third_ns": after, "grew_ns": grew,
                "lost_ns": max(float(took.mean()) - before, 0.0),
            },
            known_from=known_from,
        )
    ]  # fmt: skip


def _longer(one: Floats, other: Floats) -> float:
    """Return in which share of the pairs the step of the second kind is longer."""
    return float((other[:, None] > one[None]).mean())


def _median(steps: Sequence[StepOfJob], fields: Sequence[str]) -> float:
    return float(np.median([sum(getattr(each, field) or 0 for field in fields) for each in steps]))

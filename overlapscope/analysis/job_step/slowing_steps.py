"""Find steps that get slower over a recording: from some step on, or little by little."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.job_step.headline import Headline, StepOfJob
from overlapscope.timeline.columns import Floats

FEWEST: Final = 12
"""Four steps a third: that all of four are longer than all of four others happens by chance once in 70 times."""
SLOWER: Final = 1.15
"""The median of the last third is at least so many times that of the first. A choice: clocks that settle cost some
percent. Likewise the shortest step of a later level, beside the longest one before, and the last of steps that grow."""
ORDERED: Final = 0.95
"""Of the pairs of a step of the first third and one of the last, in at least this share the latter is longer."""
OF_LEVEL: Final = 3
"""Steps before and after a rise, at least."""
GROWING: Final = 5
"""Steps each of which is longer than the one before: by chance once in 120 times."""
PARTS: Final = (
    ("compute", ("compute_only_ns", "overlapped_ns")),
    ("exposed communication", ("exposed_comm_ns",)),
    ("copies", ("copy_only_ns",)),
    ("idle time", ("idle_ns",)),
    ("time outside the ranks' own windows", ("outside_ns",)),
)
"""What may take longer, and the parts of a step that it is."""


class _Rise(msgspec.Struct, frozen=True):
    """Steps before and after which they are compared, and in which words, without what most of the difference is."""

    before: Sequence[StepOfJob]
    after: Sequence[StepOfJob]
    said: str


def slowing_steps(head: Headline, known_from: str) -> list[Finding]:
    """Return a finding if the steps of a job, in order of time, get slower: all later ones from some step on, the last
    third of FEWEST or more, or each after the one before."""
    steps = head.job_steps if head.window == "step" else []
    took = np.array([each.step_ns for each in steps], np.float64)
    rise = _level(steps, took) or _thirds(steps, took) or _growth(steps, took)
    if rise is None:
        return []
    grew = {name: _median(rise.after, fields) - _median(rise.before, fields) for name, fields in PARTS}
    before, after = (_median_step(each) for each in (rise.before, rise.after))
    most, more_ns = max(grew, key=grew.__getitem__), after - before
    mostly = (
        f"; {format_ms(min(grew[most], more_ns))} of the difference are {most}" if 2 * grew[most] >= more_ns else ""
    )
    return [
        Finding(
            id="slowing_steps",
            severity="warning",
            title=f"steps get slower: {rise.said}{mostly}",
            evidence={
                "before_ns": before, "after_ns": after, "from_step": rise.after[0].step, "grew_ns": grew,
                "lost_ns": max(float(took.mean()) - before, 0.0),
            },
            known_from=known_from,
        )
    ]  # fmt: skip


def _level(steps: Sequence[StepOfJob], took: Floats) -> _Rise | None:
    """Return the largest rise after which all steps are longer than all before."""
    if len(steps) < 2 * OF_LEVEL:
        return None
    longest, shortest = np.maximum.accumulate(took), np.minimum.accumulate(took[::-1])[::-1]
    rises = shortest[OF_LEVEL : len(steps) - OF_LEVEL + 1] / longest[OF_LEVEL - 1 : len(steps) - OF_LEVEL]
    cut = OF_LEVEL + int(rises.argmax())
    if rises.max() < SLOWER:
        return None
    before, after = steps[:cut], steps[cut:]
    return _Rise(
        before,
        after,
        f"from step {after[0].step} on they take {format_ms(_median_step(after))} in the median, none less than "
        f"{format_ms(float(took[cut:].min()))}; before it {format_ms(_median_step(before))}, none more than "
        f"{format_ms(float(took[:cut].max()))}",
    )


def _thirds(steps: Sequence[StepOfJob], took: Floats) -> _Rise | None:
    third = len(steps) // 3
    if len(steps) < FEWEST or _longer(took[:third], took[-third:]) < ORDERED:
        return None
    first, last = steps[:third], steps[-third:]
    before, after = _median_step(first), _median_step(last)
    said = f"the last third of them take {format_ms(after)} in the median, the first third {format_ms(before)}"
    return _Rise(first, last, said) if after >= SLOWER * before else None


def _growth(steps: Sequence[StepOfJob], took: Floats) -> _Rise | None:
    if len(steps) < GROWING or (np.diff(took) <= 0).any() or took[-1] < SLOWER * took[0]:
        return None
    return _Rise(
        steps[:1],
        steps[-1:],
        f"each takes longer than the one before, the first {format_ms(took[0])}, the last {format_ms(took[-1])}",
    )


def _longer(one: Floats, other: Floats) -> float:
    """Return in which share of the pairs the step of the second kind is longer."""
    return float((other[:, None] > one[None]).mean())


def _median_step(steps: Sequence[StepOfJob]) -> float:
    return float(np.median([each.step_ns for each in steps]))


def _median(steps: Sequence[StepOfJob], fields: Sequence[str]) -> float:
    return float(np.median([sum(getattr(each, field) or 0 for field in fields) for each in steps]))

"""Find why a step is an outlier: the range that it has and the other steps of its rank lack, as a checkpoint or an
evaluation, or else the range in which the host was while the rank idled; or, where it waits, the long step of the rank
that it waits for: both are one event then."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.checks.steps.odd_step_findings import ODD_LENGTH, WAITS
from overlapscope.analysis.checks.steps.outlier_steps import FIGURES
from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.user_ranges import range_of_pause, range_of_step
from overlapscope.analysis.common.wording import short
from overlapscope.analysis.cross_rank.wait_transfer import Split
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import Intervals, union
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline, Run

EXPLAINS: Final = 0.5
"""A range is named where it, or what the idle time in it has more than the longest one of other steps, lasts for at
least this share of what the step takes, or idles, more than the others."""
WAITED_STEP: Final = "waited_step"
"""The evidence of an outlier step that waits for a rank whose own outlier step it is: that step, and ..."""
WAITED_RANK: Final = "waited_rank"
"""... that rank."""
Windows = Mapping[int, Sequence[StepWindow]]


def with_ranges(
    findings: Iterable[Finding], run: Run, coverage: Mapping[int, Coverage], windows: Windows
) -> list[Finding]:
    """Return the findings, with the range that explains an outlier step."""
    return [_with_range(each, run, coverage, windows) for each in findings]


def with_waited_steps(
    findings: Sequence[Finding], run: Run, splits: Sequence[Split], windows: Windows
) -> list[Finding]:
    """Return the findings; of an outlier step that waits in one call for most of what it takes more, with the outlier
    step of the rank that came last to that call, in which most of the wait lies."""
    long = {
        (rank, each.evidence["step"])
        for each in findings
        if each.id.startswith(ODD_LENGTH) and "step" in each.evidence and each.evidence.get("mostly") != WAITS
        for rank in each.evidence.get("ranks", [each.evidence["rank"]])
    }
    return [_with_waited_step(each, long, run, splits, windows) for each in findings]


def _with_waited_step(
    found: Finding, long: Set[tuple[int, int]], run: Run, splits: Sequence[Split], windows: Windows
) -> Finding:
    if not found.id.startswith(ODD_LENGTH) or found.evidence.get("mostly") != WAITS:
        return found
    ns, last, until_ns = _longest_wait(found.evidence["rank"], found.evidence["step"], run, splits)
    if ns < EXPLAINS * found.evidence["mostly_more_ns"]:
        return found
    for each in windows.get(last, ()):
        if (last, each.step) not in long or each.window is None:
            continue
        start, end = max(each.window[0], until_ns - ns), min(each.window[1], until_ns)
        if end - start >= EXPLAINS * ns:
            return replace(
                found, title=f"{found.title}: the same event as step {each.step} of rank {last}, for which it waits",
                evidence=found.evidence | {WAITED_STEP: each.step, WAITED_RANK: last},
            )  # fmt: skip
    return found


def _longest_wait(rank: int, step: int, run: Run, splits: Sequence[Split]) -> tuple[int, int, int]:
    """Return the longest wait of a rank in a matched call of a step, who came last to that, and when, by its own clock;
    0 ns for none."""
    longest = (0, NONE, 0)
    for split in splits:
        block = split.block
        if rank not in block.ranks:
            continue
        row = block.ranks.index(rank)
        of_step = np.flatnonzero(run.ranks[rank].collectives.step[block.rows[row]] == step)
        if of_step.size:
            at = of_step[split.wait_ns[row, of_step].argmax()]
            last = int(split.last[at])
            own = (int(split.wait_ns[row, at]), block.ranks[last], int(block.start_ns[last, at]))
            longest = max(longest, own, key=lambda each: each[0])
    return longest


def _with_range(found: Finding, run: Run, coverage: Mapping[int, Coverage], windows: Windows) -> Finding:
    figure = next((name for name, _, _ in FIGURES if found.id.startswith(f"odd_step:{name}:")), None)
    if figure in (None, "comm_ns") or found.id.endswith(":others"):
        return found
    rank, step = found.evidence["rank"], found.evidence["step"]
    own = range_of_step(run.ranks[rank], step)
    more_ns = found.evidence[figure] - found.evidence["median_of_others_ns"]
    if own is None or own[1] < EXPLAINS * more_ns:
        known = rank in coverage and (figure == "idle_ns" or found.evidence.get("mostly") == "idles")
        return _while_idle(found, run.ranks[rank], coverage[rank], windows[rank], more_ns) if known else found
    return replace(
        found, title=f"{found.title}; it alone of the rank's steps has the range {short(own[0])} ({format_ms(own[1])})",
        evidence=found.evidence | {"range": own[0], "range_ns": own[1]},
    )  # fmt: skip


def _while_idle(
    found: Finding, timeline: RankTimeline, coverage: Coverage, windows: Sequence[StepWindow], more_ns: float
) -> Finding:
    """Return the finding with the range in which the host was in the step's longest idle time, and between which steps
    that is: at the end of a window the host may be in the next step."""
    step = found.evidence["step"]
    own = [each.window for each in windows if each.step == step and each.window is not None]
    if len(own) != 1:  # several recordings use the number
        return found
    busy = union(coverage.comm, coverage.compute, coverage.copy)
    others = [each.window for each in windows if each.step != step and each.complete and each.window is not None]
    usual_ns = np.median([end - start for start, end in (_longest_idle(busy, each) for each in others)] or [0])
    start, end = _longest_idle(busy, own[0])
    name = _range_of(timeline, start, end)
    if name is None or end - start - usual_ns < EXPLAINS * more_ns:
        return found
    before, after = _steps_around(timeline, start, end)
    apart = NONE not in (before, after) and before != after
    between = f", between the last work of step {before} and the first of step {after}" if apart else ""
    return replace(
        found,
        title=f"{found.title}, {format_ms(end - start)} at once while the host was in {short(name)}{between}",
        evidence=found.evidence | {"idle_range": name, "idle_range_ns": end - start, "between_steps": apart},
    )


def _steps_around(timeline: RankTimeline, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the steps that launched the last span before an idle time, and the first one after it; NONE for none."""
    spans = timeline.spans
    before, after = np.flatnonzero(spans.end_ns <= start_ns), np.flatnonzero(spans.start_ns >= end_ns)
    if not before.size or not after.size:
        return NONE, NONE
    last, first = before[np.argmax(spans.end_ns[before])], after[np.argmin(spans.start_ns[after])]
    return int(spans.step[last]), int(spans.step[first])


def _longest_idle(busy: Intervals, window: tuple[int, int]) -> tuple[int, int]:
    """Return the longest time in a window without any work; (0, 0) for none."""
    within = slice(np.searchsorted(busy.ends, window[0], side="right"), np.searchsorted(busy.starts, window[1]))
    starts, ends = np.append(window[0], busy.ends[within]), np.append(busy.starts[within], window[1])
    longest = int(np.argmax(ends - starts))
    return (int(starts[longest]), int(ends[longest])) if ends[longest] > starts[longest] else (0, 0)


def _range_of(timeline: RankTimeline, start_ns: int, end_ns: int) -> str | None:
    """Return the range on a thread of the steps' marks that covers most of a time; None for none."""
    notes, steps = timeline.annotations, timeline.steps
    lanes = unique(notes.lane[np.isin(notes.start_ns, steps.start_ns)]).tolist()
    names = (range_of_pause(timeline, lane, start_ns, end_ns) for lane in lanes)
    return next((name for name in names if name is not None), None)

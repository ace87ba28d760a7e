"""Render the summary at the end of a recording: at most 15 lines, ending with the next command to type."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from overlapscope.analysis.result import LateRankWait
from overlapscope.display import list_some
from overlapscope.report.formatting import count, ms, percent

DISTURBS = 0.01
"""A warning is shown when the whole interval of capture's overhead lies above this share of the step."""
MAX_FAILURES = 3


class CaptureSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one rank: means over its complete steps, in nanoseconds; None where nothing was recorded."""

    rank: int
    host: str
    steps: int
    step_ns: float | None
    exposed_ns: float | None
    hidden_ns: float | None
    idle_ns: float | None
    overhead_ns: float | None = None
    overhead_low_ns: float | None = None
    overhead_high_ns: float | None = None
    failures: list[str] = []


def render(
    ranks: Sequence[CaptureSummary],
    world_size: int,
    run: str,
    mode: str,
    missing: Sequence[int],
    waiting: LateRankWait | None = None,
) -> str:
    """Return the text.

    `missing` lists the ranks whose figures did not arrive in time; `waiting` is the part of exposed time spent waiting
    for stragglers.
    """
    known = [each for each in ranks if each.step_ns is not None]
    lines = [f"overlapscope: {mode} of {len(ranks)} of {world_size} ranks, {run}"]
    lines += [*_figures(known, waiting), *_cost(known, mode)]
    if missing:
        lines.append(f"  missing  {count(len(missing), 'rank')}: {list_some(missing, 16)}")
    failures = [f"  ! rank {each.rank}: {failure}" for each in ranks for failure in each.failures]
    lines += failures[:MAX_FAILURES]
    if len(failures) > MAX_FAILURES:
        lines.append(f"  ! {len(failures) - MAX_FAILURES} more notes in the ranks' rank.json")
    if known:
        lines.append(f"next: overlapscope analyze {run}")
    return "\n".join(lines) + "\n"


def _figures(known: Sequence[CaptureSummary], waiting: LateRankWait | None) -> list[str]:
    """Return the lines with means over ranks."""
    if not known:
        return ["  no complete step was recorded; there may be nothing to analyze"]
    step, exposed = fmean(each.step_ns or 0 for each in known), fmean(each.exposed_ns or 0 for each in known)
    overlapped, idle = fmean(each.hidden_ns or 0 for each in known), fmean(each.idle_ns or 0 for each in known)
    worst = max(known, key=lambda each: each.exposed_ns or 0)
    fewest = count(min(each.steps for each in known), "step")
    lines = [f"  step     {ms(step):>12} ms   mean over {count(len(known), 'rank')}, {fewest} each"]
    if exposed + overlapped:
        lines += [
            f"  exposed  {ms(exposed):>12} ms   {percent(exposed / step if step else None)} of the step; "
            f"most on rank {worst.rank}: {ms(worst.exposed_ns)} ms",
            *_waiting(waiting),
            f"  overlapped {ms(overlapped):>10} ms",
        ]
    else:
        lines.append(f"  exposed  {'n/a':>12}      no communication was recorded in these steps")
    return [*lines, f"  idle     {ms(idle):>12} ms"]


def _cost(known: Sequence[CaptureSummary], mode: str) -> list[str]:
    """Return capture's own overhead on the rank where it is largest."""
    costs = [each for each in known if each.overhead_ns is not None]
    if not costs:
        unknown = "  capture    not measurable (needs 17 steps after warm-up)"
        return [unknown] if known and mode == "events" else []
    cost = max(costs, key=lambda each: each.overhead_ns or 0)
    lines = [
        "  capture    not measurable: the speed of the machine changed during the recording"
        if (cost.overhead_high_ns or 0) < 0
        else f"  capture  {ms(cost.overhead_ns):>12} ms a step (95 %: {ms(cost.overhead_low_ns)} to "
        f"{ms(cost.overhead_high_ns)}), most on rank {cost.rank}"
    ]
    if (cost.overhead_low_ns or 0) > DISTURBS * (cost.step_ns or 0):
        lines.append("  ! capture slows the step noticeably: without capture, overlap may differ")
    return lines


def _waiting(waiting: LateRankWait | None) -> list[str]:
    if waiting is None:
        return []
    straggler = f", mostly for rank {waiting.most_for}" if waiting.most_for is not None else ""
    return [f"  waiting  {ms(waiting.step_ns):>12} ms   of the exposed time, for stragglers{straggler}"]

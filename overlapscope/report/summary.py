"""The word at the end of a recording: at most 15 lines, exposed milliseconds first, the next command last."""

from collections.abc import Sequence
from statistics import median

import msgspec

from overlapscope.report.text import ms, percent

MAX_FAILURES = 3


class RankSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One rank's figures: medians over its complete steps, in nanoseconds; None where nothing was recorded."""

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


def render(ranks: Sequence[RankSummary], world_size: int, run: str, mode: str, missing: Sequence[int]) -> str:
    """Give the text; `missing` are ranks whose word did not arrive in time."""
    known = [each for each in ranks if each.step_ns is not None]
    lines = [f"overlapscope: {mode} of {len(ranks)} of {world_size} ranks, {run}"]
    if known:
        step = median(each.step_ns or 0 for each in known)
        exposed = median(each.exposed_ns or 0 for each in known)
        worst = max(known, key=lambda each: each.exposed_ns or 0)
        lines += [
            f"  step     {ms(step):>12} ms   median of {min(each.steps for each in known)} steps a rank",
            f"  exposed  {ms(exposed):>12} ms   {percent(exposed / step if step else None)} of the step; "
            f"most on rank {worst.rank}: {ms(worst.exposed_ns)} ms",
            f"  hidden   {ms(median(each.hidden_ns or 0 for each in known)):>12} ms",
            f"  idle     {ms(median(each.idle_ns or 0 for each in known)):>12} ms",
        ]
    else:
        lines.append("  no complete step was recorded")
    costs = [each for each in known if each.overhead_ns is not None]
    if costs:
        cost = max(costs, key=lambda each: each.overhead_ns or 0)
        lines.append(
            f"  capture  {ms(cost.overhead_ns):>12} ms a step (95 %: {ms(cost.overhead_low_ns)} to "
            f"{ms(cost.overhead_high_ns)}), most on rank {cost.rank}"
        )
    if missing:
        shown = ", ".join(map(str, missing[:16])) + (", ..." if len(missing) > 16 else "")
        lines.append(f"  missing  {len(missing)} ranks: {shown}")
    failures = [f"  ! rank {each.rank}: {failure}" for each in ranks for failure in each.failures]
    lines += failures[:MAX_FAILURES]
    if len(failures) > MAX_FAILURES:
        lines.append(f"  ! {len(failures) - MAX_FAILURES} more notes in the ranks' rank.json")
    lines.append(f"next: overlapscope analyze {run}")
    return "\n".join(lines) + "\n"

"""Render the summary at the end of a recording: at most 15 lines, ending with the next command to type."""

from collections.abc import Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.job_step.headline import FewSteps, Headline, few_communicate
from overlapscope.analysis.result import Analysis, MeanStep, waited_for, without_outliers
from overlapscope.display import list_some
from overlapscope.report.formatting import count, ms, percent
from overlapscope.report.text.analysis import DISTURBS
from overlapscope.report.text.main_sentences import headline_basis

TOO_WIDE = 0.1
"""An interval of capture's overhead that includes 0 and is wider than this share of the step says nothing."""
DETERMINED_WITHIN = 0.01
"""Bounds of exposed time are shown when they differ by more than this share of it."""
MAX_FAILURES = 3


class CaptureSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one rank: medians over its complete steps, or means where these are the run's main figures, in
    nanoseconds; None where nothing was recorded."""

    rank: int
    host: str
    steps: int
    step_ns: float | None
    exposed_ns: float | None
    hidden_ns: float | None
    idle_ns: float | None
    exposed_fraction: float | None = None
    few: FewSteps | None = None
    """Means, where only some steps communicate and the medians are 0."""
    overhead_ns: float | None = None
    overhead_low_ns: float | None = None
    overhead_high_ns: float | None = None
    every: int = 1
    """At last one step in so many was recorded."""
    failures: list[str] = []
    exposed_between_ns: tuple[float, float] | None = None
    """Between which medians `exposed_ns` lies, where some of it is not determined."""
    cut_steps: dict[str, int] = {}
    """How many steps are not whole, by reason."""
    of_last_part: bool = False
    """Whether the figures are only of the last part of a long recording."""


def render(
    ranks: Sequence[CaptureSummary],
    world_size: int,
    run: str,
    mode: str,
    missing: Sequence[int],
    together: Analysis | None = None,
) -> str:
    """Return the text.

    `missing` lists the ranks whose figures did not arrive in time; `together` is the analysis of all ranks, None where
    they were not analyzed: then the figures are means over the ranks' own.
    """
    known = [each for each in ranks if each.step_ns is not None]
    lines = [f"overlapscope: {mode} of {len(ranks)} of {world_size} ranks, {run}"]
    lines += [*_figures(known, together), *_cost(known, mode)]
    if missing:
        lines.append(f"  missing  {count(len(missing), 'rank')}: {list_some(missing, 16)}")
    failures = [f"  ! rank {each.rank}: {failure}" for each in ranks for failure in each.failures]
    failures += _cut(ranks)
    lines += failures[:MAX_FAILURES]
    if len(failures) > MAX_FAILURES:
        lines.append(f"  ! {len(failures) - MAX_FAILURES} more notes in the ranks' rank.json")
    if known:
        lines.append(f"next: overlapscope analyze {run}")
    return "\n".join(lines) + "\n"


def _figures(known: Sequence[CaptureSummary], together: Analysis | None) -> list[str]:
    """Return the lines with the headline of all ranks together, else with means over the ranks' own figures."""
    if not known:
        return ["  no complete step was recorded; there may be nothing to analyze"]
    head, mean = (together.headline, together.mean_step) if together else (Headline(), None)
    if head.window == "step":
        main = mean or head
        figures: list[float] = [
            each or 0 for each in (main.step_ns, main.exposed_comm_ns, main.overlapped_ns, main.idle_ns)
        ]
        share, basis = main.exposed_fraction, headline_basis(head, mean)
        if (some := few_communicate(head)) is not None:
            basis += f": {some.communicate} of {count(some.steps, 'step')} communicate"
    else:
        figures = [
            fmean(getattr(each, name) or 0 for each in known)
            for name in ("step_ns", "exposed_ns", "hidden_ns", "idle_ns")
        ]
        share = fmean(each.exposed_fraction or 0 for each in known)
        fewest = count(min(each.steps for each in known), "step")
        last = " of the last part of the recording" if any(each.of_last_part for each in known) else ""
        own = f", means over {len(known)} ranks, each by its own steps" if len(known) > 1 else ""
        basis = f"Medians of {fewest}{last}{own}"
    step, exposed, overlapped, idle = figures
    few = None if head.window == "step" else _few(known)
    worst = max(known, key=lambda each: each.exposed_ns or 0)
    lines = [f"  step     {ms(step):>12} ms   {basis}".rstrip()]
    if together and head.window == "step" and (usual := without_outliers(together)):
        which = f"step{'s' if len(usual.outliers) > 1 else ''} {list_some(usual.outliers)}"
        lines.append(f"           {ms(usual.step_ns):>12} ms   without outliers ({which}), which set the median")
    if exposed + overlapped:
        lines += [
            f"  exposed  {ms(exposed):>12} ms   {percent(share)} of the step; "
            f"most on rank {worst.rank}: {ms(worst.exposed_ns)} ms",
            *_between(known, exposed),
            *_waiting(together, mean or head),
            f"  overlapped {ms(overlapped):>10} ms",
        ]
    elif few is not None:
        lines += [
            f"  exposed  {ms(few.exposed_comm_ns):>12} ms   in the mean, of {ms(few.step_ns)} ms: {few.communicate} of "
            f"{count(few.steps, 'step')} communicate, the median step does not",
            f"  overlapped {ms(few.overlapped_ns):>10} ms   in the mean",
        ]
    else:
        lines.append(f"  exposed  {'n/a':>12}      no communication was recorded in these steps")
    return [*lines, f"  idle     {ms(idle):>12} ms"]


def _few(known: Sequence[CaptureSummary]) -> FewSteps | None:
    """Return the means over ranks where their medians are 0 but steps communicate, each by its own steps."""
    found = [each.few for each in known if each.few is not None]
    if not found:
        return None
    most = max(found, key=lambda each: each.communicate)
    exposed, overlapped = (
        sum(getattr(each, name) for each in found) / len(known) for name in ("exposed_comm_ns", "overlapped_ns")
    )
    return replace(most, exposed_comm_ns=exposed, overlapped_ns=overlapped)


def _between(known: Sequence[CaptureSummary], exposed_ns: float) -> list[str]:
    """Return a line with the bounds of exposed time where they differ: as far from it as the ranks' own from theirs."""
    if all(each.exposed_between_ns is None for each in known):
        return []
    own = [(each.exposed_ns or 0, each.exposed_between_ns or (each.exposed_ns or 0,) * 2) for each in known]
    low = max(exposed_ns - fmean(max(point - least, 0) for point, (least, _) in own), 0)
    high = exposed_ns + fmean(max(most - point, 0) for point, (_, most) in own)
    if high - low <= DETERMINED_WITHIN * high:
        return []
    return [f"    not determined: between {ms(low)} and {ms(high)} ms"]


def _cut(ranks: Sequence[CaptureSummary]) -> list[str]:
    """Return lines with the reasons why steps are not whole, and on how many steps of how many ranks."""
    reasons = sorted({reason for each in ranks for reason in each.cut_steps})
    return [
        f"  ! {count(sum(each.cut_steps.get(reason, 0) for each in ranks), 'step')} not whole: {reason}"
        for reason in reasons
    ]


def _cost(known: Sequence[CaptureSummary], mode: str) -> list[str]:
    """Return capture's own overhead on the rank where it is largest."""
    costs = [each for each in known if each.overhead_ns is not None]
    if not costs:
        unknown = "  capture    not measurable (needs 17 steps after warm-up, and some that are not recorded)"
        return [unknown] if known and mode == "events" else []
    cost = max(costs, key=lambda each: each.overhead_ns or 0)
    low, high, step = cost.overhead_low_ns or 0, cost.overhead_high_ns or 0, cost.step_ns or 0
    lines = [
        "  capture    not measurable: the speed of the machine changed during the recording"
        if high < 0 or (low <= 0 <= high and high - low > TOO_WIDE * step)
        else f"  capture  {ms(cost.overhead_ns):>12} ms a {_which(cost)} in the mean "
        f"(95 %: {ms(cost.overhead_low_ns)} to {ms(cost.overhead_high_ns)}), most on rank {cost.rank}"
    ]
    if low > DISTURBS * step:
        lines.append("  ! capture slows the step noticeably: without capture, overlap may differ")
    return lines


def _which(cost: CaptureSummary) -> str:
    return "step" if cost.every == 1 else f"recorded step, one in {cost.every}"


def _waiting(together: Analysis | None, main: Headline | MeanStep) -> list[str]:
    """Return the line of exposed time spent waiting for late ranks; none where no collective was matched."""
    if together is None or not together.skew.matched or main.exposed_wait_ns is None:
        return []
    waits, held = ms(main.exposed_wait_ns), together.skew.stragglers
    if held:
        late = sorted({rank for each in held for rank in (each.rank, *each.late_with)})
        who = f"; {'straggler' if len(late) == 1 else 'stragglers'}: {rank_list(late)}"
    else:
        blame_ns = {each.rank: each.blame_ns for each in together.skew.ranks}
        who = f", {waited_for(blame_ns, together)}" if any(blame_ns.values()) else ""
    return [f"  waiting  {waits:>12} ms   of the exposed time{who}"]

"""Write why the main step idles, and how much of its compute is in ranges without an operation."""

from statistics import fmean

from overlapscope.analysis.common.cause_table import EVENTS_MISSING, NO_CAUSES, START_OF_RECORDING, idle_label
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.job_step.headline import Headline, left_out
from overlapscope.analysis.result import Analysis, MeanStep
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.report.formatting import ms, percent
from overlapscope.report.rank_columns import complete_steps
from overlapscope.report.text import throughput as throughput_text
from overlapscope.report.text.exposed_causes import MEANS_FROM, WORTH_NAMING

WORTH_HOURS = 0.1
"""Least share of idle time whose GPU-hours are given, and the rank that has most of it."""
OF_ONE_RANK = 0.75
"""A rank has most of a cause of idle time from this share on: of two ranks that are alike each has half. A choice."""
WORTH_EMPTY = 0.05
"""Least share of a step in ranges of autograd without an operation for a line about them."""


def idle_text(analysis: Analysis) -> str:
    """Return why the headline's ranks were idle, in a line; empty without idle time or in documents of 0.1."""
    head = analysis.headline
    main = analysis.main_figures
    if not main.idle_ns or not main.idle_causes:
        return ""
    there = set(head.ranks)
    lacking = [info for info in analysis.ranks if info.rank in there and info.no_causes_reason]
    why = {NO_CAUSES[info.no_causes_reason] for info in lacking if info.no_causes_reason}
    on = f" on {rank_list(info.rank for info in lacking)}" if 0 < len(lacking) < len(there) else ""
    because = f"unknown{on} because {' or '.join(sorted(why))}" if why else ""
    if any(info.no_causes_reason in EVENTS_MISSING for info in analysis.ranks if info.rank in there):
        return f"Idle at most {ms(main.idle_ns)} ms a {head.window}: what ran then is {because}."
    if why and {*main.idle_causes} == {"unknown"}:
        return f"Idle {ms(main.idle_ns)} ms a {head.window}: {because}."
    ordered = sorted(main.idle_causes.items(), key=lambda item: -item[1])
    on_cpu = not analysis.run.has_device
    idle_ns, of = idle_of_steps(analysis)
    times = idle_ns / main.idle_ns
    named = [(cause, ns) for cause, ns in ordered if ns >= WORTH_NAMING * main.idle_ns]
    shown = [
        f"{idle_label(cause, on_cpu=on_cpu)} {ms(times * ns)} ms ({_share_of_idle(analysis, main, cause, ns)}"
        f"{_mostly_on(analysis, cause) if ns >= WORTH_HOURS * main.idle_ns else ''})"
        for cause, ns in named
    ]
    rest_ns = main.idle_ns - sum(ns for _, ns in named)
    if rest_ns >= WORTH_NAMING * main.idle_ns:  # medians need not add up to the median of their sum
        shown.append(f"other {ms(times * rest_ns)} ms ({_share_of_idle(analysis, main, None, rest_ns)})")
    parts = ", ".join(shown)
    cores = "; some of it perhaps for lack of cores" if lack_cores(analysis.findings) else ""
    return f"Idle {ms(idle_ns)} ms {of}: {parts}{_in_pauses(analysis)}{cores}{because and '; '}{because}."


def idle_of_steps(analysis: Analysis) -> tuple[float, str]:
    """Return the idle time that the causes add up to, and in words of which steps it is.

    That is the mean step's where that is the main figure; else the median step's, where it shows what steps are idle
    for: not where few of them have most of it, nor beside as many that are cut short, which the causes are without.
    """
    head, mean = analysis.headline, analysis.mean_step
    median_ns, usual = head.idle_ns or 0, f"a {head.window}"
    if mean is not None:
        return mean.idle_ns, f"a step in the mean of {mean.steps}, {ms(median_ns)} ms in the median one"
    if head.window != "step" or left_out(head):
        return median_ns, usual
    cut = analysis.throughput.cut_short if analysis.throughput else []
    others = [each for each in head.job_steps if each.step not in cut]
    mean_ns = fmean(each.idle_ns for each in others) if others else 0.0
    also = f", {ms(median_ns)} ms in the median one"
    if cut and len(others) <= len(cut) and mean_ns:
        of = "in step" if len(others) == 1 else "a step in"
        return mean_ns, f"{of} {list_some([each.step for each in others])}{also}"
    if not cut and mean_ns > MEANS_FROM * median_ns:
        return mean_ns, f"a step in the mean of {head.steps}{also}"
    return median_ns, usual


def _mostly_on(analysis: Analysis, cause: str) -> str:
    """Return which of the headline's ranks has most of what this cause of idle time takes; empty where none has."""
    there, by_rank = set(analysis.headline.ranks), dict[int, int]()
    for info in analysis.ranks:
        if info.rank in there:
            windows = complete_steps(info) if analysis.headline.window == "step" else [info.whole]
            by_rank[info.rank] = sum(each.idle_causes.get(cause, 0) for each in windows)
    most, total = max(by_rank, key=by_rank.__getitem__, default=None), sum(by_rank.values())
    if most is None or len(by_rank) < 2 or by_rank[most] < OF_ONE_RANK * total or not total:
        return ""
    return f", {percent(by_rank[most] / total)} of it on rank {most}"


def _in_pauses(analysis: Analysis) -> str:
    """Return how much of all idle time is in long pauses of hosts, where these are found to cost time."""
    idle_ns = sum(info.whole.idle_ns or 0 for info in analysis.ranks)
    found = [each.evidence for each in analysis.findings if each.id == "host_pauses"]
    paused_ns = sum(each["idle_ns"] for each in found if not each["steps"] or each.get("device_step") is not None)
    if not paused_ns or not idle_ns:
        return ""
    return f"; {percent(paused_ns / idle_ns)} of all idle time in pauses of hosts of 3 ms or longer"


def empty_ranges_text(analysis: Analysis) -> str:
    """Return how much of the compute of a step is in ranges of autograd without an operation, in a line; empty where
    that is little, or not known."""
    there = set(analysis.headline.ranks)
    known = [each.empty_ranges_ns for each in analysis.ranks if each.rank in there and each.empty_ranges_ns is not None]
    mean_ns = sum(known) / max(len(known), 1)
    if analysis.headline.window != "step" or mean_ns < WORTH_EMPTY * (analysis.headline.step_ns or 0) or not mean_ns:
        return ""
    return (
        f"Of the compute, {ms(mean_ns)} ms a step are in ranges of autograd in which no operation runs: Python of "
        "hooks, or a thread that wakes up."
    )


def _share_of_idle(analysis: Analysis, main: Headline | MeanStep, cause: str | None, ns: int) -> str:
    """Return the share of idle time that this is, None being no single cause; of a large one also the GPU-hours of a
    day, where they are known, and no long step is left out of the shares: these hours are of all steps, without the
    start of the recording."""
    cost, of_median = analysis.throughput, isinstance(main, Headline)
    share, begin_ns = ns / (main.idle_ns or 1), main.idle_causes.get(START_OF_RECORDING, 0)
    without = cause == START_OF_RECORDING or share < WORTH_HOURS or (of_median and left_out(analysis.headline))
    if cost is None or cost.idle_gpu_hours_a_day is None or cost.repeated is not None or without:
        return percent(share)
    of_hours = ns / ((main.idle_ns or 1) - begin_ns)
    price = None if cost.idle_price_a_day is None else of_hours * cost.idle_price_a_day
    return f"{percent(share)}, {throughput_text.cost_text(of_hours * cost.idle_gpu_hours_a_day, price)}"

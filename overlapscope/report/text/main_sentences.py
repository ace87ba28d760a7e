"""What is said first of an analysis: the main figures, what they are of, and what is left out of them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from textwrap import fill
from typing import Final

from overlapscope.analysis.common.cause_table import CUT_FILE, EVENTS_MISSING, SAMPLED, START_OF_RECORDING
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.job_step.headline import FewSteps, Headline, few_communicate
from overlapscope.analysis.mean_step import lacks_start
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import Analysis, MeanStep, WithoutOutliers, without_outliers
from overlapscope.display import list_some
from overlapscope.report.formatting import MAX_WIDTH, count, ms, percent
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text import throughput as throughput_text
from overlapscope.report.text.dry_step import UNTIMED

LONGEST_BECAUSE: Final[Mapping[tuple[str | None, str | None], str]] = {
    ("clocks", "step"): "The ranks' clocks cannot all be aligned",
    ("clocks", "recording"): "The ranks' clocks cannot all be aligned",
    ("apart", "step"): "The ranks do not keep step (some had ended a step before others began it)",
    ("apart", "recording"): "The ranks were recorded at different times",
}
"""Why the step of the job is the longest window of a rank, by `longest_because` and `window` of the headline."""
APART = 0.2
"""What of a rank's own window is exposed is said where it lacks this share of the step of the job."""
OUTSIDE = 0.2
"""Work of devices outside complete steps is said from this share of all on. A choice: less changes no conclusion."""
LACKS = 0.02
"""Least share of a step outside the ranks' own windows that is named."""
OWN_WITHIN = 0.002
"""A share that is further from that of the times beside it needs a word: it is a median itself."""
COSTS_MUCH = 0.1
"""A single step is named from this share of the time of all steps on that it takes more than the median one. A
choice."""
SHARES_APART = 0.01
"""Shares that differ by less are one."""


def sentence(analysis: Analysis) -> str:
    """Return the main figures in sentences, those of the headline; then what they are of, and the worst rank."""
    head = analysis.headline
    if head.window is None and analysis.dry_step is not None:
        return UNTIMED
    if head.window is None:
        return "No times were recorded: exposed communication cannot be measured from these sources."
    first = [first_sentence(analysis), median_text(analysis), basis_text(analysis)]
    return "\n".join([*filter(None, first), *further_sentences(analysis)])


def first_sentence(analysis: Analysis) -> str:
    """Return the main figures in a sentence, of a run with times: of the mean step where that stands first."""
    few, mean = few_communicate(analysis.headline), analysis.mean_step
    if few is not None:
        return few_text(analysis.headline, few)
    return _median_step_text(analysis) if mean is None else _mean_text(mean, analysis)


def median_text(analysis: Analysis) -> str:
    """Return what the median step gives, where the first sentence is of the mean one; else nothing."""
    if few_communicate(analysis.headline) is not None or analysis.mean_step is None:
        return ""
    of_median = _median_step_text(analysis)
    return f"In the median {of_median[0].lower()}{of_median[1:]}"


def basis_text(analysis: Analysis) -> str:
    """Return what medians are of, and the most and the least exposed rank; empty for one window."""
    over = headline_basis(analysis.headline)
    ends = exposed_most_and_least(analysis)
    if ends is None:
        return f"{over}." if over else ""
    (worst, most_ns), (least, least_ns) = ends
    most, fewest = ms(most_ns), ms(least_ns)
    if most == fewest:
        return f"{over}; the same on every rank."
    return f"{over}; most exposed on rank {worst} ({most} ms), least on rank {least} ({fewest} ms)."


def further_sentences(analysis: Analysis) -> list[str]:
    """Return what is to know besides the main figures, of a run with times."""
    head, few = analysis.headline, few_communicate(analysis.headline)
    lines = []
    if (usual := without_outliers(analysis)) is not None:
        lines.append(_usual_text(usual))
    elif analysis.mean_step is None:
        lines += _costly_step(head)
    if few is not None:
        more = f"{ms(few.overlapped_ns)} ms more is overlapped with compute"
        lines.append(
            f"{few.communicate} of {few.steps} steps communicate and take {ms(few.communicating_ns)} ms, the others "
            f"{ms(few.quiet_ns)} ms; in the mean {more}."
        )
    lines += [*_left_out(analysis), *_cut_text(head), *_outside(analysis), *_lacking(analysis)]
    return [*lines, *_repeated(analysis), *_lacking_events(analysis)]


def _median_step_text(analysis: Analysis) -> str:
    head = analysis.headline
    if head.exposed_comm_ns is None:
        return f"{no_communication(analysis)}{ms(head.step_ns)} ms {head.window}."
    return (
        f"{ms(head.exposed_comm_ns)} ms of a {ms(head.step_ns)} ms {head.window} is exposed communication "
        f"({share_text(head)}); {ms(head.overlapped_ns)} ms more is overlapped with compute{copies_text(head)}."
    )


def copies_text(head: Headline) -> str:
    """Return what copies alone take of a step, where that is more than the losses that else stand first."""
    copied_ns, others = head.copy_only_ns or 0, (head.exposed_comm_ns or 0, head.idle_ns or 0)
    worth = copied_ns > max(others) and copied_ns >= throughput_text.WORTH_COPIES * (head.step_ns or 0)
    return f"; memcpy alone takes {ms(copied_ns)} ms" if worth else ""


def _mean_text(mean: MeanStep, analysis: Analysis) -> str:
    """Return the main figures of the mean step, which stands first, and why it does."""
    if mean.because == "steps_overlap":
        takes = f"a step takes {ms(mean.step_ns)} ms"
        if mean.exposed_comm_ns is not None:
            without = ", without the start of the recording" * lacks_start(mean, analysis)
            takes = f"{_of_mean(mean)} is exposed communication ({percent(mean.exposed_fraction)}){without}"
        in_turn = analysis.headline.steps_by == "longest_window"
        return f"In the mean {takes}: steps of the ranks {'take longest in turn' if in_turn else 'overlap'}."
    which = f", most of it in {mean.lossy} of {count(mean.steps, 'step')}" if mean.lossy else ""
    of_kinds = ""
    if (kinds := mean.kinds) is not None:
        short, long = len(kinds.short), len(kinds.long)
        of_kinds = f"; {count(short, 'step')} take {ms(kinds.short_ns)} ms, {long} others {ms(kinds.long_ns)} ms"
    return (
        f"In the mean {_of_mean(mean)} is exposed communication ({percent(mean.exposed_fraction)}) and "
        f"{ms(mean.idle_ns)} ms idle{which}{of_kinds}."
    )


def _of_mean(mean: MeanStep) -> str:
    return f"{ms(mean.exposed_comm_ns)} ms of a {ms(mean.step_ns)} ms step"


def _costly_step(head: Headline) -> list[str]:
    """Return how long a step takes that costs much of all the time, beside medians which do not show it."""
    steps, usual_ns = head.job_steps, head.step_ns or 0
    every_ns = sum(each.step_ns for each in steps)
    longest = max(steps, key=lambda each: each.step_ns, default=None)
    more_ns = longest.step_ns - usual_ns if longest else 0
    if head.window != "step" or longest is None or more_ns < COSTS_MUCH * every_ns:
        return []
    much = f"{ms(more_ns)} ms more than the median one, {percent(more_ns / every_ns)} of the time of all steps"
    return [f"Step {longest.step} takes {ms(longest.step_ns)} ms: {much}."]


def _repeated(analysis: Analysis) -> Iterator[str]:
    """Yield what the part of a recording without marks of steps loses that repeats, where start-up is most of it."""
    part = analysis.throughput.repeated if analysis.throughput else None
    if part is not None:
        yield fill(
            f"No step is marked, and the first {ms(part.before_ns)} ms are start-up: the {ms(part.window_ns)} ms after "
            f"it repeat the same step {part.cycles} times, and {ms(part.exposed_comm_ns)} ms of them are exposed "
            f"communication, {ms(part.idle_ns)} ms idle.",
            MAX_WIDTH,
        )


def _lacking_events(analysis: Analysis) -> Iterator[str]:
    """Yield what the figures are worth where events of ranks are missing."""
    by_reason = {
        each: [info.rank for info in analysis.ranks if info.no_causes_reason == each] for each in EVENTS_MISSING
    }
    ranks = sorted(rank for its in by_reason.values() for rank in its)
    if not ranks:
        return
    missing = [f"Most events of {rank_list(by_reason[SAMPLED])} are missing"] if by_reason[SAMPLED] else []
    if by_reason[CUT_FILE]:
        missing.append(f"Events of {rank_list(by_reason[CUT_FILE])} may be missing at any time, as the file ends early")
    left_out = "" if set(ranks) & set(analysis.headline.ranks) else "the main figures are of the other ranks alone; "
    yield fill(
        f"{'. '.join(missing)}: {left_out}the calls that are there expose at most so much, as "
        "compute beside them may be missing, and when a device was idle is not known.",
        MAX_WIDTH,
    )


def no_communication(analysis: Analysis) -> str:
    """Return that no communication was recorded in a step or recording, whose length follows: perhaps elsewhere, or on
    hosts alone."""
    on_hosts = next((each.evidence for each in analysis.findings if each.id == "host_collectives"), None)
    if on_hosts is not None:
        took = f"{ms(on_hosts['took_ns'])} ms of {list_some(on_hosts['operations'])} on hosts"
        return f"No communication of devices, but {took}, was recorded in a "
    elsewhere = analysis.headline.window == "step" and any(info.whole.comm_ns for info in analysis.ranks)
    return "No communication lies in a complete " if elsewhere else "No communication was recorded in a "


def _left_out(analysis: Analysis) -> Iterator[str]:
    """Yield which ranks have times, but no part in the main figures."""
    timed = {each.rank for each in analysis.ranks if each.whole.window_ns is not None}
    left = timed - {*analysis.headline.ranks}
    if left and analysis.headline.window == "step":
        yield f"Without {rank_list(left)}, of which none of these steps was recorded whole."


def _cut_text(head: Headline) -> Iterator[str]:
    """Yield which steps the causes are without, as no marked step follows them; where the median is about as
    much theirs, also how long the others take."""
    if cut := head.causes_cut:
        which = f"step{'s' * (len(cut) > 1)} {list_some(cut)}"
        lack = "they lack" if len(cut) > 1 else "it lacks"
        others = [each for each in head.job_steps if each.step not in cut]
        of = "the others"
        if others and len(others) <= len(cut):
            which_take = f"{of}, which take" if len(others) > 1 else f"step {others[0].step}, which takes"
            of = f"{which_take} {ms(median(each.step_ns for each in others))} ms"
            if head.exposed_comm_ns is not None:
                of += f", {ms(median(each.exposed_comm_ns for each in others))} ms of it exposed"
        yield f"No marked step follows {which}: {lack} what the next one begins with, and causes are of {of}."


def _outside(analysis: Analysis) -> Iterator[str]:
    """Yield how much work of the devices, mean over ranks, lies outside the complete steps, where it is much."""
    head = analysis.headline
    if head.window != "step" or not analysis.run.has_device:
        return
    ranks, steps = [info for info in analysis.ranks if info.rank in head.ranks], {each.step for each in head.job_steps}
    inside = [[each for each in info.steps if each.complete and each.step in steps] for info in ranks]
    worked_ns = [_worked_ns([info.whole]) for info in ranks]
    outside_ns = [every - _worked_ns(own) for every, own in zip(worked_ns, inside, strict=True)]
    if median(ns / max(every, 1) for ns, every in zip(outside_ns, worked_ns, strict=True)) < OUTSIDE:
        return
    exposed = ""
    if any(info.whole.comm_ns for info in ranks):
        each_ns = [_exposed_ns([info.whole]) - _exposed_ns(own) for info, own in zip(ranks, inside, strict=True)]
        exposed = f", {ms(fmean(each_ns))} ms of it exposed communication"
    yield (
        f"Outside complete steps lie {ms(fmean(outside_ns))} of the {ms(fmean(worked_ns))} ms that a device works"
        f"{exposed}."
    )


def _worked_ns(figures: Sequence[Breakdown]) -> int:
    return sum((each.window_ns or 0) - (each.idle_ns or 0) for each in figures)


def _exposed_ns(figures: Sequence[Breakdown]) -> int:
    """Return exposed time without that for which recordings had not begun."""
    return sum((each.exposed_comm_ns or 0) - each.causes.get(START_OF_RECORDING, 0) for each in figures)


def _usual_text(usual: WithoutOutliers) -> str:
    """Return that outliers set the median, and the figures of the other steps."""
    which = "Step" if len(usual.outliers) == 1 else "Steps"
    sets = "is an outlier and sets" if len(usual.outliers) == 1 else "are outliers and set"
    return (
        f"{which} {list_some(usual.outliers)} {sets} the median: of the others it is {ms(usual.step_ns)} ms, "
        f"{ms(usual.exposed_comm_ns)} ms of it exposed communication."
    )


def few_text(head: Headline, few: FewSteps) -> str:
    """Return the first sentence where half of the steps communicate nothing, or more, and others do: with means."""
    which = f"The median step ({ms(head.step_ns)} ms) communicates nothing"
    if head.comm_ns:
        which = f"{few.steps - few.communicate} of {few.steps} steps communicate next to nothing"
    return (
        f"{which}; in the mean {ms(few.exposed_comm_ns)} of "
        f"{ms(few.step_ns)} ms is exposed communication ({percent(few.exposed_comm_ns / few.step_ns)})."
    )


def share_text(head: Headline) -> str:
    """Return the exposed share of a step; where it is not about that of the shown times, that it is a median itself. By
    longest windows it is that of the shown times."""
    fraction, exposed, step = head.exposed_fraction, head.exposed_comm_ns, head.step_ns
    if not step or exposed is None or fraction is None or abs(exposed / step - fraction) < OWN_WITHIN:
        return percent(fraction)
    if head.steps_by == "longest_window":
        return percent(exposed / step)
    return f"median share {percent(fraction)}"


def headline_basis(head: Headline, mean: MeanStep | None = None) -> str:
    """Return what the main figures are of, as "Medians of 6 steps, means over 2 ranks"; empty for one window."""
    typical, steps = ("medians", head.steps) if mean is None else ("means", mean.steps)
    over = [f"{typical} of {count(steps, 'step')}"] if steps > 1 else []
    over += [f"means over {len(head.ranks)} ranks"] if len(head.ranks) > 1 else []
    return ", ".join(over).capitalize()


def exposed_most_and_least(analysis: Analysis) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Return which of the headline's ranks have the most and the least exposed time, by their own medians, and these;
    None where the median of all lies outside of these, or the sums over steps have another order, as they may where
    steps differ, where few communicate, and of a single rank."""
    head = analysis.headline
    if few_communicate(head) is not None or head.exposed_comm_ns is None or len(head.ranks) < 2:
        return None
    exposed = {info.rank: rank_figures(info)["exposed_comm_ns"] or 0 for info in analysis.ranks
               if info.rank in set(head.ranks)}  # fmt: skip
    worst, least = max(exposed, key=lambda rank: exposed[rank]), min(exposed, key=lambda rank: exposed[rank])
    sums = {
        info.rank: sum(each.exposed_comm_ns or 0 for each in info.steps if each.complete) for info in analysis.ranks
    }
    same_order = all(sums[least] <= sums[rank] <= sums[worst] for rank in exposed)
    unlike = ms(exposed[worst]) != ms(exposed[least])
    if unlike and (not same_order or not exposed[least] <= head.exposed_comm_ns <= exposed[worst]):
        return None
    return (worst, exposed[worst]), (least, exposed[least])


def _of_pace(analysis: Analysis) -> str:
    """Return the share of time that is exposed, which GPU-hours are of, where that of the job's steps, which are longer
    than its pace, is another one."""
    head, cost = analysis.headline, analysis.throughput
    if cost is None or cost.exposed_gpu_hours_a_day is None:
        return ""
    if cost.exposed_fraction is None or head.exposed_comm_ns is None:
        return ""
    apart = abs(cost.exposed_fraction - head.exposed_comm_ns / max(head.step_ns or 0, 1)) >= SHARES_APART
    return f", and {percent(cost.exposed_fraction)} of the time is exposed" if apart else ""


def _lacking(analysis: Analysis) -> Iterator[str]:
    """Yield what a step of the job is longer by than the ranks' own windows, where it is much."""
    head = analysis.headline
    if head.steps_by == "longest_window":
        why = LONGEST_BECAUSE.get((head.longest_because, head.window))
        longest = f"{why or 'No times between ranks are known'}: the {head.window} is the longest window of any rank"
        shown, fraction = share_text(head), percent(head.exposed_fraction)
        own = "." if shown == fraction else f"; of ranks' own windows {fraction} is exposed, in the median."
        yield fill(f"{longest}{own}", MAX_WIDTH)
        return
    if head.pace_ns is not None:
        yield f"Steps of the ranks overlap: the job begins one every {ms(head.pace_ns)} ms{_of_pace(analysis)}."
    parts = [(head.start_of_recording_ns or 0, f"before its first {_spans_of(analysis)} span"),
             (head.outside_ns or 0, "as ranks begin and end apart")]  # fmt: skip
    if sum(ns for ns, _ in parts) >= LACKS * (head.step_ns or 0):
        named = " and ".join(f"{ms(ns)} ms {words}" for ns, words in parts if ns)
        step_ns, apart_ns = head.step_ns or 0, sum(ns for ns, _ in parts)
        own_ns, exposed_ns = step_ns - apart_ns, head.exposed_comm_ns or 0
        own = f"; of its own {ms(own_ns)} ms {percent(exposed_ns / max(own_ns, 1))} are exposed"
        far, mean = head.window == "recording" or apart_ns >= APART * step_ns, analysis.mean_step
        if far or mean is None or mean.because != "steps_overlap":  # else the first sentence says what a step takes
            yield f"A rank's own window is shorter than the {head.window} of the job, by {named}{own if far else ''}."


def _spans_of(analysis: Analysis) -> str:
    """Return whose spans windows are of."""
    return "device" if analysis.run.has_device else "recorded"


def own_window_ns(analysis: Analysis) -> int | None:
    """Return how long the step of the critical path takes by the ranks' own windows, in the mean over ranks, where the
    step of the job is much longer as steps of ranks lie apart: then it holds parts of the steps beside it."""
    head, mean, step = analysis.headline, analysis.mean_step, analysis.critical_path.median_step
    step_ns, outside_ns = head.step_ns or 0, head.outside_ns or 0
    overlap = mean is not None and mean.because == "steps_overlap"
    if not overlap and not (head.steps_by == "job_step" and outside_ns >= APART * step_ns > 0):
        return None
    own = [
        each.window_ns
        for info in analysis.ranks
        for each in info.steps
        if info.rank in head.ranks and each.complete and each.step == step and each.window_ns
    ]
    return round(fmean(own)) if own else None

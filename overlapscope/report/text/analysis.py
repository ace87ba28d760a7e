"""Render an analysis as text: exposed milliseconds first, then causes, ranks, collectives and findings, then advice."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from textwrap import fill
from typing import Final

from overlapscope.analysis.common.cause_table import (
    NO_CAUSES,
    SAMPLED,
    START_OF_RECORDING,
    WITHOUT_HOST,
    idle_label,
)
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.exposed import PLACES, UNKNOWN, ExposedBy
from overlapscope.analysis.job_step.attribution import divided
from overlapscope.analysis.job_step.headline import FewSteps, Headline, few_communicate, left_out
from overlapscope.analysis.job_step.longer_calls import LONGER_THAN_LIKE
from overlapscope.analysis.mean_step import lacks_start
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import (
    Analysis,
    CaptureCost,
    MeanStep,
    RankInfo,
    RecordedSteps,
    StepBreakdown,
    WithoutOutliers,
    slowed_by_communication,
    without_outliers,
)
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.display import list_some
from overlapscope.report.formatting import (
    EXPLAIN,
    MAX_WIDTH,
    aligned,
    bandwidth,
    count,
    ms,
    one_row,
    percent,
    size,
)
from overlapscope.report.rank_columns import COLUMNS, complete_steps, rank_figures, rank_label, typical_windows
from overlapscope.report.text import advice as advice_text
from overlapscope.report.text import cross_rank, dry_step
from overlapscope.report.text import throughput as throughput_text
from overlapscope.report.text.critical_path import critical_path_text, longest_loss_text
from overlapscope.report.text.cross_rank import missing_ranks_text
from overlapscope.report.text.dry_step import UNTIMED
from overlapscope.report.text.exposed_causes import MEANS_FROM, WORTH_NAMING, exposed_causes_text
from overlapscope.report.text.source_tables import source_table_text
from overlapscope.report.verdicts import SEVERITY_MARKS

MAX_RANKS = 8
MAX_STEPS = 8
MAX_WHOLE = 2
"""Whole recordings of more ranks are shown with `--all` alone, where there are medians. A choice: one screen."""
MAX_COLLECTIVES = 4
MAX_FINDINGS = 4
MAX_NAMES = 5
MOST_TRIGGERS = 3
DISTURBS = 0.01
"""What recording surely took of a recorded step is said from this share of it."""
MAX_PLACE = 28
LONGEST_BECAUSE: Final[Mapping[tuple[str | None, str | None], str]] = {
    ("clocks", "step"): "The ranks' clocks cannot all be aligned",
    ("clocks", "recording"): "The ranks' clocks cannot all be aligned",
    ("apart", "step"): "The ranks do not keep step (some had ended a step before others began it)",
    ("apart", "recording"): "The ranks were recorded at different times",
}
"""Why the step of the job is the longest window of a rank, by `longest_because` and `window` of the headline."""
UNLIKE = 0.1
"""That is said where the mean of the recorded steps differs from that of all steps by more than this share."""
WORTH_HOURS = 0.1
"""Least share of idle time whose GPU-hours are given, and the rank that has most of it."""
OF_ONE_RANK = 0.75
"""A rank has most of a cause of idle time from this share on: of two ranks that are alike each has half. A choice."""
APART = 0.2
"""What of a rank's own window is exposed is said where it lacks this share of the step of the job."""
OUTSIDE = 0.2
"""Work of devices outside complete steps is said from this share of all on. A choice: less changes no conclusion."""
LACKS = 0.02
"""Least share of a step outside the ranks' own windows that the first sentences name."""
WORTH_EMPTY = 0.05
"""Least share of a step in ranges of autograd without an operation for a line about them."""
OWN_WITHIN = 0.002
"""A share that is further from that of the times beside it needs a word: it is a median itself."""
SLOWED = 0.01
"""Least share of a step by which communication lengthens compute for a line about it."""
COSTS_MUCH = 0.1
"""A single step is named from this share of the time of all steps on that it takes more than the median one. A
choice."""
LEAST_APART = 0.01
WIDE = 5
"""Ends of an interval that differ more say how much it is at most, and nothing else. A choice."""


def render(analysis: Analysis, *, all_rows: bool = False) -> str:
    """Return the whole text, in lines of about 110 characters at most, ending in a newline.

    `all_rows` lists every rank and step; otherwise long lists are cut and a line states how much is missing.
    """
    rates = "\n".join(
        fill(line, MAX_WIDTH)
        for line in throughput_text.lines(analysis.throughput, analysis.headline, analysis.mean_step)
    )
    timed = any(rank.whole.window_ns for rank in analysis.ranks)
    details = all_rows or not timed
    why = (fill(line, MAX_WIDTH) for line in recording_lines(analysis))
    parts = ["\n".join([headline(analysis), *why]), sentence(analysis), rates]
    parts.append(_table(analysis, all_rows=all_rows))
    parts.append("\n".join(filter(None, (exposed_causes_text(analysis), longer_than_like_text(analysis)))))
    of_host = idle_text(analysis)
    if NO_CAUSES["no_host_events"] not in of_host:
        of_host = " ".join(filter(None, (of_host, host_events_text(analysis))))
    parts.append(fill(of_host, MAX_WIDTH, break_on_hyphens=False))
    parts.append(fill(empty_ranges_text(analysis), MAX_WIDTH))
    parts.append(fill(interference_text(analysis), MAX_WIDTH))
    if details:
        parts.append(exposed_by_text(analysis.exposed_by, placed_ns(analysis)))
    parts.append(cross_rank.lines(analysis, all_rows=all_rows))
    if timed:
        few, own_ns = few_communicate(analysis.headline), _apart(analysis)
        parts.append(critical_path_text(analysis.critical_path, few, own_ns))
        parts.append(longest_loss_text(analysis.critical_path.longest_loss))
    parts.append(dry_step.lines(analysis.dry_step, all_rows=all_rows))
    if details and analysis.dry_step is None:
        parts.append(_collectives(analysis.collectives, len(analysis.collectives) if all_rows else MAX_COLLECTIVES))
    if details:
        parts.append(source_table_text(analysis.told, all_rows=all_rows))
    parts.append(_findings(analysis, all_rows=all_rows))
    parts.append(advice_text.render_brief(analysis.recommendations))
    parts.append("" if details else _more(analysis))
    return "\n\n".join(part for part in parts if part) + "\n"


def _more(analysis: Analysis) -> str:
    """Return what `--all` adds."""
    kinds = {"collectives": analysis.collectives, "what other sources report": analysis.told}
    also = [words for words, found in kinds.items() if found]
    return f"All ranks and steps{', ' if also else ''}{', '.join(also)}: --all"


def headline(analysis: Analysis) -> str:
    """Return what was recorded, in one line: ranks, steps, device and backend."""
    run, info = analysis.run, analysis.run.fingerprint
    of_world = f" of {run.world_size}" if run.world_size else ""
    if not run.ranks:
        read = {source.format for source in analysis.sources if source.format != "unknown"}
        return ", ".join(["no rank recorded", *sorted(read)])
    who = f"rank {run.ranks[0]}{of_world}" if len(run.ranks) == 1 else f"{len(run.ranks)} ranks{of_world}"
    if missing := missing_ranks_text(run.missing_ranks, run.unread_ranks):
        who += f" ({missing})"
    steps = max((len(rank.steps) for rank in analysis.ranks), default=0)
    known = [" ".join(str(info[key]).split()) for key in ("device", "backend") if info.get(key)]
    if info.get("nccl_version"):
        known.append(f"NCCL {info['nccl_version']}")
    return ", ".join([who, _steps(steps, analysis.run.recorded_steps), *known])


def _steps(steps: int, recorded: RecordedSteps | None) -> str:
    """Return how many steps were recorded, and of how many where that is known and not all of them."""
    if not steps:
        return "no step marks"
    if recorded is None:
        return count(steps, "step")
    every = f", at last one in {recorded.every}" if recorded.every > 1 else ""
    return f"{recorded.recorded} of {count(recorded.of, 'step')} recorded{every}"


def recording_lines(analysis: Analysis) -> list[str]:
    """Return lines on the recording itself, which all figures are to be read with: why it is there, and what it shows
    too much or too little of."""
    run = analysis.run
    return [*triggers_text(analysis), *sampling_text(run.recorded_steps), *capture_cost_text(run.capture_cost)]


def triggers_text(analysis: Analysis) -> list[str]:
    """Return lines on why a running job recorded this trace, and on the traces that it recorded beside this run."""
    made = [f"Recorded by a trigger: {one_row(each.reason)}" for each in analysis.run.triggers if each.trace is None]
    beside = [(each.trace, each.reason) for each in analysis.run.triggers if each.trace is not None]
    made += [f"A trigger recorded {one_row(trace)}: {one_row(reason)}" for trace, reason in beside[:MOST_TRIGGERS]]
    more = len(beside) - MOST_TRIGGERS
    return [*made, *([f"{count(more, 'more trace')} of triggers"] if more > 0 else [])]


def sampling_text(recorded: RecordedSteps | None) -> list[str]:
    """Return a line where the recorded steps took longer, or less, than all steps."""
    if recorded is None or not recorded.mean_ns or not recorded.recorded_mean_ns:
        return []
    if abs(recorded.recorded_mean_ns / recorded.mean_ns - 1) <= UNLIKE:
        return []
    return [
        f"Recorded steps took {ms(recorded.recorded_mean_ns)} ms in the mean, all {recorded.of:,} steps "
        f"{ms(recorded.mean_ns)} ms: what follows is of the recorded ones. profile(events_every=1) records every step."
    ]


def capture_cost_text(cost: CaptureCost | None) -> list[str]:
    """Return a line where recording surely took a share of a step that may change what it shows."""
    if cost is None or cost.low_ns <= DISTURBS * cost.step_ns:
        return []
    return [
        f"Recording itself took {ms(cost.median_ns)} ms of a recorded step in the median (95 %: {ms(cost.low_ns)} to "
        f"{ms(cost.high_ns)}), most on rank {cost.rank}: without it overlap may differ."
    ]


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
    return [*lines, *_repeated(analysis), *_sampled(analysis)]


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
        return f"In the mean {takes}: steps of the ranks overlap."
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


def _sampled(analysis: Analysis) -> Iterator[str]:
    """Yield what the figures are worth where most events of ranks are missing."""
    ranks = [info.rank for info in analysis.ranks if info.no_causes_reason == SAMPLED]
    if not ranks:
        return
    left_out = "" if set(ranks) & set(analysis.headline.ranks) else "the main figures are of the other ranks alone; "
    yield fill(
        f"Most events of {rank_list(ranks)} are missing: {left_out}the calls that are there expose at most so much, as "
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
    apart = abs(cost.exposed_fraction - head.exposed_comm_ns / max(head.step_ns or 0, 1)) >= LEAST_APART
    return f", and {percent(cost.exposed_fraction)} of the time is exposed" if apart else ""


def _lacking(analysis: Analysis) -> Iterator[str]:
    """Yield what a step of the job is longer by than the ranks' own windows, where it is much."""
    head = analysis.headline
    if head.steps_by == "longest_window":
        why = LONGEST_BECAUSE.get((head.longest_because, head.window))
        longest = f"{why or 'No times between ranks are known'}: the {head.window} is the longest window of any rank"
        shown, fraction = share_text(head), percent(head.exposed_fraction)
        yield longest + ("." if shown == fraction else f"; {fraction} of all windows is exposed.")
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


def _before_only_step(analysis: Analysis) -> list[str]:
    """Return how long before its first kernel the only step of each rank began on its host, where that is much: that
    time is in no window, as that of later steps is in the window of the step before."""
    infos = [info for info in analysis.ranks if info.rank in analysis.headline.ranks]
    only = bool(infos) and all(len(info.steps) == 1 for info in infos)
    before_ns = [info.before_first_step_ns or 0 for info in infos]
    longest_ns = max(before_ns, default=0)
    if analysis.headline.window != "step" or not only or longest_ns < LACKS * (analysis.headline.step_ns or 0):
        return []
    up_to = "up to " * (min(before_ns) < longest_ns)
    return [
        f"The host began the step {up_to}{ms(longest_ns)} ms before its first kernel: that time is in no figure of it."
    ]


def _cells(label: str, figures: Breakdown) -> list[str]:
    return [label, *(each.cell(figures) for each in COLUMNS)]


def _table(analysis: Analysis, *, all_rows: bool) -> str:
    rows: list[list[str]] = []
    notes: list[str] = []
    timed = [rank for rank in analysis.ranks if rank.whole.window_ns is not None]
    mean = analysis.mean_step
    if not timed:
        return ""
    for rank in _worst(timed, len(timed) if all_rows else MAX_RANKS):
        if len(timed) == 1 or all_rows:
            shown = rank.steps if all_rows else rank.steps[:MAX_STEPS]
            rows += [_cells(_step_label(rank, step), step) for step in shown]
            if len(shown) < len(rank.steps):
                notes.append(f"{len(rank.steps) - len(shown)} more steps: --all")
        elif rank.steps:
            rows.append(_typical_row(rank, mean))
        several = len(rank.steps) > 1 and len(timed) <= MAX_WHOLE
        if all_rows or several or not rank.steps or len(timed) == 1:
            rows.append(_cells(f"{rank_label(rank)} whole", rank.whole))
    if len(timed) > MAX_RANKS and not all_rows:
        notes.append(f"{len(timed) - MAX_RANKS} more ranks with less exposed time: --all")
    if any(label.endswith("*") for label, *_ in rows):
        notes.append("* recorded in part")
    if len(timed) > 1 and not all_rows and mean is None and any(len(rank.steps) > 1 for rank in timed):
        notes.append("Medians of each column: they need not add up to the window, which is the rank's own.")
    notes += _before_only_step(analysis)
    head = ["ms", *(each.label for each in COLUMNS)]
    return "\n".join([*aligned([head, *rows]), *notes])


def _worst(ranks: Sequence[RankInfo], limit: int) -> list[RankInfo]:
    """Return the `limit` ranks with the most exposed time, sorted by rank."""
    chosen = sorted(ranks, key=lambda rank: -(rank.whole.exposed_comm_ns or 0))[:limit]
    return sorted(chosen, key=lambda rank: rank.rank)


def _step_label(rank: RankInfo, step: StepBreakdown) -> str:
    return f"{rank_label(rank)} step {step.step}{'' if step.complete else '*'}"


def _typical_row(rank: RankInfo, mean: MeanStep | None) -> list[str]:
    """Return the row of a rank's median step, or of its mean one, where that is the main figure."""
    complete = complete_steps(rank)
    steps = typical_windows(rank, mean) if complete else [step for step in rank.steps if step.window_ns is not None]
    label = f"{rank_label(rank)} {'median' if mean is None else 'mean'} of {count(len(steps), 'step')}"
    return [label + "*" * (not complete), *(each.cell_of(steps, of_mean=mean is not None) for each in COLUMNS)]


def longer_than_like_text(analysis: Analysis) -> str:
    """Return what calls take longer than the shortest of their like, in a sentence; empty where that is little or
    unknown."""
    said = next((each.title for each in analysis.findings if each.id == LONGER_THAN_LIKE), "")
    return fill(f"{said[:1].upper()}{said[1:]}.", MAX_WIDTH, break_on_hyphens=False) if said else ""


def idle_text(analysis: Analysis) -> str:
    """Return why the headline's ranks were idle, in a line; empty without idle time or in documents of 0.1."""
    head = analysis.headline
    main = analysis.mean_step or head
    if not main.idle_ns or not main.idle_causes:
        return ""
    there = set(head.ranks)
    lacking = [info for info in analysis.ranks if info.rank in there and info.no_causes_reason]
    why = {NO_CAUSES[info.no_causes_reason] for info in lacking if info.no_causes_reason}
    on = f" on {rank_list(info.rank for info in lacking)}" if 0 < len(lacking) < len(there) else ""
    because = f"unknown{on} because {' or '.join(sorted(why))}" if why else ""
    if any(info.no_causes_reason == SAMPLED for info in analysis.ranks if info.rank in there):
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


def interference_text(analysis: Analysis) -> str:
    """Return how much communication slows the compute beside it, in a line; empty where that is little or unknown."""
    lost, head = slowed_by_communication(analysis), analysis.headline
    if lost is None or lost[0] < SLOWED * (head.step_ns or 0) or lost[1] <= 0:
        return ""
    if lost[2] > WIDE * lost[1]:
        at_most = f"at most {ms(lost[2])} ms a {head.window}"
        return f"Compute takes longer beside communication, by how much is not known: {at_most} (90 %)."
    found = [each.interference for each in analysis.ranks if each.rank in head.ranks and each.interference]
    factors = sorted(each.times for each in found)
    times = f"{factors[0]:.2f}" + (f" to {factors[-1]:.2f}" if factors[-1] - factors[0] >= LEAST_APART else "")
    return (
        f"Compute takes {times} times as long beside communication: {ms(lost[0])} ms a {head.window} "
        f"(90 %: {ms(lost[1])} to {ms(lost[2])})."
    )


def host_events_text(analysis: Analysis) -> str:
    """Return which answers are missing for want of host events, in a sentence; empty where all ranks have them, and for
    CPU runs, which launch nothing."""
    if not analysis.run.has_device:
        return ""
    ranks = [info.rank for info in analysis.ranks if info.no_causes_reason in WITHOUT_HOST]
    if not ranks:
        return ""
    of = f" of {rank_list(ranks)}" if len(ranks) < len(analysis.ranks) else ""
    return (
        f"No host events{of}: how much idle and exposed time comes from late launches, from synchronisations, or from "
        "other kernels and copies is not known."
    )


def _collectives(rows: Sequence[CollectiveRow], limit: int) -> str:
    if not rows:
        return ""
    head = ["collective", "size", "type", "group", "where", "calls", "median ms", "busbw GB/s"]
    placed = any(place(row) for row in rows[:limit])
    cells = []
    for row in rows[:limit]:
        cells.append(
            [
                row.op,
                size(row.bytes),
                row.dtype or "?",
                f"{row.group or '?'} ({row.group_size or '?'} ranks)",
                place(row),
                str(row.count),
                ms(row.transfer_ns_median),
                bandwidth(row.busbw_gbs, row.estimate),
            ]
        )
    more = f"\n{len(rows) - limit} more kinds of collective: --all" if len(rows) > limit else ""
    note = (
        "\nDurations include time spent waiting for stragglers."
        if any(r.estimate == "upper_bound" for r in rows)
        else ""
    )
    lines = [head, *cells] if placed else [line[:4] + line[5:] for line in (head, *cells)]
    return "\n".join(aligned(lines, left=4 + placed)) + more + note


def finding_kind(finding: str) -> str:
    """Return the kind of a finding, of which there is a page: the part of its id before the first colon."""
    return finding.split(":", 1)[0]


def _findings(analysis: Analysis, *, all_rows: bool) -> str:
    others = [each for each in analysis.findings if each.id != LONGER_THAN_LIKE]
    shown = others if all_rows else others[:MAX_FINDINGS]
    lines = [f"{SEVERITY_MARKS[each.severity]} {one_row(each.title)}" for each in shown]
    if len(shown) < len(others):
        lines.append(f"{len(others) - len(shown)} more findings: --all")
    # What calls take longer than their like stands below the causes; pages of recommendations are named below them.
    kinds = {finding_kind(each.id) for each in shown} | {LONGER_THAN_LIKE} & {each.id for each in analysis.findings}
    kinds -= {each.id for each in analysis.recommendations[: advice_text.MOST_BRIEF]}
    if kinds:
        lines.append(f"What to do: {EXPLAIN} {' '.join(sorted(kinds))}")
    return "\n".join(lines)


def place(row: CollectiveRow) -> str:
    """Return dimension, phase and module of a kind of collective; empty where none of them is known."""
    return _short(" ".join(each for each in (row.dimension, row.phase, row.module) if each))


def _short(words: str) -> str:
    return words if len(words) <= MAX_PLACE else f"{words[: MAX_PLACE // 2 - 2]}...{words[-MAX_PLACE // 2 + 1 :]}"


def placed_ns(analysis: Analysis) -> int:
    """Return the exposed time that is divided by place: that of a step without the start of the recording."""
    main = analysis.mean_step or analysis.headline
    return (main.exposed_comm_ns or 0) - main.causes.get(START_OF_RECORDING, 0)


def exposed_by_text(exposed: ExposedBy, exposed_ns: int) -> str:
    """Return `exposed_ns` by dimension, phase and module, one line each; a line with nothing known is left out."""
    lines = []
    for kind in PLACES:
        sums = divided(exposed_ns, getattr(exposed, kind))
        if not set(sums) - {UNKNOWN}:
            continue
        shown = [f"{_short(name)} {ns / 1e6:,.3f} ms" for name, ns in list(sums.items())[:MAX_NAMES]]
        more = f", {len(sums) - MAX_NAMES} more" if len(sums) > MAX_NAMES else ""
        lines.append(f"exposed by {kind}: {', '.join(shown)}{more}")
    return "\n".join(lines)


def _apart(analysis: Analysis) -> int | None:
    """Return a rank's own window of a step, where that of the job is much longer as steps of ranks lie apart: then it
    holds parts of the steps beside it."""
    head, mean = analysis.headline, analysis.mean_step
    if mean is not None and mean.because == "steps_overlap":
        return mean.step_ns
    step_ns, outside_ns = head.step_ns or 0, head.outside_ns or 0
    return step_ns - outside_ns if head.steps_by == "job_step" and outside_ns >= APART * step_ns > 0 else None

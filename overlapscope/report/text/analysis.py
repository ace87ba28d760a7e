"""Render an analysis as text: exposed milliseconds first, then causes, ranks, collectives and findings, then advice."""

from collections.abc import Sequence
from textwrap import fill

from overlapscope.analysis.common.cause_table import EVENTS_MISSING, NO_CAUSES, START_OF_RECORDING, WITHOUT_HOST
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.exposure.collectives import CollectiveRow
from overlapscope.analysis.exposure.exposed import PLACES, UNKNOWN, ExposedBy
from overlapscope.analysis.job_step.attribution import divided
from overlapscope.analysis.job_step.headline import few_communicate
from overlapscope.analysis.job_step.longer_calls import LONGER_THAN_LIKE
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import (
    Analysis,
    CaptureCost,
    MeanStep,
    RankInfo,
    RecordedSteps,
    StepBreakdown,
    slowed_by_communication,
)
from overlapscope.report.formatting import EXPLAIN, MAX_WIDTH, aligned, bandwidth, count, ms, one_row, size
from overlapscope.report.rank_columns import COLUMNS, complete_steps, rank_label, typical_windows
from overlapscope.report.text import advice as advice_text
from overlapscope.report.text import cross_rank, dry_step
from overlapscope.report.text import throughput as throughput_text
from overlapscope.report.text.critical_path import critical_path_text, longest_loss_text
from overlapscope.report.text.cross_rank import missing_ranks_text
from overlapscope.report.text.exposed_causes import exposed_causes_text
from overlapscope.report.text.idle_time import empty_ranges_text, idle_text
from overlapscope.report.text.main_sentences import LACKS, own_window_ns, sentence
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
UNLIKE = 0.1
"""That is said where the mean of the recorded steps differs from that of all steps by more than this share."""
SLOWED = 0.01
"""Least share of a step by which communication lengthens compute for a line about it."""
FACTORS_APART = 0.01
"""Factors that differ by less are one."""
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
        few, own_ns = few_communicate(analysis.headline), own_window_ns(analysis)
        parts.append(critical_path_text(analysis.critical_path, few, own_ns))
        parts.append(longest_loss_text(analysis.critical_path.longest_loss))
    parts.append(dry_step.lines(analysis.dry_step, all_rows=all_rows))
    if details and analysis.dry_step is None:
        parts.append(_collectives(analysis.collectives, len(analysis.collectives) if all_rows else MAX_COLLECTIVES))
    if details:
        parts.append(source_table_text(analysis.told, all_rows=all_rows))
    parts.append(_findings(analysis, all_rows=all_rows))
    whole = not any(info.no_causes_reason in EVENTS_MISSING for info in analysis.ranks)
    parts.append(advice_text.render_brief(analysis.recommendations, may_replay=whole))
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
    times = f"{factors[0]:.2f}" + (f" to {factors[-1]:.2f}" if factors[-1] - factors[0] >= FACTORS_APART else "")
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
    main = analysis.main_figures
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

"""An analysis as a table for people: exposed milliseconds first, what to know about it after, the next command last."""

from collections.abc import Iterable, Sequence
from statistics import median

from overlapscope.analysis.analyze import Analysis, RankInfo, StepBreakdown
from overlapscope.analysis.breakdown import Breakdown
from overlapscope.analysis.collectives import CollectiveRow

MAX_RANKS = 24
MAX_STEPS = 30
MAX_COLLECTIVES = 8
MAX_FINDINGS = 6
_COLUMNS = ("exposed", "hidden", "compute only", "copy only", "idle", "window", "exposed %", "overlap %")
NOT_APPLICABLE = "n/a"


def render(analysis: Analysis, *, all_rows: bool = False) -> str:
    """Give the whole text, lines of at most about 110 characters, ending in a newline.

    `all_rows` shows every rank and step; otherwise long lists are cut, and the text says so.
    """
    parts = [_headline(analysis), _sentence(analysis), _table(analysis, all_rows=all_rows)]
    parts.append(_collectives(analysis.collectives, len(analysis.collectives) if all_rows else MAX_COLLECTIVES))
    parts.append(_findings(analysis, all_rows=all_rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def ms(ns: float | None) -> str:
    """Give nanoseconds as milliseconds with three decimals; n/a for None."""
    return NOT_APPLICABLE if ns is None else f"{ns / 1e6:,.3f}"


def percent(ratio: float | None) -> str:
    """Give a ratio as a percentage; n/a for None."""
    return NOT_APPLICABLE if ratio is None else f"{ratio * 100:.1f} %"


def _headline(analysis: Analysis) -> str:
    run, info = analysis.run, analysis.run.fingerprint
    if len(run.ranks) == 1:
        who = f"rank {run.ranks[0]}" + (f" of {run.world_size}" if run.world_size else "")
    else:
        who = f"{len(run.ranks)} ranks" + (f" of {run.world_size}" if run.world_size else "")
    steps = sum(len(rank.steps) for rank in analysis.ranks)
    known = [" ".join(str(info[key]).split()) for key in ("device", "backend") if info.get(key)]
    if info.get("nccl_version"):
        known.append(f"NCCL {info['nccl_version']}")
    return ", ".join([who, f"{steps} steps" if steps != 1 else "1 step", *known])


def _sentence(analysis: Analysis) -> str:
    """Give the main figures: the median over ranks and complete steps, else the whole recording."""
    steps = [step for rank in analysis.ranks for step in rank.steps if step.complete and step.window_ns]
    chosen: Sequence[Breakdown] = steps or [rank.whole for rank in analysis.ranks if rank.whole.window_ns]
    if not chosen:
        return "No device or host work was recorded."
    what = "step" if steps else "recording"
    window = median(each.window_ns or 0 for each in chosen)
    if not any(each.comm_ns for each in chosen):
        return f"No communication in a {ms(window)} ms {what}."
    exposed = median(each.exposed_comm_ns or 0 for each in chosen)
    hidden = median(each.overlapped_ns or 0 for each in chosen)
    over = f" (median of {len(chosen)})" if len(chosen) > 1 else ""
    share = percent(exposed / window if window else None)
    return (
        f"{ms(exposed)} ms of a {ms(window)} ms {what} is exposed communication ({share}); "
        f"{ms(hidden)} ms more is hidden under compute{over}."
    )


def _cells(label: str, figures: Breakdown) -> list[str]:
    times = (
        figures.exposed_comm_ns,
        figures.overlapped_ns,
        figures.compute_only_ns,
        figures.copy_only_ns,
        figures.idle_ns,
        figures.window_ns,
    )
    return [label, *map(ms, times), percent(figures.exposed_fraction), percent(figures.overlap_efficiency)]


def _table(analysis: Analysis, *, all_rows: bool) -> str:
    rows: list[list[str]] = []
    notes: list[str] = []
    one = len(analysis.ranks) == 1
    for rank in _worst(analysis.ranks, len(analysis.ranks) if all_rows else MAX_RANKS):
        if one or all_rows:
            shown = rank.steps if all_rows else rank.steps[:MAX_STEPS]
            rows += [_cells(_step_label(rank, step), step) for step in shown]
            if len(shown) < len(rank.steps):
                notes.append(f"{len(rank.steps) - len(shown)} more steps: --all")
        elif rank.steps:
            rows.append(_median_row(rank))
        rows.append(_cells(f"rank {rank.rank} whole", rank.whole))
    if len(analysis.ranks) > MAX_RANKS and not all_rows:
        notes.append(f"{len(analysis.ranks) - MAX_RANKS} more ranks with less exposed time: --all")
    if any(not step.complete for rank in analysis.ranks for step in rank.steps):
        notes.append("* not wholly recorded")
    head = ["ms", *_COLUMNS]
    return "\n".join([*_aligned([head, *rows]), *notes])


def _worst(ranks: Sequence[RankInfo], limit: int) -> list[RankInfo]:
    """Give the ranks with the most exposed time, in the order of their numbers."""
    chosen = sorted(ranks, key=lambda rank: -(rank.whole.exposed_comm_ns or 0))[:limit]
    return sorted(chosen, key=lambda rank: rank.rank)


def _step_label(rank: RankInfo, step: StepBreakdown) -> str:
    return f"rank {rank.rank} step {step.step}{'' if step.complete else '*'}"


def _median_row(rank: RankInfo) -> list[str]:
    steps = [step for step in rank.steps if step.complete and step.window_ns is not None]
    steps = steps or [step for step in rank.steps if step.window_ns is not None]
    label = f"rank {rank.rank} median of {len(steps)} steps"
    names = ("exposed_comm_ns", "overlapped_ns", "compute_only_ns", "copy_only_ns", "idle_ns", "window_ns")
    times = [median(getattr(step, name) for step in steps) if steps else None for name in names]
    exposed = [step.exposed_fraction for step in steps if step.exposed_fraction is not None]
    overlap = [step.overlap_efficiency for step in steps if step.overlap_efficiency is not None]
    ratios = [median(exposed) if exposed else None, median(overlap) if overlap else None]
    return [label, *map(ms, times), *map(percent, ratios)]


def _collectives(rows: Sequence[CollectiveRow], limit: int) -> str:
    if not rows:
        return ""
    head = ["collective", "size", "type", "group", "calls", "median ms", "busbw GB/s"]
    cells = []
    for row in rows[:limit]:
        at_least = ">= " if row.estimate == "upper_bound" else ""
        cells.append(
            [
                row.op,
                size(row.bytes),
                row.dtype or "?",
                f"{row.group or '?'} ({row.group_size or '?'} ranks)",
                str(row.count),
                ms(row.transfer_ns_median),
                NOT_APPLICABLE if row.busbw_gbs is None else f"{at_least}{row.busbw_gbs:.2f}",
            ]
        )
    more = f"\n{len(rows) - limit} more kinds of collective: --all" if len(rows) > limit else ""
    note = "\nDurations hold waiting for late ranks too." if any(r.estimate == "upper_bound" for r in rows) else ""
    return "\n".join(_aligned([head, *cells], left=4)) + more + note


def size(size_bytes: int | None) -> str:
    """Give bytes in binary units; ? for None."""
    if size_bytes is None:
        return "?"
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def _findings(analysis: Analysis, *, all_rows: bool) -> str:
    shown = analysis.findings if all_rows else analysis.findings[:MAX_FINDINGS]
    lines = [f"{'!' if each.severity == 'warning' else '-'} {each.title}" for each in shown]
    if len(shown) < len(analysis.findings):
        lines.append(f"{len(analysis.findings) - len(shown)} more findings: --all")
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Align columns: the first `left` to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()

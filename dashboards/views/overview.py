"""How much is exposed, and why: the figures of the overview, from an analysis."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from overlapscope.analysis.analyze import Analysis
from overlapscope.analysis.breakdown import Breakdown
from overlapscope.analysis.causes import CAUSES
from overlapscope.analysis.exposed_by import PLACES, UNKNOWN
from overlapscope.analysis.held_words import HELD_BY
from overlapscope.report.amounts import count, ms, percent
from overlapscope.report.text import WORDS, mean, sentence, windows
from overlapscope_dashboards.parts.bars import BarRow, Segment

WAITING: Final = ("peer_compute", "peer_comm", "peer_host", "pipeline")
"""Causes that are waiting for another rank."""
MAX_NAMES: Final = 8
"""Modules of the table; the others are one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where a step goes, mean over ranks and steps; the segments add up to `whole_ns`."""

    what: str
    """`step`, or `recording` where no step is whole."""
    whole_ns: float
    exposed_ns: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPlace:
    """Exposed time by dimension, phase or module, the largest first."""

    name: str
    rows: tuple[BarRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Exposed nanoseconds by rank and step; None where a rank has no such whole step."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    exposed_ns: tuple[tuple[int | None, ...], ...]
    """A row a rank."""


def lead(analysis: Analysis) -> tuple[str, ...]:
    """Say the main thing first: how much is exposed; then how much of it is waiting, and for whom."""
    lines = [line for line in sentence(analysis).splitlines() if line]
    waits = waiting(analysis)
    return (*lines[:1], *([waits] if waits else []), *lines[1:])


def waiting(analysis: Analysis) -> str:
    """Say how much of the exposed time is waiting for other ranks, and who held them up most; empty without any."""
    _, chosen = _windows(analysis)
    waited = fmean([sum(each.causes.get(cause, 0) for cause in WAITING) for each in chosen]) if chosen else 0
    if not waited:
        return ""
    words = f"{ms(waited)} ms of it is waiting for another rank"
    if analysis.skew.stragglers:
        first = analysis.skew.stragglers[0]
        return f"{words}, most for rank {first.rank}: {HELD_BY[first.held_by]}."
    return f"{words}."


def key_figures(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Give (name, milliseconds, unit, what stands below) of the figures that people know by name."""
    what, chosen = _windows(analysis)
    if not chosen:
        return []
    figures = mean(chosen)
    rows: list[tuple[str, float | None, str]] = [
        (f"A {what}", figures.window_ns, f"mean of {count(len(chosen), what)}"),
        ("Exposed", figures.exposed_comm_ns, f"{_share(figures.exposed_comm_ns, figures)} of a {what}"),
        ("Hidden", figures.overlapped_ns, f"{percent(figures.overlap_efficiency)} of communication"),
        ("Compute only", figures.compute_only_ns, f"{_share(figures.compute_only_ns, figures)} of a {what}"),
        ("Idle", figures.idle_ns, f"{_share(figures.idle_ns, figures)} of a {what}"),
    ]
    return [(name, ms(value), "ms" if value is not None else "", below) for name, value, below in rows]


def step(analysis: Analysis) -> Step | None:
    """Give the parts of a step: compute, what is hidden, what is exposed by cause, copies, idle; None without times."""
    what, chosen = _windows(analysis)
    if not chosen:
        return None

    def part(name: str) -> float:
        return fmean([getattr(each, name) or 0 for each in chosen])

    segments = [
        Segment(name="compute only", ns=part("compute_only_ns"), kind="compute"),
        Segment(name="hidden communication", ns=part("overlapped_ns"), kind="hidden"),
    ]
    by_cause = {cause: fmean([each.causes.get(cause, 0) for each in chosen]) for cause in CAUSES}
    for cause in sorted(by_cause, key=lambda each: -by_cause[each]):
        segments.append(Segment(name=f"exposed: {WORDS[cause]}", ns=by_cause[cause], kind=cause))
    exposed = part("exposed_comm_ns")
    rest = exposed - sum(by_cause.values())
    segments.append(Segment(name="exposed: without a cause", ns=rest if rest >= 0.5 else 0, kind="unknown"))
    segments.append(Segment(name="copies only", ns=part("copy_only_ns"), kind="copy"))
    segments.append(Segment(name="idle", ns=part("idle_ns"), kind="idle"))
    return Step(
        what=what,
        whole_ns=part("window_ns"),
        exposed_ns=exposed,
        segments=tuple(each for each in segments if each.ns > 0),
    )


def by_place(analysis: Analysis) -> tuple[ByPlace, ...]:
    """Give exposed time by dimension, phase and module, those by which anything could be placed."""
    found = []
    for name in PLACES:
        sums: dict[str, int] = getattr(analysis.exposed_by, name)
        if set(sums) - {UNKNOWN}:
            named = [BarRow(name=key, ns=ns, kind="exposed") for key, ns in sums.items()]
            shown, rest = named[:MAX_NAMES], named[MAX_NAMES:]
            if rest:
                shown.append(BarRow(name=f"{len(rest)} more", ns=sum(each.ns for each in rest), kind="idle"))
            found.append(ByPlace(name=name, rows=tuple(shown)))
    return tuple(found)


def grid(analysis: Analysis) -> Grid | None:
    """Give exposed time by rank and step; None where that is no grid: fewer than two whole steps."""
    by_rank = {
        info.rank: {each.step: each.exposed_comm_ns for each in info.steps if each.complete} for info in analysis.ranks
    }
    steps = sorted({number for own in by_rank.values() for number in own})
    ranks = [rank for rank, own in by_rank.items() if own]
    if len(steps) < 2 or not ranks:
        return None
    rows = tuple(tuple(by_rank[rank].get(number) for number in steps) for rank in ranks)
    return Grid(ranks=tuple(ranks), steps=tuple(steps), exposed_ns=rows)


def by_rank(analysis: Analysis) -> tuple[BarRow, ...]:
    """Give each rank's exposed time, mean over its whole steps, else of its recording."""
    _, chosen = windows(analysis)
    means = [(rank, mean(each).exposed_comm_ns) for rank, each in chosen.items() if each]
    return tuple(BarRow(name=f"rank {rank}", ns=ns) for rank, ns in means if ns is not None)


def warnings(analysis: Analysis) -> tuple[list[str], list[str]]:
    """Give what should not be overlooked, and what else was noticed."""
    urgent = [each.title for each in analysis.findings if each.severity == "warning"]
    return urgent, [each.title for each in analysis.findings if each.severity != "warning"]


def _windows(analysis: Analysis) -> tuple[str, Sequence[Breakdown]]:
    what, chosen = windows(analysis)
    return what, [each for own in chosen.values() for each in own]


def _share(part: float | None, figures: Breakdown) -> str:
    return percent(part / figures.window_ns if part is not None and figures.window_ns else None)

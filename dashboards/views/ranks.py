"""Stragglers and wait times by rank, and telemetry, from an analysis."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.analysis.telemetry import MEASURES, Readings, thinned
from overlapscope.analysis.unseen_waits import lacks_members
from overlapscope.report.formatting import NOT_APPLICABLE, count, ms, percent
from overlapscope.report.text.cross_rank import (
    evidence_text,
    matched_text,
    missing_ranks_text,
    straggler_sentences,
)
from overlapscope.timeline.run import Run
from overlapscope_dashboards.parts.quantities import Figure, Time

MAX_BARS: Final = 512
"""Most bars; more ranks share bars."""
MAX_CHOSEN: Final = 8
CHOSEN: Final = 4
MAX_STEPS: Final = 200
MAX_POINTS: Final = 1_500
MAX_LATE: Final = 8
MAX_REASONS: Final = 3


class StragglerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A straggler, as text."""

    rank: int
    sentence: str
    evidence: str


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Wait times of one rank over the whole recording; None where not known."""

    rank: int
    wait_ns: int | None
    wait_fraction: float | None
    blame_ns: int | None
    times_last: int | None
    idle_ns: int | None


class RankBars(msgspec.Struct, frozen=True, kw_only=True):
    """Values by rank, or the maximum of neighbouring ranks."""

    at: tuple[float, ...]
    values_ms: tuple[float | None, ...]
    words: tuple[str, ...]
    width: int
    """Ranks in one bar."""


class MeasurePanel(msgspec.Struct, frozen=True, kw_only=True):
    """One measure over time."""

    title: str
    lines: tuple["SourceLine", ...]


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one source of one rank: seconds from the first step, and values."""

    rank: int
    name: str
    seconds: tuple[float, ...]
    values: tuple[float, ...]


class ShadedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end of a step, in seconds from the first step."""

    number: int
    start_s: float
    end_s: float


class TimeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """The time axis of the readings."""

    origin_ns: float
    """The time shown as 0, on the common clock."""
    title: str
    shaded: tuple[ShadedStep, ...]
    """Steps to shade: every other one, fewer if there are many."""
    words: str


def late(analysis: Analysis) -> tuple[StragglerLine, ...]:
    """Return the stragglers with their causes, the worst first."""
    sentences = straggler_sentences(analysis, MAX_LATE)
    return tuple(
        StragglerLine(rank=each.rank, sentence=line, evidence=evidence_text(each.evidence))
        for each, line in zip(analysis.skew.stragglers, sentences, strict=False)
    )


def lead(analysis: Analysis) -> str:
    """Return a sentence on the number of stragglers and the worst one, or why there is none."""
    found = analysis.skew.stragglers
    if not found:
        return why_no_straggler(analysis)
    bound = "at most " if analysis.run.missing_ranks else ""
    cause = STRAGGLER_CAUSES[found[0].held_by]
    worst = f"rank {found[0].rank} made other ranks wait {bound}{ms(found[0].blame_ns)} ms: {cause}"
    return f"{count(len(found), 'straggler')} among {len(analysis.ranks)} ranks; {worst}."


def why_no_straggler(analysis: Analysis) -> str:
    """Return a sentence on why there is no straggler; empty if there is one."""
    if analysis.skew.stragglers:
        return ""
    if len(analysis.ranks) < 2:
        return "Only one rank was recorded. Stragglers can be found only with several ranks."
    if not analysis.skew.ranks:
        return "No collective could be matched across ranks, so wait times are not known."
    return "No straggler: no rank is late more often than chance explains."


def matching(analysis: Analysis) -> list[str]:
    """Return sentences on what was matched across ranks, and why the rest was not."""
    reasons = [" ".join(each.split()) for each in analysis.skew.reasons]
    more = len(reasons) - MAX_REASONS
    last = [f"{count(more, 'more reason')}: overlapscope analyze RUN --all"] if more > 0 else []
    return [
        *matched_text(analysis.skew, lacks=lacks_members(analysis), known=bool(analysis.run.missing_ranks)),
        *reasons[:MAX_REASONS],
        *last,
    ]


def key_figures(analysis: Analysis) -> list[Figure]:
    """Return the key figures on wait times."""
    skew = analysis.skew
    if not skew.ranks:
        return []
    waited, spent = sum(each.wait_ns for each in skew.ranks), sum(each.collective_ns for each in skew.ranks)
    longest = max(skew.ranks, key=lambda each: each.wait_ns)
    latest = max(skew.ranks, key=lambda each: each.blame_ns)
    of_world = f"of {analysis.run.world_size}" if analysis.run.world_size else "recorded"
    complete = "all of them" if analysis.run.world_size else "world size not known"
    missing = missing_ranks_text(analysis.run.missing_ranks, analysis.run.unread_ranks)
    return [
        ("Ranks", f"{len(analysis.ranks)} {of_world}", (missing or complete,)),
        ("Wait time", percent(waited / spent if spent else None), ("of ", Time(spent), " in matched collectives")),
        ("Most wait time", Time(longest.wait_ns), (f"rank {longest.rank}, whole recording",)),
        ("Most wait caused", Time(latest.blame_ns),
         (f"rank {latest.rank}, arrived last {count(latest.times_last, 'time')}",)),
    ]  # fmt: skip


def rows(analysis: Analysis) -> tuple[RankRow, ...]:
    """Return a row for each recorded rank."""
    known = {each.rank: each for each in analysis.skew.ranks}
    found = []
    for info in analysis.ranks:
        skew = known.get(info.rank)
        found.append(
            RankRow(
                rank=info.rank,
                wait_ns=skew.wait_ns if skew else None,
                wait_fraction=skew.wait_fraction if skew else None,
                blame_ns=skew.blame_ns if skew else None,
                times_last=skew.times_last if skew else None,
                idle_ns=info.whole.idle_ns,
            )
        )
    return tuple(found)


def bars(found: Sequence[RankRow], name: str, limit: int = MAX_BARS) -> RankBars:
    """Return the bars of `wait_ns`, `blame_ns` or `idle_ns`; with more ranks than `limit`, ranks share bars."""
    width = -(-len(found) // limit) if found else 1
    at, values, words = [], [], []
    for begin in range(0, len(found), width):
        own = found[begin : begin + width]
        most = max(own, key=lambda row: getattr(row, name) or -1)
        value: int | None = getattr(most, name)
        at.append(own[0].rank + (own[-1].rank - own[0].rank) / 2)
        values.append(None if value is None else value / 1e6)
        prefix = f"ranks {own[0].rank} to {own[-1].rank}, maximum: " if len(own) > 1 else ""
        words.append(f"{prefix}rank {most.rank}")
    return RankBars(at=tuple(at), values_ms=tuple(values), words=tuple(words), width=width)


def chosen(requested: str | None, analysis: Analysis) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks whose telemetry is shown, and the requested ones that do not exist.

    By default: stragglers, then the ranks that waited longest, then the first ranks.
    """
    recorded = [each.rank for each in analysis.ranks]
    if requested is None:
        waited = sorted(analysis.skew.ranks, key=lambda each: -each.wait_ns)
        order = [*(each.rank for each in analysis.skew.stragglers), *(each.rank for each in waited), *recorded]
        return tuple(sorted(list(dict.fromkeys(order))[:CHOSEN])), ()
    names = [each.strip() for each in requested.split(",") if each.strip()]
    known = {str(rank): rank for rank in recorded}
    good = list(dict.fromkeys(known[each] for each in names if each in known))
    bad = tuple(dict.fromkeys(each[:20] for each in names if each not in known))
    return tuple(good[:MAX_CHOSEN]), bad[:MAX_CHOSEN]


def panels(found: Sequence[Readings], origin_ns: float) -> tuple[MeasurePanel, ...]:
    """Return a panel for each measure that was recorded."""
    by_measure: dict[str, list[SourceLine]] = {}
    for each in found:
        times, values = thinned(each, MAX_POINTS)
        name = f"rank {each.rank}" + (f" {each.source}" if each.source else "")
        line = SourceLine(rank=each.rank, name=name, seconds=tuple(((times - origin_ns) / 1e9).tolist()),
                    values=tuple(values.tolist()))  # fmt: skip
        by_measure.setdefault(f"{each.measure.name}, {each.measure.unit}", []).append(line)
    return tuple(MeasurePanel(title=title, lines=tuple(lines)) for title, lines in by_measure.items())


def not_recorded(found: Sequence[Readings]) -> list[str]:
    """Return the names of the measures without a reading."""
    there = {each.measure.name for each in found}
    return [each.name for each in MEASURES if each.name not in there]


def axis(run: Run, clocks: Clocks, ranks: Sequence[int], found: Sequence[Readings]) -> TimeAxis:
    """Return the time axis: it starts at the first step of the first rank that has steps, else at the first reading."""
    own = "" if clocks.comparable(ranks) else "; these ranks share no collective, so each has its own clock"
    for rank in ranks:
        table = run.ranks[rank].steps
        if not table.start_ns.size:
            continue
        start_s, end_s = clocks.aligned(rank, table.start_ns), clocks.aligned(rank, table.end_ns)
        origin = float(start_s.min())
        stride = -(-start_s.size // MAX_STEPS)
        seconds = [((each - origin) / 1e9)[::stride].tolist() for each in (start_s, end_s)]
        numbers = table.step[::stride].tolist()
        shaded = tuple(ShadedStep(number=n, start_s=b, end_s=e) for n, b, e in zip(numbers, *seconds, strict=True))[::2]
        which = "every other step" if stride == 1 else f"one step in {2 * stride}"
        of = "" if len(ranks) == 1 else f" of rank {rank}"
        return TimeAxis(origin_ns=origin, title="seconds from the first step", shaded=shaded,
                    words=f"shaded: {which}{of}{own}")  # fmt: skip
    first = min((float(each.time_ns[0]) for each in found), default=0.0)
    words = f"no steps were recorded for these ranks{own}"
    return TimeAxis(origin_ns=first, title="seconds from the first reading", shaded=(), words=words)


def reading_rows(found: Sequence[Readings]) -> list[tuple[str, ...]]:
    """Return a row for each source: mean, minimum and maximum."""
    return [
        (
            f"rank {each.rank}" + (f" {each.source}" if each.source else ""),
            f"{each.measure.name}, {each.measure.unit}",
            *(_figure(float(value)) for value in (np.mean(each.value), each.value.min(), each.value.max())),
            f"{each.value.size:,}",
        )
        for each in found
    ]


def table_rows(found: Sequence[RankRow]) -> list[tuple[str, ...]]:
    """Return the table row of each rank."""
    return [
        (
            f"rank {each.rank}",
            ms(each.wait_ns),
            percent(each.wait_fraction),
            ms(each.blame_ns),
            NOT_APPLICABLE if each.times_last is None else str(each.times_last),
            ms(each.idle_ns),
        )
        for each in found
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.3g}"

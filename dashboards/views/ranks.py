"""Who was late and who waited, by rank; and what the machine did meanwhile."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.clock_offsets import Clocks
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.straggler_cause import HELD_BY
from overlapscope.analysis.telemetry import MEASURES, Readings, thinned
from overlapscope.report.formatting import NOT_APPLICABLE, count, ms, percent
from overlapscope.report.text.cross_rank import evidence_words, matched_words, missing_words, straggler_words
from overlapscope.timeline.run import Run

MAX_BARS: Final = 512
"""Ranks up to which each has a bar."""
MAX_CHOSEN: Final = 8
CHOSEN: Final = 4
MAX_STEPS: Final = 200
MAX_POINTS: Final = 1_500
MAX_LATE: Final = 8
MAX_REASONS: Final = 3


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that the others waited for."""

    rank: int
    said: str
    evidence: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank waited, in all of the recording; None where nothing tells it."""

    rank: int
    wait_ns: int | None
    wait_fraction: float | None
    blame_ns: int | None
    times_last: int | None
    idle_ns: int | None


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Values by rank, or the greatest of each of several ranks beside each other."""

    at: tuple[float, ...]
    values_ms: tuple[float | None, ...]
    words: tuple[str, ...]
    width: int
    """Ranks in one bar."""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One measure over time."""

    title: str
    lines: tuple["Line", ...]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One source of one rank: seconds from the first step, and values."""

    rank: int
    name: str
    seconds: tuple[float, ...]
    values: tuple[float, ...]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step was, in seconds from the first one."""

    number: int
    begins: float
    ends: float


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """The time that readings are shown on."""

    origin_ns: float
    """What is 0, on the common clock."""
    title: str
    shaded: tuple[Step, ...]
    """Steps to shade: every other one, of many fewer."""
    words: str


def late(analysis: Analysis) -> tuple[Late, ...]:
    """Return the ranks that the others waited for, the most blamed first, with what held them."""
    sentences = straggler_words(analysis, MAX_LATE)
    return tuple(
        Late(rank=each.rank, said=said, evidence=evidence_words(each.evidence))
        for each, said in zip(analysis.skew.stragglers, sentences, strict=False)
    )


def lead(analysis: Analysis) -> str:
    """Say how many ranks held the others up, and which most; or why none is named."""
    found = analysis.skew.stragglers
    if not found:
        return nobody(analysis)
    bound = "at most " if analysis.run.missing_ranks else ""
    most = f"rank {found[0].rank} most, for {bound}{ms(found[0].blame_ns)} ms: {HELD_BY[found[0].held_by]}"
    return f"{count(len(found), 'rank')} of {len(analysis.ranks)} held the others up, {most}."


def nobody(analysis: Analysis) -> str:
    """Say why no rank is named; empty where one is."""
    if analysis.skew.stragglers:
        return ""
    if len(analysis.ranks) < 2:
        return "One rank was recorded: who waits for whom shows only where several are."
    if not analysis.skew.ranks:
        return "No collective could be matched across ranks, so nobody is known to have waited."
    return "No rank held the others up for more than chance would have it."


def matching(analysis: Analysis) -> list[str]:
    """Say what was matched, and why what was not."""
    reasons = [" ".join(each.split()) for each in analysis.skew.reasons]
    more = len(reasons) - MAX_REASONS
    last = [f"{count(more, 'more reason')}: overlapscope analyze RUN --all"] if more > 0 else []
    return [*matched_words(analysis.skew), *reasons[:MAX_REASONS], *last]


def key_figures(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Return (name, value, unit, what stands below) of waiting as a whole."""
    skew = analysis.skew
    if not skew.ranks:
        return []
    waited, spent = sum(each.wait_ns for each in skew.ranks), sum(each.collective_ns for each in skew.ranks)
    longest = max(skew.ranks, key=lambda each: each.wait_ns)
    latest = max(skew.ranks, key=lambda each: each.blame_ns)
    of_world = f"of {analysis.run.world_size}" if analysis.run.world_size else "recorded"
    complete = "all of them" if analysis.run.world_size else "of how many is not known"
    return [
        (
            "Ranks",
            f"{len(analysis.ranks)}",
            of_world,
            missing_words(analysis.run.missing_ranks, analysis.run.unread_ranks) or complete,
        ),
        ("Waiting", percent(waited / spent if spent else None), "", f"of {ms(spent)} ms in matched collectives"),
        ("Waited longest", ms(longest.wait_ns), "ms", f"rank {longest.rank}, in all of the recording"),
        (
            "Held others up most",
            ms(latest.blame_ns),
            "ms",
            f"rank {latest.rank}, last {count(latest.times_last, 'time')}",
        ),
    ]


def rows(analysis: Analysis) -> tuple[Row, ...]:
    """Return a row for each recorded rank."""
    known = {each.rank: each for each in analysis.skew.ranks}
    found = []
    for info in analysis.ranks:
        skew = known.get(info.rank)
        found.append(
            Row(
                rank=info.rank,
                wait_ns=skew.wait_ns if skew else None,
                wait_fraction=skew.wait_fraction if skew else None,
                blame_ns=skew.blame_ns if skew else None,
                times_last=skew.times_last if skew else None,
                idle_ns=info.whole.idle_ns,
            )
        )
    return tuple(found)


def bars(found: Sequence[Row], name: str, limit: int = MAX_BARS) -> Bars:
    """Return the bars of `wait_ns`, `blame_ns` or `idle_ns`; of more ranks than the limit several share one."""
    width = -(-len(found) // limit) if found else 1
    at, values, words = [], [], []
    for begin in range(0, len(found), width):
        own = found[begin : begin + width]
        most = max(own, key=lambda row: getattr(row, name) or -1)
        value: int | None = getattr(most, name)
        at.append(own[0].rank + (own[-1].rank - own[0].rank) / 2)
        values.append(None if value is None else value / 1e6)
        together = f"ranks {own[0].rank} to {own[-1].rank}, most: " if len(own) > 1 else ""
        words.append(f"{together}rank {most.rank}")
    return Bars(at=tuple(at), values_ms=tuple(values), words=tuple(words), width=width)


def chosen(asked: str | None, analysis: Analysis) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks whose telemetry is shown, and what was asked for that is not there.

    Nobody asked: those that held others up, those that waited longest, the first ones.
    """
    recorded = [each.rank for each in analysis.ranks]
    if asked is None:
        waited = sorted(analysis.skew.ranks, key=lambda each: -each.wait_ns)
        order = [*(each.rank for each in analysis.skew.stragglers), *(each.rank for each in waited), *recorded]
        return tuple(sorted(list(dict.fromkeys(order))[:CHOSEN])), ()
    names = [each.strip() for each in asked.split(",") if each.strip()]
    known = {str(rank): rank for rank in recorded}
    good = list(dict.fromkeys(known[each] for each in names if each in known))
    bad = tuple(dict.fromkeys(each[:20] for each in names if each not in known))
    return tuple(good[:MAX_CHOSEN]), bad[:MAX_CHOSEN]


def panels(found: Sequence[Readings], origin_ns: float) -> tuple[Panel, ...]:
    """Return a panel for each measure that was recorded."""
    by_measure: dict[str, list[Line]] = {}
    for each in found:
        times, values = thinned(each, MAX_POINTS)
        name = f"rank {each.rank}" + (f" {each.source}" if each.source else "")
        line = Line(rank=each.rank, name=name, seconds=tuple(((times - origin_ns) / 1e9).tolist()),
                    values=tuple(values.tolist()))  # fmt: skip
        by_measure.setdefault(f"{each.measure.name}, {each.measure.unit}", []).append(line)
    return tuple(Panel(title=title, lines=tuple(lines)) for title, lines in by_measure.items())


def not_recorded(found: Sequence[Readings]) -> list[str]:
    """Name the measures of which there is no reading."""
    there = {each.measure.name for each in found}
    return [each.name for each in MEASURES if each.name not in there]


def axis(run: Run, clocks: Clocks, ranks: Sequence[int], found: Sequence[Readings]) -> Axis:
    """Give the time that readings are shown on: from the first step of the first rank that has any, else from the first
    reading.
    """
    own = "" if clocks.comparable(ranks) else "; nothing ties the clocks of these ranks, each stands on its own"
    for rank in ranks:
        table = run.ranks[rank].steps
        if not table.start_ns.size:
            continue
        begins, ends = clocks.aligned(rank, table.start_ns), clocks.aligned(rank, table.end_ns)
        origin = float(begins.min())
        stride = -(-begins.size // MAX_STEPS)
        seconds = [((each - origin) / 1e9)[::stride].tolist() for each in (begins, ends)]
        numbers = table.step[::stride].tolist()
        shaded = tuple(Step(number=n, begins=b, ends=e) for n, b, e in zip(numbers, *seconds, strict=True))[::2]
        which = "every other step" if stride == 1 else f"one step in {2 * stride}"
        of = "" if len(ranks) == 1 else f" of rank {rank}"
        return Axis(origin_ns=origin, title="seconds from the first step", shaded=shaded,
                    words=f"shaded: {which}{of}{own}")  # fmt: skip
    first = min((float(each.time_ns[0]) for each in found), default=0.0)
    words = f"no steps were recorded of these ranks{own}"
    return Axis(origin_ns=first, title="seconds from the first reading", shaded=(), words=words)


def reading_rows(found: Sequence[Readings]) -> list[tuple[str, ...]]:
    """Return a row for each series: mean, least and most."""
    return [
        (
            f"rank {each.rank}" + (f" {each.source}" if each.source else ""),
            f"{each.measure.name}, {each.measure.unit}",
            *(_figure(float(value)) for value in (np.mean(each.value), each.value.min(), each.value.max())),
            f"{each.value.size:,}",
        )
        for each in found
    ]


def table_rows(found: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the cells of each rank."""
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

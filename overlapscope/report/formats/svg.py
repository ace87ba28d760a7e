"""Draw a chart as SVG: visible without JavaScript, in the colours of the page, with one fill pattern per series."""

import math
from collections.abc import Iterator
from html import escape
from typing import Final

from overlapscope.report.formatting import inert
from overlapscope.report.model import Chart, Series
from overlapscope.report.palette import SEQUENCE

WIDTH: Final = 860
LABELS: Final = 300
"""Width of the column of names to the left of the bars."""
ROW: Final = 22
MARGIN: Final = 34
TICKS: Final = 5
LINES_HEIGHT: Final = 260
LINES_LEFT: Final = 64
LONGEST: Final = 46
"""Longer names are cut to this many characters; the tooltip has the whole name."""
MARKED: Final = 120
"""Lines with more points than this are drawn without markers, which would merge into a band."""


def svg(chart: Chart, number: int) -> str:
    """Return the chart as an `svg` element; `number` makes its ids unique on the page."""
    body, height = _lines(chart) if chart.kind == "lines" else _bars(chart)
    head = (
        f'<svg role="img" aria-labelledby="c{number}t c{number}d" viewBox="0 0 {WIDTH} {height}" '
        'xmlns="http://www.w3.org/2000/svg">'
        f'<title id="c{number}t">{escaped(chart.title)}</title><desc id="c{number}d">{escaped(chart.words)}</desc>'
    )
    return "\n".join([head, *body, "</svg>"])


def ticks(most: float) -> list[float]:
    """Return about five round values from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / TICKS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(each * magnitude for each in (1, 2, 2.5, 5, 10) if each * magnitude >= raw * (1 - 1e-9))
    return [at * step for at in range(math.ceil(most / step - 1e-9) + 1)]


def _bars(chart: Chart) -> tuple[list[str], int]:
    stacked = chart.kind == "stacked"
    most = max((sum(known) if stacked else max(known, default=0.0) for known in _by_category(chart)), default=0.0)
    marks = ticks(most)
    scale = (WIDTH - LABELS - MARGIN) / marks[-1]
    deep = ROW if stacked or len(chart.series) == 1 else ROW + 10
    end = deep * len(chart.categories) + 6
    body = [*_grid(marks, scale, end, chart.axis)]
    for row, name in enumerate(chart.categories):
        top = row * deep + 4
        cut = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
        body.append(
            f'<text class="name" x="{LABELS - 8}" y="{top + deep / 2 + 2:.0f}">{escaped(cut)}'
            f"<title>{escaped(name)}</title></text>"
        )
        body += _row(chart, row, top, deep, scale)
    return body, end + MARGIN


def _row(chart: Chart, row: int, top: int, deep: int, scale: float) -> Iterator[str]:
    left = 0.0
    high = deep - 6 if chart.kind == "stacked" else (deep - 6) / len(chart.series)
    for place, each in enumerate(chart.series):
        value = each.values[row]
        y = top if chart.kind == "stacked" else top + place * high
        x = LABELS + left * scale
        if value is None:
            if chart.kind == "grouped":
                yield f'<text class="none" x="{LABELS + 4}" y="{y + high - 1:.1f}">n/a</text>'
            continue
        tip = escaped(f"{chart.categories[row]}: {each.name} {value:,.3f} ms")
        yield (
            f'<rect class="s-{colour_of(each, place)}" data-s="{place}" data-tip="{tip}" x="{x:.2f}" y="{y:.1f}" '
            f'width="{max(value, 0) * scale:.2f}" height="{high - 1:.1f}"><title>{tip}</title></rect>'
        )
        left += value if chart.kind == "stacked" else 0.0


def _grid(marks: list[float], scale: float, end: int, axis: str) -> Iterator[str]:
    for mark in marks:
        x = LABELS + mark * scale
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{end}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{end + 14}">{mark:,.4g}</text>'
    yield f'<text class="tick" x="{(LABELS + WIDTH - MARGIN) / 2:.0f}" y="{end + 29}">{escaped(axis)}</text>'


def _lines(chart: Chart) -> tuple[list[str], int]:
    known = [value for each in chart.series for value in each.values if value is not None]
    marks = ticks(max(known, default=0.0))
    across = (WIDTH - LINES_LEFT - MARGIN) / max(len(chart.categories) - 1, 1)
    up = (LINES_HEIGHT - 20) / marks[-1]
    body = []
    for mark in marks:
        y = LINES_HEIGHT - mark * up
        body.append(f'<line class="grid" x1="{LINES_LEFT}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text class="name" x="{LINES_LEFT - 6}" y="{y + 4:.1f}">{mark:,.4g}</text>')
    for place, each in enumerate(chart.series):
        points = [
            (LINES_LEFT + at * across, LINES_HEIGHT - value * up, chart.categories[at], value)
            for at, value in enumerate(each.values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        body.append(f'<polyline class="l{place} l-{colour_of(each, place)}" data-s="{place}" points="{path}"/>')
        for x, y, name, value in points if len(points) <= MARKED else ():
            tip = escaped(f"{name}: {each.name} {value:,.3f} ms")
            body.append(
                f'<circle class="s-{colour_of(each, place)}" data-s="{place}" data-tip="{tip}" cx="{x:.1f}" '
                f'cy="{y:.1f}" r="4">'
                f"<title>{tip}</title></circle>"
            )
    first, last = chart.categories[0], chart.categories[-1]
    body.append(f'<text class="first" x="{LINES_LEFT}" y="{LINES_HEIGHT + 18}">{escaped(first[:LONGEST])}</text>')
    body.append(f'<text class="name" x="{WIDTH - MARGIN}" y="{LINES_HEIGHT + 18}">{escaped(last[-LONGEST:])}</text>')
    body.append(f'<text class="first" x="4" y="12">{escaped(chart.axis)}</text>')
    return body, LINES_HEIGHT + MARGIN


def colour_of(series: Series, place: int) -> str:
    """Return the name of a series' colour: its own, else that of its place in the chart."""
    return series.colour or SEQUENCE[place % len(SEQUENCE)]


def _by_category(chart: Chart) -> Iterator[list[float]]:
    for at in range(len(chart.categories)):
        yield [value for each in chart.series if (value := each.values[at]) is not None]


def escaped(text: str) -> str:
    """Return text on one line, safe in HTML elements and attributes and without control characters or CI commands."""
    return escape(" ".join(inert(text).split()), quote=True)

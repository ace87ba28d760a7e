"""Charts of the report package, drawn: the same chart as in an HTML report, as a figure and as its table."""

from typing import Any, Final

from dash.development.base_component import Component

from overlapscope.report.model import Chart
from overlapscope_dashboards.parts.tables import table
from overlapscope_dashboards.theme import COLOURS, SEQUENCE, figure, plain

DASHES: Final = ("solid", "dash", "dot", "dashdot")
MAX_MARKED: Final = 100
"""Points of a line up to which each is marked."""
MAX_ROWS: Final = 200
"""Of a chart's table."""


def lines(chart: Chart, colours: tuple[str, ...] = SEQUENCE, *, x: str = "") -> dict[str, Any]:
    """Draw a chart of lines; each line has a dash of its own beside its colour."""
    few = len(chart.categories) <= MAX_MARKED
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if few else "lines",
            "name": plain(each.name),
            "x": [plain(name) for name in chart.categories],
            "y": list(each.values),
            "line": {"color": COLOURS[colours[at % len(colours)]], "dash": DASHES[at % len(DASHES)], "width": 2},
            "marker": {"size": 6},
            "hovertemplate": "%{x}<br><b>%{y:,.3f} ms</b><extra>%{fullData.name}</extra>",
        }
        for at, each in enumerate(chart.series)
    ]
    return figure(
        traces, x=x, y=chart.axis, layout={"xaxis": {"type": "category", "nticks": 8}, "hovermode": "x unified"}
    )


def twin(chart: Chart) -> Component:
    """Return the chart's figures as a table, of a long one the first rows."""
    rows = [
        (name, *("n/a" if s.values[at] is None else f"{s.values[at]:,.3f}" for s in chart.series))
        for at, name in enumerate(chart.categories[:MAX_ROWS])
    ]
    cut = len(rows) < len(chart.categories)
    note = f"The first {len(rows)} of {len(chart.categories)}: overlapscope analyze RUN --json has all." if cut else ""
    head = (chart.axis, *(each.name for each in chart.series))
    return table(head, rows, caption=f"{chart.title}, {chart.axis}", note=note)

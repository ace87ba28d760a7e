"""Draw charts of the report package: the same chart as in an HTML report, as a plotly figure and as a table."""

from typing import Any, Final

from dash.development.base_component import Component

from overlapscope.report.model import Chart
from overlapscope.report.palette import SEQUENCE
from overlapscope_dashboards.parts.tables import table
from overlapscope_dashboards.theme import COLOURS, figure, plain

DASHES: Final = ("solid", "dash", "dot", "dashdot")
MAX_MARKED: Final = 100
"""Most points of a line for which each point is marked."""
MAX_ROWS: Final = 200
"""Most rows of a chart's table."""


def lines(chart: Chart, colours: tuple[str, ...] = SEQUENCE, *, x: str = "") -> dict[str, Any]:
    """Return a line chart as a figure; each line has its own dash pattern besides its colour."""
    few = len(chart.categories) <= MAX_MARKED
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if few else "lines",
            "name": plain(each.name),
            "x": [plain(name) for name in chart.categories],
            "y": list(each.values),
            "line": {
                "color": COLOURS[each.colour or colours[at % len(colours)]],
                "dash": DASHES[at % len(DASHES)],
                "width": 2,
            },
            "marker": {"size": 6},
            "hovertemplate": "%{x}<br><b>%{y:,.3f} ms</b><extra>%{fullData.name}</extra>",
        }
        for at, each in enumerate(chart.series)
    ]
    return figure(
        traces, x=x, y=chart.axis, layout={"xaxis": {"type": "category", "nticks": 8}, "hovermode": "x unified"}
    )


def chart_table(chart: Chart) -> Component:
    """Return the chart's figures as a table with at most MAX_ROWS rows."""
    rows = [
        (name, *("n/a" if s.values[at] is None else f"{s.values[at]:,.3f}" for s in chart.series))
        for at, name in enumerate(chart.categories[:MAX_ROWS])
    ]
    cut = len(rows) < len(chart.categories)
    note = f"The first {len(rows)} of {len(chart.categories)}: overlapscope analyze RUN --json has all." if cut else ""
    head = (chart.axis, *(each.name for each in chart.series))
    return table(head, rows, caption=f"{chart.title}, {chart.axis}", note=note)

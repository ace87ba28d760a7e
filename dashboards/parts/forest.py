"""A forest plot as a table: a step under each setting, with its interval, on one axis."""

import msgspec
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.report.formatting import ms, signed_percent
from overlapscope_dashboards.parts.quantities import time
from overlapscope_dashboards.parts.text import aria


class ScenarioRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the picture: a step with its interval, and a link that selects it."""

    name: str
    remarks: str
    step_ns: int
    low_ns: int
    high_ns: int
    gain: float
    is_best: bool
    is_good: bool
    """Whether it cannot be told apart from the best."""
    selected: bool
    address: str
    measured_ns: int | None
    """The step of a later run, or of this one, with these settings."""


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """All rows on one axis from `start_ns` to `end_ns`."""

    rows: tuple[ScenarioRow, ...]
    start_ns: float
    end_ns: float
    ticks_ns: tuple[float, ...]
    good_ns: tuple[int, int] | None
    """Steps that cannot be told apart from the best: its 90 % interval; None where no change is recommended."""

    def place(self, ns: float) -> float:
        """Return where a time lies on the axis, 0 to 1."""
        return min(max((ns - self.start_ns) / (self.end_ns - self.start_ns), 0.0), 1.0)


def draw_forest(drawn: Forest, *, caption: str) -> Component:
    """Return the table; the name of a row links to its address."""
    band = []
    if drawn.good_ns is not None:
        low, high = (drawn.place(ns) for ns in drawn.good_ns)
        band = [html.Span(className="good-range", style=_reach(low, high))]
    now = html.Span(className="now", style={"left": _percent(drawn.place(drawn.rows[0].step_ns))})
    axis = [html.Span(f"{ns / 1e6:,.4g}", style={"left": _percent(drawn.place(ns))}) for ns in drawn.ticks_ns]
    heads = [html.Th("setting", scope="col", className="word"), html.Td("", className="bar"),
             html.Th("step, ms", scope="col"), html.Th("change", scope="col")]  # fmt: skip
    rows = [_row(drawn, each, [*band, now]) for each in drawn.rows]
    rows.append(
        html.Tr([html.Td(""), html.Td(html.Div(axis, className="axis"), className="bar"), html.Td(""), html.Td("")],
                **aria(hidden="true"))
    )  # fmt: skip
    inner = html.Table(
        [html.Caption(caption, className="unseen"), html.Thead(html.Tr(heads)), html.Tbody(rows)],
        className="bars forest",
    )
    return html.Div(inner, className="wide", role="region", tabIndex=0, **aria(label=caption))


def _row(drawn: Forest, each: ScenarioRow, behind: list[Component]) -> Component:
    low, high = drawn.place(each.low_ns), drawn.place(each.high_ns)
    marks = [*behind, html.Span(className="interval", style=_reach(low, high)),
             html.Span(className="dot", style={"left": _percent(drawn.place(each.step_ns))})]  # fmt: skip
    if each.measured_ns is not None:
        marks.append(html.Span(className="diamond", style={"left": _percent(drawn.place(each.measured_ns))}))
    name = dcc.Link(each.name, href=each.address)
    said = f"{ms(each.low_ns)} to {ms(each.high_ns)} ms, 90 %"
    return html.Tr(
        [
            html.Th([name, html.Div(each.remarks, className="note")], scope="row", className="word"),
            html.Td(html.Div(marks, className="track"), className="bar", title=said),
            html.Td(time(each.step_ns, unit=False)),
            html.Td("" if each is drawn.rows[0] else signed_percent(round(-each.gain, 4) + 0.0)),
        ],
        className="selected" if each.selected else "",
    )


def _reach(low: float, high: float) -> dict[str, str]:
    return {"left": _percent(low), "width": _percent(high - low)}


def _percent(share: float) -> str:
    return f"{100 * share:.4f}%"

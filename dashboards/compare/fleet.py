"""The page of all runs of the folder together: the worst, straggling hosts, and how jobs changed."""

from collections.abc import Mapping

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.compare.fleet import Fleet
from overlapscope.report.sheet import fleet as sheet
from overlapscope_dashboards.parts import card, empty, figure_card, next_command, notes, table
from overlapscope_dashboards.parts.charts import chart_table, lines
from overlapscope_dashboards.runs.site import run_address
from overlapscope_dashboards.views.fleet import FleetView, view

ADDRESS = "/fleet"


def layout(found: Fleet, ids: Mapping[str, str], folder: str) -> list[Component]:
    """Return the page; `ids` maps the names of runs to their ids, `folder` is the served folder as typed, or ""."""
    if not found.runs:
        if not found.left_out:
            return [html.Section(empty("This page needs run directories."), className="card")]
        return [
            html.Section(empty("No run in this folder can be read.", notes(sheet.warnings(found))), className="card")
        ]
    shown = view(found)
    worst, *rest = sheet.lead(found) or [sheet.title(found)]
    intro = [html.P(worst, className="lead"), *(html.P(line, className="under-lead") for line in rest)]
    warnings = sheet.warnings(found)
    return [
        html.Div(intro, className="intro"),
        html.Div(
            [*_charts(shown), _hosts(shown), _runs(shown, ids), _jobs(shown),
             card("Remarks", [*([notes(warnings, warning=True)] if warnings else []), notes(sheet.notes(found)),
                              *([next_command("The same in a terminal", f"overlapscope compare --fleet {folder}")]
                                if folder else [])])],
            className="grid",
        ),
    ]  # fmt: skip


def _hosts(shown: FleetView) -> Component:
    if not shown.hosts:
        return card("Straggling hosts", empty("No host is known to straggle in more runs than chance allows."))
    listed = table(sheet.HOST_HEAD, shown.hosts, caption="Straggling hosts", left=4, hide_caption=True)
    return card("Straggling hosts", [notes(shown.host_sentences, warning=True), listed])


def _runs(shown: FleetView, ids: Mapping[str, str]) -> Component:
    rows = [(_link(name, cells[0], ids), *cells[1:]) for name, cells in shown.runs]
    note = sheet.RUN_NOTE + (f" {shown.more_runs} other runs are not shown." if shown.more_runs else "")
    return card(
        "Worst first", table(sheet.RUN_HEAD, rows, caption="Runs, worst first", left=3, hide_caption=True, note=note)
    )


def _link(name: str, label: str, ids: Mapping[str, str]) -> Component | str:
    return dcc.Link(label, href=run_address(ids[name])) if name in ids else label


def _jobs(shown: FleetView) -> Component:
    if not shown.jobs:
        return card("Jobs", empty("No job has two runs at one world size."))
    return card("Jobs", table(sheet.JOB_HEAD, shown.jobs, caption="Trend of each job", left=3, hide_caption=True,
                              note=sheet.JOB_NOTE))  # fmt: skip


def _charts(shown: FleetView) -> list[Component]:
    return [
        figure_card(chart.title, lines(chart, ("exposed", "accent"), x="run"), chart_table(chart), words=chart.words,
                    id=f"fleet-job-{at}", wide="half")
        for at, chart in enumerate(shown.charts)
    ]  # fmt: skip

"""The page that lists all runs, newest first, and lets the reader pick two to compare."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.report.formatting import count
from overlapscope_dashboards.compare import fleet
from overlapscope_dashboards.compare.page import compare_address
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.runs.catalog import CatalogEntry
from overlapscope_dashboards.runs.site import run_address


def layout(found: Sequence[CatalogEntry], remarks: Sequence[str], base: str | None = None) -> list[Component]:
    """Return the page; `base` is the id of the run that was picked as the base of a comparison."""
    if not found:
        how = next_command("Record one, or turn traces into one", "overlapscope ingest TRACES -o RUN")
        return [html.Section(empty("There is no run in this folder yet. This page refreshes itself.", how),
                             className="card")]  # fmt: skip
    picked = next((each for each in found if each.location.id == base), None)
    rows = [(*_row(each), _compare(each, picked)) for each in found]
    head = ("run", "state", "recorded with", "ranks", "steps", "recorded, UTC", "compare")
    listed = table(head, rows, caption="Runs, newest first", left=3, hide_caption=True)
    words = f"Pick the run to compare with {picked.location.name}." if picked else ""
    together = [html.P(dcc.Link("All of them together: worst first, trends, straggling hosts", href=fleet.ADDRESS))]
    return [
        card(
            count(len(found), "run"),
            [*(together if len(found) > 1 else []), listed, *([notes(remarks)] if remarks else [])],
            words=words,
        )
    ]


def revision(found: Sequence[CatalogEntry]) -> str:
    """Return a digest that changes whenever the page would."""
    return hashlib.blake2b(repr([(e.location.id, e.changed_ns, e.problem) for e in found]).encode()).hexdigest()[:16]


def _row(each: CatalogEntry) -> tuple[str | Component, ...]:
    of_world = f" of {each.world_size}" if each.world_size else ""
    return (
        dcc.Link(each.location.name, href=run_address(each.location.id)),
        _state(each),
        each.software or "",
        "" if each.ranks is None else f"{each.ranks}{of_world}",
        "" if each.steps is None else str(each.steps),
        _moment(each.when_ns),
    )


def _compare(each: CatalogEntry, picked: CatalogEntry | None) -> Component | str:
    name = each.location.name
    if each.problem:
        return ""
    if picked is None:
        label = html.Span(f" compare {name} with another run", className="unseen")
        return dcc.Link(["with …", label], href=f"/?base={each.location.id}")
    if each is picked:
        return html.Span(["base · ", dcc.Link("clear", href="/")])
    return dcc.Link(f"with {picked.location.name}", href=compare_address(picked.location.id, each.location.id))


def _state(each: CatalogEntry) -> Component:
    if each.problem:
        return html.Span(each.problem, className="tag bad")
    if each.incomplete and each.world_size is not None and each.ranks is not None:
        return html.Span(f"{count(each.world_size - each.ranks, 'rank')} missing", className="tag warn")
    return html.Span("complete" if each.ranks else "not read yet", className="tag")


def _moment(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M") if ns else ""
    except (OverflowError, ValueError, OSError):  # a file system may report any time
        return "n/a"

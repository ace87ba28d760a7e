"""The page of all runs: newest first, what is known of each, and two to compare."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.report.formatting import count
from overlapscope_dashboards.compare.page import compare_address
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.runs.catalog import Listed
from overlapscope_dashboards.runs.site import run_address


def layout(found: Sequence[Listed], remarks: Sequence[str], base: str | None = None) -> list[Component]:
    """Return the page; `base` is the id of a run that was picked to compare another with."""
    if not found:
        how = next_command("Record one, or turn traces into one", "overlapscope ingest TRACES -o RUN")
        return [html.Section(empty("There is no run in this folder yet. This page looks again by itself.", how),
                             className="card")]  # fmt: skip
    picked = next((each for each in found if each.place.id == base), None)
    rows = [(*_row(each), _compare(each, picked)) for each in found]
    head = ("run", "state", "recorded with", "ranks", "steps", "changed, UTC", "compare")
    listed = table(head, rows, caption="Runs, newest first", left=3, hide_caption=True)
    words = f"Pick the run to compare with {picked.place.name}." if picked else ""
    return [card(count(len(found), "run"), [listed, *([notes(remarks)] if remarks else [])], words=words)]


def revision(found: Sequence[Listed]) -> str:
    """Return what changes when the page would."""
    return hashlib.blake2b(repr([(e.place.id, e.changed_ns, e.problem) for e in found]).encode()).hexdigest()[:16]


def _row(each: Listed) -> tuple[str | Component, ...]:
    of_world = f" of {each.world_size}" if each.world_size else ""
    return (
        dcc.Link(each.place.name, href=run_address(each.place.id)),
        _state(each),
        each.software or "",
        "" if each.ranks is None else f"{each.ranks}{of_world}",
        "" if each.steps is None else str(each.steps),
        _moment(each.changed_ns),
    )


def _compare(each: Listed, picked: Listed | None) -> Component | str:
    name = each.place.name
    if each.problem:
        return ""
    if picked is None:
        said = html.Span(f" compare {name} with another run", className="unseen")
        return dcc.Link(["with …", said], href=f"/?base={each.place.id}")
    if each is picked:
        return html.Span(["base · ", dcc.Link("clear", href="/")])
    return dcc.Link(f"with {picked.place.name}", href=compare_address(picked.place.id, each.place.id))


def _state(each: Listed) -> Component:
    if each.problem:
        return html.Span(each.problem, className="tag bad")
    if each.incomplete and each.world_size is not None and each.ranks is not None:
        return html.Span(f"{count(each.world_size - each.ranks, 'rank')} missing", className="tag warn")
    return html.Span("complete" if each.ranks else "not read yet", className="tag")


def _moment(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M") if ns else ""
    except (OverflowError, ValueError, OSError):  # a file system may say any time
        return "n/a"

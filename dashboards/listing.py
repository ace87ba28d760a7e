"""The page of all runs: newest first, what is known of each, and two to compare."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.report.amounts import count
from overlapscope_dashboards.parts import card, empty, next_command, notes, table
from overlapscope_dashboards.runs import Listed
from overlapscope_dashboards.site import run_address


def layout(found: Sequence[Listed], remarks: Sequence[str]) -> list[Component]:
    """Give the page."""
    if not found:
        how = next_command("Record one, or turn traces into one", "overlapscope ingest TRACES -o RUN")
        return [html.Section(empty("There is no run in this folder yet. This page looks again by itself.", how),
                             className="card")]  # fmt: skip
    rows = [_row(each) for each in found]
    head = ("run", "state", "recorded with", "ranks", "steps", "changed, UTC")
    listed = table(head, rows, caption="Runs, newest first", left=3, hide_caption=True)
    return [card(count(len(found), "run"), [listed, *([notes(remarks)] if remarks else [])])]


def revision(found: Sequence[Listed]) -> str:
    """Give what changes when the page would."""
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


def _state(each: Listed) -> Component:
    if each.problem:
        return html.Span(each.problem, className="tag bad")
    if each.incomplete and each.world_size is not None and each.ranks is not None:
        return html.Span(f"{count(each.world_size - each.ranks, 'rank')} missing", className="tag warn")
    return html.Span("complete" if each.ranks else "not read yet", className="tag")


def _moment(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M") if ns else ""

"""The page of all runs: its frame, and the rows that `assets/runs.js` asks for while runs are found and analysed.

    GET /runs.json?pin=ID    the rows as they are known now; 202 with the progress as text: ask again; 304 by ETag

Filtering, sorting and choosing happen in the browser, at once; their state is the page's address.
"""

import gzip
import hashlib
from datetime import UTC, datetime
from threading import Lock
from time import time_ns
from typing import Any, Final

import msgspec
from dash import Dash, dcc, html
from dash.development.base_component import Component
from flask import Response, request

from overlapscope.display import percent_text
from overlapscope.report.formatting import count
from overlapscope_dashboards.compare import fleet
from overlapscope_dashboards.parts import empty, next_command
from overlapscope_dashboards.parts.text import aria, copy_link
from overlapscope_dashboards.runs.recent import RecentCache
from overlapscope_dashboards.runs.run_list import ListedRun, RunList
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.views.runs import WORTH_NAMING, RunSummary, cells

ADDRESS: Final = "/runs.json"
PATIENCE_S: Final = 1.0
"""How long a request waits for the first look at the folder."""
MAX_KEPT: Final = 4
"""Encoded lists, of different baselines."""
MAX_ID: Final = 64
RECORDING_NS: Final = 120 * 10**9
"""A run without all of its ranks is being recorded if one of its files is younger than this ..."""
DAY_NS: Final = 86_400 * 10**9
"""... and it began within a day: ranks of an old recording that was copied now are not coming."""
PARTS: Final = (
    ("compute", "compute"), ("hidden", "overlapped"), ("waiting", "exposed: wait"), ("exposed", "exposed: other"),
    ("copy", "memcpy"), ("idle", "idle, outside"),
)  # fmt: skip
"""The colours of the small bars, as (class, words)."""
TOGETHER: Final = "Worst first, trends of jobs, straggling hosts"
NO_TIMES: Final = "no times recorded"
NO_BREAK: Final = "\N{NO-BREAK SPACE}"
KEYS: Final = (("/", "filter"), ("j k", "move"), ("x", "choose"), ("b", "baseline"), ("c", "compare"))


def layout() -> list[Component]:
    """Return the frame of the page, which the script fills."""
    how = next_command("Record one, or turn traces into one", "overlapscope ingest TRACES -o RUN")
    return [html.Div(
        [
            html.Div(
                [
                    html.P("Looking for runs …", id="runs-status", className="note"),
                    html.Progress(id="runs-progress", hidden=True, **aria(label="Runs analysed")),
                    html.Div(id="runs-tools", className="runs-tools", hidden=True),
                    copy_link(),
                    dcc.Link("All together", href=fleet.ADDRESS, className="button", title=TOGETHER),
                ],
                className="runs-head",
            ),
            html.Section(id="runs-history", className="card", hidden=True),
            html.Section(
                [html.Div(id="runs-table", className="wide", role="region", tabIndex=0, **aria(label="Runs"))],
                className="card runs-card",
            ),
            html.Section(empty("There is no run in this folder yet. This page refreshes itself.", how),
                         id="runs-none", className="card", hidden=True),
            html.Div([_legend(), _keys()], className="runs-foot"),
            html.Ul(id="runs-notes", className="notes"),
            html.Div(id="runs-dock", className="runs-dock", role="region", hidden=True, **aria(label="Compare")),
        ],
        id="runs",
    )]  # fmt: skip


def register(app: Dash, site: Site) -> None:
    """Register the endpoint of the rows. Many readers of an unchanged list cost its encoding once."""
    kept, one_at_a_time = RecentCache[tuple[bytes, bytes, str]](MAX_KEPT), Lock()

    def encoded(found: RunList) -> tuple[bytes, bytes, str]:
        text = msgspec.json.encode(answer(found, time_ns()))
        return text, gzip.compress(text, 1), hashlib.blake2b(text, digest_size=12).hexdigest()

    def rows() -> Response:
        pinned = request.args.get("pin", "")[:MAX_ID] or None
        found = site.listed.look(PATIENCE_S, pinned)
        if found is None:
            return Response("Looking for runs …", status=202, mimetype="text/plain")
        with one_at_a_time:
            text, packed, digest = kept.get(found, lambda: encoded(found))
        takes_packed = bool(request.accept_encodings["gzip"])
        response = Response(packed if takes_packed else text, mimetype="application/json")
        if takes_packed:
            response.content_encoding = "gzip"
        response.set_etag(digest)
        response.make_conditional(request)
        return response

    app.server.add_url_rule(ADDRESS, "runs", rows)


def answer(found: RunList, now_ns: int) -> dict[str, Any]:
    """Return what the script draws. Tags that all analysed runs share are listed once, not in each row."""
    rows = [row(each, now_ns) for each in found.runs]
    tagged = [each["tags"] for each in rows if "tags" in each]
    common = [tag for tag in tagged[0] if all(tag in tags for tags in tagged)] if len(tagged) > 1 else []
    for each in rows:
        each["tags"] = [tag for tag in each.get("tags", ()) if tag not in common]
    return {
        "rows": rows,
        "common": ", ".join(common),
        "notes": found.notes,
        "done": found.done,
        "status": _status(found),
    }


def row(listed: ListedRun, now_ns: int) -> dict[str, Any]:
    """Return one row: text, shares to draw, and numbers to sort by; null where not known."""
    entry, summary = listed.entry, listed.summary
    own = entry.location
    missing = entry.world_size - entry.ranks if entry.incomplete and entry.world_size and entry.ranks is not None else 0
    is_new = now_ns - entry.changed_ns < RECORDING_NS and now_ns - (entry.began_ns or now_ns) < DAY_NS
    began_ns = entry.began_ns or (summary.began_ns if summary else None) or entry.changed_ns
    figures = cells(summary) if summary else {}
    lost = summary.loss if summary else None
    tags = figures.get("tags", [])
    words = (own.name, figures.get("what", ""), *tags, lost.words if lost else "", listed.problem)
    return {
        "what": "" if entry.ranks is None else count(entry.ranks, "rank"),
        **figures,
        "id": own.id,
        "name": own.name,
        "href": run_address(own.id),
        "state": listed.state,
        "problem": listed.problem,
        "broken": bool(listed.problem) and entry.ranks != 0,
        "live": is_new and bool(missing or entry.ranks == 0),
        "loss": None if lost is None else {
            "words": lost.words.replace(" %", NO_BREAK + "%"),
            "kind": lost.kind,
            "href": run_address(own.id, "timeline", {"chain": lost.chain}) if lost.chain else run_address(own.id),
        },
        "calm": _calm(summary) if summary else "",
        "verdict": msgspec.structs.asdict(listed.verdict) if listed.verdict else None,
        "date": _moment(began_ns),
        "numbers": {**figures.get("numbers", {}), "date": began_ns},
        "search": " ".join(words).lower(),
    }  # fmt: skip


def _calm(summary: RunSummary) -> str:
    """Return the words for a run without a large loss; empty for one that has one."""
    if summary.loss is not None:
        return ""
    calm = f"no single loss above {percent_text(WORTH_NAMING, 0)}".replace(" %", f"{NO_BREAK}%")
    return calm if summary.step_ns else NO_TIMES


def _status(found: RunList) -> str:
    runs, left = len(found.runs), len(found.runs) - found.done
    if not left:
        return count(runs, "run")
    return f"{count(runs, 'run')}, {left} still to be analysed"


def _legend() -> Component:
    swatches = [
        html.Span([html.Span(className=f"swatch k-{kind}", **aria(hidden="true")), words]) for kind, words in PARTS
    ]
    return html.Div([html.Span("where a step goes:"), *swatches], className="runs-legend")


def _keys() -> Component:
    shown = [html.Span([html.Kbd(key), f" {words}"]) for key, words in KEYS]
    return html.Div([*shown], className="runs-keys", **aria(label="Keys"), role="note")


def _moment(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M") if ns else ""
    except (OverflowError, ValueError, OSError):  # a file system may report any time
        return "n/a"

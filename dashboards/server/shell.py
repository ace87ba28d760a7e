"""What stands around every page: the document, the header with its navigation, and what looks after addresses."""

import base64
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Final

from dash import dcc, html
from dash.development.base_component import Component
from dash.fingerprint import build_fingerprint

from overlapscope_dashboards.parts.text import aria
from overlapscope_dashboards.theme import palette_rules

POLL_MS: Final = 5_000
"""How often the files of an incomplete run are looked at."""
BUSY_POLL_MS: Final = 700
"""How often it is asked for a page that is being made."""
ASSETS: Final = Path(__file__).parents[1] / "assets"
THEME_SCRIPT: Final = (Path(__file__).parents[1] / "theme.js").read_text(encoding="utf-8").strip()
"""Runs in the head, before anything is drawn: a page that is dark by choice is never white for a moment."""
PLOTLY: Final = "plotly", "package_data/plotly.min.js"
"""The package that brings plotly's script, and where it lies in it."""
_DOCUMENT: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{%title%}}</title>
<link rel="icon" href="data:,">
<script>{THEME_SCRIPT}</script>
{{%css%}}
<style>
PALETTE
</style>
<link rel="preload" as="script" href="PLOTLY" id="plotly">
</head>
<body>
{{%app_entry%}}
<noscript><p>The dashboard needs scripts, all of which this server sends itself.</p></noscript>
<footer class="unseen">{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
</body>
</html>
"""


def document() -> str:
    """Return the document around every page.

    It brings plotly, under a name that is another one with each release: a browser keeps the script, and what it made
    of it, and `shell.js` runs it while the server makes the page. Dash would fetch it anew for each page and only then.
    """
    package, path = PLOTLY
    named = build_fingerprint(path, version(package), 0)  # type: ignore[no-untyped-call]
    script = f"/_dash-component-suites/{package}/{named}"
    return _DOCUMENT.replace("PALETTE", palette_rules()).replace("PLOTLY", script)


def theme_script_hash() -> str:
    """Return the hash by which the policy allows the script in the head."""
    digest = base64.b64encode(hashlib.sha256(THEME_SCRIPT.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def shell() -> Component:
    """Return what Dash lays out once; `router.show` fills `nav` and `main`."""
    return html.Div(
        [
            html.A("Skip to the page", href="#main", className="skip"),
            html.Header(
                [
                    dcc.Link([html.Span(className="mark"), "OverlapScope"], href="/", className="brand"),
                    html.Nav(id="nav", **aria(label="Pages of this run")),
                    html.Nav(dcc.Link("All runs", href="/"), className="all", **aria(label="Runs")),
                    html.Button("Dark", id="theme", type="button"),
                ],
                className="top",
            ),
            html.Main(id="main", tabIndex=-1, **aria(busy="true")),
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="revision"),
            dcc.Store(id="title"),
            dcc.Interval(id="poll", interval=POLL_MS, disabled=True),
        ],
        id="app",
    )

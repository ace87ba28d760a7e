"""The frame around every page: the HTML document, the header with its navigation, and address handling."""

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
"""How often the files of an incomplete run are checked."""
BUSY_POLL_MS: Final = 700
"""How often the browser asks for a page that is being computed."""
ASSETS: Final = Path(__file__).parents[1] / "assets"
THEME_SCRIPT: Final = (Path(__file__).parents[1] / "theme.js").read_text(encoding="utf-8").strip()
"""Runs in the head, before anything is drawn, so that a page in the dark theme never flashes white."""
PLOTLY: Final = "plotly", "package_data/plotly.min.js"
"""The package that contains plotly's script, and the path of the script in it."""
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
<noscript><p>The dashboard needs JavaScript. All scripts come from this server.</p></noscript>
<footer class="unseen">{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
</body>
</html>
"""


def document() -> str:
    """Return the HTML document around every page.

    It preloads plotly under a name that changes with each release, so that a browser caches the script and its compiled
    form; `shell.js` runs it while the server computes the page. Dash alone would fetch it for each page, and later.
    """
    package, path = PLOTLY
    named = build_fingerprint(path, version(package), 0)  # type: ignore[no-untyped-call]
    script = f"/_dash-component-suites/{package}/{named}"
    return _DOCUMENT.replace("PALETTE", palette_rules()).replace("PLOTLY", script)


def theme_script_hash() -> str:
    """Return the hash with which the content security policy allows the script in the head."""
    digest = base64.b64encode(hashlib.sha256(THEME_SCRIPT.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def shell() -> Component:
    """Return the layout that Dash renders once; `router.show` fills `nav` and `main`."""
    return html.Div(
        [
            html.A("Skip to the page", href="#main", className="skip"),
            html.Header(
                [
                    dcc.Link([html.Span(className="mark"), "OverlapScope"], href="/", className="brand"),
                    html.Nav(id="nav", **aria(label="Pages of this run")),
                    html.Nav(dcc.Link("All runs", href="/"), className="all", **aria(label="Runs")),
                    html.A("Docs", href="/docs/", className="docs"),
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

"""The pages of a run. A new page is a new file here, and nothing else.

A page is a module `pages/<name>.py`, shown at `/runs/<id>/<name>` (`_` is `-` there), with

    TITLE = "Collectives"                       its name in the navigation
    ORDER = 40                                  its place there: overview 10, timeline 20, collectives 30, ranks 40,
                                                what-if 50, recommendations 60

    def layout(opened: Opened, query: Mapping[str, str]) -> Component | list[Component]
    def register(app: Dash, site: Site) -> None             only where it has callbacks

`layout` gives what stands below the page's `<h1>`, which the router writes, from the run and the address alone: the
address is the whole state of a page, so that every view can be linked and reloaded. To change the state, link to
another address (`site.run_address(opened.id, "collectives", {"op": "all_reduce"})` in a `dcc.Link`), or set
`Output("address", "search", allow_duplicate=True)` in a callback (with `prevent_initial_call=True`): the page is then
laid out anew. A slider that must not lay out the page anew writes the address with `history.replaceState` in a
clientside callback. What an address asks for and a run has not is `raise Unknown(message, [(label, address), ...])`.

`opened` has `run`, `together`, `analysis`, `advice`, `replicate`, each calculated once, and
`once("collectives.points", make)` for what a page wants to keep. Keep a page short: choose and order in a pure function
of `views/<name>.py`, which is tested without a browser, and put together what `parts/` has: `card`, `figure_card`,
`table`, `bar_table`, `key_figures`, `empty`, side by side in an `html.Div(className="grid")` (`wide="half"`). Charts
are plain dicts, `theme.figure(traces, x="size, bytes", y="GB/s")`, in colours of `theme.COLOURS`, in a `figure_card`,
which wants the same figures as a table. Text in them gets no colour: the style sheet gives it, for light and dark.

Names out of traces are data: as children of components they are text; in figures they go through `theme.plain`, and
never into a `hovertemplate` (use `customdata`). Ids of a page's components begin with its name: `collectives-chart`.

Callbacks (`register`) are a few lines: `opened = site.run_at(path)`, of `State("address", "pathname")`, then a view.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from dash import Dash
from dash.development.base_component import Component

from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.site import Site


class Page(Protocol):
    """What a module of this package is."""

    TITLE: str
    ORDER: int

    def layout(self, opened: Opened, query: Mapping[str, str]) -> Component | list[Component]:
        """Return what stands below the heading."""


@cache
def pages() -> dict[str, Page]:
    """Return all pages by the last part of their address, in the order of the navigation."""
    found = {
        module.name.replace("_", "-"): cast(Page, import_module(f"{__name__}.{module.name}"))
        for module in iter_modules(__path__)
    }
    return dict(sorted(found.items(), key=lambda each: each[1].ORDER))


def register(app: Dash, site: Site) -> None:
    """Let every page register its callbacks."""
    for page in pages().values():
        own = getattr(page, "register", None)
        if own is not None:
            own(app, site)

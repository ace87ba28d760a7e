"""The pages of a run. To add a page, add a file here.

A page is a module `pages/<name>.py`, shown at `/runs/<id>/<name>` (`_` is `-` there), with

    TITLE = "Collectives"                       its name in the navigation
    ORDER = 30                                  its position there: overview 10, timeline 20, collectives 30, ranks 40,
                                                what-if 50, recommendations 60

    def layout(opened: OpenRun, query: Mapping[str, str]) -> Component | list[Component]
    def register(app: Dash, site: Site) -> None             optional, for callbacks

`layout` returns the content below the page's `<h1>` (which the router adds), computed only from the run and the
address. The address is the whole state of a page, so that every view can be linked and reloaded. To change the state,
link to another address (`run_address(opened.id, "collectives", {"op": "all_reduce"})` in a `dcc.Link`), or set
`Output("address", "search", allow_duplicate=True)` in a callback (with `prevent_initial_call=True`): the page is then
laid out again. A slider that must not cause a new layout writes the address with `history.replaceState` in a clientside
callback. If the run does not have what an address requests: `raise NotFound(message, [(label, address), ...])`.

`opened` has `run`, `cross_rank`, `analysis`, `advice`, `replicate`, each calculated once, and
`once("collectives.points", make)` for results that a page wants to keep. Keep a page short: select and order in a pure
function of `views/<name>.py`, which is tested without a browser, and combine the components of `parts/`: `card`,
`figure_card`, `table`, `bar_table`, `key_figures`, `empty`, side by side in an `html.Div(className="grid")`
(`wide="half"`). Charts are plain dicts, `theme.figure(traces, x="size, bytes", y="GB/s")`, in colours of
`theme.COLOURS`, in a `figure_card`, which needs the same figures as a table. Text in charts gets no colour: the style
sheet sets it, for the light and the dark theme.

Names from traces are data: as children of components they are text; in figures they go through `theme.plain`, and
never into a `hovertemplate` (use `customdata`). Ids of a page's components begin with its name: `collectives-chart`.

Callbacks (`register`) are a few lines: `opened = site.run_at(path)`, with `State("address", "pathname")`, then a view.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from dash import Dash
from dash.development.base_component import Component

from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site


class Page(Protocol):
    """The interface of a module of this package."""

    TITLE: str
    ORDER: int

    def layout(self, opened: OpenRun, query: Mapping[str, str]) -> Component | list[Component]:
        """Return the content below the heading."""


@cache
def pages() -> dict[str, Page]:
    """Return all pages by the last part of their address, in the order of the navigation."""
    found = {
        module.name.replace("_", "-"): cast(Page, import_module(f"{__name__}.{module.name}"))
        for module in iter_modules(__path__)
    }
    return dict(sorted(found.items(), key=lambda each: each[1].ORDER))


def register(app: Dash, site: Site) -> None:
    """Register the callbacks of every page."""
    for page in pages().values():
        own = getattr(page, "register", None)
        if own is not None:
            own(app, site)

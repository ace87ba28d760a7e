"""Turn an address into a page; the page depends only on the address and the files."""

import json
from collections.abc import Mapping, Sequence

import msgspec
from dash import dcc, html
from dash.development.base_component import Component
from plotly.io.json import to_json_plotly

from overlapscope.errors import OverlapScopeError
from overlapscope.fleet.find import unique_names
from overlapscope.report.sheet.fleet import title as fleet_title
from overlapscope_dashboards.compare import fleet as fleet_page
from overlapscope_dashboards.compare import page as comparison
from overlapscope_dashboards.pages import pages
from overlapscope_dashboards.parts import empty
from overlapscope_dashboards.parts.text import aria
from overlapscope_dashboards.runs.catalog import without_root
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import NotFound, Site, path_parts, run_address
from overlapscope_dashboards.server import listing

BUSY = "busy: "
"""Prefix of the revision of a placeholder page."""
DEFAULT_PAGE = "overview"
"""The page of a run whose address names no page."""


class RenderedPage(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown at an address."""

    title: str
    content: list[Component]
    nav: list[Component]
    """Links to the pages of the run; empty elsewhere."""
    revision: str = ""
    """Changes as soon as the files change."""
    growing: bool = False
    """Whether to poll: ranks are missing and may still arrive."""
    status: int = 200
    busy: bool = False
    """Whether this is a placeholder for a page that is still being computed."""
    lasts: bool = False
    """Whether the address shows the same until the files change."""


def show(site: Site, path: str, query: Mapping[str, str]) -> RenderedPage:
    """Return the page at an address; for an unknown address alternatives, for an unreadable run the reason."""
    parts = path_parts(path)
    try:
        if not parts:
            return _runs()
        if parts in (["compare"], ["fleet"]):
            return _compare(site, query) if parts == ["compare"] else _fleet(site)
        if parts[0] == "runs" and 2 <= len(parts) <= 3:
            return _page(site, parts[1], parts[2] if len(parts) == 3 else DEFAULT_PAGE, query)
        return _unknown(NotFound("There is no such page.", [("All runs", "/")]))
    except NotFound as unknown:
        return _unknown(unknown)
    except OverlapScopeError as error:
        return _problem("This cannot be shown", str(error))


def busy(site: Site, path: str, query: Mapping[str, str]) -> RenderedPage:
    """Return a placeholder that shows the progress of the page being computed."""
    parts = path_parts(path)
    title, words, nav = "Runs", "Looking for runs.", list[Component]()
    if parts == ["fleet"]:
        title, words = "Fleet", site.fleet.doing
    if parts == ["compare"]:
        sides = (f"{side}: {site.open_runs.doing(query[side])}" for side in ("base", "candidate") if side in query)
        title, words = "Compare", " ".join(sides)
    try:
        if len(parts) >= 2:
            name = parts[2] if len(parts) == 3 else DEFAULT_PAGE
            title, words, nav = pages()[name].TITLE, site.open_runs.doing(parts[1]), _nav(parts[1], name)
    except KeyError:
        pass  # the page itself will report the error
    content = html.Section(
        [html.P(words), html.P("The page appears when it is ready.", className="note")], className="card"
    )
    return RenderedPage(title=title, content=_headed(title, [content]), nav=nav, revision=f"{BUSY}{words}",
                        growing=True, busy=True)  # fmt: skip


def exists(site: Site, path: str) -> bool:
    """Return whether an address leads anywhere, without opening a run."""
    parts = path_parts(path)
    if parts[:1] != ["runs"]:
        return parts in ([], ["compare"], ["fleet"])
    known = len(parts) == 2 or (len(parts) == 3 and parts[2] in pages())
    return known and any(each.id == parts[1] for each in site.find_runs().runs)


def revision(site: Site, path: str) -> str | None:
    """Return the state of the files that a page of a run shows, by its path; None for other pages."""
    try:
        return site.run_at(path).revision
    except (NotFound, OverlapScopeError):
        return None  # the page itself says why


def as_plain(page: RenderedPage) -> RenderedPage:
    """Return a page whose components are plain values: turning them into those takes as long as making the page."""
    content, nav = json.loads(to_json_plotly([page.content, page.nav]))
    return msgspec.structs.replace(page, content=content, nav=nav)


def _runs() -> RenderedPage:
    """Return the page of all runs; its script asks for the rows, and again while they change."""
    return RenderedPage(title="Runs", content=_headed("Runs", listing.layout()), nav=[])


def _compare(site: Site, query: Mapping[str, str]) -> RenderedPage:
    if "base" not in query or "candidate" not in query:
        raise NotFound("Name two runs to compare.", [("Pick two from all runs", "/")])
    places = [site.location(query[side]) for side in ("base", "candidate")]
    try:
        base, candidate = (site.run(each.id) for each in places)
        finding, content = comparison.layout(base, candidate, query)
        growing = any(each.run.missing_ranks for each in (base, candidate))
    except OverlapScopeError as error:
        words = without_root(without_root(str(error), places[0]), places[1])
        return _problem("These cannot be compared", words)
    return RenderedPage(
        title=f"Compare · {base.name}, {candidate.name}",
        content=_headed(finding, content, over=comparison.sides(base, candidate)),
        nav=[],
        revision=f"{base.revision} {candidate.revision}",
        growing=growing,
    )


def _fleet(site: Site) -> RenderedPage:
    places = site.find_runs().runs
    found, revision = site.fleet.compare(places)
    ids = {name: each.id for name, each in zip(unique_names([each.name for each in places]), places, strict=True)}
    return RenderedPage(
        title="Fleet",
        content=_headed("Fleet", fleet_page.layout(found, ids, site.quoted_root), over=fleet_title(found)),
        nav=[],
        revision=revision,
        growing=bool(found.left_out),
    )


def _page(site: Site, run: str, name: str, query: Mapping[str, str]) -> RenderedPage:
    if run in site.open_runs.jobs:
        return _runs()  # recordings of several jobs: one run for each
    place = site.location(run)
    nav = _nav(run, name)
    if name not in pages():
        raise NotFound(
            "There is no such page of a run.", [(each.TITLE, run_address(run, key)) for key, each in pages().items()]
        )
    opened: OpenRun | None = None
    try:
        opened = site.run(run)
        page = pages()[name]
        laid_out = page.layout(opened, query)
        growing = opened.is_missing_ranks
        title = page.TITLE
    except OverlapScopeError as error:
        if run in site.open_runs.jobs:
            return _runs()
        words = without_root(str(error), place)
        revision = opened.revision if opened else ""
        return _problem("This run cannot be read", words, nav=nav, revision=revision)
    content = [laid_out] if isinstance(laid_out, Component) else laid_out
    return RenderedPage(
        title=f"{title} · {place.name}",
        content=_headed(title, content, over=place.name),
        nav=nav,
        revision=opened.revision,
        growing=growing,
        lasts=True,
    )


def _headed(title: str, content: Sequence[Component], *, over: str | Component = "") -> list[Component]:
    above = [html.P(over, className="over") if isinstance(over, str) else over] if over else []
    return [html.Div([*above, html.H1(title, id="heading")], className="page-head"), *content]


def _nav(run: str, current: str) -> list[Component]:
    links = []
    for name, page in pages().items():
        state = aria(current="page") if name == current else {}
        link = html.Li(dcc.Link(page.TITLE, href=run_address(run, name), className="current" if state else ""), **state)
        links.append(link)
    return [html.Ul(links)]


def _unknown(unknown: NotFound) -> RenderedPage:
    links = html.Ul(
        [html.Li(dcc.Link(label, href=address)) for label, address in unknown.alternatives], className="there"
    )
    there = [html.P("Available:"), links] if unknown.alternatives else []
    content = _headed("Not found", [html.Section(empty(str(unknown), there), className="card")])
    return RenderedPage(title="Not found", content=content, nav=[], status=404)


def _problem(title: str, words: str, *, nav: Sequence[Component] = (), revision: str = "") -> RenderedPage:
    content = empty(words, html.P(dcc.Link("All runs", href="/")))
    return RenderedPage(
        title=title,
        content=_headed(title, [html.Section(content, className="card")]),
        nav=list(nav),
        revision=revision,
        growing=True,
    )

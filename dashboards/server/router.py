"""From an address to what is shown: nothing but the address and the files decides."""

from collections.abc import Mapping, Sequence

import msgspec
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.errors import OverlapScopeError
from overlapscope_dashboards.compare import page as comparison
from overlapscope_dashboards.pages import pages
from overlapscope_dashboards.parts import empty
from overlapscope_dashboards.parts.text import aria
from overlapscope_dashboards.runs.catalog import without_root
from overlapscope_dashboards.runs.open_run import Opened
from overlapscope_dashboards.runs.site import Site, Unknown, parts_of, run_address
from overlapscope_dashboards.server import listing

BUSY = "busy: "
"""How the revision of what only stands in begins."""
FIRST = "overview"
"""The page of a run whose address names none."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What an address shows."""

    title: str
    content: list[Component]
    nav: list[Component]
    """Links to the pages of the run; empty elsewhere."""
    revision: str = ""
    """Another one as soon as the files changed."""
    growing: bool = False
    """Whether to look again: ranks are missing, and may still come."""
    status: int = 200
    busy: bool = False
    """Whether this only stands in for what is still being made."""


def show(site: Site, path: str, query: Mapping[str, str]) -> Shown:
    """Show an address; one that leads nowhere says what exists, a run that cannot be read says why."""
    parts = parts_of(path)
    try:
        if not parts:
            return _runs(site, query.get("base"))
        if parts == ["compare"]:
            return _compare(site, query)
        if parts[0] == "runs" and 2 <= len(parts) <= 3:
            return _page(site, parts[1], parts[2] if len(parts) == 3 else FIRST, query)
        return _unknown(Unknown("There is no such page.", [("All runs", "/")]))
    except Unknown as unknown:
        return _unknown(unknown)
    except OverlapScopeError as error:
        return _problem("This cannot be shown", str(error))


def busy(site: Site, path: str) -> Shown:
    """Show that an address is being made, and how far that is."""
    parts = parts_of(path)
    title, words, nav = "Runs", "Looking for runs.", list[Component]()
    try:
        if len(parts) >= 2:
            name = parts[2] if len(parts) == 3 else FIRST
            title, words, nav = pages()[name].TITLE, site.opened.doing(parts[1]), _nav(parts[1], name)
    except KeyError:
        pass  # the page itself will say what is wrong
    content = html.Section([html.P(words), html.P("The page comes by itself.", className="note")], className="card")
    return Shown(title=title, content=_headed(title, [content]), nav=nav, revision=f"{BUSY}{words}", growing=True,
                 busy=True)  # fmt: skip


def exists(site: Site, path: str) -> bool:
    """Return whether an address leads anywhere, without opening a run."""
    parts = parts_of(path)
    if parts[:1] != ["runs"]:
        return parts in ([], ["compare"])
    known = len(parts) == 2 or (len(parts) == 3 and parts[2] in pages())
    return known and any(each.id == parts[1] for each in site.places().places)


def _runs(site: Site, base: str | None) -> Shown:
    found = site.listed()
    return Shown(
        title="Runs",
        content=_headed("Runs", listing.layout(found, site.places().notes, base)),
        nav=[],
        revision=listing.revision(found),
        growing=not found or any(each.incomplete or each.problem for each in found),
    )


def _compare(site: Site, query: Mapping[str, str]) -> Shown:
    if "base" not in query or "candidate" not in query:
        raise Unknown("Name two runs to compare.", [("Pick two of all runs", "/")])
    places = [site.place(query[side]) for side in ("base", "candidate")]
    try:
        base, candidate = (site.run(each.id) for each in places)
        content = comparison.layout(base, candidate, query)
        growing = any(each.run.missing_ranks for each in (base, candidate))
    except OverlapScopeError as error:
        words = without_root(without_root(str(error), places[0]), places[1])
        return _problem("These cannot be compared", words)
    return Shown(
        title=f"Compare · {base.name}, {candidate.name}",
        content=_headed("Compare", content, over=comparison.sides(base, candidate)),
        nav=[],
        revision=f"{base.revision} {candidate.revision}",
        growing=growing,
    )


def _page(site: Site, run: str, name: str, query: Mapping[str, str]) -> Shown:
    place = site.place(run)
    nav = _nav(run, name)
    if name not in pages():
        raise Unknown("A run has no such page.", [(each.TITLE, run_address(run, key)) for key, each in pages().items()])
    opened: Opened | None = None
    try:
        opened = site.run(run)
        page = pages()[name]
        laid_out = page.layout(opened, query)
        growing = opened.is_missing_ranks
        title = page.TITLE
    except OverlapScopeError as error:
        words = without_root(str(error), place)
        revision = opened.revision if opened else ""
        return _problem("This run cannot be read", words, nav=nav, revision=revision)
    content = [laid_out] if isinstance(laid_out, Component) else laid_out
    return Shown(
        title=f"{title} · {place.name}",
        content=_headed(title, content, over=place.name),
        nav=nav,
        revision=opened.revision,
        growing=growing,
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


def _unknown(unknown: Unknown) -> Shown:
    links = html.Ul([html.Li(dcc.Link(label, href=address)) for label, address in unknown.there], className="there")
    there = [html.P("There is:"), links] if unknown.there else []
    content = _headed("Not here", [html.Section(empty(str(unknown), there), className="card")])
    return Shown(title="Not here", content=content, nav=[], status=404)


def _problem(title: str, words: str, *, nav: Sequence[Component] = (), revision: str = "") -> Shown:
    content = empty(words, html.P(dcc.Link("All runs", href="/")))
    return Shown(
        title=title,
        content=_headed(title, [html.Section(content, className="card")]),
        nav=list(nav),
        revision=revision,
        growing=True,
    )

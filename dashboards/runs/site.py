"""What a dashboard serves: the runs below its roots, and those of them that are open."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from overlapscope.ingest.options import ReadOptions
from overlapscope_dashboards.runs.catalog import Listed, Place, Places, find, newest_first
from overlapscope_dashboards.runs.open_run import Opened, OpenedRuns
from overlapscope_dashboards.runs.work import Work

MAX_QUERY = 4_096
PATIENCE_S: Final = 1.0
"""How long a callback of a page waits for what it asked for, before it is answered without."""
T = TypeVar("T")


class Unknown(Exception):  # noqa: N818 - a question, not a fault
    """An address that leads nowhere: what it asks for, and what there is instead, as (label, address)."""

    def __init__(self, message: str, there: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.there = tuple(there)


class Site:
    """The runs of one dashboard. Its pages ask it for everything that lies outside of them."""

    def __init__(
        self, roots: Sequence[Path], options: ReadOptions | None = None, perfetto_url: str | None = None
    ) -> None:
        self.roots = tuple(roots)
        self.perfetto_url = perfetto_url
        """Where a Perfetto UI is served on this machine; None where none is."""
        self.opened = OpenedRuns(options)
        self._callbacks = Work[Any]()

    def places(self) -> Places:
        """Find the runs that there are now."""
        return find(self.roots)

    def listed(self) -> list[Listed]:
        """Tell of all runs, newest first."""
        return newest_first(self.places().places)

    def place(self, run: str) -> Place:
        """Return the place of a run by its id; raises Unknown, with the runs that there are."""
        places = self.places().places
        for each in places:
            if each.id == run:
                return each
        raise Unknown("There is no such run here.", [(each.name, run_address(each.id)) for each in places])

    def run(self, run: str) -> Opened:
        """Open a run by its id; raises Unknown, or InputError where it cannot be."""
        return self.opened.open(self.place(run))

    def run_at(self, path: str) -> Opened:
        """Open the run whose page has this path, for callbacks: `State("address", "pathname")`."""
        parts = parts_of(path)
        if len(parts) < 2 or parts[0] != "runs":
            raise Unknown("This address names no run.")
        return self.opened.recent(parts[1]) or self.run(parts[1])

    def beside(self, key: Hashable, path: str, make: Callable[[Opened], T]) -> T | None:
        """Return what `make` gives of the run at a path, for callbacks; None where that takes long: then ask again.

        It is made beside the request, of which the server answers few at once: one slow run holds up no other page.
        """
        given: T | None = self._callbacks.fetch((key, path), lambda: make(self.run_at(path)), PATIENCE_S, of=path)
        return given


def parts_of(path: str) -> list[str]:
    """Return the parts of a path, without empty ones."""
    return [each for each in path.split("/") if each]


def query_of(search: str | None) -> dict[str, str]:
    """Read the query of an address; of a name that stands there twice the first value counts."""
    values: dict[str, str] = {}
    for name, value in parse_qsl((search or "").removeprefix("?")[:MAX_QUERY]):
        values.setdefault(name, value)
    return values


def run_address(run: str, page: str = "", query: Mapping[str, object] | None = None) -> str:
    """Return the address of a page of a run; what is None in the query is left out."""
    path = f"/runs/{quote(run, safe='')}" + (f"/{page}" if page else "")
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path

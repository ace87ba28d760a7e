"""What a dashboard serves: the runs below its roots, the open ones, and the addresses of their pages."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from msgspec.structs import replace

from overlapscope.display import display_path, shell_words
from overlapscope.ingest.options import ReadOptions
from overlapscope_dashboards.runs.catalog import RunLocation, RunLocations, each_job, find_runs
from overlapscope_dashboards.runs.fleet import ServedFleet
from overlapscope_dashboards.runs.open_run import RECENT_S, OpenRun, OpenRuns
from overlapscope_dashboards.runs.run_list import ListedRuns
from overlapscope_dashboards.runs.work import BackgroundWork

MAX_QUERY = 4_096
PATIENCE_S: Final = 1.0
"""How long a callback of a page waits for a result before it returns without one."""
T = TypeVar("T")


class NotFound(Exception):  # noqa: N818 - a wrong address, not a failure of the server
    """An address that does not exist; `alternatives` are existing ones, as (label, address)."""

    def __init__(self, message: str, alternatives: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.alternatives = tuple(alternatives)


class Site:
    """The runs of one dashboard; pages get everything they need from outside through it."""

    def __init__(
        self, roots: Sequence[Path], options: ReadOptions | None = None, perfetto_url: str | None = None
    ) -> None:
        self.roots = tuple(roots)
        self.perfetto_url = perfetto_url
        """The address of a Perfetto UI on this machine, or None."""
        self.open_runs = OpenRuns(options)
        opened = self.open_runs
        self.listed = ListedRuns(self.find_runs, opened.jobs, options or ReadOptions(), lambda: opened.is_reading)
        self.fleet = ServedFleet(self.roots[0])
        self._callbacks = BackgroundWork[Any]()
        self._looking, self._looked_s = Lock(), -RECENT_S
        self._only: str | None = None

    @property
    def quoted_root(self) -> str:
        """The served folder as typed, quoted for a command line; empty for several paths."""
        return shell_words([display_path(self.roots[0])]) if len(self.roots) == 1 else ""

    def find_runs(self) -> RunLocations:
        """Return the runs that exist now; recordings found to be of several jobs are one run a job."""
        found, jobs = find_runs(self.roots), self.open_runs.jobs
        runs = [run for each in found.runs for run in (each_job(each, jobs[each.id]) if each.id in jobs else [each])]
        return replace(found, runs=tuple(runs))

    def only_run(self) -> str | None:
        """Return the id of the run if it is the only one; of many requests at once, one looks."""
        with self._looking:
            if monotonic() - self._looked_s > RECENT_S:
                runs = self.find_runs().runs
                self._only = runs[0].id if len(runs) == 1 else None
                self._looked_s = monotonic()
            return self._only

    def location(self, run: str) -> RunLocation:
        """Return the location of a run by its id; raises NotFound with the existing runs."""
        runs = self.find_runs().runs
        for each in runs:
            if each.id == run:
                return each
        links = [(each.name, run_address(each.id)) for each in runs]
        raise NotFound("There is no such run here.", links)

    def run(self, run: str) -> OpenRun:
        """Return the open run with an id; raises NotFound, or InputError where it cannot be opened."""
        return self.open_runs.open(self.location(run))

    def run_at(self, path: str) -> OpenRun:
        """Return the open run whose page has this path (in callbacks: `State("address", "pathname")`)."""
        parts = path_parts(path)
        if len(parts) < 2 or parts[0] != "runs":
            raise NotFound("This address names no run.")
        return self.open_runs.recently_checked(parts[1]) or self.run(parts[1])

    def in_background(self, key: Hashable, path: str, make: Callable[[OpenRun], T]) -> T | None:
        """Return the result of `make` for the run at a path, for callbacks; None while it is computed: then ask again.

        It is computed in a background thread, because the server has few request threads: a slow run blocks no page.
        """
        given: T | None = self._callbacks.fetch((key, path), lambda: make(self.run_at(path)), PATIENCE_S, of=path)
        return given


def path_parts(path: str) -> list[str]:
    """Return the non-empty parts of a path."""
    return [each for each in path.split("/") if each]


def parse_query(search: str | None) -> dict[str, str]:
    """Return the query of an address as a dict; of a repeated name the first value counts."""
    values: dict[str, str] = {}
    for name, value in parse_qsl((search or "").removeprefix("?")[:MAX_QUERY]):
        values.setdefault(name, value)
    return values


def run_address(run: str, page: str = "", query: Mapping[str, object] | None = None) -> str:
    """Return the address of a page of a run; query values that are None are left out."""
    path = f"/runs/{quote(run, safe='')}" + (f"/{page}" if page else "")
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path

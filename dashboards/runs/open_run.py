"""Runs that were opened, the last few of them in memory; whatever is asked for at once is calculated once."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock, RLock
from time import monotonic
from typing import Any, Final, TypeVar

from overlapscope.advice.advise import advise
from overlapscope.analysis.across_ranks import Across, across
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.analysis.prediction_check import Noted, Outcome
from overlapscope.analysis.measured_run import Replicate, replicate
from overlapscope.errors import OverlapScopeError
from overlapscope.timeline.store.prediction_file import read_predictions
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formatting import count
from overlapscope.timeline.store.manifest import RankEntry, read_manifest, recorded_ranks
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope_dashboards.runs.catalog import Place, changed, without_root

MAX_OPENED: Final = 4
RECENT_S: Final = 2.0
"""For so long the callbacks of a page take a run's files to be unchanged: there may be ten thousand to look at."""
T = TypeVar("T")


class Opened:
    """A run as its files were when it was opened. Every figure of it is calculated when first asked for, and once.

    Each may raise InputError, which the router shows as the reason why there is no page.
    """

    def __init__(self, place: Place, revision: str, options: ReadOptions, reading: Lock) -> None:
        self.id, self.name, self.revision = place.id, place.name, revision
        """`revision` is another one as soon as a file of the run changed."""
        self._place, self._options, self._reading = place, options, reading
        self.doing = ""
        """What is being done, in words, while it is read and analysed."""
        self._known: dict[str, Any] = {}
        self._lock, self._locks = Lock(), dict[str, RLock]()

    def command(self, words: str) -> str:
        """Put the run's path where a command for people says RUN."""
        return re.sub(r"\bRUN\b", lambda _: self._place.typed or "RUN", words)

    def without_root(self, error: Exception) -> str:
        """Return what went wrong, with files named as they stand below the folder served."""
        return without_root(str(error), self._place)

    @property
    def folder(self) -> Path | None:
        """The run directory; None where the run is of traces."""
        only = self._place.inputs[0]
        return only if len(self._place.inputs) == 1 and is_run_directory(only) else None

    @property
    def entries(self) -> list[RankEntry]:
        """What a run directory tells of its ranks, without opening a table; nothing for traces."""
        folder = self.folder
        return [] if folder is None else self.once("entries", lambda: recorded_ranks(folder, read_manifest(folder)))

    @property
    def is_missing_ranks(self) -> bool:
        """Return whether ranks are missing, which may still come; of a run directory without reading it."""
        folder = self.folder
        if folder is None:
            return bool(self.run.missing_ranks)
        world_size = self.once("world_size", lambda: read_manifest(folder).world_size)
        return world_size is not None and len(self.entries) < world_size

    @property
    def run(self) -> Run:
        """The run's own tables."""
        return self.once("run", self._read)

    @property
    def together(self) -> Across:
        """What the ranks tell together: collectives matched, clocks, waiting."""
        return self.once("together", self._match)

    @property
    def analysis(self) -> Analysis:
        """What `overlapscope analyze --json` prints."""
        return self.once("analysis", self._analyse)

    @property
    def advice(self) -> tuple[list[Recommendation], list[str]]:
        """What `overlapscope advise` prints: recommendations, and the reasons beside them or for there being none."""
        return self.once("advice", lambda: advise(self.run, self.analysis, self.together))

    @property
    def tested(self) -> list[Outcome]:
        """What later runs measured of what was predicted from this one, as it keeps them."""
        folder = self.folder
        return [] if folder is None else self.once("tested", lambda: _outcomes(folder))

    @property
    def replicate(self) -> Replicate:
        """The run as a side of a comparison."""
        return self.once("replicate", lambda: replicate(self.run, self.name))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` gives, made once for this run: a page keeps here what is slow, under `page.what`.

        An OverlapScopeError is kept as well, and raised again. It goes with the run, when others take its place.
        """
        with self._lock:
            lock = self._locks.setdefault(name, RLock())  # what is slow holds up nobody who asks for something else
        with lock:
            if name not in self._known:
                try:
                    self._known[name] = make()
                except OverlapScopeError as error:
                    self._known[name] = error
            value = self._known[name]
        if isinstance(value, OverlapScopeError):
            raise value
        given: T = value
        return given

    def _read(self) -> Run:
        self.doing = "Another run is being read first."
        with self._reading:
            self.doing = f"Reading {count(len(self.entries), 'rank') if self.entries else 'the recording'}."
            return read_inputs(list(self._place.inputs), self._options, progress=self._note, workers=None)

    def _match(self) -> Across:
        run = self.run
        self.doing = f"{count(len(run.ranks), 'rank')} read; matching collectives and aligning clocks."
        return across(run)

    def _analyse(self) -> Analysis:
        together = self.together
        self.doing = f"{count(len(self.run.ranks), 'rank')} read, collectives matched; adding up steps."
        return analyze(self.run, together)

    def _note(self, path: Path, _: int) -> None:
        if not self.entries:
            self.doing = f"Reading {path.name}."


def _outcomes(folder: Path) -> list[Outcome]:
    return (read_predictions(folder, Noted) or Noted()).outcomes


class OpenedRuns:
    """At most `limit` runs, the longest unused one leaves; a run whose files changed is opened anew."""

    def __init__(self, options: ReadOptions | None = None, limit: int = MAX_OPENED) -> None:
        self._options, self._limit = options or ReadOptions(), limit
        self._runs: OrderedDict[str, Opened] = OrderedDict()
        self._looked: dict[str, float] = {}
        self._lock, self._reading = Lock(), Lock()  # one run is read at a time: memory is for one

    def recent(self, run: str) -> Opened | None:
        """Return an open run whose files were looked at a moment ago, without looking again."""
        with self._lock:
            looked = self._looked.get(run)
            return self._runs.get(run) if looked is not None and monotonic() - looked < RECENT_S else None

    def doing(self, run: str) -> str:
        """Say what is being done about a run, by its id, without a look at its files: those of many ranks are many."""
        with self._lock:
            opened = self._runs.get(run)
        return (opened.doing if opened else "") or "Looking for what has changed."

    def open(self, place: Place) -> Opened:
        """Return a run as its files are now; raises InputError for one with a link that leads out."""
        revision, _ = changed(place)
        with self._lock:
            opened = self._runs.get(place.id)
            if opened is None or opened.revision != revision:
                opened = self._runs[place.id] = Opened(place, revision, self._options, self._reading)
            self._runs.move_to_end(place.id)
            self._looked[place.id] = monotonic()
            while len(self._runs) > self._limit:
                self._runs.popitem(last=False)
        return opened

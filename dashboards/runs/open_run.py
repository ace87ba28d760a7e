"""Open runs, the last few kept in memory; a result that is requested concurrently is calculated once."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock, RLock
from time import monotonic
from typing import Any, Final, TypeVar

from overlapscope.advice.advise import advise
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.compare.prediction_check import Noted, Outcome
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.graph.explained import RunChains
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import only_one, read_jobs
from overlapscope.report.formatting import count
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.manifest import RankEntry, read_manifest, recorded_ranks
from overlapscope.timeline.store.prediction_file import read_predictions
from overlapscope.timeline.store.run_directory import is_run_directory
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.result import WhatIf
from overlapscope.whatif.step_graph.graph_predict import DEFAULTS
from overlapscope_dashboards.runs.catalog import RunLocation, run_revision, without_root

MAX_OPEN: Final = 4
RECENT_S: Final = 2.0
"""How long callbacks of a page assume unchanged files: a run may have ten thousand to check."""
T = TypeVar("T")


class OpenRun:
    """A run as its files were when it was opened. Every result is calculated once, on first access.

    Each may raise InputError, which the router shows as the reason why there is no page.
    """

    def __init__(
        self, location: RunLocation, revision: str, options: ReadOptions, reading: Lock, jobs: dict[str, list[str]],
        graphs: "KeptGraphs",
    ) -> None:  # fmt: skip
        self.id, self.name, self.revision = location.id, location.name, revision
        """`revision` changes as soon as a file of the run changes."""
        self._location, self._options, self._reading, self._jobs = location, options, reading, jobs
        self._graphs = graphs
        self.doing = ""
        """Progress as a sentence, while the run is read and analysed."""
        self._results: dict[str, Any] = {}
        self._lock, self._locks = Lock(), dict[str, RLock]()

    def command(self, words: str) -> str:
        """Return a command with the word RUN replaced by the run's path."""
        return re.sub(r"\bRUN\b", lambda _: self._location.quoted_path or "RUN", words)

    def without_root(self, error: Exception) -> str:
        """Return the message of an error with paths relative to the served folder."""
        return without_root(str(error), self._location)

    @property
    def folder(self) -> Path | None:
        """The run directory; None for a run that is read from traces."""
        only = self._location.inputs[0]
        return only if len(self._location.inputs) == 1 and is_run_directory(only) else None

    @property
    def entries(self) -> list[RankEntry]:
        """The ranks of a run directory from its manifests, without opening a table; empty for traces."""
        folder = self.folder
        return [] if folder is None else self.once("entries", lambda: recorded_ranks(folder, read_manifest(folder)))

    @property
    def is_missing_ranks(self) -> bool:
        """Return whether ranks are missing that may still arrive; for a run directory without reading its tables."""
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
    def cross_rank(self) -> CrossRank:
        """Results across ranks: matched collectives, aligned clocks, wait times."""
        return self.once("together", self._match)

    @property
    def analysis(self) -> Analysis:
        """What `overlapscope analyze --json` prints."""
        return self.once("analysis", self._analyse)

    @property
    def advice(self) -> tuple[list[Recommendation], list[str]]:
        """What `overlapscope advise` prints: recommendations, and remarks or the reasons why there are none."""
        return self.once("advice", lambda: advise(self.run, self.analysis, self.cross_rank, graphs=self.chains.graphs))

    @property
    def prediction(self) -> WhatIf:
        """What `overlapscope whatif` prints. Raises InputError where nothing can be replayed."""
        return self.once("prediction", self._predict)

    @property
    def chains(self) -> RunChains:
        """What moments of the run waited for, with its dependency graphs, which analysis and advice share."""
        run, cross_rank = self.run, self.cross_rank
        return self._graphs.of(f"{self.id} {self.revision}", lambda: RunChains(run, cross_rank))

    @property
    def prediction_outcomes(self) -> list[Outcome]:
        """The predictions made from this run that later runs measured, as stored in it."""
        folder = self.folder
        return [] if folder is None else self.once("tested", lambda: _outcomes(folder))

    @property
    def replicate(self) -> MeasuredRun:
        """The run as a side of a comparison."""
        return self.once("replicate", lambda: measure_run(self.run, self.name))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, computed once for this run: a page stores slow results here, as `page.what`.

        An OverlapScopeError is stored as well, and raised again. Results are dropped with the run.
        """
        with self._lock:
            lock = self._locks.setdefault(name, RLock())  # a slow result does not block other results
        with lock:
            if name not in self._results:
                try:
                    self._results[name] = make()
                except OverlapScopeError as error:
                    self._results[name] = error
            value = self._results[name]
        if isinstance(value, OverlapScopeError):
            raise value
        result: T = value
        return result

    def _read(self) -> Run:
        self.doing = "Waiting for another run to be read."
        with self._reading:
            self.doing = f"Reading {count(len(self.entries), 'rank') if self.entries else 'the recording'}."
            jobs = read_jobs(list(self._location.inputs), self._options, progress=self._note, workers=None)
        number = self._location.job
        if number is None:
            if len(jobs) > 1:
                self._jobs[self.id] = [job.title for job in jobs]
            return only_one(jobs, self._location.inputs)
        if number >= len(jobs):
            raise InputError(f"{self.name}: there are only {count(len(jobs), 'job')} left")
        return jobs[number].run

    def _match(self) -> CrossRank:
        run = self.run
        self.doing = f"{count(len(run.ranks), 'rank')} read; matching collectives and aligning clocks."
        return match_and_align(run)

    def _analyse(self) -> Analysis:
        cross_rank = self.cross_rank
        self.doing = f"{count(len(self.run.ranks), 'rank')} read, collectives matched; adding up steps."
        return analyze(self.run, cross_rank, graphs=self.chains.graphs)

    def _predict(self) -> WhatIf:
        self.doing = f"{count(len(self.run.ranks), 'rank')} read; replaying steps under other settings."
        return predict_recording(
            self.run, (), DEFAULTS, search=True, cross_rank=self.cross_rank, graphs=self.chains.graphs
        )

    def _note(self, path: Path, _: int) -> None:
        if not self.entries:
            self.doing = f"Reading {path.name}."


def _outcomes(folder: Path) -> list[Outcome]:
    return (read_predictions(folder, Noted) or Noted()).outcomes


class KeptGraphs:
    """The dependency graphs of one run, that which was asked for last: they take up to a gigabyte."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: tuple[str, RunChains] | None = None

    def of(self, run: str, make: Callable[[], RunChains]) -> RunChains:
        """Return the graphs of a run, which are built when they are used; those of another run are let go."""
        with self._lock:
            if self._kept is None or self._kept[0] != run:
                self._kept = run, make()
            return self._kept[1]


class OpenRuns:
    """At most `limit` open runs (least recently used dropped first); a run whose files changed is opened again."""

    def __init__(self, options: ReadOptions | None = None, limit: int = MAX_OPEN) -> None:
        self._options, self._limit = options or ReadOptions(), limit
        self._runs: OrderedDict[str, OpenRun] = OrderedDict()
        self._graphs = KeptGraphs()
        self.jobs: dict[str, list[str]] = {}
        """Of runs that turned out to be recordings of several jobs when they were read, by id, the title of each."""
        self._checked_s: dict[str, float] = {}
        self._lock, self._reading = Lock(), Lock()  # one run is read at a time: memory suffices for one

    def recently_checked(self, run: str) -> OpenRun | None:
        """Return an open run whose files were checked less than RECENT_S ago, without checking again; else None."""
        with self._lock:
            looked = self._checked_s.get(run)
            return self._runs.get(run) if looked is not None and monotonic() - looked < RECENT_S else None

    @property
    def is_reading(self) -> bool:
        """Return whether a run is read now."""
        return self._reading.locked()

    def doing(self, run: str) -> str:
        """Return the progress of a run by its id, without checking its files, of which there may be many."""
        with self._lock:
            opened = self._runs.get(run)
        return (opened.doing if opened else "") or "Checking the files for changes."

    def open(self, location: RunLocation) -> OpenRun:
        """Return a run as its files are now; raises InputError for a run with a link that points outside."""
        revision, *_ = run_revision(location)
        with self._lock:
            opened = self._runs.get(location.id)
            if opened is None or opened.revision != revision:
                opened = self._runs[location.id] = OpenRun(
                    location, revision, self._options, self._reading, self.jobs, self._graphs
                )
            self._runs.move_to_end(location.id)
            self._checked_s[location.id] = monotonic()
            while len(self._runs) > self._limit:
                self._runs.popitem(last=False)
        return opened

"""Every served run with what the list shows of it: found, analysed and judged in the background by other processes.

Pages never wait for a run to be read: they show what is known, and how many runs are still to come. A run whose files
change keeps its figures until the new ones are there.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Final, Literal

import msgspec

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import judge
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.parallel.process_pool import CANNOT_START, WorkerPool, can_start, describe_failure
from overlapscope.ingest.parallel.worker_count import usable_cores
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.ingest.read_run import read_jobs
from overlapscope.timeline.run import Run
from overlapscope_dashboards.runs.catalog import CatalogEntry, RunLocations, list_newest_first, without_root
from overlapscope_dashboards.views.runs import BaselineVerdict, RunSummary, summary_of, verdict_of

MAX_WORKERS: Final = 4
LARGE_BYTES: Final = 256 << 20
"""Runs with larger files are read alone: two of them may take more memory than there is."""
LOOK_S: Final = 2.0
"""Least time between two looks for new and changed runs ..."""
LOOK_SHARE: Final = 0.1
"""... and the largest share of the time that looking may take: a run may have ten thousand files."""
IDLE_S: Final = 10.0
"""How long workers and the thread stay after the last page that asked and the last work."""
WAIT_S: Final = 0.2
"""How often the thread sees what changed meanwhile while workers are busy."""
MAX_BASELINES: Final = 2
"""Pinned baselines, of different readers, whose verdicts are kept."""
State = Literal["waiting", "reading", "ready", "problem"]


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the list. `summary` may be of earlier files while the present ones are read."""

    entry: CatalogEntry
    state: State
    summary: RunSummary | None = None
    problem: str = ""
    verdict: BaselineVerdict | None = None
    """Against the pinned baseline; None where there is none, or not yet."""


class RunList(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The runs as they are known now, newest first. Two lists are compared by identity."""

    runs: tuple[ListedRun, ...]
    notes: tuple[str, ...]
    done: int
    """Runs that are read, or cannot be."""


class _Task(msgspec.Struct, kw_only=True, eq=False):
    """Something that a worker does for one run."""

    key: tuple[str, ...]
    run: str
    weight: int
    work: Callable[..., Any]
    given: tuple[Any, ...]
    was_begun: bool = False


class ListedRuns:
    """The list of one dashboard, kept by one thread while somebody looks at it."""

    def __init__(
        self,
        find: Callable[[], RunLocations],
        jobs: dict[str, list[str]],
        options: ReadOptions,
        is_reading: Callable[[], bool],
    ) -> None:
        """`is_reading` says whether a page reads a run now: no large run is read beside it."""
        self._find, self._jobs, self._options, self._is_reading = find, jobs, options, is_reading
        self._changed = Condition()
        self._keeper: Thread | None = None
        self._asked_s = 0.0
        self._looked_s, self._look_took_s = -1e9, 0.0
        self._entries: list[CatalogEntry] | None = None
        self._notes: tuple[str, ...] = ()
        self._baselines: deque[str | None] = deque(maxlen=MAX_BASELINES)
        self._results: dict[tuple[str, ...], Any] = {}
        """By key of the task: what it gave, or why not, as text."""
        self._latest: dict[str, list[RunSummary]] = {}
        """By id, the figures of a run's jobs, maybe of earlier files."""
        self._made: dict[str | None, RunList] = {}
        """By baseline, the list as it was last made; nothing once something has changed."""
        self._begun: dict[Future[Any], _Task] = {}
        self._pool: WorkerPool | None = None
        self._closed = False

    def look(self, patience_s: float, baseline: str | None = None) -> RunList | None:
        """Return the list as it is known; None where the folder has not been searched after `patience_s`.

        It is the same object until something changes.
        """
        with self._changed:
            self._asked_s = time.monotonic()
            if (self._keeper is None or not self._keeper.is_alive()) and not self._closed:
                self._keeper = Thread(target=self._keep, daemon=True)
                self._keeper.start()
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._entries is not None, patience_s):
                return None
            if not any(each.location.id == baseline for each in self._entries or ()):
                baseline = None
            elif baseline not in self._baselines:
                self._baselines.append(baseline)
            if baseline not in self._made:
                self._made[baseline] = self._listed(baseline)
            return self._made[baseline]

    def close(self) -> None:
        """End the workers, so that nothing waits for them when the server stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            keeper = self._keeper
            self._end_pool()
        if keeper is not None:
            keeper.join(timeout=5)

    def _listed(self, baseline: str | None) -> RunList:
        entries = self._entries or []
        revisions = {each.location.id: each.revision for each in entries}
        reading = {each.run for each in self._begun.values()}
        runs = tuple(self._listed_run(each, reading, baseline, revisions) for each in entries)
        return RunList(runs=runs, notes=self._notes, done=sum(each.state in ("ready", "problem") for each in runs))

    def _listed_run(
        self, entry: CatalogEntry, reading: set[str], baseline: str | None, revisions: Mapping[str, str]
    ) -> ListedRun:
        own = entry.location
        if entry.problem:
            return ListedRun(entry=entry, state="problem", problem=entry.problem)
        found = self._results.get(_summary_key(entry))
        if isinstance(found, str):
            return ListedRun(entry=entry, state="problem", problem=without_root(found, own))
        known = self._latest.get(own.read_as, [])
        number = own.job or 0
        summary = known[number] if number < len(known) else None
        if found is not None and summary is None:
            return ListedRun(entry=entry, state="problem", problem="these files hold no such job any more")
        verdict = None
        if baseline is not None and baseline != own.id and baseline in revisions:
            judged = self._results.get(_verdict_key(baseline, revisions[baseline], entry))
            if isinstance(judged, str):
                judged = BaselineVerdict(
                    words="not comparable", moved="", tone="warn", headline=without_root(judged, own)
                )
            verdict = judged
        state: State = "ready" if found is not None else "reading" if own.read_as in reading else "waiting"
        return ListedRun(entry=entry, state=state, summary=summary, verdict=verdict)

    def _keep(self) -> None:
        """Look for runs and work until nobody asks any more."""
        quiet_s = time.monotonic()
        while not self._closed:
            self._look_again()
            due = self._due()
            if due or self._begun:
                quiet_s = time.monotonic()
                self._work(due)
            else:
                with self._changed:
                    self._changed.wait(WAIT_S)
            with self._changed:
                if time.monotonic() - max(quiet_s, self._asked_s) > IDLE_S:
                    self._keeper = None
                    self._end_pool()
                    return

    def _look_again(self) -> None:
        now = time.monotonic()
        if now - self._looked_s < max(LOOK_S, self._look_took_s / LOOK_SHARE) or now - self._asked_s > LOOK_S * 5:
            return
        try:
            found = self._find()
            entries, notes = list_newest_first(found.runs), found.notes
        except (OSError, OverlapScopeError) as error:  # the folder itself has gone
            entries, notes = [], (str(error),)
        with self._changed:
            self._entries, self._notes = entries, notes
            self._looked_s, self._look_took_s = time.monotonic(), time.monotonic() - now
            self._forget()
            self._has_changed()

    def _forget(self) -> None:
        """Drop what is of files that are no more as they were."""
        there = {(each.location.read_as, each.revision) for each in self._entries or ()}
        for key in [key for key in self._results if not all(each in there for each in _files_of(key))]:
            del self._results[key]
        ids = {each for each, _ in there}
        self._latest = {run: found for run, found in self._latest.items() if run in ids}

    def _due(self) -> list[_Task]:
        """Return what is to be done: figures first, newest runs first, then verdicts."""
        with self._changed:
            entries = [each for each in self._entries or () if not each.problem]
            begun = {each.key for each in self._begun.values()}
            tasks: dict[tuple[str, ...], _Task] = {}
            for each in entries:
                own = each.location
                tasks.setdefault(_summary_key(each), _Task(
                    key=_summary_key(each), run=own.read_as, weight=_weight(each),
                    work=summarize, given=(own.inputs, self._options),
                ))  # fmt: skip
            by_id = {each.location.id: each for each in entries}
            for base in [by_id[each] for each in self._baselines if each in by_id]:
                for each in entries:
                    if each is not base:
                        key = _verdict_key(base.location.id, base.revision, each)
                        tasks[key] = _Task(
                            key=key, run="", weight=max(_weight(base), _weight(each)), work=judge_against,
                            given=((base.location.inputs, base.location.job, base.revision),
                                   (each.location.inputs, each.location.job, each.revision), self._options),
                        )  # fmt: skip
            return [each for key, each in tasks.items() if key not in self._results and key not in begun]

    def _work(self, due: Sequence[_Task]) -> None:
        """Hand tasks to workers until they are busy, then wait a moment for results."""
        if not can_start():
            self._settle(due[0], _attempt(due[0]))
            return
        try:
            self._submit(due)
        except BrokenExecutor:
            self._begin_anew()
            return
        except CANNOT_START:
            if due:
                self._settle(due[0], _attempt(due[0]))
            return
        if not self._begun:  # only large runs are left, and a page reads one
            time.sleep(WAIT_S)
        for future in wait(self._begun, WAIT_S, return_when=FIRST_COMPLETED).done:
            task = self._begun.get(future)
            if task is None:
                continue
            try:
                result = future.result()
            except (BrokenExecutor, CancelledError):  # cancelled: the server stops
                self._begin_anew()
                return
            with self._changed:
                self._begun.pop(future, None)
            self._settle(task, result)

    def _submit(self, due: Sequence[_Task]) -> None:
        room = min(MAX_WORKERS, max(1, usable_cores() - 1))
        with self._changed:
            if self._closed:
                return
            if self._pool is None:
                self._pool = WorkerPool(room)
            for task in due:
                if sum(each.weight for each in self._begun.values()) >= room:
                    return
                if task.weight > 1 and (self._begun or self._is_reading()):
                    continue  # alone, when the smaller ones are done
                self._begun[self._pool.submit(_attempt, task)] = task
                self._made.clear()

    def _begin_anew(self) -> None:
        """A worker died: what was begun is tried once more, one at a time; what dies again cannot be read."""
        with self._changed:
            died, self._begun, pool = list(self._begun.values()), {}, self._pool
            self._end_pool()
        for task in died:
            if self._closed:
                return
            cause = pool.cause_of_death() if pool is not None else NO_MEMORY
            with suppress(*CANNOT_START, BrokenExecutor), WorkerPool(1) as alone, suppress(BrokenExecutor):
                cause = alone.submit(_attempt, task).result()
            self._settle(task, cause)

    def _settle(self, task: _Task, result: Any) -> None:
        with self._changed:
            if task.work is summarize and not isinstance(result, str):
                titles = [title for title, _ in result]
                if len(titles) > 1 or task.run in self._jobs:
                    self._looked_s = -1e9  # the list has other rows now
                    self._jobs.pop(task.run, None)
                    if len(titles) > 1:
                        self._jobs[task.run] = titles
                self._latest[task.run] = [summary for _, summary in result]
                result = True
            self._results[task.key] = result
            self._has_changed()

    def _has_changed(self) -> None:
        self._made.clear()
        self._changed.notify_all()

    def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)


def summarize(inputs: Sequence[Path], options: ReadOptions) -> list[tuple[str, RunSummary]]:
    """Return for each job of some inputs its title and what the list shows of it. Raises OverlapScopeError."""
    found = []
    for each in read_jobs(list(inputs), options, workers=1):
        cross_rank = match_and_align(each.run)
        found.append((each.title, summary_of(each.run, analyze(each.run, cross_rank))))
    return found


def judge_against(
    base: tuple[Sequence[Path], int | None, str], run: tuple[Sequence[Path], int | None, str], options: ReadOptions
) -> BaselineVerdict:
    """Return the gate's verdict on a run against a baseline, each given as inputs, job and revision."""
    if _kept_base.get("key") != base:
        _kept_base.update(key=base, run=_measured(base, options))
    return verdict_of(judge([_kept_base["run"]], [_measured(run, options)], Policy()))


_kept_base: dict[str, Any] = {}
"""The baseline that this process measured last: many runs are judged against one."""


def _measured(place: tuple[Sequence[Path], int | None, str], options: ReadOptions) -> MeasuredRun:
    inputs, job, _ = place
    jobs: list[Run] = [each.run for each in read_jobs(list(inputs), options, workers=1)]
    if (job or 0) >= len(jobs):
        raise InputError("these files hold no such job any more")
    return measure_run(jobs[job or 0])


def _attempt(task: _Task) -> Any:
    """Return what a task gives, or in one line why it gives nothing."""
    try:
        return task.work(*task.given)
    except OverlapScopeError as error:
        return " ".join(str(error).split())
    except MemoryError:
        return NO_MEMORY
    except Exception as error:  # noqa: BLE001 - it costs this run alone, and its row says so
        return describe_failure(error)


def _weight(entry: CatalogEntry) -> int:
    return MAX_WORKERS if entry.size_bytes > LARGE_BYTES else 1


def _summary_key(entry: CatalogEntry) -> tuple[str, ...]:
    return ("summary", entry.location.read_as, entry.revision)


def _verdict_key(base: str, revision: str, entry: CatalogEntry) -> tuple[str, ...]:
    return ("verdict", base, revision, entry.location.id, entry.location.read_as, entry.revision)


def _files_of(key: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the (id, revision) of the files that a result was computed from, without its baseline."""
    return [(key[-2], key[-1])]

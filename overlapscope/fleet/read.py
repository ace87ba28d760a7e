"""Measure the runs of a fleet, several at a time; a run that cannot be read costs only itself."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.analysis.compare.fleet import FleetRun
from overlapscope.analysis.result import Analysis
from overlapscope.display import display_path
from overlapscope.errors import OverlapScopeError
from overlapscope.fleet.figure_cache import Kept, load_figures, run_key, run_state, store_figures
from overlapscope.fleet.find import RunPlace
from overlapscope.fleet.measure import measure, measure_analyzed
from overlapscope.ingest.parallel.process_pool import CANNOT_START, WorkerPool, can_start
from overlapscope.ingest.parallel.worker_count import usable_cores
from overlapscope.ingest.read_file import NO_MEMORY
from overlapscope.timeline.store.load_save import load_run

MAX_WORKERS: Final = 16
"""Each takes 150 MB, and the memory of the run that it reads."""
RUNS_WORTH_A_WORKER: Final = 8
"""Fewer small runs are measured sooner than another process has started."""
KEPT_FROM_SECONDS: Final = 5.0
"""Figures that take less to measure are not stored: they may be samples in a repository, where a file is not wanted."""
AHEAD: Final = 2
"""Runs submitted for each worker, so that none waits for work."""
StoredAnalysis = Callable[[Path], bytes | None]
"""Returns the JSON of a run's stored analysis, if it is valid; called in worker processes."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a fleet."""

    runs: list[FleetRun]
    left_out: list[str]
    """Why runs could not be read."""
    read: int
    """Runs that were read now; the figures of the others were stored."""


def read_fleet(
    folder: Path,
    places: Sequence[RunPlace],
    *,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    stored: StoredAnalysis | None = None,
    keep: bool = True,
) -> Measured:
    """Measure the runs below a folder, in order of `places`.

    Figures of unchanged runs are taken from the folder's `.fleet.json`, which is rewritten if `keep` and worth it.
    `workers` is the number of processes, None for one per core. `progress` is called with (done, all, name) after each
    run.
    """
    began = time.monotonic()
    known = load_figures(folder)
    keys = {place.path: run_key(place.path, folder) for place in places}
    states = {keys[place.path]: run_state(place.path) for place in places}
    found = {key: known[key] for key, state in states.items() if key in known and known[key].state == state}
    due = [place for place in places if keys[place.path] not in found]
    problems: dict[str, str] = {}
    for done, (place, result) in enumerate(_measure_all(due, workers, stored), len(found) + 1):
        key = keys[place.path]
        if isinstance(result, str):
            problems[key] = result
        else:
            found[key] = Kept(state=states[key] or "", run=result)
        if progress is not None:
            progress(done, len(places), place.name)
    storable = {key: kept for key, kept in found.items() if kept.state and kept.state == states[key]}
    if keep and due and (known or time.monotonic() - began > KEPT_FROM_SECONDS):
        store_figures(folder, storable)
    return Measured(
        runs=[
            msgspec.structs.replace(found[key].run, name=each.name, job=each.job)
            for each in places
            if (key := keys[each.path]) in found
        ],
        left_out=[problems[key] for each in places if (key := keys[each.path]) in problems],
        read=len(due),
    )


def measure_place(place: RunPlace, stored: StoredAnalysis | None = None) -> FleetRun | str:
    """Return the figures of a run directory, or in one line why it cannot be read."""
    try:
        document = stored(place.path) if stored is not None else None
        run = load_run(place.path)
        if document is not None:
            return measure_analyzed(run, place.name, place.job, msgspec.json.decode(document, type=Analysis))
        return measure(run, place.name, place.job)
    except OverlapScopeError as error:
        return " ".join(str(error).split())
    except MemoryError:
        return f"{display_path(place.path)}: {NO_MEMORY}"


def _measure_all(
    places: Sequence[RunPlace], workers: int | None, stored: StoredAnalysis | None
) -> Iterator[tuple[RunPlace, FleetRun | str]]:
    """Yield what came of each run as it is done; what no worker could do, this process does."""
    waiting = deque(places)
    count = min(workers or min(usable_cores(), MAX_WORKERS), len(places) // RUNS_WORTH_A_WORKER)
    if count > 1 and can_start():
        yield from _by_workers(waiting, count, stored)
    while waiting:
        place = waiting.popleft()
        yield place, measure_place(place, stored)


def _by_workers(
    waiting: deque[RunPlace], count: int, stored: StoredAnalysis | None
) -> Iterator[tuple[RunPlace, FleetRun | str]]:
    """Yield what came of each run, and leave in `waiting` what is not done when no worker can start.

    When a worker dies, the runs that were begun are read again, each by a process that reads nothing else.
    """
    while waiting:
        begun: dict[Future[FleetRun | str], RunPlace] = {}
        try:
            with WorkerPool(count) as pool:
                while waiting or begun:
                    while waiting and len(begun) < AHEAD * count:
                        begun[pool.submit(measure_place, waiting[0], stored)] = waiting[0]
                        waiting.popleft()
                    for future in wait(begun, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield begun.pop(future), result
        except BrokenExecutor:
            if not begun:
                return
        except CANNOT_START:
            waiting.extendleft(begun.values())
            return
        for place in begun.values():
            yield place, _measure_alone(place, stored)


def _measure_alone(place: RunPlace, stored: StoredAnalysis | None) -> FleetRun | str:
    """Return what comes of a run in a process of its own, or how that one died; here, where none can start."""
    with ExitStack() as held:
        try:
            pool = held.enter_context(WorkerPool(1))
            pool.submit(os.getpid).result()
        except CANNOT_START:
            return measure_place(place, stored)
        with suppress(BrokenExecutor):
            return pool.submit(measure_place, place, stored).result()
    return f"{display_path(place.path)}: {pool.cause_of_death()}"

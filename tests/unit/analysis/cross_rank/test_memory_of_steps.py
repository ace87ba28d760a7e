"""What an analysis of a run directory holds in memory: of each span less than its columns.

Counted are bytes that are held, not what the system shows of the process: that depends on what ran before.
"""

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from time import sleep
from typing import TypeVar

import pyarrow as pa
import pytest

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.timeline.store import lazy_rank as stored
from overlapscope.timeline.store import load_save as store
from overlapscope.timeline.store.load_save import load_run, save_run
from overlapscope.timeline.store.manifest import read_manifest, recorded_ranks
from tests.property.synthetic import Job, Layout, run_of, simulate

STEPS = 3
LESS = 0.45
"""An analysis holds at most this share of what each further span takes where its columns are kept."""
V = TypeVar("V")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run directory of some steps, and one of four times as many."""
    folder = tmp_path_factory.mktemp("runs")
    few, many = folder / "few", folder / "many"
    for place, steps in ((few, STEPS), (many, 4 * STEPS)):
        job = Job(layout=Layout(tp=2, pp=2, dp=2), seed=7, steps=steps, layers=3, microbatches=2)
        save_run(run_of(simulate(job)), place, version="1")
    return few, many


def held_of(place: Path) -> tuple[int, int]:
    """Return the bytes that a run holds with what compares its ranks, and how many spans there are."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        run = load_run(place)
        together, alone = match_and_align(run), summarize_ranks(run)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert together.matched
    assert len(alone) == len(run.ranks)
    return held, sum(timeline.num_spans for timeline in run.ranks.values())


@pytest.mark.slow
def test_spans_are_not_held_once_a_rank_is_summarized(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_of(places[1])  # what is made once in a process is no run's
    monkeypatch.setattr(stored, "KEPT_TABLES", 0)
    a_span = {}
    for kept_rows in (0, 1 << 40):
        monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (kept_rows,))
        (few, spans), (many, more_spans) = map(held_of, places)
        a_span[kept_rows] = (many - few) / (more_spans - spans)
    assert a_span[0] < LESS * a_span[1 << 40], a_span


def test_no_more_ranks_are_opened_at_a_time_than_there_is_room_for(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = recorded_ranks(places[0], read_manifest(places[0]))
    a_rank = max(entry.spans for entry in entries) * store.SPAN_BYTES
    monkeypatch.setattr(store, "available_cores", lambda: 8)
    for bound, most in ((3 * a_rank, 3), (a_rank // 2, 1)):
        monkeypatch.setattr(store, "AT_ONCE_BYTES", bound)
        watch = Watch()
        monkeypatch.setattr(store, "open_rank", partial(watch.beside, stored.open_rank))
        assert len(load_run(places[0]).ranks) == len(entries)
        assert watch.most <= most


class Watch:
    """Counts how often something is done at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = Lock()

    def beside(self, work: Callable[..., V], *values: object) -> V:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        sleep(0.02)  # so that others begin meanwhile
        found = work(*values)
        with self._lock:
            self.now -= 1
        return found

"""What an analysis holds of a run: little that grows with the steps, and the same figures wherever the rest lies.

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

import msgspec
import pytest

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.across_ranks import match_and_align
from overlapscope.analysis.rank_summary import summarize_ranks
from overlapscope.files import spill as aside
from overlapscope.timeline.columns import size
from overlapscope.timeline.store import lazy_rank as stored
from overlapscope.timeline.store import load_save as store
from overlapscope.timeline.store.load_save import load_run, save_run
from overlapscope.timeline.store.manifest import read_manifest, recorded_ranks
from tests.property.synthetic import Job, Layout, plant, run_of, simulate

STEPS = 3
LESS = 0.35
"""With a file, an analysis holds at most this share of what each further call takes in memory."""
UNBOUNDED = 1 << 40
V = TypeVar("V")


def job(steps: int, *, moe: bool = False) -> Job:
    layout = Layout(tp=2, dp=4, ep=2) if moe else Layout(tp=2, pp=2, dp=2)
    return Job(layout=layout, seed=7, steps=steps, layers=3, microbatches=2, moe=moe)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run directory of some steps, and one of four times as many."""
    folder = tmp_path_factory.mktemp("runs")
    few, many = folder / "few", folder / "many"
    save_run(run_of(simulate(job(STEPS))), few, version="1")
    save_run(run_of(simulate(job(4 * STEPS))), many, version="1")
    return few, many


def held_of(place: Path) -> tuple[int, int]:
    """Return the bytes that a run holds with what compares its ranks, and how many calls there are."""
    tracemalloc.start()
    try:
        run = load_run(place)
        together, alone = match_and_align(run), summarize_ranks(run)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert together.matched
    assert len(alone) == len(run.ranks)
    return held, sum(size(timeline.collectives) for timeline in run.ranks.values())


def test_what_is_held_of_each_further_call_is_little(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (0,))
    monkeypatch.setattr(stored, "KEPT_TABLES", 0)
    held_of(places[0])  # what is made once in a process is no run's
    a_call = {}
    for room in (0, UNBOUNDED):
        monkeypatch.setattr(aside, "MEMORY_BYTES", room)
        (few, calls), (many, more_calls) = map(held_of, places)
        a_call[room] = (many - few) / (more_calls - calls)
    assert a_call[0] < LESS * a_call[UNBOUNDED]


@pytest.mark.parametrize("moe", [False, True])
def test_the_figures_are_the_same_wherever_what_was_put_aside_lies(
    *, moe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(job(STEPS, moe=moe), "slow_compute", share=0.3, culprit=3, seed=1)
    save_run(run_of(simulate(planted)), tmp_path / "run", version="1")
    found = []
    for room in (UNBOUNDED, 0, 20_000):
        monkeypatch.setattr(aside, "MEMORY_BYTES", room)
        found.append(msgspec.json.encode(analyze_with_advice(load_run(tmp_path / "run"))))
    assert found[1:] == found[:1] * 2


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

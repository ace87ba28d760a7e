"""Ranks that other processes summarize: the same figures, and nothing is lost where they cannot."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from overlapscope.analysis import rank_summaries
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.rank_summaries import RankByFiles, summarize_ranks
from overlapscope.ingest.parallel import process_pool
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.property.synthetic import Job, Layout, simulate
from tests.property.synthetic.kineto import write_kineto
from tests.unit.analysis.pauses.pausing import STEPS, run
from tests.unit.analysis.pauses.test_whole_processes import lengths_ms, of_one_process

RANKS = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run directory of three ranks with host events."""
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415 - for this alone

    folder = tmp_path_factory.mktemp("summaries")
    job = Job(layout=Layout(dp=RANKS), seed=3, steps=4, layers=2)
    save_run(read_inputs(write_kineto(simulate(job), folder / "traces")), folder / "run", version="1")
    return folder / "run"


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have two workers summarize ranks one by one; return what this process summarizes, as it does."""
    here: list[Any] = []
    plain = rank_summaries.summarize_rank

    def noted(timeline: Any, *args: Any, **kwargs: Any) -> Any:
        here.append(timeline.rank)
        return plain(timeline, *args, **kwargs)

    monkeypatch.setattr(rank_summaries, "SPANS_WORTH_WORKERS", 1)
    monkeypatch.setattr(rank_summaries, "RANKS_OF_A_TASK", 1)
    monkeypatch.setattr(rank_summaries, "summarize_rank", noted)
    monkeypatch.setattr(rank_summaries, "usable_cores", lambda: 2)
    monkeypatch.setattr("overlapscope.analysis.graph.building.build.MOST_NODES", 0)
    return here


def figures(run: Run) -> Any:
    return analyze(run, match_and_align(run), None, summarize_ranks(run))


@pytest.mark.slow
def test_workers_find_the_same(place: Path, two_workers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    by_workers = figures(load_run(place))
    assert two_workers == []
    monkeypatch.setattr(rank_summaries, "SPANS_WORTH_WORKERS", 1 << 40)
    assert figures(load_run(place)) == by_workers
    assert two_workers == [*range(RANKS)]
    assert by_workers.ranks[0].no_causes_reason is None, "host events were not used"


@pytest.mark.slow
def test_workers_find_the_pauses_of_whole_processes(tmp_path: Path, two_workers: list[Any]) -> None:
    job = of_one_process(run(lambda _, rank: {3: 12.0} if rank else {3: 3.0, 4: 7.0}), ["training", "training"])
    save_run(job, tmp_path / "run", version="1")
    assert lengths_ms(summarize_ranks(load_run(tmp_path / "run"))[1].long_pauses) == [8] * STEPS
    assert two_workers == []


def test_a_graph_that_is_kept_is_built_here(
    place: Path, two_workers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope.analysis.graph.building.build.MOST_NODES", 1 << 40)
    summarize_ranks(load_run(place))
    assert two_workers == [*range(RANKS)]


@pytest.mark.slow
def test_host_events_that_a_worker_cannot_read_are_named(place: Path, tmp_path: Path, two_workers: list[Any]) -> None:
    run = load_run(place)
    save_run(run, tmp_path / "run", version="1")
    run = load_run(tmp_path / "run")
    damaged = tmp_path / "run" / "rank_00001" / "host.parquet"
    content, state = damaged.read_bytes(), damaged.stat()
    damaged.write_bytes(content[:4] + bytes(len(content) - 8) + content[-4:])
    os.utime(damaged, ns=(state.st_atime_ns, state.st_mtime_ns))
    found = figures(run)
    assert two_workers == []
    assert [each.no_causes_reason for each in found.ranks] == [None, "unreadable_host_events", None]
    (warning,) = [each.warnings for each in found.sources if each.path == str(damaged)]
    assert "host events of rank 1 cannot be read" in warning[0]


class Dies:
    """What ends the process that receives it."""

    def __reduce__(self) -> tuple[Callable[[int], NoReturn], tuple[int]]:
        return os._exit, (1,)


@dataclass
class Refused:
    """A pool of which no process can be started."""

    count: int

    def __enter__(self) -> NoReturn:
        raise OSError("no more processes")

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dies", "refused", "one core", "a worker itself"])
def test_without_workers_this_process_does_it(
    fault: str, place: Path, two_workers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "dies":
        monkeypatch.setattr(RankByFiles, "of", lambda _: Dies())
    elif fault == "refused":
        monkeypatch.setattr(process_pool, "WorkerPool", Refused)
    elif fault == "one core":
        monkeypatch.setattr(rank_summaries, "usable_cores", lambda: 1)
    else:
        monkeypatch.setattr(rank_summaries, "parent_process", lambda: "another one")
    assert [*summarize_ranks(load_run(place))] == [*range(RANKS)]
    assert two_workers == [*range(RANKS)]

"""Ranks of a run directory: their large tables are read again, give the same figures, and are never of another run."""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from copy import copy, deepcopy
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.errors import InputError
from overlapscope.timeline.columns import NONE, Steps, make, size
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import TABLES, RankTimeline, Run, join_parts
from overlapscope.timeline.store import lazy_rank as stored
from overlapscope.timeline.store.arrow_tables import from_arrow
from overlapscope.timeline.store.lazy_rank import StoredRank, TableCache
from overlapscope.timeline.store.load_save import load_run, save_run
from overlapscope.timeline.store.manifest import read_manifest, recorded_ranks
from overlapscope.timeline.store.rank_writer import close_parts, remove_parts, save_part
from overlapscope.timeline.store.read_ahead import in_threads, read_ahead
from overlapscope.timeline.store.run_directory import part_folders
from tests.property.synthetic import Job, Layout, plant, run_of, simulate
from tests.support.builders import EPOCH_NS, full_timeline, spelled


@pytest.fixture(scope="module")
def job() -> Run:
    made = Job(layout=Layout(tp=2, pp=2, dp=2), seed=4, steps=5)
    return run_of(simulate(plant(made, "slow_compute", share=0.3, culprit=3, seed=1)))


@pytest.fixture
def place(job: Run, tmp_path: Path) -> Path:
    save_run(job, tmp_path / "run", version="1")
    return tmp_path / "run"


@pytest.fixture
def keeping_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "KEPT_TABLES", 0)
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (100,))


@pytest.mark.slow
def test_the_analysis_is_the_same_whether_tables_are_kept_or_read_again(
    job: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = msgspec.json.encode(analyze_with_advice(load_run(place)))
    monkeypatch.setattr(stored, "KEPT_TABLES", 0)
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (100,))
    reads: list[str] = []
    reading = stored.read_table
    monkeypatch.setattr(
        stored, "read_table", lambda folder, name, *rest: (reads.append(name), reading(folder, name, *rest))[1]
    )
    read_again = load_run(place)
    opened = len(reads)
    assert msgspec.json.encode(analyze_with_advice(read_again)) == kept
    assert reads[opened:].count("spans") >= len(job.ranks)
    in_memory = msgspec.json.encode(analyze_with_advice(replace(job, sources=read_again.sources)))
    assert in_memory == kept


def test_no_more_rows_stay_in_memory_than_were_allowed() -> None:
    cache = TableCache(rows=25)
    tables = [make(Steps, 10, step=number) for number in range(8)]
    files = [Path(f"{number}.parquet") for number in range(8)]
    for file, table in zip(files[:6], tables, strict=False):
        cache.keep(file, table)
    assert cache.get(files[2]) is tables[2]  # of so many tables each stays, however large
    cache.keep(files[6], tables[6])
    assert [cache.get(file) for file in files[2:]] == [tables[2], None, tables[4], tables[5], tables[6], None]
    wide = TableCache(rows=65)
    for file, table in zip(files, tables, strict=True):
        wide.keep(file, table)
    assert [wide.get(file) is not None for file in files] == [False, False] + [True] * 6


def test_opening_a_run_keeps_what_there_is_room_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [each.num_spans + size(each.annotations) for each in load_run(place).ranks.values()]
    for allowed, kept in ((sum(rows), len(rows)), (sum(rows[:5]), 5), (0, stored.KEPT_TABLES // 2)):
        monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (allowed,))
        monkeypatch.setattr("overlapscope.timeline.store.load_save.available_cores", lambda: 1)
        run = load_run(place)
        for table in place.rglob("spans.parquet"):
            table.touch()  # what is read again is refused
        found = []
        for timeline in run.ranks.values():
            with suppress(InputError):
                found.append(timeline.at_hand())
        assert len(found) == kept


@pytest.mark.usefixtures("keeping_little")
def test_spans_of_a_run_that_was_replaced_are_not_mixed_with_what_was_read_before(place: Path, job: Run) -> None:
    run = load_run(place)
    other = replace(job, ranks={rank: full_timeline(rank) for rank in job.ranks})
    save_run(other, place, version="1", force=True)
    with pytest.raises(InputError, match="was changed since the run was opened"):
        assert run.ranks[0].spans


@pytest.mark.usefixtures("keeping_little")
def test_spans_written_in_place_are_seen_though_size_and_time_are_the_old_ones(place: Path) -> None:
    run = load_run(place)
    spans = place / "rank_00000" / "spans.parquet"
    before = spans.stat()
    spans.write_bytes(spans.read_bytes())
    os.utime(spans, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="was changed since the run was opened"):
        assert run.ranks[0].spans


@pytest.mark.usefixtures("keeping_little")
def test_a_run_that_is_replaced_in_the_moment_of_reading_is_seen(
    place: Path, job: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reading = load_run(place), stored.read_table
    other = replace(job, ranks={rank: full_timeline(rank) for rank in job.ranks})

    def replaced_before(*args: Any) -> Any:
        monkeypatch.setattr(stored, "read_table", reading)
        save_run(other, place, version="1", force=True)
        return reading(*args)

    monkeypatch.setattr(stored, "read_table", replaced_before)
    with pytest.raises(InputError, match="was changed since the run was opened"):
        assert run.ranks[0].spans


@pytest.mark.usefixtures("keeping_little")
def test_a_run_read_piece_by_piece_is_saved_over_itself_whole(place: Path, job: Run) -> None:
    save_run(load_run(place), place, version="1", force=True)
    again = load_run(place)
    for rank, timeline in job.ranks.items():
        assert spelled(again.ranks[rank].spans, again.ranks[rank].names) == spelled(timeline.spans, timeline.names)


@pytest.mark.usefixtures("keeping_little")
def test_spans_that_are_gone_are_an_error_that_names_them(place: Path) -> None:
    run = load_run(place)
    (place / "rank_00001" / "spans.parquet").unlink()
    with pytest.raises(InputError, match=r"rank_00001/spans\.parquet: cannot be read any more"):
        assert run.ranks[1].spans


@pytest.mark.usefixtures("keeping_little")
def test_a_copy_with_other_values_is_a_plain_timeline_with_all_tables(place: Path, job: Run) -> None:
    first = load_run(place).ranks[0]
    assert isinstance(first, StoredRank)
    changed = replace(first.at_hand(), basis="log")
    assert type(changed) is RankTimeline
    assert changed.basis == "log"
    with pytest.raises(AttributeError, match="unset"):
        replace(first, rank=7)
    for other in (copy(first), pickle.loads(pickle.dumps(first)), deepcopy(first)):
        assert type(other) is RankTimeline
        assert other.num_spans == first.num_spans
        assert other.with_calls(first.names, first.collectives).num_spans == first.num_spans
    assert spelled(changed.spans, changed.names) == spelled(job.ranks[0].spans, job.ranks[0].names)
    assert first.num_spans == size(first.spans) == size(job.ranks[0].spans)
    with pytest.raises(AttributeError):
        assert first.no_such_table  # type: ignore[attr-defined]


@pytest.mark.slow
def test_loading_and_saving_a_run_does_not_load_pandas(place: Path, tmp_path: Path) -> None:
    """It takes Arrow half a second."""
    code = (
        "import sys; from pathlib import Path; from overlapscope.timeline.store.load_save import load_run, save_run; "
        f"run = load_run(Path({str(place)!r})); assert run.ranks[0].spans.start_ns.size; "
        f"save_run(run, Path({str(tmp_path / 'again')!r}), version=''); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- columns as others write them -----------------------------------------------------------------------------------


def steps_table(**columns: object) -> pa.Table:
    plain = {"recording": [0, 0, 0], "step": [1, 2, 3], "start_ns": [1, 2, 3], "end_ns": [2, 3, 4]}
    return pa.table({**{name: pa.array(values, pa.int64()) for name, values in plain.items()}, **columns})


def test_nulls_slices_chunks_and_narrow_integers_are_read() -> None:
    flags = pa.chunked_array([pa.array([True]), pa.array([False, True])])
    narrow = pa.array([0, 5, None, 7], pa.int32()).slice(1)
    found = from_arrow(steps_table(cut=flags, step=narrow), Steps, NameTable())
    assert found.step.tolist() == [5, NONE, 7]
    assert found.step.dtype == np.int64
    assert found.cut.tolist() == [True, False, True]


def test_a_column_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="instead of int64"):
        from_arrow(steps_table(cut=[True] * 3, step=pa.array(["1", "2", "3"])), Steps, NameTable())


# --- reading ahead --------------------------------------------------------------------------------------------------


def test_results_come_in_order_and_so_many_are_made_ahead() -> None:
    begun: list[int] = []
    found = in_threads(lambda each: (begun.append(each), each * each)[1], range(100), ahead=3)
    assert next(found) == 0
    assert len(begun) <= 5
    assert list(found) == [each * each for each in range(1, 100)]


def test_work_is_done_beside_who_asks_for_it() -> None:
    second = Event()
    threads: list[int] = []

    def work(each: int) -> int:
        threads.append(get_ident())
        if each == 1:
            second.set()
        return each

    found = in_threads(work, range(2), ahead=1)
    assert next(found) == 0
    assert second.wait(30)
    assert get_ident() not in threads
    assert list(found) == [1]


def test_an_error_is_raised_where_its_result_is_due() -> None:
    found = in_threads(lambda each: 1 // each, [1, 0, 1], ahead=2)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_ranks_are_read_ahead_in_their_order(place: Path, job: Run) -> None:
    assert [(rank, type(each)) for rank, each in read_ahead(load_run(place).ranks)] == [
        (rank, RankTimeline) for rank in job.ranks
    ]


def parts_of_a_rank(run: Path) -> list[RankTimeline]:
    """Write a rank of three parts, as a recording that goes on; return them."""
    parts = [full_timeline(0, start_ns=EPOCH_NS + 10_000 * at, tag=f" of part {at}") for at in range(3)]
    for number, part in enumerate(parts):
        for revision in (1, 2):
            save_part(part, run, number, revision, first=number == 0 and revision == 1)
    return parts


def test_a_rank_in_parts_is_read_as_they_are_joined_also_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "KEPT_TABLES", 0)
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (0,))
    joined, _ = join_parts(parts_of_a_rank(tmp_path / "run"))
    folders = sorted(each.name for each in (tmp_path / "run" / "rank_00000").iterdir())
    assert folders == ["part_000000.2", "part_000001.2", "part_000002.2"]
    run = load_run(tmp_path / "run")
    reads: list[str] = []
    reading = stored.read_table
    monkeypatch.setattr(
        stored, "read_table", lambda folder, name, *rest: (reads.append(name), reading(folder, name, *rest))[1]
    )
    for table in TABLES:
        assert spelled(getattr(run.ranks[0], table), run.ranks[0].names) == spelled(
            getattr(joined, table), joined.names
        )
    assert reads.count("spans") >= len(folders)
    assert size(joined.spans) == 3 * size(full_timeline().spans)
    assert size(joined.recordings) == 3 * size(full_timeline().recordings)


def test_a_rank_that_was_never_closed_is_cut_off_where_its_last_part_ends(tmp_path: Path) -> None:
    parts = parts_of_a_rank(tmp_path / "run")
    (entry,) = recorded_ranks(tmp_path / "run", read_manifest(tmp_path / "run"))
    assert entry.end_ns == parts[-1].recordings.end_ns[-1]
    assert any("the recording was cut off at" in text for text in entry.recorded["failures"])
    assert not entry.recorded["complete"]
    close_parts(tmp_path / "run", 0, {"complete": True, "failures": []})
    (closed,) = recorded_ranks(tmp_path / "run", read_manifest(tmp_path / "run"))
    assert closed.recorded["complete"]
    assert closed.steps == entry.steps
    assert closed.spans == load_run(tmp_path / "run").ranks[0].num_spans


def test_older_parts_are_removed_but_never_the_last(tmp_path: Path) -> None:
    parts = parts_of_a_rank(tmp_path / "run")
    remove_parts(tmp_path / "run", 0, int(parts[1].recordings.end_ns[-1]))
    assert [each.name for each in part_folders(tmp_path / "run" / "rank_00000")] == ["part_000001.2", "part_000002.2"]
    remove_parts(tmp_path / "run", 0, int(parts[2].recordings.end_ns[-1]) + 1)
    assert [each.name for each in part_folders(tmp_path / "run" / "rank_00000")] == ["part_000002.2"]

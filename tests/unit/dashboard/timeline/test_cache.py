"""The timeline cache of a large run: links are never followed, and only a complete cache is used."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.per_rank.occupancy import STATES
from overlapscope.timeline.store.manifest import RankEntry, read_manifest, recorded_ranks
from overlapscope_dashboards.runs.catalog import find_runs, run_revision
from overlapscope_dashboards.timeline.cache import FOLDER, _windows, load_states, save_states
from tests.support.dashboard_runs import copy_run
from tests.unit.timeline.test_interrupted_writing import killed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "run")


def entries(run: Path) -> list[RankEntry]:
    return recorded_ranks(run, read_manifest(run))


def shown(run: Path) -> dict[int, list[int]]:
    return {rank: at.tolist() for rank, (at, _) in load_states(run, entries(run), "one").states.items()}


def sums(run: Path) -> list[Any]:
    coarse = load_states(run, entries(run), "one").coarse
    return [] if coarse is None else coarse.spent.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: (kept / "told.json").write_text("{"),
        lambda kept: (kept / "told.json").write_text((kept / "told.json").read_text().replace('"one"', '"two"')),
        lambda kept: (kept / "at.npy").write_bytes(b"\x93NUMPY"),
        lambda kept: np.save(kept / "state.npy", np.full(np.load(kept / "state.npy").size, 77, np.uint8)),
        lambda kept: np.save(kept / "at.npy", np.load(kept / "at.npy")[:-1]),
        lambda kept: np.save(kept / "at.npy", np.array([{"a": 1}], object)),
        lambda kept: np.save(kept / "cells.npy", np.load(kept / "cells.npy")[1:]),
        lambda kept: (kept / "state.npy").unlink(),
        lambda kept: (kept / "cells.npy").unlink(),
    ],
)
def test_what_was_kept_of_other_files_or_is_damaged_is_made_anew(run: Path, damage: Callable[[Path], object]) -> None:
    good = shown(run), sums(run)
    assert good[1]
    damage(run / FOLDER)
    assert (shown(run), sums(run)) == good


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_run_that_cannot_be_written_to_is_shown_too(run: Path) -> None:
    good = shown(run)
    shutil.rmtree(run / FOLDER)
    run.chmod(0o500)
    assert shown(run) == good
    run.chmod(0o700)


def test_a_run_whose_name_is_not_utf_8_is_read_and_kept(run: Path) -> None:
    good = shown(run)
    shutil.rmtree(run / FOLDER)
    named = run.rename(run.with_name(os.fsdecode(b"run\xff")))
    assert shown(named) == good
    assert (named / FOLDER / "told.json").is_file()


@pytest.mark.parametrize("damage", ["of another rank", "fewer rows", "a pipe"])
def test_spans_that_the_run_is_read_without_are_not_shown_either(run: Path, damage: str) -> None:
    spans, others = (run / f"rank_0000{rank}" / "spans.parquet" for rank in (1, 0))
    if damage == "of another rank":
        shutil.copyfile(others, spans)
    elif damage == "fewer rows":
        pq.write_table(pq.read_table(spans).slice(0, 10), spans)
    else:
        spans.unlink()
        os.mkfifo(spans)
    assert list(shown(run)) == [0]


@pytest.mark.parametrize("name", ["told.part", "told.json"])
def test_nothing_is_written_through_a_link_in_the_kept_folder(run: Path, tmp_path: Path, name: str) -> None:
    kept = load_states(run, entries(run), "one")
    outside = tmp_path / "outside"
    outside.write_bytes((run / FOLDER / "told.json").read_bytes())
    before = outside.read_bytes()
    (run / FOLDER / name).unlink(missing_ok=True)
    (run / FOLDER / name).symlink_to(outside)
    save_states(run, kept.states, Clocks(), "one")
    assert outside.read_bytes() == before


def test_a_kept_folder_that_is_a_link_is_left_alone(run: Path, tmp_path: Path) -> None:
    good = shown(run)
    outside = tmp_path / "outside"
    (run / FOLDER).rename(outside)
    (run / FOLDER).symlink_to(outside)
    before = {each.name: each.read_bytes() for each in outside.iterdir()}
    assert shown(run) == good
    save_states(run, load_states(run, entries(run), "two").states, Clocks(), "one")
    assert {each.name: each.read_bytes() for each in outside.iterdir()} == before
    assert (run / FOLDER).is_symlink()
    assert not list(run.glob(f"{FOLDER}.*"))


@pytest.mark.parametrize("name", ["at.npy", "state.npy", "cells.npy", "told.json"])
def test_a_kept_file_that_is_a_link_is_not_read(run: Path, tmp_path: Path, name: str) -> None:
    good = shown(run)
    if name == "at.npy":
        np.save(tmp_path / name, np.load(run / FOLDER / name) + 1)
    else:
        (tmp_path / name).write_bytes((run / FOLDER / name).read_bytes())
    (run / FOLDER / name).unlink()
    (run / FOLDER / name).symlink_to(tmp_path / name)
    assert shown(run) == good
    assert not (run / FOLDER / name).is_symlink()  # written again


@pytest.mark.parametrize(
    "change",
    [
        {"first": [0, 10**9, -1]},
        {"first": [0, -5, -1]},
        {"first": [3, 10, -1]},
        {"ranks": [0, 7]},
        {"ranks": [0, 0]},
        {"ranks": [1, 0]},
    ],
)
def test_kept_bounds_and_ranks_that_cannot_be_are_not_taken(run: Path, change: dict[str, list[int]]) -> None:
    good = shown(run)
    result = run / FOLDER / "told.json"
    content = json.loads(result.read_bytes())
    if "first" in change:
        change = {"first": [*change["first"][:-1], content["first"][-1]]}
    result.write_text(json.dumps({**content, **change}), encoding="utf-8")
    assert shown(run) == good


def test_kept_times_that_go_back_are_not_taken(run: Path) -> None:
    good = shown(run)
    at = np.load(run / FOLDER / "at.npy")
    at[5] = at[2]
    np.save(run / FOLDER / "at.npy", at)
    assert shown(run) == good


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000000000000000000,), }",
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (True,), }",
        b"{b'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
    ],
    ids=["cut", "huge", "truth", "bytes"],
)
def test_a_broken_header_of_a_kept_file_is_made_anew(run: Path, header: bytes) -> None:
    good = shown(run)
    file = run / FOLDER / "at.npy"
    file.write_bytes(file.read_bytes()[:10] + header.ljust(117) + b"\n" + file.read_bytes()[128:])
    assert shown(run) == good


def test_where_the_copy_on_one_clock_cannot_be_written_the_older_one_does_not_take_its_place(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_states(run, entries(run), "one")
    later = {rank: (at + rank, state) for rank, (at, state) in before.states.items()}

    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    kept = save_states(run, later, Clocks(), "one")
    assert kept.clocks == Clocks()
    assert {rank: at.tolist() for rank, (at, _) in kept.states.items()} == {
        rank: at.tolist() for rank, (at, _) in later.items()
    }


# --- spans, read without the rest of their rank -----------------------------------------------------------------------


def with_column(run: Path, name: str, change: Any) -> None:
    """Replace one column of rank 1's spans."""
    file = run / "rank_00001" / "spans.parquet"
    table = pq.read_table(file)
    column = pa.array(change(table.column(name).to_pylist()), table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), file)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("recording", lambda values: [*values[:-1], None]),
        ("recording", lambda values: [*values[:-1], 10**9]),
        ("recording", lambda values: [*values[:-1], -1]),
        ("recording", lambda values: list(range(len(values)))),
        ("start_ns", lambda values: [*values[:-1], None]),
        ("end_ns", lambda values: [0, *values[1:]]),
    ],
)
def test_spans_that_no_rank_can_have_cost_that_rank(run: Path, name: str, change: Any) -> None:
    good = shown(run)
    shutil.rmtree(run / FOLDER)
    with_column(run, name, change)
    assert shown(run) == {0: good[0]}


def test_a_span_of_no_known_kind_is_in_no_state(run: Path) -> None:
    with_column(run, "kind", lambda values: [None] * len(values))
    (at, state) = load_states(run, entries(run), "one").states[1]
    assert at.size == 2 * len(set(pq.read_table(run / "rank_00001" / "spans.parquet")["recording"].to_pylist()))
    assert set(state.tolist()) == {STATES.index("idle"), STATES.index("unrecorded")}


def test_each_recording_has_its_own_window() -> None:
    random = np.random.default_rng(3)
    recording = random.choice([0, 2, 3, 900], 500)
    start = random.integers(-(10**15), 10**15, 500)
    end = start + random.integers(0, 1000, 500)
    plain = [(int(start[recording == each].min()), int(end[recording == each].max())) for each in np.unique(recording)]
    assert _windows(recording, start, end) == plain
    assert _windows(recording[:0], start[:0], end[:0]) == []


def test_no_spans_are_read_outside_of_folders_of_ranks(run: Path) -> None:
    first, second = entries(run)
    for table in ("spans", "recordings"):
        shutil.copy(run / "rank_00001" / f"{table}.parquet", run.parent)
    second.folder = ".."
    assert list(load_states(run, [first, second], "one").states) == [0]


# --- whose, and of what ----------------------------------------------------------------------------------------------


def test_states_that_other_code_made_are_made_anew(run: Path) -> None:
    good = shown(run)
    at = np.load(run / FOLDER / "at.npy")
    np.save(run / FOLDER / "at.npy", at + 1)
    assert shown(run) != good  # the cache is used
    result = run / FOLDER / "told.json"
    content = json.loads(result.read_bytes())
    result.write_text(json.dumps({**content, "made_by": "0" * 32}), encoding="utf-8")
    assert shown(run) == good


def test_a_file_of_equal_size_and_time_makes_another_revision(run: Path) -> None:
    (place,) = find_runs([run]).runs
    before, file = run_revision(place)[0], run / "rank_00001" / "spans.parquet"
    state, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert run_revision(place)[0] != before


def test_what_a_killed_dashboard_was_writing_is_removed_by_the_next_one(run: Path) -> None:
    shown(run)
    code = f"""
from pathlib import Path
from overlapscope.files.temporary_folder import locked_folder
with locked_folder(Path({str(run)!r}), {FOLDER!r} + ".") as folder:
    (folder / "at.npy").write_bytes(bytes(100))
    pause()
"""
    killed(code)
    assert len(list(run.glob(f"{FOLDER}.*"))) == 1
    load_states(run, entries(run), "two")
    assert list(run.glob(f"{FOLDER}.*")) == []

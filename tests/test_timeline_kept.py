"""What is kept of a large run beside it: it goes through no link, and only what is whole is taken from it."""

import json
from pathlib import Path

import numpy as np
import pytest

from overlapscope.analysis.clocks import Clocks
from overlapscope.timeline.store import RankEntry, read_manifest, recorded_ranks
from overlapscope_dashboards.timeline.stored import FOLDER, keep_clocks, occupancy_of_folder
from tests.dashboard_runs import copy_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy_run(tmp_path / "run")


def entries(run: Path) -> list[RankEntry]:
    return recorded_ranks(run, read_manifest(run))


def shown(run: Path) -> dict[int, list[int]]:
    return {rank: at.tolist() for rank, (at, _) in occupancy_of_folder(run, entries(run), "one")[0].items()}


@pytest.mark.parametrize("name", ["told.part", "told.json"])
def test_nothing_is_written_through_a_link_in_the_kept_folder(run: Path, tmp_path: Path, name: str) -> None:
    shown(run)
    outside = tmp_path / "outside"
    outside.write_bytes((run / FOLDER / "told.json").read_bytes())
    before = outside.read_bytes()
    (run / FOLDER / name).unlink(missing_ok=True)
    (run / FOLDER / name).symlink_to(outside)
    keep_clocks(run, Clocks(), "one")
    assert outside.read_bytes() == before


def test_a_kept_folder_that_is_a_link_is_left_alone(run: Path, tmp_path: Path) -> None:
    good = shown(run)
    outside = tmp_path / "outside"
    (run / FOLDER).rename(outside)
    (run / FOLDER).symlink_to(outside)
    before = {each.name: each.read_bytes() for each in outside.iterdir()}
    assert shown(run) == good
    occupancy_of_folder(run, entries(run), "two")
    keep_clocks(run, Clocks(), "one")
    assert {each.name: each.read_bytes() for each in outside.iterdir()} == before
    assert (run / FOLDER).is_symlink()
    assert not list(run.glob(f"{FOLDER}.*"))


@pytest.mark.parametrize("name", ["at.npy", "state.npy", "told.json"])
def test_a_kept_file_that_is_a_link_is_not_read(run: Path, tmp_path: Path, name: str) -> None:
    good = shown(run)
    if name == "at.npy":
        np.save(tmp_path / name, np.load(run / FOLDER / name) + 1)
    else:
        (tmp_path / name).write_bytes((run / FOLDER / name).read_bytes())
    (run / FOLDER / name).unlink()
    (run / FOLDER / name).symlink_to(tmp_path / name)
    assert shown(run) == good
    assert not (run / FOLDER / name).is_symlink()  # made anew


@pytest.mark.parametrize(
    "change",
    [
        {"first": [0, 10**9, -1]},
        {"first": [0, -5, -1]},
        {"first": [3, 10, -1]},
        {"ranks": [0, 7]},
        {"ranks": [0, 0]},
    ],
)
def test_kept_bounds_and_ranks_that_cannot_be_are_not_taken(run: Path, change: dict[str, list[int]]) -> None:
    good = shown(run)
    told = run / FOLDER / "told.json"
    content = json.loads(told.read_bytes())
    if "first" in change:
        change = {"first": [*change["first"][:-1], content["first"][-1]]}
    told.write_text(json.dumps({**content, **change}), encoding="utf-8")
    assert shown(run) == good


def test_kept_times_that_go_back_are_not_taken(run: Path) -> None:
    good = shown(run)
    at = np.load(run / FOLDER / "at.npy")
    at[5] = at[2]
    np.save(run / FOLDER / "at.npy", at)
    assert shown(run) == good

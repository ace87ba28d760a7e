"""Run directories whose numbers or files cannot be: one line in time, or the rank is left out."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.errors import InputError
from tests.kineto_writer import distributed, training, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(write(training(), metadata=distributed(rank)))
    overlapscope.write_run(tmp_path / "rank0.json", tmp_path / "rank1.json", to=tmp_path / "run")
    return tmp_path / "run"


def rewritten(run: Path, **changed: Any) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, **changed}))


@pytest.mark.parametrize("world_size", [10**18, -5, 2**62])
def test_a_world_of_impossible_size_is_damage(run: Path, world_size: int) -> None:
    rewritten(run, world_size=world_size)
    with pytest.raises(InputError, match=rf"run\.json: damaged: {world_size} is no possible rank"):
        overlapscope.load(run)


def test_an_impossible_rank_is_damage(run: Path) -> None:
    ranks = json.loads((run / "run.json").read_text())["ranks"]
    rewritten(run, ranks=[{**ranks[0], "rank": 2**40}, ranks[1]])
    with pytest.raises(InputError, match=r"run\.json: damaged: 1099511627776 is no possible rank"):
        overlapscope.load(run)


def test_a_pipe_in_the_place_of_a_table_costs_that_rank_and_is_not_waited_for(run: Path) -> None:
    (run / "rank_00001" / "spans.parquet").unlink()
    os.mkfifo(run / "rank_00001" / "spans.parquet")
    loaded = overlapscope.load(run)
    assert (loaded.ranks, loaded.run.unread_ranks) == ([0], (1,))
    assert any("spans.parquet: is no file" in each for source in loaded.sources for each in source.warnings)


def test_a_pipe_in_the_place_of_the_manifest_is_not_waited_for(run: Path) -> None:
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    assert overlapscope.load(run).ranks == [0, 1]

"""Under torchrun: a killed rank costs its own columns; the survivor's run is written though torchrun ends it."""

from pathlib import Path

import pytest

import overlapscope
from tests.support.fork_server import start

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]


def killed(folder: Path, mode: str) -> str:
    """Run the job until a rank is killed; return its output, and check what is left of it."""
    run = folder / "run"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.integration.exits.torchrun_job", str(run), mode]
    (done,) = start([command]).wait(120)
    output = done.output
    assert done.code != 0, output
    assert "missing  1 rank: 1" in done.stdout, output
    loaded = overlapscope.load(run)
    assert loaded.ranks == [0], output
    assert loaded.run.missing_ranks == (1,)
    assert len(loaded.table("steps", 0)) >= 2
    assert sorted(file.name for file in run.iterdir()) == ["rank_00000", "run.json"], output
    return output


@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=pytest.mark.long)])
def test_r2_a_killed_rank_is_named_missing_and_the_survivors_run_is_written(mode: str, tmp_path: Path) -> None:
    killed(tmp_path, mode)

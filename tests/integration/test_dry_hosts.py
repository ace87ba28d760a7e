"""The frameworks' examples of dry runs: that they run, and that they have the collectives of the real training.

`make test-extras` installs the frameworks; where one is missing, its tests skip.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import overlapscope
from overlapscope.loaded_run import LoadedRun
from tests.conftest import ROOT
from tests.integration.test_real_hosts import needs, torchrun

pytest.importorskip("torch", reason="torch is not installed: no step can run")
pytestmark = pytest.mark.extras

EXAMPLES = ROOT / "examples" / "dryrun"
PACKAGES = {"trainer": "transformers", "accelerate_fsdp2": "accelerate", "lightning_ddp": "lightning"}
"""Examples that train for real on CPUs, and the package that each needs."""
WORLD = 2


def dry(example: str, folder: Path, world: int = WORLD) -> LoadedRun:
    command = [sys.executable, "-m", "overlapscope.cli.main", "dryrun", f"{EXAMPLES / example}.py:build"]
    done = subprocess.run(
        [*command, "--world", str(world), "-o", str(folder / "dry")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return overlapscope.load(folder / "dry")


def calls_of(table: pd.DataFrame, run: LoadedRun) -> list[tuple[str, tuple[int, ...], int, str]]:
    """Operation, ranks of the group, bytes and dtype of each call, in order."""
    ranks = {group.name: tuple(group.ranks or ()) for group in run.run.groups}
    return [(call.op, ranks[call.group], int(call.bytes), call.dtype) for call in table.itertuples()]


@pytest.mark.parametrize(("example", "package"), PACKAGES.items(), ids=PACKAGES.values())
def test_a_frameworks_dry_run_has_the_collectives_of_its_training(
    example: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(package)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    torchrun("-m", "tests.integration.jobs.dry_hosts", f"{EXAMPLES / example}.py", "runs/real", folder=tmp_path)
    (folder,) = (tmp_path / "runs").glob("*/run.json")
    recorded, dried = overlapscope.load(folder.parent), dry(example, tmp_path)
    table = recorded.table("collectives", 0)
    real = calls_of(table[table.step == table.step.max()].sort_values("launch_ns", kind="stable"), recorded)
    assert len(real) >= 2
    assert calls_of(dried.table("collectives", 0), dried) == real


def test_torchtitans_llama_gathers_its_own_parameters(tmp_path: Path) -> None:
    needs("torchtitan")
    run = dry("torchtitan_llama", tmp_path, world=64)
    calls = run.table("collectives", 0)
    width, hidden, heads, key_heads, tensor = 4096, 14336, 32, 8, 8
    block = width * width * 2 * (heads + key_heads) // heads + 3 * width * hidden
    layers = calls[calls.module.astype("string").str.fullmatch(r"layers\.\d+", na=False)]
    gathers = layers[(layers.op == "all_gather") & (layers.group_size == 8)]
    assert gathers.bytes.tolist() == [2 * (block // tensor + 2 * width)] * 64  # forward and backward, with two norms
    operations = run.table("operations", 0)
    products = operations[operations.work == "matmul"].flops.sum()
    assert products == 6 * 8192 * (32 * block + 128256 * width) // tensor

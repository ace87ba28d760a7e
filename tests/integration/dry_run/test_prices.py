"""`overlapscope dryrun --device`: priced times beside exact columns, and none without a device."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.fork_server import Ended, start

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.dry_run, pytest.mark.xdist_group("training")]

STEP = """
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(device):
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    blocks = [torch.nn.Linear(1024, 1024, device=device, dtype=torch.bfloat16) for _ in range(4)]
    model = torch.nn.Sequential(*blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(65536, 1024, device=device, dtype=torch.bfloat16)

    def step():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
PRICED = ("--device", "h100-sxm", "--links", "8xh100-nvswitch,roce-400")


def dry_run(folder: Path, name: str, *options: str) -> Ended:
    (folder / "train.py").write_text(STEP)
    command = ["-m", "overlapscope.cli.main", "dryrun", "train.py:build", "-o", name, *options]
    (ended,) = start([command], folder=folder).wait(300)
    return ended


def columns(folder: Path, table: str) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = pq.read_table(folder / "rank_00000" / f"{table}.parquet").to_pydict()
    return found


@pytest.mark.slow
def test_a_priced_run_has_the_same_exact_columns_and_priced_times_of_its_own(tmp_path: Path) -> None:
    for name, options in (("plain", ()), ("priced", PRICED)):
        done = dry_run(tmp_path, name, "--world", "64", *options)
        assert done.code == 0, done.output
    assert "a range, no estimate" in done.output
    for table in ("operations", "schedule", "collectives"):
        plain, priced = columns(tmp_path / "plain", table), columns(tmp_path / "priced", table)
        exact = [name for name in plain if not name.startswith("priced_")]
        assert {name: plain[name] for name in exact} == {name: priced[name] for name in exact}
        for name in set(plain) - set(exact):
            assert not any(each is not None for each in plain[name])
            assert any(each is not None for each in priced[name])
    entry = json.loads((tmp_path / "priced" / "run.json").read_text())["ranks"][0]["recorded"]
    assert entry["price"]["ranks"][0]["kind"] == "range"
    assert "price" not in json.loads((tmp_path / "plain" / "run.json").read_text())["ranks"][0]["recorded"]


def test_an_unknown_device_is_refused_before_the_step_runs(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "never", "--world", "8", "--device", "h101", "--links", "8xh100-nvswitch")
    assert done.code == 2
    assert done.output.count("\n") == 1
    assert not (tmp_path / "never").exists()

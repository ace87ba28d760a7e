"""Compressed gradients: what is sent is what torch's own hook sends; its cost is assumed, and said to be."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.whatif.cost.compression import (
    CompressedCollective,
    Compression,
    collectives_ns,
    compressed_collectives,
    parse_compressions,
)
from overlapscope.whatif.cost.curves import curve
from overlapscope.whatif.ddp.buckets import DdpSettings
from overlapscope.whatif.ddp.ddp_step import Settings, buckets_of
from overlapscope.whatif.workload.workload import Gradients, Workload
from tests.conftest import ROOT
from tests.support.fork_server import start

EXAMPLE = str(ROOT / "examples" / "gpt2_8gpu.toml")
TORCH_HOOK = """
import json, os, time, torch
torch.set_num_threads(1)
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook
# In the hook an all-reduce's callback waits for another one: with two buckets both of gloo's threads wait for ever.
options = distributed.ProcessGroupGloo._Options()
options._devices, options._threads = [distributed.ProcessGroupGloo.create_default_device()], 16
distributed.Backend.register_backend(
    "wide", lambda store, rank, size, timeout: distributed.ProcessGroupGloo(store, rank, size, options), devices="cpu")
distributed.init_process_group("wide", store=distributed.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.Flatten(), nn.Linear(1728, 200), nn.LayerNorm(200), nn.Linear(200, 300),
                      nn.Linear(300, 5))
shapes = [list(each.shape) for each in model.parameters()]
ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
sent, real, ready = [], distributed.all_reduce, []
def counted(tensor, *args, **kwargs):
    sent.append(tensor.numel())
    return real(tensor, *args, **kwargs)
hook.dist.all_reduce = counted
state = hook.PowerSGDState(process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
ddp.register_comm_hook(state, hook.powerSGD_hook)
for at, each in enumerate(model.parameters()):
    each.register_post_accumulate_grad_hook(lambda _, at=at: ready.append(at))
for _ in range(4):
    sent.clear(); ready.clear()
    ddp(torch.randn(2, 3, 8, 8)).square().sum().backward()
print(json.dumps({"shapes": shapes, "ready": ready, "sent": sent}), flush=True)
os._exit(0)  # torch aborts where a thread of gloo frees a tensor while the interpreter ends
"""


@pytest.mark.xdist_group("training")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("rank", [2])
def test_powersgd_sends_what_torchs_own_hook_does_for_each_bucket(rank: int) -> None:
    """Three all-reduces a bucket; which of them interleave with other buckets' is the hook's matter."""
    (done,) = start([["-c", TORCH_HOOK.replace("RANK", str(rank))]]).wait(300)
    assert done.code == 0, done.output
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    shapes = [tuple(seen["shapes"][at]) for at in seen["ready"]]
    gradients = Gradients(
        names=tuple(map(str, seen["ready"])),
        sizes_bytes=np.array([4 * int(np.prod(each)) for each in shapes]),
        kinds=(("cpu", "float32"),) * len(shapes),
        ready_ns=np.arange(len(shapes), dtype=np.float64),
        registered=np.array(seen["ready"]),
        shapes=tuple(shapes),
    )
    workload = Workload(world_size=2, forward_ns=0, backward_ns=0, optimizer_ns=0, gradients=gradients)
    buckets = buckets_of(workload, Settings(ddp=DdpSettings(bucket_cap_mb=0.5)))
    assert len(buckets) > 1
    powersgd = Compression(method="powersgd", amount=rank, passes=1)
    ours = [
        one.bytes // 4
        for each in buckets
        for one in compressed_collectives(powersgd, [shapes[at] for at in each.parameters], 4, 2)
    ]
    assert sorted(ours) == sorted(seen["sent"])
    assert sum(ours) < sum(int(np.prod(each)) for each in shapes) / 5


def test_by_hand_matrices_are_compressed_and_what_would_not_shrink_by_half_is_sent_as_it_is() -> None:
    powersgd = Compression(method="powersgd", amount=4, passes=1)
    shapes = [(1000, 500), (64, 3, 3, 3), (700,), (), (16, 16)]
    # 4 (1000 + 500) of 500,000; 4 (64 + 27) 2 = 728 < 1,728; a vector, a number and 4 (16 + 16) 2 = 256 as they are.
    assert [each.bytes for each in compressed_collectives(powersgd, shapes, 2, 8)] == [
        2 * (700 + 1 + 256),
        2 * (4000 + 256),
        2 * (2000 + 108),
    ]
    topk = Compression(method="topk", amount=0.01, passes=1)
    assert compressed_collectives(topk, [(100, 10), (7,)], 2, 8) == [
        CompressedCollective("all_gather", 11 * 8 * 2),
        CompressedCollective("all_gather", 11 * 8 * 4),
    ]


def test_an_all_gather_takes_half_an_all_reduce_and_an_empty_call_its_latency() -> None:
    line = curve("all_reduce", [1, 1 << 10, 1 << 20], np.array([1000.0, 2000.0, 9000.0]), ranks=2, source="made")
    assert collectives_ns(
        [CompressedCollective("all_reduce", 0), CompressedCollective("all_gather", 1 << 20)], line
    ) == pytest.approx(1000 + 4500)


@pytest.mark.parametrize(
    "text", ["", "powersgd", "powersgd:0", "powersgd:1.5", "topk:0", "topk:2", "zip:1", "topk:nan"]
)
def test_other_compressions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--compress"):
        parse_compressions(text)


@pytest.mark.slow
def test_a_plan_shows_them_as_what_changes_numerics_with_wide_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", EXAMPLE, "--bucket-cap-mb", "10", "--no-search"]
    assert main([*arguments, "--json"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--json", "--compress", "powersgd:2,topk:0.01"]) == 0
    answer = json.loads(capsys.readouterr().out)
    plain, added = answer["scenarios"][:-2], answer["scenarios"][-2:]
    assert plain == without["scenarios"]
    assert (answer["verdict"], answer["best"]) == (without["verdict"], without["best"])
    assert [each["knobs"]["hook"] for each in added] == ["PowerSGD rank 2", "top-k 0.01"]
    widest = max(each["high_ns"] - each["low_ns"] for each in plain)
    for each in added:
        assert each["changes_numerics"]
        assert each["low_ns"] < each["predicted_step_ns"] < each["high_ns"]
        assert each["gain_low"] < each["gain"] < each["gain_high"]
        assert each["exposed_comm_ns"] < plain[0]["exposed_comm_ns"]
        assert each["memory_bytes"] >= plain[0]["memory_bytes"] + 4 * 124_000_000
        assert each["high_ns"] - each["low_ns"] > widest / 2
    assert any("accuracy is not predicted" in each for each in answer["reasons"])
    text = Path(EXAMPLE).read_text(encoding="utf-8").replace("memory_gbs", "# memory_gbs")
    (tmp_path / "w.toml").write_text(text, encoding="utf-8")
    assert main(["plan", str(tmp_path / "w.toml"), "--compress", "topk:0.1"]) == 2
    assert "device.memory_gbs" in capsys.readouterr().err

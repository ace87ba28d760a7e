"""A profiler's trace and a flight recorder's dump of the same real calls: joined by order, checked by their times."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from overlapscope.ingest.build.collective_args import dtype_name
from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.ingest.merge.sources import merge_sources
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.facts import Facts
from tests.support.builders import EPOCH_NS
from tests.support.call_logs import Call, log
from tests.support.fork_server import start

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]

TRAINING = """
import sys, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
if not hasattr(c10d, "_dump_fr_trace_json"):
    sys.exit(77)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
layers = [torch.nn.Linear(200, 200) for _ in range(6)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(number):
    model(torch.randn(8, 200)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 3 == 0:
        dist.all_reduce(torch.ones(3 + number))
for number in range(5):
    step(number)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
    for number in range(5, 9):
        step(number)
for number in range(9, 12):
    step(number)
profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
dump = c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False)
open(f"{folder}/dump{rank}.json", "wb").write(dump if isinstance(dump, bytes) else dump.encode())
dist.destroy_process_group()
"""


def dumped(entry: dict[str, Any]) -> Call:
    shape = entry["input_sizes"][0]
    op = canonical_operation(entry["profiling_name"].split(":")[1])
    return Call(
        op,
        math.prod(shape) * (2 if op == "all_gather" else 1),
        dtype_name(entry["input_dtypes"][0]),
        group=entry["process_group"][0],
        seq=entry["collective_seq_id"],
        state=["unknown", "scheduled", "started", "completed"].index(entry["state"]),
        launch=entry["time_created_ns"] - EPOCH_NS,
    )


def test_a_trace_in_mid_run_is_found_in_the_dump_of_the_whole_run(tmp_path: Path) -> None:
    """A call is created after its annotation began, and before that of the next one did."""
    job = start([["-c", TRAINING, str(rank), str(tmp_path)] for rank in range(2)], TORCH_FR_BUFFER_SIZE="2000")
    codes = [each.code for each in job.wait(120)]
    if 77 in codes:
        pytest.skip("this torch writes no flight-recorder dumps of gloo")
    assert codes == [0, 0]
    for rank in range(2):
        run = read_inputs([tmp_path / f"rank{rank}.json"])
        entries = json.loads((tmp_path / f"dump{rank}.json").read_text(encoding="utf-8"))["entries"]
        dump = log([dumped(entry) for entry in entries], rank=rank)
        merged = merge_sources({rank: [run.ranks[rank], dump]}, run.groups, Facts())
        assert merged.notes == ()
        calls = merged.ranks[rank].collectives
        assert calls.seq.size == 4 * 3 + 1
        created = {entry["collective_seq_id"]: entry["time_created_ns"] for entry in entries}
        order = calls.launch_ns.argsort()
        launches = calls.launch_ns[order].tolist()
        found = [created[seq] for seq in calls.seq[order].tolist()]
        for launch, made, following in zip(launches, found, [*launches[1:], math.inf], strict=True):
            assert launch <= made < following

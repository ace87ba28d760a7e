"""One rank of a real job over gloo that dumps its flight recorder in both forms, for the tests.

    python -m tests.integration.jobs.flight_job SCENARIO RANK WORLD_SIZE STORE PREFIX

Writes PREFIX<rank> (pickle, as torch names them) and PREFIX<rank>.json, and ends without a word: a rank that waits in
a collective for ever could not be taken down in order.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

SCENARIO, RANK, WORLD, STORE, PREFIX = sys.argv[1:6]
RANK, WORLD = int(RANK), int(WORLD)
SECONDS = 60
REST_SECONDS = 0.3
"""Where several collectives end at once, the recorder may keep an earlier one as the last that completed, for good."""


def train(steps: int = 3) -> None:
    """Collectives of several kinds, sizes and types, on all ranks and on a pair, with a send that is not recorded."""
    pair = dist.new_group([0, 1], group_desc="pair")
    for step in range(steps):
        dist.all_reduce(torch.ones(100 + step))
        dist.broadcast(torch.ones(7, dtype=torch.int64), src=step % WORLD)
        dist.all_gather([torch.empty(5) for _ in range(WORLD)], torch.ones(5))
        if RANK < 2:
            dist.all_reduce(torch.ones(11, dtype=torch.bfloat16), group=pair)
        if RANK == 0:
            dist.send(torch.ones(3), dst=1)
        elif RANK == 1:
            dist.recv(torch.ones(3), src=0)
    time.sleep(REST_SECONDS)
    dist.barrier()


def status() -> dict[str, dict[str, str]]:
    return json.loads(c10d._dump_fr_trace_json(includeCollectives=False))["pg_status"]


def settled() -> bool:
    """Return whether the recorder has seen that all is done but what waits for ever."""
    waiting = int(SCENARIO == "missing" and RANK != WORLD - 1)
    return all(
        int(last["last_enqueued_collective"]) - int(last["last_completed_collective"])
        == (waiting if group == "0" else 0)
        for group, last in status().items()
    )


def states(text: bytes) -> list[str]:
    return [each["state"] for each in json.loads(text)["entries"]]


def main() -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(STORE, WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    train()
    if SCENARIO == "missing" and RANK != WORLD - 1:
        dist.all_reduce(torch.ones(42), async_op=True)
    end = time.monotonic() + SECONDS
    while not settled() and time.monotonic() < end:
        time.sleep(0.05)
    text, packed = b"", b""
    while time.monotonic() < end:  # an entry's state may change between two dumps
        text, packed, after = c10d._dump_fr_trace_json(), c10d._dump_fr_trace(), c10d._dump_fr_trace_json()
        if states(text) == states(after):
            break
    else:
        os.write(2, f"the recorder did not settle in {SECONDS} s: {status()}\n".encode())
        os._exit(1)
    Path(f"{PREFIX}{RANK}").write_bytes(packed)
    Path(f"{PREFIX}{RANK}.json").write_bytes(text)
    store.set(f"dumped {RANK}", "")
    store.wait([f"dumped {rank}" for rank in range(WORLD)])
    os._exit(0)


if __name__ == "__main__":
    main()

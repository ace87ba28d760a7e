"""Recordings that are killed, for the tests of long recordings: real processes, forked from one that has loaded torch.

    python -m tests.integration.jobs.long_job FOLDER SECONDS... (each at which a recording is killed)

Each recording writes to FOLDER/runN; FOLDER/runN.steps has a line for each step that ended, with its time.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist

import overlapscope

FLUSH_SECONDS = 1.0
AT_ONCE = 4


def record(run: Path) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.zeros(16)
    log = os.open(f"{run}.steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options = {"mode": "events", "warmup": 0, "events_every": 1, "flush_seconds": FLUSH_SECONDS}
    with overlapscope.profile(run, **options) as scope:
        number = 0
        while True:
            with scope.step():
                for _ in range(4):
                    dist.all_reduce(tensor)
                time.sleep(0.002)
            os.write(log, b"%d %d\n" % (number, time.time_ns()))
            number += 1


def many(run: str) -> None:
    """Record 200,000 steps, each one, and print by how many bytes memory grew at most after the first thousand."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.zeros(16)
    grown = before = 0
    with overlapscope.profile(run, mode="events", warmup=0, events_every=1) as scope:
        for number in range(200_000):
            with scope.step():
                dist.all_reduce(tensor)
                dist.all_reduce(tensor)
            if number == 1000:
                before = resident_bytes()
            if number > 1000 and number % 500 == 0:
                grown = max(grown, resident_bytes() - before)
        sys.stdout.write(f"{grown}\n")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main(folder: Path, seconds: list[float]) -> None:
    """Kill each recording after so many seconds of training."""
    for first in range(0, len(seconds), AT_ONCE):
        running = {}
        for number, lasts in list(enumerate(seconds))[first : first + AT_ONCE]:
            process = os.fork()
            if process == 0:
                record(folder / f"run{number}")
            running[process] = (folder / f"run{number}.steps", lasts)
        while running:
            for process, (log, lasts) in list(running.items()):
                if log.exists() and time.time() - log.stat().st_ctime > 0 and _since_first(log) >= lasts:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    del running[process]
            time.sleep(0.003)


def _since_first(log: Path) -> float:
    with log.open() as lines:
        first = lines.readline().split()
    return time.time() - int(first[1]) / 1e9 if len(first) == 2 else 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(each) for each in sys.argv[2:]])

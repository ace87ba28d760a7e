"""Measure what `events` mode costs a job with many small collectives, when it chooses itself which steps it records.

One rank over gloo, on two cores or more: on one core its thread and gloo's take turns, and what capture adds may
change who runs when. Where two ranks wait for each other in each call, how long a step takes is the scheduler's doing,
and a cost of 1 % is lost in it; one rank alone makes the same calls, and shows what they cost.

Blocks of steps with and without capture alternate in one process, and all that happens between steps counts, writing
included. The cost is the mean over pairs of blocks, of the mean of the ranks, with the upper bound of a 95 % interval
of a seeded bootstrap over pairs; on cores it is that of all threads of the processes. The first blocks, in which
capture measures itself, count as much as they do in 2,000 steps.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ((1, 50.0, 60, 5000, 2), (1, 1000.0, 1000, 420, 1))
"""Ranks, milliseconds and collectives of a step, steps with and as many without capture, steps of a block."""
RUN_STEPS = 2000
FACTOR = float(os.environ.get("OVERLAPSCOPE_BENCH_STEPS", "1"))
"""How many times as many steps to run."""
RESAMPLES = 4000


def run(step_ms: float, calls: int, steps: int, size: int, ranks: int) -> list[dict[str, Any]]:
    """Run one job; return each rank's result."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.training.events", folder, folder / "store",
                 *map(str, (rank, ranks, step_ms, calls, steps, size))],
                env=environment, stdout=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit("the job to measure failed")
        return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def cost(ranks: list[dict[str, Any]], clock: str, size: int) -> tuple[float, float, float]:
    """Return the mean cost, its upper bound and the median over pairs of blocks, in percent of a bare step."""
    with_us, bare = (
        np.mean([[block[clock] for block in rank[kind]] for rank in ranks], axis=0) for kind in ("with", "without")
    )
    differences = 100 * (with_us - bare) / bare.mean()
    first = np.array([block["measuring"] for block in ranks[0]["with"]])
    share = min(1.0, first.sum() * size / RUN_STEPS)
    rng = np.random.default_rng(0)
    mean, picks = 0.0, np.zeros(RESAMPLES)
    for part, weight in ((differences[first], share), (differences[~first], 1 - share)):
        if part.size:
            mean += weight * float(part.mean())
            picks += weight * part[rng.integers(0, part.size, (RESAMPLES, part.size))].mean(axis=1)
    return mean, float(np.quantile(picks, 0.975)), float(np.median(differences))


def table() -> str:
    """Run, and return the table."""
    lines = [
        "| ranks | step ms | calls | steps | recorded at last | cost %, mean (95 %: below) | median "
        "| on cores %, mean (below) | host us a recorded call: clock, core |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for world_size, step_ms, calls, steps, size in KINDS:
        number = round(steps * FACTOR)
        ranks = run(step_ms, calls, number, size, world_size)
        bare = np.mean([block["wall_ns"] for rank in ranks for block in rank["without"]]) / size / 1e6
        mean, upper, middle = cost(ranks, "wall_ns", size)
        cpu, cpu_upper, _ = cost(ranks, "cpu_ns", size)
        host = [np.mean([rank[key] for rank in ranks]) for key in ("host_wall_us", "host_cpu_us")]
        lines.append(
            f"| {world_size} | {bare:.1f} | {calls} | {number} | 1 in {ranks[0]['every']} | {mean:+.2f} ({upper:+.2f}) "
            f"| {middle:+.2f} | {cpu:+.2f} ({cpu_upper:+.2f}) | {host[0]:.0f}, {host[1]:.0f} |"
        )
    load = os.getloadavg()[0]
    return "\n".join([*lines, "", f"The machine's load at the end: {load:.1f} on {os.cpu_count()} cores."])


if __name__ == "__main__":
    print(table())

"""Measure what capture costs, and whether its two modes tell the same; part of `make bench`.

A real job of two ranks over gloo (DDP, steps of about 0.3 s) runs blocks of steps without capture, in `events` and in
`trace` mode, turn by turn in one process. The cost of a mode is the difference of a turn's medians, with and without;
given are its median over turns and the 95 % interval of a seeded bootstrap over turns.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

import overlapscope

ROUNDS = int(os.environ.get("OVERLAPSCOPE_BENCH_ROUNDS", "16"))
MODES = ("events", "trace")


def train(folder: Path) -> list[dict[str, list[list[int]]]]:
    """Run the job; give each rank's step times by mode and turn."""
    store = str(folder / "store")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "benchmarks.capture_training", str(folder), store]
    processes = [
        subprocess.Popen([*command, str(rank), str(ROUNDS)], env=environment, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("the job to measure failed")
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Give the median and its 95 % interval."""
    rng = np.random.default_rng(0)
    data = np.asarray(values)
    picks = np.median(data[rng.integers(0, data.size, (4000, data.size))], axis=1)
    low, high = np.quantile(picks, [0.025, 0.975])
    return float(np.median(data)), float(low), float(high)


def exposed_ms(folder: Path, mode: str) -> float:
    """Give the median exposed time over complete steps, ranks and turns."""
    values = []
    for turn in range(ROUNDS):
        for rank in overlapscope.load(folder / f"{mode}{turn}").analysis().ranks:
            values += [
                step.exposed_comm_ns for step in rank.steps if step.complete and step.exposed_comm_ns is not None
            ]
    return median(values) / 1e6


def table() -> str:
    """Run, and give the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ranks = train(folder)
        exposed = {mode: exposed_ms(folder, mode) for mode in MODES}
    base = median(value for rank in ranks for turn in rank["without"] for value in turn)
    lines = [
        "| mode | step ms | cost of capture, % of a step (95 %) | step less its cost, ms | exposed ms |",
        "|---|---|---|---|---|",
        f"| without | {base / 1e6:.1f} | | {base / 1e6:.1f} | |",
    ]
    for mode in MODES:
        step = median(value for rank in ranks for turn in rank[mode] for value in turn)
        costs = [
            median(with_us) - median(without)
            for rank in ranks
            for with_us, without in zip(rank[mode], rank["without"], strict=True)
        ]
        middle, low, high = interval(costs)
        share = [value / base * 100 for value in (middle, low, high)]
        lines.append(
            f"| {mode} | {step / 1e6:.1f} | {share[0]:+.2f} ({share[1]:+.2f} to {share[2]:+.2f}) "
            f"| {(step - middle) / 1e6:.1f} | {exposed[mode]:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

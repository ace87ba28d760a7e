"""Measure what capture costs, and whether its two modes tell the same; part of `make bench`.

A real job of two ranks over gloo (DDP, steps of more than 0.3 s) runs short blocks of steps in one process, with and
without capture, in an order that alternates. Costs are medians (of the mean of the ranks, which wait for each other
every step) with the 95 % interval of a seeded bootstrap. The modes are compared turn by turn: the median over turns of
the ratio of their exposed times.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

import overlapscope
from overlapscope.errors import OverlapScopeError

TURNS = int(os.environ.get("OVERLAPSCOPE_BENCH_TURNS", "16"))
RESAMPLES = 4000
Result = dict[str, Any]


def train(folder: Path) -> list[Result]:
    """Run the job; give each rank's step times."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "benchmarks.training.capture", str(folder), str(folder / "store")]
    processes = [
        subprocess.Popen([*command, str(rank), str(TURNS)], env=environment, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("the job to measure failed")
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval."""
    rng = np.random.default_rng(0)
    data = np.asarray(values)
    picks = np.median(data[rng.integers(0, data.size, (RESAMPLES, data.size))], axis=1)
    low, high = np.quantile(picks, [0.025, 0.975])
    return float(np.median(data)), float(low), float(high)


def medians(ranks: list[Result], mode: str) -> list[float]:
    """Return each turn's median step, as the mean of the ranks."""
    return [fmean(map(median, blocks)) for blocks in zip(*(rank["turns"][mode] for rank in ranks), strict=True)]


def exposed_ns(run: Path) -> dict[tuple[int, int], int]:
    """Return the exposed time of each complete step by (rank, step)."""
    values = {
        (rank.rank, step.step): step.exposed_comm_ns
        for rank in overlapscope.load(run).analysis().ranks
        for step in rank.steps
        if step.complete and step.exposed_comm_ns is not None
    }
    if not values:
        raise OverlapScopeError(f"{run.name} has no complete step")
    return values


def row(name: str, step_ns: float, base_ns: float, costs: tuple[float, float, float], exposed: list[float]) -> str:
    """Return a row of the table."""
    share = [value / base_ns * 100 for value in costs]
    return (
        f"| {name} | {step_ns / 1e6:.1f} | {share[0]:+.2f} ({share[1]:+.2f} to {share[2]:+.2f}) "
        f"| {(step_ns - costs[0]) / 1e6:.1f} | {median(exposed) / 1e6:.2f} |"
    )


def table() -> str:
    """Run, and give the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ranks = train(folder)
        exposed = {
            mode: [fmean(exposed_ns(folder / f"{mode}{turn}").values()) for turn in range(TURNS)]
            for mode in ("events", "trace")
        }
        twice = [
            (events[step], trace[step])
            for turn in range(TURNS)
            for events, trace in [[exposed_ns(folder / f"twice_{mode}{turn}") for mode in ("events", "trace")]]
            for step in events.keys() & trace.keys()
        ]
    lines = [
        "| mode | step ms | cost of capture, % of a step (95 %) | step less its cost, ms | exposed ms |",
        "|---|---|---|---|---|",
    ]
    without = medians(ranks, "without")
    base = median(without)
    lines.append(f"| without | {base / 1e6:.1f} | | {base / 1e6:.1f} | |")
    for mode in ("events", "trace"):
        steps = medians(ranks, mode)
        costs = interval([a - b for a, b in zip(steps, without, strict=True)])
        lines.append(row(mode, median(steps), base, costs, exposed[mode]))
    ratios = interval([e / t for e, t in zip(exposed["events"], exposed["trace"], strict=True)])
    lines.append(
        f"\nExposed in `events` over exposed in `trace`, {TURNS} turns: {ratios[0]:.3f} "
        f"(95 %: {ratios[1]:.3f} to {ratios[2]:.3f})."
    )
    total = sum(events for events, _ in twice) / sum(trace for _, trace in twice)
    each = interval([events / trace for events, trace in twice if trace])
    lines.append(
        f"\nThe same {len(twice)} steps seen in both modes at once: {total:.3f} in sum, {each[0]:.3f} in the "
        f"median step (95 %: {each[1]:.3f} to {each[2]:.3f})."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

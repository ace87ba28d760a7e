"""Load and breakdown of one file against the floor: decompressing it and decoding it into typed events.

The floor (`floor.py` beside the public inputs) leaves arguments raw: the least that any reader does. Both run in
processes of their own, turn by turn on the same file; figures are medians. Seconds are those inside the process,
imports left out, then those of the whole process; memory is the operating system's peak of the process.
"""

import sys
from pathlib import Path
from statistics import median

from benchmarks.inputs import HERE, SHARED, million_events
from benchmarks.processes import run_measured

TURNS = 5
FLOOR = SHARED.parent / "bench" / "floor.py"
OURS = HERE / "load_and_break_down.py"


def table() -> str:
    """Measure, and give a table in markdown; or say what is missing."""
    if not FLOOR.exists():
        return f"not measured: {FLOOR.name} of the public inputs is not here (OVERLAPSCOPE_DATA)"
    return "\n".join(
        [
            "| trace | floor s | ours s | ratio | floor, process s | ours, process s | ratio | floor MiB | ours MiB |",
            "|---|---|---|---|---|---|---|---|---|",
            _row(SHARED / "kineto" / "v100_rank1of2_2020_allreduces.json.gz"),
            _row(million_events()),
        ]
    )


def _row(trace: Path) -> str:
    floor, ours = [], []
    for _ in range(TURNS):
        floor.append(run_measured([sys.executable, FLOOR, trace]))
        ours.append(run_measured([sys.executable, OURS, trace]))
    inside = [median(float(turn.output.split()[0]) for turn in turns) for turns in (floor, ours)]
    process = [median(turn.seconds for turn in turns) for turns in (floor, ours)]
    peak = [median(turn.peak_mib for turn in turns) for turns in (floor, ours)]
    return (
        f"| {trace.name} | {inside[0]:.2f} | {inside[1]:.2f} | **{inside[1] / inside[0]:.2f}** "
        f"| {process[0]:.2f} | {process[1]:.2f} | {process[1] / process[0]:.2f} "
        f"| {peak[0]:.0f} | {peak[1]:.0f} |"
    )


if __name__ == "__main__":
    print(table())

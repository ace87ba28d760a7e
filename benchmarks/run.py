"""Measure reading against the floor; print a table and write it, dated, to RESULTS.md.

The floor (`floor.py` beside the public inputs) decompresses one trace and decodes it into typed events, arguments left
raw: the least that any reader does. Both run in processes of their own, turn by turn on the same file; the figures are
medians. Seconds are those inside the process, imports left out, then those of the whole process; memory is the
operating system's peak of the process.
"""

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import dashboard_speed, nccl_log
from benchmarks.capture import TURNS as TURNS_OF_CAPTURE
from benchmarks.capture import table
from benchmarks.inputs import HERE, SHARED, million_events

TURNS = 5
FLOOR = SHARED.parent / "bench" / "floor.py"
OURS = HERE / "load_and_break_down.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    inside_s: float
    process_s: float
    peak_mib: float


def measure(script: Path, trace: Path) -> Turn:
    """Run one script on one trace in a process of its own."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, str(script), str(trace)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process_s = time.perf_counter() - begin
    if status:
        sys.exit(f"{script} {trace} failed")
    return Turn(inside_s=float(output.split()[0]), process_s=process_s, peak_mib=usage.ru_maxrss / 1024)


def compare(trace: Path) -> str:
    """Give a table row for one trace."""
    floor, ours = [], []
    for _ in range(TURNS):
        floor.append(measure(FLOOR, trace))
        ours.append(measure(OURS, trace))

    def middle(turns: list[Turn], name: str) -> float:
        return statistics.median(getattr(turn, name) for turn in turns)

    inside = [middle(turns, "inside_s") for turns in (floor, ours)]
    process = [middle(turns, "process_s") for turns in (floor, ours)]
    peak = [middle(turns, "peak_mib") for turns in (floor, ours)]
    return (
        f"| {trace.name} | {inside[0]:.2f} | {inside[1]:.2f} | **{inside[1] / inside[0]:.2f}** "
        f"| {process[0]:.2f} | {process[1]:.2f} | {process[1] / process[0]:.2f} "
        f"| {peak[0]:.0f} | {peak[1]:.0f} |"
    )


def main() -> None:
    """Measure all, print, write."""
    if not FLOOR.exists():
        sys.exit(f"{FLOOR} is not here: the public inputs are needed (see OVERLAPSCOPE_DATA)")
    lines = [
        "| trace | floor s | ours s | ratio | floor, process s | ours, process s | ratio | floor MiB | ours MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for trace in (SHARED / "kineto" / "v100_rank1of2_2020_allreduces.json.gz", million_events()):
        lines.append(compare(trace))
        print(lines[-1], flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    packages = ", ".join(f"{name} {version(name)}" for name in ("msgspec", "numpy", "pyarrow"))
    text = (
        f"# Results of `make bench`\n\n{today}, Python {platform.python_version()}, {packages}, {os.cpu_count()} "
        f"shared cores. Load and breakdown of one file against decompressing and decoding it\n(`floor.py`), medians of "
        f"{TURNS} turns, interleaved in one run. Ratios matter, seconds are this machine's.\n\n"
    )
    words = f"""
## Capture

Two ranks of DDP over gloo on these cores, {TURNS_OF_CAPTURE} turns of blocks of 6 steps, modes alternated in one
process; the cost is the median over turns of the difference to the block without us; the 95 % interval is a
bootstrap's over turns. Below, every second step of one row was captured, and each of the others is compared to its
two neighbours.

"""
    print(words, flush=True)
    costs = table()
    print(costs)
    log_words = f"""
## NCCL log

Reading a log of 16 ranks against iterating its lines, medians of {nccl_log.TURNS} turns, interleaved. Memory is the
operating system's peak of the process; it grows with the number of calls.

"""
    print(log_words, flush=True)
    log = nccl_log.table()
    print(log)
    page = "\n" + dashboard_speed.section()
    print(page)
    content = text + "\n".join(lines) + "\n" + words + costs + "\n" + log_words + log + "\n" + page
    (HERE / "RESULTS.md").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

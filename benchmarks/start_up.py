"""How long a user waits for a command that has little to do: `--help`, and `analyze` of a small trace.

Whole processes, medians, with modules compiled once, as an installed package has them; beside them what any Python
program pays, and one that imports numpy.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.inputs import SHARED
from benchmarks.processes import run_measured

TURNS = 11
SMALL = SHARED / "kineto" / "tracelens_mi210_gpu_only.json.gz"


def table() -> str:
    """Measure, and give a table in markdown."""
    commands: dict[str, Sequence[str | Path]] = {
        "`python -c pass`": ["-c", "pass"],
        "`python -c 'import numpy'`": ["-c", "import numpy"],
        "`overlapscope --help`": ["-m", "overlapscope", "--help"],
    }
    if SMALL.exists():
        name = f"`overlapscope analyze` of {SMALL.stat().st_size >> 10} KiB"
        commands[name] = ["-m", "overlapscope", "analyze", SMALL]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(-1, TURNS):
        for name, words in commands.items():
            took = run_measured([sys.executable, *words])
            if turn >= 0:  # the turn before compiles
                seconds[name].append(took.seconds)
    rows = [f"| {name} | {1e3 * median(found):.0f} |" for name, found in seconds.items()]
    return "\n".join([f"| command, median of {TURNS} | ms |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table())

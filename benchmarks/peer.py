"""Load and overlap of the same files by HolisticTraceAnalysis, whose package is now `traceinsight`, and by ours.

Each runs as a whole process, turn by turn, HTA in an environment of its own (made once in benchmarks/.cache). Both must
do what a user asks of them: HTA loads and gives the overlap of each rank; ours is `overlapscope analyze`, which besides
gives steps, causes, collectives, findings and recommendations. `python -m benchmarks.peer` prints the table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.inputs import CACHE, SHARED, eight_ranks, million_events
from benchmarks.processes import Turn, run_measured

PEER = "traceinsight==0.6.1"
PANDAS = "pandas==2.3.3"
TURNS = 3
SCRIPT = Path(__file__).with_name("peer_load_and_overlap.py")
TIMEOUT_S = 900


def peer_python() -> Path:
    """Return the Python of the peer's environment, made if it is not there. Raises RuntimeError when it cannot be."""
    place = CACHE / PEER.replace("==", "-")
    python = place / "bin" / "python"
    ready = place / "ready"
    if not ready.exists():
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        install = [python, "-m", "pip", "install", "-q", PEER, PANDAS]
        try:
            for command in ([sys.executable, "-m", "venv", place], install):
                subprocess.run(command, check=True, timeout=TIMEOUT_S, env=alone)
        except (subprocess.SubprocessError, OSError) as error:
            raise RuntimeError(f"{PEER} could not be installed: {error}") from error
        ready.touch()
    return python


def table() -> str:
    """Measure, and give a table in markdown; or say why it could not be."""
    try:
        python = peer_python()
    except RuntimeError as error:
        return f"not measured: {error}"
    inputs = {
        "1,091,230 events": [million_events()],
        "216,092 events, 2,020 all-reduces": [SHARED / "kineto" / "v100_rank1of2_2020_allreduces.json.gz"],
        "8 ranks of 109,123 events": eight_ranks(),
        "8 short ranks": sorted((SHARED / "kineto" / "megatron_tp8").glob("*.json.gz")),
    }
    rows = [_row(python, name, files) for name, files in inputs.items()]
    return "\n".join(
        [
            f"| traces | {PEER.replace('==', ' ')} s | ours s | times faster | MiB | ours MiB | "
            "overlap of comm, % | ours |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def _row(python: Path, name: str, files: list[Path]) -> str:
    analyze = [sys.executable, "-m", "overlapscope", "analyze", *files]
    peer: list[Turn] = []
    ours: list[Turn] = []
    for _ in range(TURNS):
        peer.append(run_measured([python, SCRIPT, *files]))
        ours.append(run_measured(analyze))
    analysis = run_measured([*analyze, "--json"]).output
    efficiency = [each["whole"]["overlap_efficiency"] for each in json.loads(analysis[analysis.index("{") :])["ranks"]]
    seconds = [median(turn.seconds for turn in turns) for turns in (peer, ours)]
    peaks = [median(turn.peak_mib for turn in turns) for turns in (peer, ours)]
    return (
        f"| {name} | {seconds[0]:.2f} | {seconds[1]:.2f} | **{seconds[0] / seconds[1]:.1f}** | {peaks[0]:.0f} "
        f"| {peaks[1]:.0f} | {peer[-1].output.splitlines()[-1]} "
        f"| {', '.join('n/a' if each is None else f'{100 * each:.2f}' for each in efficiency)} |"
    )


if __name__ == "__main__":
    print(table())

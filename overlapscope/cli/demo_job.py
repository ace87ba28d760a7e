"""Run the demo's training on two real processes of this machine."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from overlapscope.errors import OverlapScopeError, UsageError

WORLD_SIZE = 2
TIMEOUT_SECONDS = 300


def train_and_record(run: Path, *arguments: str) -> None:
    """Train with DDP over gloo, recorded into the run directory `run`; `arguments` as in `demo_training`.

    Raises UsageError when torch is missing, OverlapScopeError when a process fails or does not end in time.
    """
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch, which is not installed: pip install 'overlapscope[torch]'")
    with tempfile.TemporaryDirectory(prefix="overlapscope-demo-") as folder:
        _run(["overlapscope.cli.demo_training", str(run), str(Path(folder) / "store"), str(WORLD_SIZE)], arguments)


def _run(command: list[str], arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command, str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(WORLD_SIZE)
    ]
    failure = ""
    try:
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            if process.returncode and not failure:
                last = output.strip().splitlines()[-1:] or ["no output"]
                failure = f"rank {rank} of the demo ended with code {process.returncode}: {last[0]}"
    except subprocess.TimeoutExpired:
        failure = f"the demo did not end within {TIMEOUT_SECONDS} s"
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if failure:
        raise OverlapScopeError(failure)

"""Run the demo's training on two real processes of this machine."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from overlapscope.errors import OverlapScopeError, UsageError

WORLD_SIZE = 2
TIMEOUT_SECONDS = 300


def train_and_record(folder: Path) -> None:
    """Train with DDP over gloo and leave one torch profiler trace a rank in `folder`.

    Raises UsageError when torch is missing, OverlapScopeError when a process fails or does not end in time.
    """
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch, which is not installed: pip install 'overlapscope[torch]'")
    store = folder / "store"
    command = [sys.executable, "-m", "overlapscope.capture.demo_training", str(folder), str(store), str(WORLD_SIZE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
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
    store.unlink(missing_ok=True)
    if failure:
        raise OverlapScopeError(failure)

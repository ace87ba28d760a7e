"""Starts the job's ranks and gives what they recorded."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.integration.disturbed.network import Network
from tests.integration.disturbed.plan import INTERFACE, WORLD, Recording

SECONDS_TO_START, SECONDS_A_RECORDING = 120, 60


def record(recordings: Sequence[Recording], folder: Path, network: Network | None = None) -> None:
    """Record all, one after the other, in one job whose ranks live in the network's namespaces.

    Raises RuntimeError with what the ranks said when one of them failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps([each.as_json for each in recordings]), encoding="utf-8")
    processes = []
    for rank in range(WORLD):
        inside = ["ip", "netns", "exec", network.ranks[rank]] if network else []
        command = [
            *inside,
            sys.executable,
            "-m",
            "tests.integration.disturbed.job",
            str(rank),
            str(folder / "store"),
            str(folder),
        ]
        said = {"GLOO_SOCKET_IFNAME": INTERFACE if network else "lo", "OMP_NUM_THREADS": "1"}
        said |= {"DISTURBED_HUB": network.hub} if network else {}
        with (folder / f"rank{rank}.log").open("w", encoding="utf-8") as log:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, **said}, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        for process in processes:
            process.wait(SECONDS_TO_START + SECONDS_A_RECORDING * len(recordings))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError("\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("rank*.log"))))

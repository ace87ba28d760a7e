"""A job of several ranks, each in a network namespace of its own: started, waited for, and never left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.disturbed.network import Network
from tests.integration.disturbed.plan import INTERFACE

ROOT = Path(__file__).parents[1]
PATIENCE_S = 900


def run_job(module: str, folder: Path, entries: Sequence[dict[str, Any]], links: Network) -> list[list[dict[str, Any]]]:
    """Run `python -m MODULE RANK FOLDER` on every rank; give what each tells of the entries of FOLDER/plan.json.

    Raises RuntimeError with the first rank's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world_size = len(links.ranks)
    (folder / "plan.json").write_text(json.dumps({"world_size": world_size, "entries": entries}), encoding="utf-8")
    (folder / "store").unlink(missing_ok=True)
    said = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "WHATIF_HUB": links.hub}
    processes = []
    for rank, namespace in enumerate(links.ranks):
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", module, str(rank), str(folder)]
        with (folder / f"rank{rank}.log").open("w", encoding="utf-8") as log:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, **said}, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        for process in processes:
            process.wait(PATIENCE_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError((folder / "rank0.log").read_text(encoding="utf-8")[-2000:])
    return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(world_size)]

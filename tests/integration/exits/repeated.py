"""What must hold in every try, tried 20 times: a killed rank under torchrun, a second profiler. Part of `run_long`."""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.conftest import ROOT
from tests.integration.exits.second_profiler import ORDERS
from tests.integration.test_torchrun import killed
from tests.support.long_results import keep

TRIES = 20


def main() -> None:
    """Try everything; the exit code is 1 if any try failed."""
    held: Counter[str] = Counter()
    for number in range(TRIES):
        for mode in ("events", "trace"):
            with tempfile.TemporaryDirectory() as folder:
                held[f"a killed rank under torchrun, {mode}"] += _held(Path(folder), mode)
        for order in ORDERS:
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "tests.integration.exits.second_profiler",
                    order,
                    str(Path(folder) / "run"),
                ]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120)
                held[f"a second profiler, {order}"] += done.returncode == 0
        sys.stderr.write(f"{number + 1} of {TRIES}: {dict(held)}\n")
    keep("Repeated", "\n".join(f"- {what}: {count} of {TRIES}" for what, count in held.items()))
    sys.exit(any(count < TRIES for count in held.values()))


def _held(folder: Path, mode: str) -> bool:
    try:
        killed(folder, mode)
    except AssertionError as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


if __name__ == "__main__":
    main()

"""What takes more than minutes: run as `python -m tests.run_long`; dated results are kept in tests/LONG.md."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.long_results import keep

HERE = Path(__file__).parent
ROUNDS = 5
MARKED = {
    "Dry runs against real jobs": HERE / "integration" / "dry_run",
    "Seeded changes of dry runs": HERE / "integration" / "structure",
}
"""Folders whose tests marked `long` have a section of their own; those of all others share one."""
PARTS = (
    "tests.integration.disturbed",
    "tests.integration.disturbed.trigger_jobs",
    "tests.integration.dry_run.scale",
    "tests.integration.exits.repeated",
    "tests.property.synthetic.evaluate",
    "tests.property.synthetic.evaluate_job_faults",
    "tests.property.synthetic.fleets",
    "tests.unit.analysis.graph.evaluate_counterfactuals",
    "tests.support.whatif_measured",
)
"""Modules that run a part of their own and keep its section."""


def main() -> None:
    """Run everything; the exit code is that of the first part that failed."""
    codes = [
        properties(),
        *(marked(title, folder) for title, folder in MARKED.items()),
        marked("Marked as long", HERE, *(f"--ignore={folder}" for folder in MARKED.values())),
        *(subprocess.run([sys.executable, "-m", part], cwd=HERE.parent, check=False).returncode for part in PARTS),
    ]
    sys.exit(next((code for code in codes if code), 0))


def marked(title: str, folder: Path, *others: str) -> int:
    """Run what is marked `long` once: variants of training tests that differ little from those of `make test-all`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", str(folder), *others]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1]
    print(f"{title}: {last}", flush=True)
    if done.returncode:
        print(done.stdout)
    keep(title, f"    {last}")
    return done.returncode


def properties() -> int:
    """Run the property tests again and again with other seeds."""
    results = []
    code = 0
    for seed in range(1, ROUNDS + 1):
        chosen = ["-m", "hypothesis", f"--hypothesis-seed={seed}", str(HERE)]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *chosen]
        environment = {**os.environ, "HYPOTHESIS_PROFILE": "explore"}
        done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1]
        print(f"seed {seed}: {last}", flush=True)
        if done.returncode:
            print(done.stdout)
        results.append(f"    seed {seed}: {last}")
        code = code or done.returncode
    keep("Properties, with other seeds", "\n".join(results))
    return code


if __name__ == "__main__":
    main()

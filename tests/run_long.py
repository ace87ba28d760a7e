"""Run the property tests again and again with other seeds, and keep the dated result in tests/LONG.md."""

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = 5
PROPERTIES = (
    "intervals",
    "breakdown",
    "steps",
    "timestamps",
    "innermost",
    "fuzz",
    "chunks",
    "generated",
    "compare",
    "critical_path",
    "buckets",
    "curves",
    "formulas",
    "replay",
    "ddp_step",
    "search",
)


def main() -> None:
    """Run every round; the exit code is that of the first round that failed."""
    files = [str(path) for name in PROPERTIES for path in sorted(HERE.glob(f"test_{name}*.py"))]
    results = []
    code = 0
    for seed in range(1, ROUNDS + 1):
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--hypothesis-seed={seed}", *files]
        environment = {**os.environ, "HYPOTHESIS_PROFILE": "explore"}
        done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1]
        print(f"seed {seed}: {last}", flush=True)
        if done.returncode:
            print(done.stdout)
        results.append(f"    seed {seed}: {last}")
        code = code or done.returncode
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{today}, Python {platform.python_version()}, {os.cpu_count()} cores; {ROUNDS} seeds"
    text = f"# Last result of `make test-long`\n\n{machine}:\n\n" + "\n".join(results) + "\n"
    (HERE / "LONG.md").write_text(text, encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main()

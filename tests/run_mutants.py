"""Change the arithmetic one expression at a time and see whether its tests fail: `python -m tests.run_mutants gate`.

The word chooses the modules of `mutants.toml` whose path contains it; without one, all are run. mutmut makes and runs
the mutants in `build/mutants`, one process at a time. Dated results are kept in MUTANTS.md. A survivor does not fail
the run: read it, and write the test that is missing.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.support.long_results import keep

HERE = Path(__file__).parent
ROOT = HERE.parent
WORK = ROOT / "build" / "mutants"
RESULTS = HERE / "MUTANTS.md"
TITLE = "Last results of `make mutants`"
KILLED = ("killed", "timeout", "segfault", "suspicious")
"""What mutmut calls mutants that a test run noticed: it failed, did not end, crashed, or ended in some other way."""


def main() -> None:
    """Run the chosen modules one after the other."""
    word = sys.argv[1] if sys.argv[1:] else ""
    table: dict[str, list[str]] = tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))
    chosen = {module: tests for module, tests in table.items() if word in module}
    if not chosen:
        sys.exit(f"no module of tests/mutants.toml contains {word!r}; choose one of:\n  " + "\n  ".join(table))
    for module, tests in chosen.items():
        text = run_module(module, tests)
        print(f"{module}: {text}\n", flush=True)
        keep(module, text, RESULTS, TITLE)


def run_module(module: str, tests: list[str]) -> str:
    """Return how many mutants of a module its tests killed, and the change that each survivor makes."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "mutants").mkdir(parents=True)
    for name in ("overlapscope", "tests", "traces", "pyproject.toml"):
        (WORK / name).symlink_to(ROOT / name)
    listed = "\n    ".join(f"tests/{name}" for name in tests)
    (WORK / "setup.cfg").write_text(
        "[mutmut]\nsource_paths=overlapscope\nalso_copy=traces\n"
        f"only_mutate={module}\npytest_add_cli_args_test_selection=\n    {listed}\n",
        encoding="utf-8",
    )
    _mutmut("run", "--max-children", "1")
    found = [line.strip().rsplit(": ", 1) for line in _mutmut("results", "--all", "1").splitlines()]
    counts = Counter(status for _, status in found)
    survivors = [name for name, status in found if status not in KILLED]
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return "\n".join([f"{len(found)} mutants: {summary}. Tests: {', '.join(tests)}.", "", *map(_change, survivors)])


def _change(mutant: str) -> str:
    """Return one line for a survivor: its name, what its lines were, and what they became."""
    diff = [line for line in _mutmut("show", mutant).splitlines() if not line.startswith(("---", "+++"))]
    before, after = (" ".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
    return f"- {mutant.rpartition('.')[2]}: `{before}` -> `{after}`"


def _mutmut(*arguments: str) -> str:
    """Return what a mutmut command printed; exit with it where the command failed."""
    command = [str(Path(sys.executable).parent / "mutmut"), *arguments]
    data = os.environ.get("OVERLAPSCOPE_DATA", str(ROOT.parent / "shared" / "data"))
    environment = os.environ | {"PYTHONPATH": str(WORK / "mutants"), "OVERLAPSCOPE_DATA": data}
    done = subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mutmut {' '.join(arguments)} failed:\n{done.stdout[-8000:]}{done.stderr[-8000:]}")
    return done.stdout


if __name__ == "__main__":
    main()

"""Run tests with the oldest, the usual and the newest versions, and keep what ran.

    python -m tests.run_versions constraints NAME            what pip is to install, one line each
    python -m tests.run_versions run NAME [PYTEST ARGUMENT]  run the tests with this Python and keep the result
    python -m tests.run_versions page                        write docs/versions.md

`make test-versions` calls it for each of CASES. Results are kept in
overlapscope/version_runs.json.
"""

import datetime
import json
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "overlapscope" / "version_runs.json"
PAGE = ROOT / "docs" / "versions.md"
OWN_TEST = "tests/unit/capture/test_versions.py"
"""What compares the kept results with pyproject.toml: it fails until they are kept anew."""
EXTRAS = ("torch", "cluster", "remote")
"""Extras of users; those of contributors are always the newest."""


MODULES = {"nvidia-ml-py": "pynvml"}
"""Modules by the name of their distribution, where it is another."""


class Case(NamedTuple):
    """One environment and its tests."""

    command: str
    title: str
    lowest: tuple[str, ...] | None
    """Distributions of which the lowest version is installed; None for all. Of others the newest is."""
    selected: str
    torch_of: str = "torch"
    """The extra that states the lowest torch."""


CASES = {
    "lowest": Case("make test-lowest", "lowest of all", None, "not long"),
    "torch-oldest": Case("make test-torch", "oldest torch", ("torch",), "torch and not long"),
    "torch-dry-runs": Case(
        "make test-torch", "oldest torch of dry runs", ("torch",), "dry_run and not long", torch_of="dryrun"
    ),
    "pinned": Case("make test-pinned", "constraints.txt", (), "not long"),
    "torch-newest": Case("make test-torch", "newest torch", (), "torch and not long"),
    "python-3.12": Case("make test-pythons", "Python 3.12", (), "not torch and not long"),
    "python-3.13": Case("make test-pythons", "Python 3.13", (), "not torch and not long"),
    "python-3.14": Case("make test-pythons", "newest of all", (), "not long"),
    "hosts": Case("make test-hosts", "frameworks", (), "extras"),
}
HOSTS = {
    "lightning": "PyTorch Lightning",
    "transformers": "transformers",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "torchtitan": "torchtitan",
}
"""Frameworks by the name of their distribution."""
INTRODUCTION = """\
# Versions

Which versions of other software were tried, and how. `overlapscope doctor` prints the rows of the machine it runs on.
Versions are compared up to the minor one: what ran with 2.4.0 counts for 2.4.1. This page is written by
`make test-versions`.

| status | means |
|---|---|
| tested | tests ran with it, and passed |
| read only | tests read real files that it wrote; nothing was recorded beside it |
| untried | followed in its source or documentation, or only expected to work |
"""
UNDER_THE_RUNS = """\
Without a device tests record over gloo. Tests that miss a device, a browser or a public file skip, and so do those of
what a torch does not have: 2.4 opens CUDA streams for FSDP2 on any device, and pipelines of 2.7 hang over gloo.
Dry runs need torch 2.7; what records needs 2.4. Before torch 2.8 `destroy_process_group` can hang where a collective
over gloo has just ended, with and without OverlapScope
([pytorch#154976](https://github.com/pytorch/pytorch/pull/154976)); the tests wait half a second before it.
"""
END = """\
What each reader understands: [sources.md](sources.md); what the hooks of frameworks follow:
[frameworks.md](frameworks.md).
"""


def bounds(torch_of: str = "torch") -> dict[str, str]:
    """Return the lowest version of each dependency of users, from pyproject.toml; torch's of the extra `torch_of`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for extra in (*EXTRAS, torch_of) for each in project["optional-dependencies"][extra]]
    needed = [*project["dependencies"], *extras]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+).*", each).groups() for each in needed)


def constraints(case: Case) -> str:
    """Return the constraints of an environment for pip."""
    return "".join(
        f"{name}=={lowest}\n"
        for name, lowest in bounds(case.torch_of).items()
        if case.lowest is None or name in case.lowest
    )


def run(name: str, arguments: list[str]) -> int:
    """Run the tests of a case, keep what ran and write the page; return pytest's exit code."""
    case = CASES[name]
    command = [sys.executable, "-m", "pytest", "-q", "--dist", "loadgroup", "-m", case.selected, f"--ignore={OWN_TEST}"]
    lines = []
    with subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as pytest:
        for line in pytest.stdout:
            sys.stdout.write(line)
            lines.append(line)
    last = next((line for line in reversed(lines) if " in " in line and re.match(r"[= ]*\d+ \w", line)), "")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", last)}
    if not counts.get("passed"):
        return pytest.returncode or 1
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept[name] = {
        "command": case.command,
        "selected": case.selected,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "passed": counts.get("passed", 0),
        "failed": sum(counts.get(word, 0) for word in ("failed", "error", "errors")),
        "skipped": counts.get("skipped", 0),
        "versions": {
            "Python": platform.python_version(),
            **{each: version(each).partition("+")[0] for each in bounds() if find_spec(MODULES.get(each, each))},
            **{HOSTS[each]: version(each) for each in HOSTS if name == "hosts"},
        },
    }
    KEPT.write_text(json.dumps({each: kept[each] for each in CASES if each in kept}, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return pytest.returncode


def page() -> str:
    """Return docs/versions.md."""
    from overlapscope.version_matrix import ROWS, version_runs  # noqa: PLC0415 - `constraints` needs no packages

    runs = version_runs()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = {"Python": project["requires-python"].removeprefix(">="), **bounds()}
    hosts = {name: "" for run in runs.values() for name in run.versions if name not in needs}
    table = [
        ["", "lowest promised", *(CASES[name].title for name in runs)],
        ["---"] * (2 + len(runs)),
        *(
            [name, lowest, *(run.versions.get(name, "none") for run in runs.values())]
            for name, lowest in {**needs, **hosts}.items()
        ),
        ["tests", "", *(f"`{run.selected}`" for run in runs.values())],
        ["passed, failed, skipped", "", *(f"{run.passed}, {run.failed}, {run.skipped}" for run in runs.values())],
        ["by", "", *(f"`{run.command}`, {run.date}" for run in runs.values())],
    ]
    others = [
        ["software", "versions", "status", "by"],
        ["---"] * 4,
        *([row.software, ", ".join(row.versions) or "others", row.status, row.by] for row in ROWS),
    ]
    return "\n".join(
        [INTRODUCTION, "## Tested\n", _rows(table), UNDER_THE_RUNS, "## Everything else\n", _rows(others), END]
    )


def _rows(table: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    match arguments:
        case ["constraints", name]:
            sys.stdout.write(constraints(CASES[name]))
        case ["run", name, *others]:
            return run(name, others)
        case ["page"]:
            PAGE.write_text(page(), encoding="utf-8")
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

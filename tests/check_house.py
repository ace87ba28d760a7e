"""Fail where a folder of Python files is wider than a person can scan, where pytest looks for no tests in one, or where
a wheel would lack one: `make lint` runs it."""

import fnmatch
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MOST_FILES = 25


def main() -> int:
    """Return 1, and name each folder, where one holds more files than it may."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    counts = Counter(str(file.parent) for file in files)
    wide = {folder: count for folder, count in counts.items() if count > MOST_FILES}
    for folder, count in sorted(wide.items()):
        print(f"{folder}: {count} Python files, at most {MOST_FILES} may be there: make rooms")
    unseen = _unseen(files)
    for folder in unseen:
        print(f"{folder}: pytest looks for no tests there: see norecursedirs in pyproject.toml")
    unlisted = _unlisted(files)
    for package in unlisted:
        print(f"{package}: a wheel would lack it: list it under packages in pyproject.toml")
    return int(bool(wide or unseen or unlisted))


def _unseen(files: list[Path]) -> list[str]:
    """Return the folders with tests below one that pytest does not enter."""
    settings = _tools()["pytest"]["ini_options"]
    folders = {file.parent for file in files if file.name.startswith("test_") and file.parts[0] == "tests"}
    return sorted(
        str(folder)
        for folder in folders
        if any(fnmatch.fnmatch(part, pattern) for part in folder.parts for pattern in settings["norecursedirs"])
    )


def _unlisted(files: list[Path]) -> list[str]:
    """Return the packages that setuptools is not told of."""
    listed, places = _tools()["setuptools"]["packages"], {"overlapscope": "overlapscope"}
    places |= {place: name for name, place in _tools()["setuptools"]["package-dir"].items()}
    there = {
        ".".join((places[file.parts[0]], *file.parent.parts[1:]))
        for file in files
        if file.parts[0] in places and file.name == "__init__.py"
    }
    return sorted(there - set(listed))


def _tools() -> dict[str, Any]:
    tools: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return tools


if __name__ == "__main__":
    sys.exit(main())

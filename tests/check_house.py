"""Fail where a folder of Python files is wider than a person can scan: `make lint` runs it.

`analysis` and `whatif` wait for the dependency graph that rebuilds them, and may shrink only.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_FILES = 25
WIDER = {"overlapscope/analysis": 72, "overlapscope/whatif": 44}


def main() -> int:
    """Return 1, and name each folder, where one holds more files than it may."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    counts = Counter(str(file.parent) for file in files)
    wide = {folder: count for folder, count in counts.items() if count > WIDER.get(folder, MOST_FILES)}
    for folder, count in sorted(wide.items()):
        print(f"{folder}: {count} Python files, at most {WIDER.get(folder, MOST_FILES)} may be there: make rooms")
    return int(bool(wide))


if __name__ == "__main__":
    sys.exit(main())

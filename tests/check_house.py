"""Fail where a folder of Python files is wider than a person can scan: `make lint` runs it."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

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
    return int(bool(wide))


if __name__ == "__main__":
    sys.exit(main())

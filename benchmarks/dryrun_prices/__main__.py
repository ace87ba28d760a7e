"""Print prices of dry runs beside what was measured: published steps, and FSDP2 over gloo.

    python -m benchmarks.dryrun_prices [--runs FOLDER]

Prints Markdown, and writes nothing but dry runs into FOLDER, where they are kept for the next time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.dryrun_prices import gloo, published


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where dry runs are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(published.tables(options.runs or Path(scratch)))
    sys.stdout.write(f"\n## FSDP2 over gloo, from a recorded step of each job\n\n{gloo.table()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

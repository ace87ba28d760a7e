"""What-if against measurement, one shape at one link rate; part of `make test-long`.

All shapes and rates, three times: `python -m benchmarks.whatif_accuracy`. The result is kept in tests/LONG.md; the exit
code is 1 where predictions are off by more than 8 % on the mean.
"""

import sys
import tempfile
from pathlib import Path
from statistics import mean

from benchmarks.whatif_accuracy import LIMITS, RATES_MBIT, WORLD_SIZE, cell, report
from tests.integration.disturbed.network import NotAllowedError, network
from tests.support.long_results import keep


def main() -> int:
    """Record, predict, measure and keep; return the exit code."""
    with tempfile.TemporaryDirectory() as made:
        try:
            with network(WORLD_SIZE) as links:
                found = cell(Path(made), "mlp", RATES_MBIT["mlp"][-1], 1, links)
        except NotAllowedError as error:
            keep("What-if against measurement", f"Not measured: {error}")
            return 0
    text, _ = report([found])
    keep("What-if against measurement", text)
    sys.stdout.write(text)
    return int(mean(abs(row.error) for row in found.rows) > LIMITS["mean error"])


if __name__ == "__main__":
    sys.exit(main())

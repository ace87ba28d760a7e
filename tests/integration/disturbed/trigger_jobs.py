"""Jobs that compute, with a trigger: ten with a rank that is slow for a minute, ten of ten minutes without one.

    python -m tests.integration.disturbed.trigger_jobs

A part of `run_long`: half an hour for the first, an hour for the second, two jobs of two ranks at a time.
"""

import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.integration import test_capture
from tests.support.long_results import keep

JOBS = 10
AT_ONCE = 2
LIMIT_SECONDS = 1200


def recordings(scenario: str) -> list[str] | None:
    """Run a job; return the traces of rank 1, None where the job failed."""
    test_capture.TIMEOUT_SECONDS = LIMIT_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        done = test_capture.train(scenario, Path(folder), module="tests.integration.jobs.training_trigger")
        if any(done.codes):
            sys.stderr.write("\n".join(done.output))
            return None
        return list((done.results[1] or {})["written"])


def main() -> None:
    """Run all; the exit code is 1 where a slow rank was missed, or more than one even job was recorded."""
    counts = {}
    for scenario in ("slowed", "even"):
        found = []
        with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
            for each in pool.map(recordings, [scenario] * JOBS):
                found.append(each)
                sys.stderr.write(f"{scenario}: {'failed' if each is None else each}\n")
        counts[scenario] = sum(bool(each) for each in found)
    lines = [
        f"- a rank 30 % slower for a minute: recorded in {counts['slowed']} of {JOBS} jobs",
        f"- ten minutes without a disturbance: recorded in {counts['even']} of {JOBS} jobs",
    ]
    keep("Trigger", "\n".join(lines))
    sys.exit(counts["slowed"] < JOBS or counts["even"] > 1)


if __name__ == "__main__":
    main()

"""Jobs with a trigger: ten with a rank that is slow for a minute, ten of ten minutes without one.

    python -m tests.integration.disturbed.trigger_jobs

A part of `run_long`: five minutes for the first, twenty for the second, five jobs of two ranks at a time. Each
host sleeps until its step has taken its time, as one that waits for a device does: else what a step takes would be what
the machine's cores can do at that moment, and some change their speed by more than the trigger looks for.
"""

import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.integration import test_capture
from tests.support.long_results import keep

JOBS = 10
AT_ONCE = 5
LIMIT_SECONDS = 1200


def recorded_steps(scenario: str) -> tuple[list[int], int] | None:
    """Run a job; return from which steps rank 1 recorded traces, and from which on it was slow; None if it failed."""
    test_capture.TIMEOUT_SECONDS = LIMIT_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        done = test_capture.train(scenario, Path(folder), module="tests.integration.jobs.training_trigger")
        if any(done.codes):
            sys.stderr.write("\n".join(done.output))
            return None
        result = done.results[1] or {}
        folders = [Path(file).parent.name for file in result["written"]]
        return [int(name.rpartition(".step")[2]) for name in folders], result["slow_from_step"]


def main() -> None:
    """Run all; the exit code is 1 where a slow rank was missed, or more than one even job was recorded."""
    found: dict[str, list[tuple[list[int], int]]] = {"slowed": [], "even": []}
    for scenario, jobs in found.items():
        with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
            for each in pool.map(recorded_steps, [scenario] * JOBS):
                sys.stderr.write(f"{scenario}: {'failed' if each is None else each}\n")
                if each is not None:
                    jobs.append(each)
    seen = sum(any(step >= slow_from for step in steps) for steps, slow_from in found["slowed"])
    before = sum(any(step < slow_from for step in steps) for steps, slow_from in found["slowed"])
    even = sum(bool(steps) for steps, _ in found["even"])
    failed = 2 * JOBS - sum(map(len, found.values()))
    lines = [
        f"Steps of 100 ms, in which hosts compute, and sleep for the rest; {failed} jobs failed.",
        "",
        f"- a rank 30 % slower for a minute: recorded in {seen} of {JOBS} jobs",
        f"- the minute before, without a disturbance: recorded in {before} of these",
        f"- ten minutes without a disturbance: recorded in {even} of {JOBS} jobs",
    ]
    keep("Trigger", "\n".join(lines))
    sys.exit(seen < JOBS or even > 1 or failed > 0)


if __name__ == "__main__":
    main()

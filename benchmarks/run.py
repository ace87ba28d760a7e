"""`make bench`: measure all, or the named parts; print each table, and put it with its date into RESULTS.md.

python -m benchmarks.run [NAME ...]
"""

import os
import sys
from collections.abc import Callable
from types import ModuleType

import msgspec

from benchmarks import capture, dashboard_speed, events, host_events, nccl_log, peer, reading, results, scale, start_up


class Part(msgspec.Struct, frozen=True):
    """One benchmark and what a reader must know of it."""

    title: str
    module: ModuleType
    words: str

    @property
    def table(self) -> Callable[[], str]:
        """What measures."""
        found: Callable[[], str] = self.module.table
        return found


PARTS = {
    "reading": Part(
        "Reading one trace",
        reading,
        f"Load and breakdown of one file against decompressing and decoding it (`floor.py`), medians of "
        f"{reading.TURNS} turns.",
    ),
    "host_events": Part(
        "Host events",
        host_events,
        f"What host events cost a run directory of one trace; processor time, medians of {host_events.TURNS} turns. "
        "That of host events is for making, sorting and writing the tables `host` and `syncs`.",
    ),
    "peer": Part(
        "Beside HolisticTraceAnalysis",
        peer,
        f"Load and overlap of the same files, whole processes, medians of {peer.TURNS} turns; memory is the operating "
        "system's peak of all processes of a command.",
    ),
    "start_up": Part("Start-up", start_up, "Whole processes, taken in turns."),
    "capture": Part(
        "Capture",
        capture,
        f"Two ranks of DDP over gloo on these cores, {capture.TURNS} turns of blocks of 6 steps, modes alternated in "
        "one process; the cost, of a recorded step, is the median over turns of the difference to the block without "
        "us; the 95 % interval is a bootstrap's over turns. What `events` mode costs on average: `events`.",
    ),
    "events": Part(
        "Cost of events mode",
        events,
        "One rank or two over gloo on these cores; blocks of steps with and without capture in turn, writing included. "
        f"Means over {events.RUN_STEPS} steps with the upper bound of their 95 % interval; the first steps, which are "
        "recorded to measure the cost, count as much as they do in so many.",
    ),
    "nccl_log": Part(
        "NCCL log",
        nccl_log,
        f"Reading a log of 16 ranks against iterating its lines, medians of {nccl_log.TURNS} turns. Memory is the "
        "operating system's peak of the process; it grows with the number of calls.",
    ),
    "dashboard": Part(
        "Dashboard",
        dashboard_speed,
        "The timeline in Chromium without a screen, with a new profile each turn, of a run directory and of a trace: "
        f"{dashboard_speed.TURNS} turns of a cold start, {dashboard_speed.WARM} first paints and "
        f"{dashboard_speed.ZOOMS} zooms, each until all is drawn, a chain until its steps stand; medians. Browser and "
        "server share the cores.",
    ),
    "scale": Part(
        "Many ranks",
        scale,
        "Simulated jobs (`tests.property.synthetic`) with one rank that computes more slowly, from run directories: "
        "whole processes, `overlapscope analyze RUN --json`. `again` prints the analysis that was kept in the run.",
    ),
}


def main(names: list[str]) -> None:
    """Measure, print, write."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; there are {', '.join(PARTS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as in an installed package
    for name in names or PARTS:
        part = PARTS[name]
        print(f"## {part.title}\n\n{part.words}\n", flush=True)
        table = part.table()
        print(table, end="\n\n", flush=True)
        results.keep(part.title, name, f"{part.words}\n\n{table}")


if __name__ == "__main__":
    main(sys.argv[1:])

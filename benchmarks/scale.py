"""Measure the analysis of many ranks from a run directory, and what keeping runs saves: `python -m benchmarks.scale`.

Every figure is of a whole process, `overlapscope analyze ... --json`; memory is the operating system's peak of it. The
truths that were planted must be found, or the measurement fails.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.inputs import HERE, million_events
from benchmarks.scale_runs import CULPRIT, HELD_BY, offsets_ns
from overlapscope.timeline.store.read_ahead import available_cores

STEPS: Final = 10
SIZES: Final = ((64, STEPS), (256, STEPS), (1024, STEPS), (256, 4 * STEPS))
"""Ranks and steps."""
TURNS: Final = 3
OFFSETS_WITHIN_NS: Final = 10_000
FILES: Final = 8
"""Trace files of the simulated job that is read again and again."""
MANY: Final = 128
SOME: Final = 17
"""Trace files that are read side by side, and by one process."""
INGEST_TURNS: Final = 5


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What a process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def overlapscope(*words: str | Path) -> Used:
    """Run one command; its output goes nowhere."""
    return _run([sys.executable, "-m", "overlapscope", *map(str, words)])


def _run(command: list[str]) -> Used:
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return Used(
        wall_s=time.perf_counter() - begin,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
    )


def _made(form: str, place: Path, ranks: int, steps: int = STEPS) -> None:
    """Simulate in a process of its own: a measured process's peak begins with its parent's."""
    _run([sys.executable, "-m", "benchmarks.scale_runs", form, str(place), str(ranks), str(steps)])


def check(analysis: dict[str, Any], ranks: int, steps: int) -> str:
    """Return how exactly the planted truths were found; end the measurement where one was not."""
    skew = analysis["skew"]
    named = [(each["rank"], each["held_by"]) for each in skew["stragglers"]]
    if named != [(CULPRIT, HELD_BY)]:
        sys.exit(f"{ranks} ranks: {CULPRIT} was planted ({HELD_BY}), found was {named}")
    errors = np.array([skew["clock_offset_ns"][str(rank)] for rank in range(ranks)]) - offsets_ns(ranks, steps)
    off = float(np.abs(errors - np.median(errors)).max())
    if off > OFFSETS_WITHIN_NS:
        sys.exit(f"{ranks} ranks: a clock's offset is wrong by {off:.0f} ns")
    if skew["unmatched"]:
        sys.exit(f"{ranks} ranks: {skew['unmatched']} calls were not matched")
    for info in analysis["ranks"]:
        for each in (info["whole"], *info["steps"]):
            if sum(each["causes"].values()) != each["exposed_comm_ns"]:
                sys.exit(f"rank {info['rank']}: causes do not sum up to what is exposed")
    return f"rank {CULPRIT}, {HELD_BY}; clocks within {off / 1e3:.1f} us"


def of_ranks(folder: Path) -> list[str]:
    """Return the table of the analysis of run directories."""
    lines = [
        "| ranks | steps | spans | first analysis s | CPU s | peak MiB | ms a rank | found | again s | times as fast |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    used: dict[tuple[int, int], Used] = {}
    for ranks, steps in SIZES:
        place, out = folder / "run", folder / "analysis.json"
        _made("run", place, ranks, steps)
        first = used[ranks, steps] = overlapscope("analyze", place, "--json", "-f", "-o", out)
        found = json.loads(out.read_bytes())
        again = overlapscope("analyze", place, "--json", "-f", "-o", out)
        if json.loads(out.read_bytes()) != found:
            sys.exit(f"{ranks} ranks: the analysis that was kept differs")
        lines.append(
            f"| {ranks} | {steps} | {sum(each['events'] for each in found['sources']):,} | **{first.wall_s:.1f}** "
            f"| {first.cpu_s:.1f} | {first.peak_mib:.0f} | {first.wall_s / ranks * 1e3:.1f} "
            f"| {check(found, ranks, steps)} | {again.wall_s:.2f} | {first.wall_s / again.wall_s:.0f} |"
        )
        print(lines[-1], flush=True)
        shutil.rmtree(place)
    (few, _), *_, (many, _), (same, long) = SIZES
    grown = used[many, STEPS].wall_s / many / (used[few, STEPS].wall_s / few)
    memory = used[same, long].peak_mib / used[same, STEPS].peak_mib
    return [
        *lines,
        "",
        f"A rank of {many} takes {grown:.2f} times what one of {few} takes; {long // STEPS} times the steps take "
        f"{memory:.1f} times the memory.",
    ]


def _middle(*words: str | Path) -> float:
    return statistics.median(overlapscope(*words).wall_s for _ in range(TURNS))


def of_traces(folder: Path) -> list[str]:
    """Return the table of analyses from traces, from the run directory, and from it once more."""
    traces = folder / "traces"
    _made("traces", traces, FILES)
    lines = [
        "| traces | from traces s | from the run s | again s | again, as text s | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    for source in (million_events(), traces):
        run, out = folder / f"of_{source.stem}", folder / "out"
        overlapscope("ingest", source, "-o", run)
        times = [_middle("analyze", source, "--json", "-f", "-o", out)]
        times.append(overlapscope("analyze", run, "--json", "-f", "-o", out).wall_s)
        times.append(_middle("analyze", run, "--json", "-f", "-o", out))
        times.append(_middle("analyze", run, "-f", "-o", out))
        named = source.name if source.is_file() else f"{FILES} simulated ranks"
        shown = " | ".join(f"{each:.2f}" for each in times)
        lines.append(f"| {named} | {shown} | **{times[0] / times[2]:.0f}** |")
        print(lines[-1], flush=True)
    return lines


def _ingested(files: Sequence[Path], workers: int, out: Path) -> float:
    """Return the seconds that ingesting files to a new place takes: an older run would be removed first."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    return overlapscope("ingest", *files, "--workers", str(workers), "-o", out).wall_s


def of_ingest(folder: Path) -> list[str]:
    """Return what reading many files side by side reaches of one file's rate on each core.

    One file's rate is that of one more file among some that one process reads: a command's start is not in it.
    """
    cores = available_cores()
    traces, out = folder / "traces", folder / "run"
    _made("traces", traces, MANY)
    files = sorted(traces.iterdir())
    one, few = (files[:1], 1), (files[:SOME], 1)
    asked = (one, few, (files, cores), few, one)  # before and after: a shared machine is faster at one time than later
    turns = [[_ingested(these, workers, out) for these, workers in asked] for _ in range(INGEST_TURNS)]
    taken = [((a + e) / 2, (b + d) / 2, c) for a, b, c, d, e in turns]
    rates = sorted((some - alone) / (SOME - 1) * MANY / cores / together for alone, some, together in taken)
    alone, some, together = map(statistics.median, zip(*taken, strict=True))
    size = sum(file.stat().st_size for file in files) / len(files) / 1e6
    return [
        f"`ingest --workers {cores}` of {MANY} files of {size:.0f} MB takes {together:.2f} s. One worker takes "
        f"{alone:.2f} s for one, {some:.2f} s for {SOME}, so {(some - alone) / (SOME - 1):.3f} s for each further "
        f"one: **{statistics.median(rates):.0%}** of that rate on each core, in {INGEST_TURNS} turns {rates[0]:.0%} to "
        f"{rates[-1]:.0%}. Times and rate are medians."
    ]


def table() -> str:
    """Measure; give the tables."""
    lines = []
    for part in (of_ranks, of_traces, of_ingest):
        with tempfile.TemporaryDirectory(prefix="overlapscope-scale-") as name:
            lines += [*part(Path(name)), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

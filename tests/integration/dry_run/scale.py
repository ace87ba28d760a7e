"""How long dry runs of a Llama of 70 billion parameters take: `python -m tests.integration.dry_run.scale`.

Each is a process of its own on one core. Times are the processor's, so that what else runs does not count.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.conftest import ROOT
from tests.support.long_results import keep

EXAMPLE = ROOT / "examples" / "llama_70b.py"
STAGES = tuple(range(0, 1024, 128))
WORLDS = (64, 256, 1024, 4096)
ROUNDS = 5
MOST_SECONDS, MOST_PIPELINE_SECONDS, MOST_BYTES, MOST_SPREAD = 60.0, 300.0, 4 << 30, 1.3
CHILD = """
import os, sys, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
time.perf_counter = time.process_time
from overlapscope.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Measured(msgspec.Struct):
    """One dry run: seconds of the processor, of the process and of its parts summed over ranks, and memory."""

    seconds: float
    peak_bytes: int
    build: float
    warm_up: float
    record: float


def measured(function: str, world: int, ranks: tuple[int, ...] = (0,)) -> Measured:
    """Run one dry run on one core and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        words = ["dryrun", f"{EXAMPLE}:{function}", "--world", str(world), "--rank", ",".join(map(str, ranks))]
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words, "-o", str(run)], stdout=subprocess.DEVNULL, cwd=ROOT
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{function} at {world} ranks ended with {child.returncode}")
        recorded = [json.loads(each.read_text())["recorded"]["seconds"] for each in run.rglob("rank.json")]
        assert len(recorded) == len(ranks)
        parts = {name: sum(each[name] for each in recorded) for name in ("build", "warm_up", "record")}
        return Measured(seconds=_processor(used), peak_bytes=used.ru_maxrss << 10, **parts)


def _processor(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def row(name: str, world: int, ranks: int, found: Measured) -> str:
    """Return a row of the table."""
    times = f"{found.seconds:.1f} | {found.build:.1f} | {found.warm_up:.1f} | {found.record:.2f}"
    return f"| {name} | {world:,} | {ranks} | {times} | {found.peak_bytes / (1 << 30):.2f} |"


def main() -> None:
    """Measure, keep the table, and fail where a promise of docs/dryrun.md does not hold."""
    one = measured("build", 1024)
    pipeline = measured("build_pipeline", 1024, STAGES)
    rounds = [{world: measured("build_8_layers", world) for world in WORLDS} for _ in range(ROUNDS)]
    by_world = {world: min((each[world] for each in rounds), key=lambda found: found.record) for world in WORLDS}
    steps = [each.record for each in by_world.values()]
    lines = [
        "One core; seconds of the processor. 80 layers, sequence 8,192 (`examples/llama_70b.py`).",
        f"The least of {ROUNDS} rounds where layers are 8; the step at {WORLDS[0]} to {WORLDS[-1]:,} ranks differs by "
        f"{max(steps) / min(steps) - 1:.0%}.",
        "",
        "| job | ranks of the job | ranks run | all s | building s | warming up s | the step s | GiB |",
        "|---|---|---|---|---|---|---|---|",
        row("FSDP2 and TP8, 80 layers", 1024, 1, one),
        row("8 stages of 10 layers, FSDP2, TP8, 8 micro-batches", 1024, len(STAGES), pipeline),
        *(row("FSDP2 and TP8, 8 layers", world, 1, each) for world, each in by_world.items()),
    ]
    sys.stdout.write("\n".join([*lines, ""]))
    keep("Dry runs of 70 billion parameters", "\n".join(lines))
    held = (
        one.seconds < MOST_SECONDS,
        pipeline.seconds < MOST_PIPELINE_SECONDS,
        max(one.peak_bytes, pipeline.peak_bytes) < MOST_BYTES,
        max(steps) < MOST_SPREAD * min(steps),
    )
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()

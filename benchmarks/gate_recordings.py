"""How often the gate is wrong on real recordings: one job of two ranks over gloo, half of its runs with a true loss.

    python -m benchmarks.gate_recordings record FOLDER --seconds 230   again until it says that all is recorded
    python -m benchmarks.gate_recordings judge FOLDER

Each recording is a launch of its own. A pilot of eight unchanged runs gives a noise floor; then runs without and with a
loss of one to eight times that floor are recorded in turn: on one rank every step begins late, and the other waits. To
judge, sides of three are drawn from them, and twelve other unchanged runs calibrate the floor anew in every trial, as a
user would.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from overlapscope.analysis.compare.compare import common_steps
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.job_step.metrics import metrics
from overlapscope.gate.calibrate import calibrate, noise_bound
from overlapscope.gate.judge import MetricVerdict, judge_metrics
from overlapscope.gate.policy import Policy
from overlapscope.ingest.read_run import read_inputs

PILOT = 8
PAIRS = 24
"""Recordings without a loss, and as many with one."""
MULTIPLES = (1, 2, 3, 4) * 3 + (4, 8) * 6
"""Losses in their order, in floors of the pilot. Later ones are larger: eight runs in a row may not show all the noise
that a machine has."""
SIDE = 3
CALIBRATION = 12
TRIALS = 100
CAUGHT = 0.9
STEP_TIME = "step_time_ns"


def record(folder: Path, seconds: float) -> bool:
    """Record what is lacking, for so long at most; give whether all is there."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PILOT + 2 * PAIRS):
        place = folder / f"run-{number:02d}"
        if (place / "done").exists():
            continue
        if time.monotonic() - began > seconds:
            return False
        loss = 0 if number < PILOT else loss_of(folder, number - PILOT)
        train(place, loss)
        (place / "done").write_text(str(loss), encoding="utf-8")
    return True


def loss_of(folder: Path, number: int) -> int:
    """Return the loss of a recording after the pilot: every second one has one, each multiple in its turn."""
    if number % 2 == 0:
        return 0
    return round(MULTIPLES[number // 2] * pilot_floor(folder))


def pilot_floor(folder: Path) -> float:
    """Return the floor of the step time, between sides of three, that the pilot's runs calibrate."""
    kept = folder / "floor.json"
    if not kept.exists():
        found = calibrate([load(folder / f"run-{at:02d}") for at in range(PILOT)])
        noise = next(each for each in found.metrics if each.name == STEP_TIME)
        policy = Policy()
        floor = noise_bound(noise.deviation, noise.runs - 1, SIDE, SIDE, policy.alpha / len(policy.metrics))
        kept.write_text(json.dumps({"floor_ns": floor, "step_ns": noise.median}), encoding="utf-8")
    floor_ns: float = json.loads(kept.read_text(encoding="utf-8"))["floor_ns"]
    return floor_ns


def train(place: Path, loss_ns: int) -> None:
    """Launch the job once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.gate_training", str(place / "run"), f"{folder}/store"]
        processes = [
            subprocess.Popen([*command, str(rank), str(loss_ns)], env=environment, stdout=subprocess.DEVNULL)
            for rank in range(2)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit("the job to record failed")


def load(place: Path) -> MeasuredRun:
    return measure_run(read_inputs([place / "run"]), place.name)


def judged(
    clean: Sequence[MeasuredRun], lossy: Sequence[MeasuredRun] | None, draw: random.Random, *, floor: bool
) -> list[MetricVerdict]:
    """Draw two sides of three, and the calibration from the rest; without `lossy` both sides are unchanged code.

    Judges as the gate does, but for what it says of causes.
    """
    drawn = draw.sample(clean, len(clean))
    base, others = drawn[:SIDE], drawn[SIDE:]
    if lossy is None:
        candidate, others = others[:SIDE], others[SIDE:]
    else:
        candidate = draw.sample(lossy, SIDE)
    chosen = common_steps(base, candidate)
    found = metrics(*chosen.tables, of_steps=chosen.window == "step")
    return judge_metrics(found, chosen.tables, Policy(), calibrate(others[:CALIBRATION]) if floor else None)


def fails(verdicts: Sequence[MetricVerdict]) -> bool:
    return any(each.gates and each.verdict == "regressed" for each in verdicts)


def report(folder: Path) -> None:
    """Print how often unchanged code fails, and how often each loss is caught."""
    runs = [(load(place.parent), int(place.read_text())) for place in sorted(folder.glob("run-*/done"))][PILOT:]
    clean = [run for run, loss in runs if not loss]
    losses = sorted({loss for _, loss in runs if loss})
    medians = [median(run.steps.figures["window_ns"].max(axis=0).tolist()) for run in clean]
    print(
        f"{time.strftime('%Y-%m-%d')}: {len(runs)} recordings ({len(clean)} unchanged), step of "
        f"{median(medians) / 1e6:.1f} ms, from {min(medians) / 1e6:.1f} to {max(medians) / 1e6:.1f}; "
        f"sides of {SIDE}, {TRIALS} trials a figure"
    )
    for calibrated in (False, True):
        draw = random.Random(7)
        gates = [judged(clean, None, draw, floor=calibrated) for _ in range(TRIALS)]
        floors = {
            each.name: median(one.floor or 0.0 for verdicts in gates for one in verdicts if one.name == each.name)
            for each in gates[0]
            if each.gates
        }
        shown = ", ".join(f"{name} {ns / 1e6:.1f} ms" for name, ns in floors.items())
        word = "calibrated" if calibrated else "not calibrated"
        print(f"{word}: floors {shown}; unchanged code fails in {sum(map(fails, gates))} of {TRIALS}", flush=True)
    caught = {}
    for loss in losses:
        lossy = [run for run, own in runs if own == loss]
        if len(lossy) < SIDE:
            continue
        draw = random.Random(11)
        caught[loss] = sum(fails(judged(clean, lossy, draw, floor=True)) for _ in range(TRIALS))
        print(
            f"  a loss of {loss / 1e6:.1f} ms ({loss / floors[STEP_TIME]:.2f} floors of the step time, "
            f"{loss / median(medians):.0%} of the step), {len(lossy)} recordings: caught in {caught[loss]} of {TRIALS}",
            flush=True,
        )
    print(f"  {smallest_caught(caught)}")


def smallest_caught(caught: dict[int, int]) -> str:
    """Name the smallest loss that is caught often enough, as all larger ones are, and the one below it."""
    sizes = sorted(caught)
    enough = len(sizes)
    while enough and caught[sizes[enough - 1]] >= CAUGHT * TRIALS:
        enough -= 1
    if enough == len(sizes):
        return f"no recorded loss is caught in {CAUGHT:.0%}"
    words = f"smallest loss caught in {CAUGHT:.0%}, with all larger ones: {sizes[enough] / 1e6:.1f} ms"
    if enough == 0:
        return f"{words}, or less: none smaller was recorded"
    below = sizes[enough - 1]
    return f"{words}; of {below / 1e6:.1f} ms, the next one recorded, {caught[below]} of {TRIALS} are"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args()
    if args.action == "record":
        print("all is recorded" if record(args.folder, args.seconds) else "more to record: run this again")
    else:
        report(args.folder)


if __name__ == "__main__":
    main()

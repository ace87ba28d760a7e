"""What-if predictions for FSDP2 against measurement: real jobs over gloo between namespaces with a rate-limited link.

    python -m benchmarks.whatif_fsdp [--keep FOLDER] [--kept-only]

One setting is recorded by `overlapscope.profile(mode="events")`, its others are predicted from that recording alone and
measured in the same job, interleaved, three times. Needs root for namespaces. Prints a table, writes nothing else.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.namespace_job import run_job
from overlapscope.analysis.across import across
from overlapscope.ingest.read import read_inputs
from overlapscope.whatif.graph_answer import Wanted, answer_run
from tests.disturbed.network import network

ROOT = Path(__file__).parents[1]
WORLD_SIZE = 2
RATE_MBIT = 600
ROUNDS, STEPS, RECORDED_STEPS = 3, 3, 8
FOREIGN = 0.05
"""Share of the cores that other programs may have had; what they had more of counts only where nothing else does."""
VARIANTS: tuple[tuple[str, dict[str, Any], float, dict[str, Any]], ...] = (
    ("reshard_after_forward=False", {"reshard_after_forward": False}, 1.0, {"reshard_after_forward": False}),
    ("forward_prefetch=1", {"forward_prefetch": 1}, 1.0, {"forward_prefetch": 1}),
    ("modules_per_group=2", {"modules_per_group": 2}, 1.0, {"modules_per_group": 2}),
    ("half the link", {}, 0.5, {"link_speed": 0.5}),
    ("twice the link", {}, 2.0, {"link_speed": 2.0}),
)
"""Name, what the job is told, share of the link's rate, the knobs of the prediction."""


def table(folder: Path, told: list[list[dict[str, Any]]], rate: float) -> str:
    """Give predictions beside what was measured."""
    run = read_inputs([folder / "runs" / "recorded"])
    answer = answer_run(run, across(run), Wanted(link_speeds=(0.5, 2.0)))
    base = (answer.baseline.measured_step_ns or 0) / 1e6
    lines = [
        f"FSDP2 over gloo, {WORLD_SIZE} ranks, {rate:g} Mbit/s; recorded {base:.1f} ms, replayed with "
        f"{answer.baseline.replay_error or 0:+.1%}; slowdown {answer.interference.slowdown:.2f}",
        "",
        "| setting | measured ms | predicted ms | 90 % interval | error | no change |",
        "|---|---|---|---|---|---|",
    ]
    errors, plain, inside = [], [], []
    for at, (name, _, _, knobs) in enumerate(VARIANTS):
        turns = [
            [rank[1 + turn * len(VARIANTS) + at] for rank in told] for turn in range(len(told[0]) // len(VARIANTS))
        ]
        quiet = [each for each in turns if each[0]["foreign"] <= FOREIGN] or turns
        measured = median(mean(median(rank["seconds"]) for rank in each) for each in quiet)
        row = next((each for each in answer.scenarios if each.knobs == knobs), None)
        if row is None:
            lines.append(f"| {name} | {measured * 1e3:.1f} | not predicted | | | |")
            continue
        predicted = row.predicted_step_ns / 1e9
        errors.append(abs(predicted / measured - 1))
        plain.append(abs(base / 1e3 / measured - 1))
        inside.append(row.low_ns / 1e9 <= measured <= row.high_ns / 1e9)
        lines.append(
            f"| {name} | {measured * 1e3:.1f} | {predicted * 1e3:.1f} | {row.low_ns / 1e6:.1f} .. "
            f"{row.high_ns / 1e6:.1f} | {predicted / measured - 1:+.1%} | {base / 1e3 / measured - 1:+.1%} |"
        )
    foreign = told[0][0]["foreign"]
    if errors:
        lines += [
            "",
            f"mean error {mean(errors):.1%}, largest {max(errors):.1%}; saying that nothing changes is off by "
            f"{mean(plain):.1%}; {sum(inside)} of {len(inside)} inside the interval; while it was recorded "
            f"other programs had {foreign:.0%} of the cores",
        ]
    return "\n".join([*lines, *(f"- {each}" for each in answer.reasons)]) + "\n"


def main() -> int:
    """Measure, or report what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the recording and what was measured")
    parser.add_argument("--kept-only", action="store_true", help="measure nothing")
    parser.add_argument("--rate-mbit", type=float, default=RATE_MBIT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        if not options.kept_only:
            plain: dict[str, Any] = {"settings": {}, "rate_mbit": options.rate_mbit}
            entries = [{**plain, "steps": RECORDED_STEPS, "record": "recorded"}]
            for _ in range(options.rounds):
                entries += [
                    {"settings": settings, "rate_mbit": options.rate_mbit * share, "steps": STEPS}
                    for _, settings, share, _ in VARIANTS
                ]
            with network(WORLD_SIZE) as links:
                told = run_job("benchmarks.whatif_fsdp_training", folder, entries, links)
        told = [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD_SIZE)]
        sys.stdout.write(table(folder, told, options.rate_mbit))
    return 0


if __name__ == "__main__":
    sys.exit(main())

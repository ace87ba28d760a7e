"""What-if predictions for FSDP2 against measurement: real jobs over gloo between namespaces with a rate-limited link.

    python -m benchmarks.whatif_fsdp [--shape NAME] [--rate-mbit N] [--keep FOLDER] [--kept-only]

One setting is recorded by `overlapscope.profile(mode="events")`, its others are predicted from that recording alone and
measured in the same job. All take turns, the recording too: the one of the middle step counts, and the others say how
much a recording differs from the next. Needs root for namespaces. Prints a table, writes nothing else.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.namespace_job import run_job
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.ingest.read_run import read_inputs
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions, predict_graph_run
from tests.integration.disturbed.network import network

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
"""Name, what the job's entry, share of the link's rate, the knobs of the prediction."""


def order_of(rounds: int) -> list[int]:
    """Return the places in `VARIANTS` in the order in which they are run; -1 is the recording."""
    shuffled = random.Random(rounds)
    return [each for _ in range(rounds) for each in shuffled.sample(range(-1, len(VARIANTS)), len(VARIANTS) + 1)]


def table(folder: Path, ranks: list[list[dict[str, Any]]], named: str) -> str:
    """Return predictions beside what was measured."""
    order = order_of(len(ranks[0]) // (len(VARIANTS) + 1))
    runs = [read_inputs([each]) for each in sorted((folder / "runs").iterdir())]
    answers = [predict_graph_run(run, match_and_align(run), ReplayOptions(link_speeds=(0.5, 2.0))) for run in runs]
    answers.sort(key=lambda each: each.baseline.measured_step_ns or 0)
    answer = answers[(len(answers) - 1) // 2]
    base = (answer.baseline.measured_step_ns or 0) / 1e6
    recorded = ", ".join(f"{(each.baseline.measured_step_ns or 0) / 1e6:.1f}" for each in answers)
    lines = [
        f"FSDP2 over gloo, {WORLD_SIZE} ranks, {named}; recorded {recorded} ms, replayed with "
        f"{answer.baseline.replay_error or 0:+.1%}; slowdown {answer.interference.slowdown:.2f}",
        "",
        "| setting | measured ms | predicted ms | 90 % interval | error | no change |",
        "|---|---|---|---|---|---|",
    ]
    errors, plain, inside, widths, all_inside = [], [], [], [], []
    for at, (name, _, _, knobs) in enumerate(VARIANTS):
        turns = [[rank[row] for rank in ranks] for row, place in enumerate(order) if place == at]
        quiet = [each for each in turns if each[0]["foreign"] <= FOREIGN] or turns
        measured = median(mean(median(rank["seconds"]) for rank in each) for each in quiet) * 1e3
        rows = [next((row for row in each.scenarios if row.knobs == knobs), None) for each in answers]
        row = rows[answers.index(answer)]
        if row is None:
            lines.append(f"| {name} | {measured:.1f} | not predicted | | | |")
            continue
        predicted, low, high = (ns / 1e6 for ns in (row.predicted_step_ns, row.low_ns, row.high_ns))
        errors.append(abs(predicted / measured - 1))
        plain.append(abs(base / measured - 1))
        inside.append(low <= measured <= high)
        widths.append((high - low) / predicted)
        all_inside += [each.low_ns / 1e6 <= measured <= each.high_ns / 1e6 for each in rows if each is not None]
        lines.append(
            f"| {name} | {measured:.1f} | {predicted:.1f} | {low:.1f} .. {high:.1f} | "
            f"{predicted / measured - 1:+.1%} | {base / measured - 1:+.1%} |"
        )
    foreign = max(each["foreign"] for each in ranks[0])
    if errors:
        lines += [
            "",
            f"mean error {mean(errors):.1%}, largest {max(errors):.1%}; saying that nothing changes is off by "
            f"{mean(plain):.1%}; {sum(inside)} of {len(inside)} inside the interval, of median width "
            f"{median(widths):.1%}; {sum(all_inside)} of {len(all_inside)} from all recordings; other programs had at "
            f"most {foreign:.0%} of the cores",
        ]
    return "\n".join([*lines, *(f"- {each}" for each in answer.reasons)]) + "\n"


def main() -> int:
    """Measure, or report what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the recording and what was measured")
    parser.add_argument("--kept-only", action="store_true", help="measure nothing")
    parser.add_argument("--shape", choices=("even", "deep", "wide"), default="even")
    parser.add_argument("--rate-mbit", type=float, default=RATE_MBIT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        if not options.kept_only:
            entries = []
            for turn, place in enumerate(order_of(options.rounds)):
                _, settings, share, _ = VARIANTS[place] if place >= 0 else ("", {}, 1.0, {})
                entry = {"shape": options.shape, "settings": settings, "rate_mbit": options.rate_mbit * share}
                record = {"steps": STEPS} if place >= 0 else {"steps": RECORDED_STEPS, "record": f"recorded-{turn}"}
                entries.append({**entry, **record})
            with network(WORLD_SIZE) as links:
                ranks = run_job("benchmarks.whatif_fsdp_training", folder, entries, links)
        ranks = [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD_SIZE)]
        sys.stdout.write(table(folder, ranks, f"{options.shape} at {options.rate_mbit:g} Mbit/s"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

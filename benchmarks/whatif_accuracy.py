"""What-if predictions against measurement: real DDP jobs over gloo between network namespaces with a rate-limited link.

    python -m benchmarks.whatif_accuracy [--small] [--keep FOLDER]

Of each shape at each link rate one setting is recorded by `overlapscope.profile(mode="events")`, and others are
predicted from that recording alone. All are run in one job, interleaved, three times: a machine drifts by some per cent
within minutes, so that the recorded setting takes its turns with the others (the recording of the middle step is the
one that counts), and is run unrecorded, too. Needs root for namespaces. The dated table is written to
benchmarks/WHATIF.md, the exit code is 1 where a limit is missed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.namespace_job import run_job
from overlapscope.ingest.read_run import read_inputs
from overlapscope.whatif.ddp.calibrate import Fit
from overlapscope.whatif.ddp.ddp_predict import predict_ddp, predict_settings
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import HALF, Settings
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.result import Scenario
from tests.integration.disturbed.network import Network, network

ROOT = Path(__file__).parents[1]
WORLD_SIZE = 2
RATES_MBIT = {"mlp": (400, 800), "wide_end": (600, 1200), "convolutions": (300, 600)}
"""Where transfers and compute take about as long, so that settings differ."""
CAPS = {"mlp": (8, 1, 12, 20, 1000), "wide_end": (8, 1, 3, 20, 1000), "convolutions": (8, 1, 3, 20, 1000)}
"""Of each shape, in MiB; the first is recorded."""
ROUNDS = 3
STEPS, RECORDED_STEPS = 3, 10
LIMITS = {"mean error": 0.08, "regret": 0.03, "inside": 0.80, "width": 0.20, "spread": 0.15}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction and what was measured."""

    shape: str
    rate_mbit: float
    setting: str
    measured_ms: float
    again: float
    """(largest - smallest) / median of the three measurements."""
    predicted_ms: float
    low_ms: float
    high_ms: float
    unchanged_ms: float
    """The plain answer: what was recorded."""
    ignoring_ms: float
    """The prediction without interference."""
    recommendable: bool

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One shape at one link rate."""

    rows: list[Row]
    regret: float
    """By how much the recommended cap is measured above the best measured one."""
    said: str


def variants(shape: str, rate: float, base: Settings) -> list[tuple[str, dict[str, Any], Settings]]:
    """Return each setting that is predicted: its name, the job's entry, the replay's settings."""
    recorded, *others = CAPS[shape]
    plain = {"shape": shape, "rate_mbit": rate, "steps": STEPS}

    def entry(**settings: Any) -> dict[str, Any]:
        return {**plain, "settings": {"bucket_cap_mb": recorded, **settings}}

    found = [(f"cap {cap}", entry(bucket_cap_mb=cap), with_cap(base, float(cap))) for cap in others]
    found.append(
        ("2 passes, no_sync", entry(accumulation=2, no_sync=True), replace(base, accumulation=2, no_sync=True))
    )
    found.append(("2 passes", entry(accumulation=2), replace(base, accumulation=2)))
    found.append(("fp16 hook", entry(hook="fp16"), replace(base, communicated=HALF)))
    found.append(("half the link", {**entry(), "rate_mbit": rate / 2}, replace(base, link_speed=0.5)))
    found.append(("twice the link", {**entry(), "rate_mbit": rate * 2}, replace(base, link_speed=2.0)))
    return found


def without_interference(case: RecordedCase) -> RecordedCase:
    """Return the case as if nothing slowed anything: what most simulators assume."""
    none = Fit(slowdown=1.0, low=1.0, high=1.0, identified=True, reason="")
    kept = tuple(each for each in case.assumptions if each.name not in ("transfer_beside_compute", "comm_share"))
    return replace(case, slowdown_fit=none, assumptions=kept)


def cell(folder: Path, shape: str, rate: float, rounds: int, links: Network | None) -> Cell:
    """Record, predict and measure one shape at one link rate; give what the answer said."""
    name = f"{shape}-{rate:g}"
    plain_entry = {"shape": shape, "rate_mbit": rate, "steps": STEPS, "settings": {"bucket_cap_mb": CAPS[shape][0]}}
    all_entries = [*(entry for _, entry, _ in variants(shape, rate, Settings())), plain_entry]
    records = [{**plain_entry, "steps": RECORDED_STEPS, "record": f"{name}-{turn}"} for turn in range(rounds)]
    order = [at for turn in range(rounds) for at in _shuffled(f"{name} {turn}", len(all_entries), turn)]
    entries = [records[at.turn] if at.place is None else all_entries[at.place] for at in order]
    if not _measured(folder, shape, rate):
        assert links is not None
        ranks = run_job("benchmarks.whatif_training", folder / name, entries, links)
        (folder / name / "done").write_text(json.dumps(ranks), encoding="utf-8")
    ranks = json.loads((folder / name / "done").read_text(encoding="utf-8"))
    cases = [ddp_case_of_run(read_inputs([folder / name / "runs" / each["record"]])) for each in records]
    case = sorted(cases, key=lambda each: each.measured[0].step_ns)[(len(cases) - 1) // 2]
    settings = [each for _, _, each in variants(shape, rate, case.baseline)]
    rows = _by_settings(predict_settings(case, settings))
    plain = _by_settings(predict_settings(without_interference(case), settings))
    base_ms = case.measured[0].step_ns / 1e6
    found = []
    for at, (label, _, setting) in enumerate(variants(shape, rate, case.baseline)):
        steps = _steps_ms(ranks, order, at)
        predicted = rows[_key(setting.knobs())]
        found.append(
            Row(
                shape=shape, rate_mbit=rate, setting=label, measured_ms=median(steps),
                again=(max(steps) - min(steps)) / median(steps), predicted_ms=predicted.predicted_step_ns / 1e6,
                low_ms=predicted.low_ns / 1e6, high_ms=predicted.high_ns / 1e6, unchanged_ms=base_ms,
                ignoring_ms=plain[_key(setting.knobs())].predicted_step_ns / 1e6, recommendable=label.startswith("cap"),
            )
        )  # fmt: skip
    foreign = max(each["foreign"] for rank in ranks for each in rank)
    again = sum(each["attempts"] - 1 for each in ranks[0])
    verdict = predict_ddp(case, [float(cap) for cap in CAPS[shape]], search=False)
    unrecorded_ms = median(_steps_ms(ranks, order, len(all_entries) - 1))
    caps = {
        float(CAPS[shape][0]): unrecorded_ms,
        **{float(row.setting[4:]): row.measured_ms for row in found if row.recommendable},
    }
    word = caps[float(verdict.best.knobs["bucket_cap_mb"])] / min(caps.values()) - 1
    how = "measured" if case.slowdown_fit.identified else "assumed"
    said = (
        f"{name}: recorded {base_ms:.1f} ms (unrecorded {unrecorded_ms:.1f} ms), replayed with "
        f"{(verdict.baseline.replay_error or 0):+.1%}, slowdown {case.slowdown_fit.slowdown:.2f} ({how}); "
        f"{verdict.verdict} {verdict.best.knobs}, {word:.1%} above the best measured cap; "
        f"measured again {again} times, others had at most {foreign:.0%} of the cores"
    )
    return Cell(rows=found, regret=word, said=said)


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a job: what is recorded (no place), or one of the entries that are timed."""

    turn: int
    place: int | None


def _shuffled(seed: str, entries: int, turn: int) -> list[_Turn]:
    places: list[int | None] = [None, *range(entries)]
    return [_Turn(turn=turn, place=each) for each in random.Random(seed).sample(places, len(places))]


def _steps_ms(ranks: Sequence[Sequence[dict[str, Any]]], order: Sequence[_Turn], place: int) -> list[float]:
    """Return the step of a timed entry in each of its turns: of each its middle one, mean over ranks."""
    rows = [row for row, each in enumerate(order) if each.place == place]
    return [mean(median(rank[row]["seconds"]) for rank in ranks) * 1e3 for row in rows]


def _measured(folder: Path, shape: str, rate: float) -> bool:
    return (folder / f"{shape}-{rate:g}" / "done").exists()


def _by_settings(rows: Sequence[Scenario]) -> dict[str, Scenario]:
    return {_key(each.knobs): each for each in rows}


def _key(knobs: dict[str, object]) -> str:
    return json.dumps(knobs, sort_keys=True)


def report(cells: Sequence[Cell]) -> tuple[str, bool]:
    """Return the text, and whether every limit is kept."""
    rows = [row for each in cells for row in each.rows]
    errors = [abs(row.error) for row in rows]
    unchanged = [abs(row.unchanged_ms / row.measured_ms - 1) for row in rows]
    ignoring = [abs(row.ignoring_ms / row.measured_ms - 1) for row in rows]
    inside = [row.low_ms <= row.measured_ms <= row.high_ms for row in rows]
    widths = [(row.high_ms - row.low_ms) / row.predicted_ms for row in rows]
    regrets = [each.regret for each in cells]
    spreads = [_spread(each.rows) for each in cells]
    kept = (
        mean(errors) <= LIMITS["mean error"] and max(regrets) <= LIMITS["regret"] and mean(inside) >= LIMITS["inside"]
        and median(widths) < LIMITS["width"] and min(spreads) >= LIMITS["spread"]
        and mean(errors) < min(mean(unchanged), mean(ignoring))
    )  # fmt: skip
    lines = [
        "| shape | link Mbit/s | setting | measured ms | 3 times within | predicted ms | 90 % interval | error | "
        "interference ignored |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.shape} | {row.rate_mbit:g} | {row.setting} | {row.measured_ms:.1f} | {row.again:.0%} | "
            f"{row.predicted_ms:.1f} | {row.low_ms:.1f} .. {row.high_ms:.1f} | {row.error:+.1%} | "
            f"{row.ignoring_ms / row.measured_ms - 1:+.1%} |"
            for row in rows
        ),
        "",
        f"{len(rows)} predictions: mean error {mean(errors):.1%} (largest {max(errors):.1%}); saying that nothing "
        f"changes is off by {mean(unchanged):.1%}, ignoring interference by {mean(ignoring):.1%}. {mean(inside):.0%} "
        f"of measured steps lie inside the 90 % interval, whose median width is {median(widths):.1%} of the step. The "
        f"recommended cap is measured at most {max(regrets):.1%} above the best one (by cell: "
        f"{', '.join(f'{each:.1%}' for each in regrets)}). The best and the worst cap differ by {min(spreads):.0%} at "
        "least.",
        "",
        *(f"- {each.said}" for each in cells),
    ]
    return "\n".join(lines) + "\n", bool(kept)


def _spread(found: Sequence[Row]) -> float:
    caps = [row.measured_ms for row in found if row.recommendable]
    return max(caps) / min(caps) - 1


def main() -> int:
    """Measure all, print and keep the table; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one shape at one rate, measured once; writes no table")
    parser.add_argument("--keep", type=Path, help="folder for recordings; what is there is not measured again")
    parser.add_argument("--kept-only", action="store_true", help="measure nothing: report what the folder holds")
    parser.add_argument("--shape", choices=sorted(CAPS), action="append")
    options = parser.parse_args()
    shapes = options.shape or (["mlp"] if options.small else list(CAPS))
    wanted = [(shape, rate) for shape in shapes for rate in RATES_MBIT[shape][1 if options.small else 0 :]]
    rounds = 1 if options.small else ROUNDS
    if options.kept_only:
        cells = [cell(options.keep, *each, rounds, None) for each in wanted if _measured(options.keep, *each)]
    else:
        cells = []
        with tempfile.TemporaryDirectory() as made, network(WORLD_SIZE) as links:
            for shape, rate in wanted:
                cells.append(cell(options.keep or Path(made), shape, rate, rounds, links))
                print(cells[-1].said, file=sys.stderr, flush=True)
    text, kept = report(cells)
    sys.stdout.write(text)
    if not options.small and not options.shape:
        said = (
            f"# What-if: predicted against measured\n\n{datetime.now(UTC):%Y-%m-%d}, {len(os.sched_getaffinity(0))} "
            f"cores, {WORLD_SIZE} ranks over gloo, a network namespace each, joined by links limited with `tc tbf`.\n\n"
        )
        (ROOT / "benchmarks" / "WHATIF.md").write_text(said + text, encoding="utf-8")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())

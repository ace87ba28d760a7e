"""Judge faults of whole jobs, and their healthy twins: `python -m tests.property.synthetic.evaluate_job_faults`.

A part of `make test-long`. Every job is written as torch.profiler would write it, read, and analyzed. Seeds from
`HELD_OUT` on are not looked at while anything is tuned.
"""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from tests.property.synthetic import Job, simulate, write_kineto
from tests.property.synthetic.evaluate import HELD_OUT, MOST_ABSTAINED, MOST_ACCUSED, RIGHT_OR_ABSTAINED
from tests.property.synthetic.job_faults import EXPECTED, accused, draw, judge
from tests.property.synthetic.judge import ABSTAINED, RIGHT, WRONG
from tests.support.long_results import keep

MOST_NAMED: Final = 3
"""Wrong conclusions that are listed of each fault."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one job and of its healthy twin."""

    kind: str
    seed: int
    verdict: str
    said: str
    accused: str


def verdict_on(kind: str, seed: int) -> Verdict:
    """Draw a job with a fault, and judge what is said of it, and of the same job without."""
    planted = draw(kind, seed)
    verdict, said = judge(planted, analyzed(planted.job))
    return Verdict(kind, seed, verdict, said, accused(planted, analyzed(planted.healthy)))


def analyzed(job: Job) -> Analysis:
    """Return what is said of a job's files."""
    with tempfile.TemporaryDirectory() as folder:
        write_kineto(simulate(job), Path(folder) / "job")
        return analyze_with_advice(read_inputs([Path(folder) / "job"]))


def main() -> None:
    """Judge so many jobs of each kind; keep the result; the exit code says whether what must hold does."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.synthetic.evaluate_job_faults", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--first", type=int, default=HELD_OUT, help="seed of the first job")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=EXPECTED, action="append", help="by default all")
    parser.add_argument("--dry", action="store_true", help="print the result, keep nothing")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.jobs)
    wanted = [(kind, seed) for kind in given.kind or EXPECTED for seed in seeds]
    with ProcessPoolExecutor(given.workers) as pool:
        verdicts = list(pool.map(verdict_on, *zip(*wanted, strict=True), chunksize=4))
    text, holds = report(verdicts)
    print(text)
    if not given.dry:
        keep("Faults of whole jobs", text)
    sys.exit(not holds)


def report(verdicts: Iterable[Verdict]) -> tuple[str, bool]:
    """Return the result as text, and whether what must hold does."""
    by_kind: dict[str, list[Verdict]] = defaultdict(list)
    for each in verdicts:
        by_kind[each.kind].append(each)
    seeds = sorted({each.seed for found in by_kind.values() for each in found})
    lines = [
        "8 or 16 ranks, all recorded, read from Kineto files; drawn from the ranges in "
        f"`tests/property/synthetic/job_faults.py`; seeds {seeds[0]} to {seeds[-1]}. Each job has a twin without the "
        "fault. What must hold of each fault: right or abstained in 95 %, abstained in at most 20 %, at most 1 % of "
        "twins accused.",
        "",
        "| fault | jobs | right | abstained | wrong | twins accused | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    holds = True
    for kind, found in by_kind.items():
        counts = Counter(each.verdict for each in found)
        twins = sum(bool(each.accused) for each in found)
        this = (
            counts[WRONG] <= (1 - RIGHT_OR_ABSTAINED) * len(found)
            and counts[ABSTAINED] <= MOST_ABSTAINED * len(found)
            and twins <= MOST_ACCUSED * len(found)
        )
        holds = holds and this
        lines.append(
            f"| {kind} | {len(found)} | {counts[RIGHT]} | {counts[ABSTAINED]} | {counts[WRONG]} | {twins} | "
            f"{'yes' if this else 'no'} |"
        )
    lines.append("")
    for kind, found in by_kind.items():
        for title, said in (
            ("wrongly", Counter(each.said for each in found if each.verdict == WRONG)),
            ("of its twins", Counter(each.accused for each in found if each.accused)),
        ):
            listed = "; ".join(f"{what} ({count})" for what, count in said.most_common(MOST_NAMED))
            lines += [f"- {kind}, said {title}: {listed}"] if said else []
    return "\n".join(lines).rstrip(), holds


if __name__ == "__main__":
    main()

"""Judge drawn jobs, many at a time: `python -m tests.property.synthetic.evaluate`, a part of `make test-long`.

The seeds from `HELD_OUT` on were not looked at while anything was tuned; the ones below are for that.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import msgspec

from overlapscope.analysis.analyze import analyze
from tests.property.synthetic import run_of, simulate
from tests.property.synthetic.draw import faulty, healthy
from tests.property.synthetic.judge import ABSTAINED, RIGHT, WRONG, accused, judge
from tests.support.long_results import keep

HELD_OUT: Final = 1000
FAULTY, HEALTHY, UNRECORDED = "one fault", "healthy", "fault of a rank that was not recorded"
RIGHT_OR_ABSTAINED, MOST_ABSTAINED, MOST_ACCUSED = 0.95, 0.20, 0.01
"""What must hold."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one job."""

    sort: str
    seed: int
    kind: str
    verdict: str
    named: str
    all_to_blame: bool = False
    """Every recorded rank is: there is nobody to compare them with, and only abstaining is right."""


def verdict_on(sort: str, seed: int) -> Verdict:
    """Draw a job of a sort, simulate and analyze it, and judge what is said of it."""
    drawn = healthy(seed) if sort == HEALTHY else faulty(seed, among_recorded=sort == FAULTY)
    analysis = analyze(run_of(simulate(drawn.job)))
    verdict = judge(drawn, analysis) if sort == FAULTY else WRONG if accused(analysis) else RIGHT
    named = ", ".join(f"rank {each.rank}: {each.held_by}" for each in analysis.skew.stragglers[:3])
    everybody = sort == FAULTY and len(drawn.recorded_culprits) == len(drawn.job.ranks())
    return Verdict(sort, seed, drawn.job.fault.kind, verdict, named, everybody)


def main() -> None:
    """Judge so many jobs of each sort; keep the result; the exit code says whether what must hold does."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.synthetic.evaluate", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--first", type=int, default=HELD_OUT, help="seed of the first job")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print the result, keep nothing")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.jobs)
    wanted = [*((FAULTY, seed) for seed in seeds), *((HEALTHY, seed) for seed in seeds)]
    wanted += [(UNRECORDED, seed) for seed in seeds[: max(1, given.jobs // 4)]]
    with ProcessPoolExecutor(given.workers) as pool:
        verdicts = list(pool.map(verdict_on, *zip(*wanted, strict=True)))
    text, holds = report(verdicts)
    print(text)
    if not given.dry:
        keep("Generated jobs", text)
    sys.exit(not holds)


def report(verdicts: Iterable[Verdict]) -> tuple[str, bool]:
    """Return the result as text, and whether what must hold does."""
    by_sort: dict[str, list[Verdict]] = defaultdict(list)
    for each in verdicts:
        by_sort[each.sort].append(each)
    faulty_ones = Counter(each.verdict for each in by_sort[FAULTY])
    total = max(faulty_ones.total(), 1)
    accused_ones = {sort: [each for each in by_sort[sort] if each.verdict == WRONG] for sort in (HEALTHY, UNRECORDED)}
    alike = sum(each.all_to_blame and each.verdict == ABSTAINED for each in by_sort[FAULTY])
    lines = [
        "64 ranks, at most 16 recorded, drawn from the ranges in `tests/property/synthetic/draw.py`; seeds "
        f"{by_sort[FAULTY][0].seed} to {by_sort[FAULTY][-1].seed}, none of which anything was tuned on.",
        "",
        f"- one fault: {total} jobs, {faulty_ones[RIGHT]} right, {faulty_ones[ABSTAINED]} abstained, "
        f"{faulty_ones[WRONG]} wrong (right or abstained in {1 - faulty_ones[WRONG] / total:.1%}, abstained in "
        f"{faulty_ones[ABSTAINED] / total:.1%})",
        f"- of those abstained, every recorded rank was to blame in {alike}, so that nobody was left to compare with",
        f"- healthy: {len(by_sort[HEALTHY])} jobs, {len(accused_ones[HEALTHY])} accused",
        f"- fault of a rank that was not recorded: {len(by_sort[UNRECORDED])} jobs, {len(accused_ones[UNRECORDED])} in "
        "which somebody recorded was accused",
        "",
        "| fault | jobs | right | abstained | wrong |",
        "|---|---|---|---|---|",
    ]
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for each in by_sort[FAULTY]:
        kinds[each.kind][each.verdict] += 1
    lines += [
        f"| {kind} | {found.total()} | {found[RIGHT]} | {found[ABSTAINED]} | {found[WRONG]} |"
        for kind, found in sorted(kinds.items())
    ]
    lines += [""] + [
        f"    {each.sort}, seed {each.seed}, {each.kind}: {each.named or 'a link or a stage'}"
        for sort in (FAULTY, HEALTHY, UNRECORDED)
        for each in by_sort[sort]
        if each.verdict == WRONG
    ]
    holds = (
        faulty_ones[WRONG] <= (1 - RIGHT_OR_ABSTAINED) * total
        and faulty_ones[ABSTAINED] <= MOST_ABSTAINED * total
        and len(accused_ones[HEALTHY]) <= MOST_ACCUSED * max(len(by_sort[HEALTHY]), 1)
    )
    return "\n".join(lines).rstrip(), holds


if __name__ == "__main__":
    main()

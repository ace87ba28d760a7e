"""What to do next, for each document: commands to type and pages to read."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from overlapscope.analysis.analyze import Analysis
from overlapscope.analysis.compare import ComparedRun, Comparison
from overlapscope.analysis.history import History
from overlapscope.gate.verdict import Gate
from overlapscope.report.advice_text import PAGES, gain
from overlapscope.report.document import Document, comparison_of
from overlapscope.report.text import FINDING_PAGES, page

MOST_PAGES = 6
MOST_ADVISED = 3


class NextStep(NamedTuple):
    """Why, and the command to type or the page to read."""

    words: str
    command: str


def next_steps(document: Document) -> tuple[NextStep, ...]:
    """Give what to do next, the most useful first."""
    comparison = comparison_of(document)
    found: list[NextStep] = []
    if comparison is not None:
        found += _of_comparison(comparison)
        found += _of_gate(document) if isinstance(document, Gate) else ()
        ids = [each.id for each in comparison.findings]
    elif isinstance(document, History):
        return tuple(_of_history(document))
    else:
        assert isinstance(document, Analysis)
        found += _of_analysis(document)
        ids = [each.id for each in document.findings]
    pages = list(dict.fromkeys(page(each) for each in ids))[:MOST_PAGES]
    found += [NextStep("read what the finding means and what helps", f"{FINDING_PAGES}/{each}") for each in pages]
    return tuple(found)


def _of_gate(gate: Gate) -> Iterator[NextStep]:
    blocked = [each for each in gate.mismatches if not each.allowed]
    if blocked:
        keys = " ".join(f"--allow-mismatch {each.key}" for each in blocked)
        yield NextStep(
            "judge all the same, if the runs differ in this on purpose", f"overlapscope gate BASE CAND {keys}"
        )
    if any(each.gates and each.verdict == "inconclusive" for each in gate.metrics):
        yield NextStep(
            "record more runs, four a side are judged among themselves", "overlapscope gate BASE_RUNS/ CAND_RUNS/"
        )
    if any(each.gates and each.calibrated is False for each in gate.metrics):
        yield NextStep("measure the noise of unchanged code", "overlapscope gate --calibrate RUNS/ -o floor.json")


def _of_comparison(comparison: Comparison) -> Iterator[NextStep]:
    if len(comparison.base) == len(comparison.candidate) == 1:
        names = shlex.join([comparison.base[0].name, comparison.candidate[0].name])
        yield NextStep("see every metric, collective and kernel", f"overlapscope compare {names} --all")
    run = _slowest(comparison.candidate)
    if run is not None:
        yield NextStep("look at the candidate's ranks on one clock", _export(run.name))


def _slowest(runs: list[ComparedRun]) -> ComparedRun | None:
    return next((each for each in runs if each.ranks), None)


def _of_history(found: History) -> Iterator[NextStep]:
    if len(found.runs) > 1:
        names = shlex.join([found.runs[-2].name, found.runs[-1].name])
        yield NextStep("see what changed in the last run", f"overlapscope compare {names}")
        yield NextStep("say whether it is more than chance", f"overlapscope gate {names}")


def _of_analysis(analysis: Analysis) -> Iterator[NextStep]:
    paths = list(dict.fromkeys(each.path for each in analysis.sources))
    for each in analysis.recommendations[:MOST_ADVISED]:
        yield NextStep(f"{each.title}{f' ({told})' if (told := gain(each)) else ''}", f"{PAGES}/{each.id}.md")
    if analysis.recommendations and len(paths) == 1:
        yield NextStep("see how to apply and verify that", f"overlapscope advise {shlex.quote(paths[0])}")
    if len(paths) == 1:
        yield NextStep("see every rank, step and collective", f"overlapscope analyze {shlex.quote(paths[0])} --all")
    if len(paths) == 1 and analysis.ranks:
        yield NextStep("look at the ranks on one clock", _export(paths[0]))


def _export(path: str) -> str:
    return f"overlapscope export {shlex.quote(path)} -o trace.perfetto.json.gz"

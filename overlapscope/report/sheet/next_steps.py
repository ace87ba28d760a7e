"""Suggest next steps for each document: commands to type and pages to read."""

from collections.abc import Iterator
from typing import NamedTuple

from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.result import Analysis
from overlapscope.display import shell_words
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import EXPLAIN
from overlapscope.report.sheet.document import Document, comparison_of
from overlapscope.report.text.advice import gain_with_cost
from overlapscope.report.text.analysis import finding_kind

MOST_PAGES = 6
MOST_ADVISED = 3


class NextStep(NamedTuple):
    """The reason, and the command to type or the page to read."""

    words: str
    command: str


def next_steps(document: Document) -> tuple[NextStep, ...]:
    """Return what to do next, the most useful first."""
    comparison = comparison_of(document)
    found: list[NextStep] = []
    if comparison is not None:
        found += _of_comparison(comparison)
        found += _of_gate(document) if isinstance(document, Gate) else ()
        ids = [each.id for each in comparison.findings]
    elif isinstance(document, History):
        return tuple(_of_history(document))
    elif isinstance(document, Scaling):
        return tuple(_of_scaling(document))
    else:
        assert isinstance(document, Analysis)
        found += _of_analysis(document)
        ids = [each.id for each in document.findings]
    kinds = list(dict.fromkeys(map(finding_kind, ids)))
    first, more = kinds[:MOST_PAGES], kinds[MOST_PAGES:]
    found += [NextStep("read what the finding means and what helps", f"{EXPLAIN} {each}") for each in first]
    found += [NextStep("read what the other findings mean", f"{EXPLAIN} {' '.join(more)}")] if more else []
    return tuple(found)


def _of_gate(gate: Gate) -> Iterator[NextStep]:
    blocked = [each for each in gate.mismatches if not each.allowed]
    if blocked:
        keys = " ".join(f"--allow-mismatch {each.key}" for each in blocked)
        yield NextStep(
            "judge the runs anyway, if they differ in this on purpose", f"overlapscope gate BASE CAND {keys}"
        )
    if any(each.gates and each.verdict == "inconclusive" for each in gate.metrics):
        yield NextStep(
            "record more runs: from four a side on, runs are tested against runs",
            "overlapscope gate BASE_RUNS/ CAND_RUNS/",
        )
    if any(each.gates and each.calibrated is False for each in gate.metrics):
        yield NextStep("measure the noise of unchanged code", "overlapscope gate --calibrate RUNS/ -o floor.json")


def _of_comparison(comparison: Comparison) -> Iterator[NextStep]:
    if len(comparison.base) == len(comparison.candidate) == 1:
        names = shell_words([comparison.base[0].name, comparison.candidate[0].name])
        yield NextStep("see every metric, collective and kernel", f"overlapscope compare {names} --all")
    run = next((each for each in comparison.candidate if each.ranks), None)
    if run is not None:
        yield NextStep("view the candidate's ranks on one timeline in Perfetto", _export(run.name))


def _of_history(found: History) -> Iterator[NextStep]:
    if len(found.runs) > 1:
        names = shell_words([found.runs[-2].name, found.runs[-1].name])
        yield NextStep("see what changed in the last run", f"overlapscope compare {names}")
        yield NextStep("test whether the change is larger than the noise", f"overlapscope gate {names}")


def _of_scaling(found: Scaling) -> Iterator[NextStep]:
    first, last = found.points[0].runs, found.points[-1].runs
    if len(first) == len(last) == 1:
        yield NextStep(
            "see what differs, by collective and cause", f"overlapscope compare {shell_words([*first, *last])}"
        )
    if last:
        yield NextStep(
            "see why communication is exposed in the largest", f"overlapscope analyze {shell_words([last[0]])}"
        )


def _of_analysis(analysis: Analysis) -> Iterator[NextStep]:
    paths = list(dict.fromkeys(each.path for each in analysis.sources))
    path = paths[0] if len(paths) == 1 else "RUN"
    run = shell_words([path])
    for each in analysis.recommendations[:MOST_ADVISED]:
        yield NextStep(
            f"{each.title}{f' ({saved})' if (saved := gain_with_cost(each)) else ''}", f"{EXPLAIN} {each.id}"
        )
    if not analysis.ranks:
        return
    if analysis.recommendations:
        yield NextStep("see how to apply and verify that", f"overlapscope advise {run}")
    elif analysis.skew.stragglers:
        rank = analysis.skew.stragglers[0].rank
        yield NextStep(
            f"find the cause of straggler rank {rank}: it comes before settings of communication",
            f"{EXPLAIN} straggler",
        )
    else:
        yield NextStep("see whether other settings would save time", f"overlapscope advise {run}")
    yield NextStep("see every rank, step and collective", f"overlapscope analyze {run} --all")
    yield NextStep("view the ranks on one timeline in Perfetto", _export(path))


def _export(path: str) -> str:
    return f"overlapscope export {shell_words([path])} -o trace.perfetto.json.gz"

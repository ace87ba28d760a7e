"""Render a document as JUnit XML, which every CI service reads: one test case per metric."""

from collections.abc import Iterator
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.history import History
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.job_step.metrics import METRICS
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.structure.kinds import KINDS
from overlapscope.gate.policy import GATING
from overlapscope.gate.verdict import Gate
from overlapscope.report.formatting import change, inert, ms, percent, with_unit
from overlapscope.report.rank_columns import RATIOS, rank_figures
from overlapscope.report.sheet.document import Document
from overlapscope.report.sheet.gate import budget_words, failed_changes, grown_table, headline, label, metric_words
from overlapscope.report.text.structure import change_words

CaseOutcome = Literal["passed", "failure", "error", "skipped"]
_COUNTED: dict[CaseOutcome, str] = {"failure": "failures", "error": "errors", "skipped": "skipped"}


class _Case(NamedTuple):
    name: str
    outcome: CaseOutcome
    words: str


def render(document: Document) -> str:
    """Return the XML, ending in a newline. It has no time stamps: the same input results in the same bytes."""
    suite = f"overlapscope.{document.schema_.removeprefix('overlapscope.').partition('/')[0]}"
    cases = list(_cases(document))
    root = ElementTree.Element("testsuites", name="overlapscope")
    counts = {"tests": str(len(cases))}
    counts |= {word: str(sum(each.outcome == outcome for each in cases)) for outcome, word in _COUNTED.items()}
    found = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for each in cases:
        case = ElementTree.SubElement(found, "testcase", classname=suite, name=_plain(each.name))
        if each.outcome == "passed":
            ElementTree.SubElement(case, "system-out").text = _plain(each.words)
        else:
            first = each.words.partition("\n")[0]
            node = ElementTree.SubElement(case, each.outcome, message=_plain(first))
            if each.outcome != "skipped":
                node.set("type", each.outcome)
                node.text = _plain(each.words)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _plain(text: str) -> str:
    """Return text without characters that XML forbids even when escaped: control characters and lone surrogates."""
    return inert(text)


def _cases(document: Document) -> Iterator[_Case]:
    if isinstance(document, Gate):
        return _of_gate(document)
    if isinstance(document, History):
        return _of_history(document)
    if isinstance(document, Scaling):
        return _of_scaling(document)
    return _of_comparison(document) if isinstance(document, Comparison) else _of_analysis(document)


def _of_gate(gate: Gate) -> Iterator[_Case]:
    """Yield a case per metric and budget; only gating metrics fail, undecided ones are errors if they fail the gate."""
    if gate.verdict == "not_comparable":
        yield _Case("comparable", "error", headline(gate))
    grown = [" ".join(row) for row in grown_table(gate.comparison).rows]
    yield from _of_changes(gate)
    for each in gate.metrics:
        outcome: CaseOutcome = "passed"
        if each.gates and each.verdict == "regressed":
            outcome = "failure"
        elif each.gates and each.verdict in ("inconclusive", "not_applicable"):
            outcome = "error" if gate.exit_code not in (0, 1) else "skipped"
        elif each.verdict == "not_applicable":
            outcome = "skipped"
        words = f"{each.verdict}: {metric_words(each)}"
        detail = ["", "what grew, ms: base, candidate, difference", *grown] if outcome == "failure" and grown else []
        yield _Case(each.name, outcome, "\n".join([words, *detail]))
    for budget in gate.budgets:
        outcome = "error" if budget.kept is None else "passed" if budget.kept else "failure"
        yield _Case(f"budget of {budget.name}", outcome, budget_words(budget))


def _of_changes(gate: Gate) -> Iterator[_Case]:
    """Yield a case per kind of difference between dry runs that is worse, which fails where one of them does."""
    structure = gate.comparison.structure
    if structure is None:
        return
    failed = failed_changes(gate)
    for kind, its in KINDS.items():
        own = [change_words(each) for each in failed if each.kind == kind]
        if its.worse or own:
            yield _Case(f"structure {kind}", "failure" if own else "passed", "\n".join(own) or "none")


def _of_comparison(comparison: Comparison) -> Iterator[_Case]:
    for each in comparison.metrics:
        values = f"{with_unit(each.base.value, each.unit)} to {with_unit(each.candidate.value, each.unit)}"
        words = f"{label(each.name)}: {values}, {change(each.difference, each.unit)}"
        yield _Case(each.name, "skipped" if each.difference is None else "passed", words)


def _of_history(history: History) -> Iterator[_Case]:
    units = {each.name: each.unit for each in METRICS}
    for each in history.runs:
        for name in GATING:
            value = each.values[name]
            words = f"{label(name)}: {with_unit(value, units[name])}"
            yield _Case(f"run {each.name} {name}", "skipped" if value is None else "passed", words)


def _of_scaling(found: Scaling) -> Iterator[_Case]:
    for each in found.points:
        words = f"step {ms(each.step_ns)} ms, ideal {ms(each.ideal_ns)} ms: {percent(each.efficiency)} efficiency"
        yield _Case(f"{each.world_size} ranks", "passed", words)


def _of_analysis(analysis: Analysis) -> Iterator[_Case]:
    mean = analysis.mean_step
    for info in analysis.ranks:
        for name, value in rank_figures(info, mean).items():
            words = f"{label(name)}: {with_unit(value, 'ratio' if name in RATIOS else 'ns')}"
            yield _Case(f"rank {info.rank} {name}", "skipped" if value is None else "passed", words)

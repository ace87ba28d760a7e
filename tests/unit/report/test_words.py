"""What users read is written in the words of the field: reports, `--help`, documentation and dashboard."""

import ast
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.compare.compare import Comparison
from overlapscope.analysis.compare.scaling import Scaling
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import Analysis
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.cli.main import main
from overlapscope.gate.verdict import Gate
from overlapscope.report.formats import html, markdown
from overlapscope.report.sheet import gate_text, scaling
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.document import Document
from overlapscope.report.text import analysis as analysis_text
from overlapscope.report.text import compare as compare_text
from overlapscope.report.text.cross_rank import WORDS
from overlapscope.report.text.main_sentences import share_text
from tests.conftest import ROOT
from tests.unit.report.test_report import documents

INSTEAD: dict[str, str] = {
    r"(held|hold|holds|holding) (the )?others up|held up by|the rank waited for|last rank": "straggler, late rank",
    r"had not given it more to do": "launch-bound (GPU idle, waiting for kernel launches)",
    r"waiting told from|told from transferring": "separate wait time from transfer time",
    r"hidden|hides": "overlapped, exposed",
    r"unknown dimension": "DP, TP, PP, EP, CP",
    r"among equals by chance": "p = 0.0002",
    r"a prior( stands)?": "could not be measured; assumed 1.3x",
    r"durations hold waiting": "Durations include time spent waiting for stragglers.",
    r"nothing ties": "Ranks that share no collective are not compared.",
    r"no setting helps": "no setting of communication shortens it",
    r"recording of kind": "not recognised as DDP",
    r"capture +not measured": "not measurable (needs 17 steps after warm-up, and some that are not recorded)",
    r"exact times stand|a click keeps": "Hover for details, click to pin.",
    r"rooms of the house|imports upward": "Package layers; none imports a higher one.",
    r"(copy|copies) only": "memcpy only",
    r"held by": "host stall, GIL, garbage collection pause",
}
"""Phrases that users should not read (regular expressions, matched as whole words), and what to write instead."""
VERBS = sorted(each.stem for each in (ROOT / "overlapscope/cli/verbs").glob("*.py") if each.stem != "__init__")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DASHBOARD = sorted((ROOT / "dashboards").rglob("*.py"))


def misused(text: str) -> list[str]:
    """Return each phrase of `INSTEAD` that a text has, with what to write instead."""
    found = []
    for phrase, instead in INSTEAD.items():
        for match in re.finditer(rf"(?<![\w.])(?:{phrase})(?!\w)", " ".join(text.split()), re.IGNORECASE):
            found.append(f"{match[0]!r}: write {instead!r}")
    return sorted(set(found))


def text_of(document: Document) -> str:
    """Return what a terminal shows of a document, long lists uncut; empty for a history, which has no text."""
    match document:
        case Analysis():
            return analysis_text.render(document, all_rows=True) + analysis_text.render(document)
        case Comparison():
            return compare_text.render(document, all_rows=True) + compare_text.render(document)
        case Gate():
            return gate_text.render(document)
        case Scaling():
            return scaling.render(document)
        case _:
            return ""


def visible(page: str) -> str:
    """Return what a browser shows of an HTML page: no style, no script, no tags."""
    return unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.DOTALL)))


def prose(page: str) -> str:
    """Return a Markdown page without code: fields and commands keep their names, but quoted output is read."""
    page = re.sub(r"^ *```(?!text|console)\w+\n.*?^ *```$", " ", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", " ", page)


def sentences(source: str) -> Iterator[str]:
    """Yield the string constants of a Python file that have several words and are no docstrings."""
    tree = ast.parse(source)
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in docstrings:
            yield from [each.value] if " " in each.value.strip() else []


def check(where: object, *texts: str) -> None:
    """Fail with the place and its phrases where a text has any."""
    found = sorted({each for text in texts for each in misused(text)})
    assert not found, f"{where}: {'; '.join(found)}"


def test_phrases_are_found_in_text_and_names_of_fields_are_not() -> None:
    assert len(misused("Rank 1 held the others\nup; 3 ms is hidden.")) == 2
    assert misused("`hidden_wait_ns`, held_by, apples prioritised") == []
    assert misused(prose("`hidden`\n```python\nhidden\n```\n")) == []
    assert len(misused(prose("```text\nhidden\n```\n"))) == 1
    assert list(sentences('"""hides"""\na = "hidden ms"\nb = "hidden"\n')) == ["hidden ms"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "comparison", "gate", "history", "scaling"])
def test_reports_use_the_words_of_the_field(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    document = documents()[kind]
    page = unescape(markdown.render(sheet_of(document)))
    check(f"report of a {kind}", text_of(document), visible(html.render(document)), page)


def test_labels_use_the_words_of_the_field() -> None:
    check("causes of exposed time", *(f"{each.label}; {each.description}" for each in CAUSES.values()))
    check("causes of stragglers", *STRAGGLER_CAUSES.values())
    check("evidence on stragglers", *WORDS.values())


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_uses_the_words_of_the_field(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*filter(None, [verb]), "--help"])
    check(f"overlapscope {verb} --help", capsys.readouterr().out)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documentation_uses_the_words_of_the_field(page: Path) -> None:
    check(page.relative_to(ROOT), prose(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", DASHBOARD, ids=lambda module: str(module.relative_to(ROOT)))
def test_the_dashboard_uses_the_words_of_the_field(module: Path) -> None:
    check(module.relative_to(ROOT), *sentences(module.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("exposed_ns", "words"),
    [
        (20, "20.0 %"),
        (22, "median share 20.0 %"),
        (None, "n/a"),
    ],
)
def test_a_share_that_the_shown_times_do_not_divide_to_says_what_it_is(exposed_ns: int | None, words: str) -> None:
    fraction = None if exposed_ns is None else 0.2
    head = Headline(step_ns=100, exposed_comm_ns=exposed_ns, exposed_fraction=fraction)
    assert share_text(head) == words

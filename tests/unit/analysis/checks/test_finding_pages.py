"""Every kind of finding and every recommendation has a page, and every page stands in its folder's index.

A finding's kind is its id up to the first colon. To satisfy these tests after adding a `Finding(id="new_kind:...")`,
write `docs/findings/new_kind.md` with the three parts that the other pages have, and its line in the README beside it;
likewise `docs/advice/new_id.md` after adding a recommendation.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from overlapscope.advice.replayed_settings import scenario_recommendation
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.cli.main import main
from overlapscope.report.text.analysis import finding_kind, render
from overlapscope.timeline.run import Run
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "findings"
PAGES = {file.stem: file for file in sorted(FOLDER.glob("[a-z]*.md"))}
ADVICE = {file.stem: file for file in sorted((ROOT / "docs" / "advice").glob("[a-z]*.md"))}
OF_SKEW = {"straggler"}
"""What `skew` holds and the text names is no finding, and has a page all the same."""
PARTS = ("# `", "**How it is found.**", "**What to do next.**")


def kinds_in_source() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield (place, pattern of the kind) of each `Finding(...)`; what is put in at run time may be anything."""
    for file in sorted((ROOT / "overlapscope").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if f"{Finding.__name__}(" not in text:  # parsing takes long
            continue
        for node in ast.walk(ast.parse(text)):
            called = getattr(node, "func", None)
            if (
                not isinstance(node, ast.Call)
                or getattr(called, "id", getattr(called, "attr", None)) != Finding.__name__
            ):
                continue
            given = next((each.value for each in node.keywords if each.arg == "id"), None)
            assert given is not None, f"{file.name}:{node.lineno}: give the id by its name"
            yield f"{file.name}:{node.lineno}", re.compile(pattern_of(given))


def ids_of_recommendations() -> set[str]:
    """Return every id written in `overlapscope/advice`: `id="..."` or a constant of the same file, or what a function
    that takes it third is given."""
    ids = set()
    for file in sorted((ROOT / "overlapscope" / "advice").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        constants = {
            getattr(each.target, "id", ""): each.value for each in tree.body if isinstance(each, ast.AnnAssign)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            named = [each.value for each in node.keywords if each.arg == "id"]
            called = getattr(node.func, "id", "")
            values = named + (node.args[2:3] if called == scenario_recommendation.__name__ else [])
            values = [constants.get(each.id, each) if isinstance(each, ast.Name) else each for each in values]
            ids |= {each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return ids


def pattern_of(node: ast.expr) -> str:
    """Return a pattern of the text up to the first colon that is written there."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # f"...".rstrip(":")
        node = node.func.value
    while isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.IfExp):
        return f"(?:{pattern_of(node.body)}|{pattern_of(node.orelse)})"
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    pattern = ""
    for part in parts:
        text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None
        pattern += "[a-z0-9_]+" if text is None else re.escape(text.split(":", 1)[0])
        if text is not None and ":" in text:
            break
    return pattern


FOUND = list(kinds_in_source())


def test_the_source_makes_findings() -> None:
    assert len(FOUND) > 20


@pytest.mark.parametrize(("place", "pattern"), FOUND, ids=[place for place, _ in FOUND])
def test_every_finding_has_a_page(place: str, pattern: re.Pattern[str]) -> None:
    assert not pattern.fullmatch("anything"), f"{place}: begin the id with its kind, written out"
    assert any(pattern.fullmatch(kind) for kind in PAGES), f"{place}: write docs/findings/{pattern.pattern}.md"


@pytest.mark.parametrize(
    "file", [*PAGES.values(), *ADVICE.values()], ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_no_page_is_without_a_finding_and_each_has_its_parts(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"# `{file.stem}`")
    at = [text.find(part) for part in PARTS]
    assert at == sorted(at)
    assert min(at) == 0
    if file.parent == FOLDER:
        assert file.stem in OF_SKEW or any(pattern.fullmatch(file.stem) for _, pattern in FOUND)
        assert text.startswith(f"# `{file.stem}`: ")
        assert "\n- " in text[at[-1] :]


@pytest.mark.slow
def test_every_recommendation_has_a_page_and_no_page_is_without_one() -> None:
    ids = ids_of_recommendations()
    assert len(ids) > 10
    assert ids == set(ADVICE)
    overview = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[`(\w+)`\]\(advice/\1\.md\) \|", overview, re.MULTILINE)) == ids


@pytest.mark.parametrize("pages", [PAGES, ADVICE], ids=["findings", "advice"])
def test_the_index_lists_every_page_once(pages: dict[str, Path]) -> None:
    index = next(iter(pages.values())).with_name("README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`(\w+)`\]\(\1\.md\) \| \S.* \|$", index, re.MULTILINE)
    assert sorted(listed) == sorted(pages)


def test_a_findings_page_is_named_by_its_kind() -> None:
    assert finding_kind("odd_step:comm_ns:rank1:step6") == "odd_step"
    assert finding_kind("no_dump") == "no_dump"


def test_the_text_names_the_pages_of_what_it_shows() -> None:
    found = [
        Finding(id=kind, severity="info", title="said", evidence={}, known_from="trace")
        for kind in ("odd_step:a", "odd_step:b", "low_bandwidth:c")
    ]
    empty = analyze(Run(world_size=1, ranks={}))
    assert "overlapscope explain" not in render(empty)
    text = render(msgspec.structs.replace(empty, findings=found))
    assert "What to do: overlapscope explain low_bandwidth odd_step\n" in text


@pytest.mark.parametrize("kind", sorted({*PAGES, *ADVICE}))
def test_explain_prints_the_pages_of_an_id_without_links(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{kind}:rank1"]) == 0
    printed = capsys.readouterr().out
    pages = [known[kind].read_text(encoding="utf-8") for known in (PAGES, ADVICE) if kind in known]
    assert not re.search(r"\]\([^)]+\.md", printed), "a link to a file leads nowhere in a terminal"
    for page in pages:
        assert page.splitlines()[0] in printed
    linked = {Path(target).stem for page in pages for target in re.findall(r"\]\(([^)#]+)\.md", page)}
    for other in linked & {*PAGES, *ADVICE}:
        assert f"(overlapscope explain {other})" in printed


def test_explain_shows_the_finding_as_well_as_the_recommendation_of_one_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = {*PAGES} & {*ADVICE}
    assert "shared_cores" in both
    for name in both:
        assert main(["explain", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["pages"]
        assert [(each["id"], each["of"]) for each in found] == [(name, "finding"), (name, "recommendation")]


def test_explain_gives_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "straggler", "bucket_cap", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "overlapscope.pages/1"
    assert [each["id"] for each in document["pages"]] == ["straggler", "bucket_cap"]
    assert document["pages"][1]["text"].startswith("# `bucket_cap`")


def test_explain_lists_the_ids_near_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "stragler"]) == 2
    assert "'stragler' is no finding and no recommendation; is it one of straggler" in capsys.readouterr().err
    assert main(["explain", "../../README"]) == 3
    assert "../../README: no such file or folder" in capsys.readouterr().err
    assert main(["explain", "zzzz"]) == 2
    assert "analyze and advise print ids; no file or folder has this name" in capsys.readouterr().err

"""Every command and every piece of Python in the documentation runs, in the order it stands there."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.report.formats.json import schema
from overlapscope.report.sheet.document import DOCUMENTS
from tests.conftest import ROOT, shared_file
from tests.support.commands import stdout_of
from tests.support.fork_server import start
from tests.support.old_torch import has_dry_runs

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BY_CI = ("make demo", "make test", "make lint")
"""Commands that .ci/run itself calls."""
BY_CHECK_WHEEL = "pip install '.[torch]'"
"""Setting up an environment is what tests/check_wheel.py and the Makefile do."""
COMMAND = "import sys; from overlapscope.cli.main import main; sys.exit(main())"
OF_A_SHELL = frozenset("*?[]{}()<>|&;$`~#!\\")
"""A command with one of these is given to a shell; others begin where Python and what we import stand already."""


GALLERY = re.findall(
    r"^## ([^\n]*)\n(.*?)(?=^## |\Z)",
    (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.xdist_group("training")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.parent != ROOT)) for page in PAGES]
)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    for folder in ("traces", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    missing = find_spec("torch") is None
    printed, left_out = "", False
    for language, text in blocks(page):
        if missing and needs_torch(text):
            continue
        if not missing and is_dry_run(text) and not has_dry_runs():
            left_out = True
            continue
        if language == "python":
            code, output = ran_python(text, tmp_path, environment)
            assert code == 0, (text, output)
            continue
        for command in text.strip().splitlines():
            if command in BY_CI or command == BY_CHECK_WHEEL:
                continue
            if command.startswith("overlapscope ") and not missing and not OF_A_SHELL & set(command):
                (ended,) = start([["-c", COMMAND, *shlex.split(command)[1:]]], folder=tmp_path).wait(300)
                assert ended.code == 0, (command, ended.output)
                printed += ended.stdout
                continue
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (command, done.stderr)
    if page.name == "tutorial.md" and printed:
        shown = re.findall(r"^```text\n(?!\$)(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert len(shown) > 5
        assert [each for block in shown for each in not_printed(block, printed)] == []
    if missing and any(needs_torch(text) for _, text in blocks(page)):
        pytest.skip("torch is not installed: the examples that record were left out")
    if left_out:
        pytest.skip("dry runs need a newer torch: their examples were left out")


def ran_python(text: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    if find_spec("torch") is None:
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr
    (ended,) = start([["-c", text]], folder=folder, PATH=environment["PATH"]).wait(300)
    return ended.code, ended.output


def is_dry_run(text: str) -> bool:
    return "overlapscope dryrun" in text or "def build(device)" in text


def needs_torch(text: str) -> bool:
    return "import torch" in text or is_dry_run(text)


def not_printed(block: str, printed: str) -> list[str]:
    """Return the lines of a block that a command did not print; runs of white space are one."""
    known = " ".join(printed.split())
    return [line for line in block.splitlines() if " ".join(line.split()) not in known]


@pytest.mark.parametrize(("title", "section"), GALLERY, ids=[title for title, _ in GALLERY])
def test_the_gallery_shows_what_the_command_prints(
    title: str, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of, path = re.findall(r"^<!-- (input|computed): (\S+) -->$", section, re.MULTILINE)[0]
    place = shared_file(path) if of == "input" else ROOT / path
    printed = stdout_of(capsys, "analyze", place)
    shown = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(shown) == 1, title
    assert not_printed(shown[0], printed) == []


def test_no_example_hides_a_package_behind_its_adapter() -> None:
    """`from overlapscope.frameworks import deepspeed` would take the name of the package itself."""
    code = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
    examples = code.findall((ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8"))
    assert len(examples) >= 6
    adapters = {path.stem for path in (ROOT / "overlapscope" / "frameworks").glob("*.py")}
    for example in examples:
        bound = [
            (alias.asname or alias.name, node.module if isinstance(node, ast.ImportFrom) else None)
            for node in ast.walk(ast.parse(example))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        assert not [name for name, module in bound if module == "overlapscope.frameworks" and name in adapters]


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="not a checkout: an sdist has no .ci")
def test_ci_calls_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    called = {line.split("#")[0].strip(" &") for line in script.splitlines()}
    assert {*BY_CI} <= called


def test_the_readme_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.search(r"```text\n(2 ranks.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    monkeypatch.chdir(ROOT)
    printed = stdout_of(capsys, "analyze", "traces/baseline")
    assert printed.startswith(shown[1])


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))]:
        for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text(encoding="utf-8")):
            leads_to = page.parent / target if target else page
            assert leads_to.exists(), (page.name, target)
            assert not anchor or anchor in anchors(leads_to), (page.name, target, anchor)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page_and_the_glossary_every_cause() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {f"]({page.name})" for page in PAGES if page.name != "README.md" and f"]({page.name})" not in index} == set()
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", glossary, re.MULTILINE) == list(CAUSES)


def test_the_paths_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:overlapscope|dashboards|tests|docs)/[\w/.]+)`", text)
    assert len(paths) > 10
    assert [each for each in paths if "acme" not in each and not (ROOT / each).exists()] == []


def test_the_published_schema_is_the_codes_own() -> None:
    for name in DOCUMENTS:
        published = json.loads((ROOT / "docs" / f"overlapscope.{name}-1.schema.json").read_text(encoding="utf-8"))
        assert published == json.loads(json.dumps(schema(name)))  # whose defaults are tuples

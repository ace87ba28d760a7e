"""Whatever a user can name is documented, once: compared with the code, not with what generates the pages."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from docs.site import json_fields
from docs.site.sources import field_docs
from overlapscope.cli.main import VERBS, main
from overlapscope.gate.policy import Policy, StructurePolicy
from overlapscope.report.formats.json import schema
from overlapscope.report.sheet.document import DOCUMENTS
from tests.conftest import ROOT
from tests.unit.docs.html import Page

pytestmark = pytest.mark.xdist_group("docs")  # the site is built once
NESTED = {"baseline": ("save", "show", "list")}
"""The commands of a verb."""
COMMANDS = [(verb,) for verb in VERBS] + [(verb, command) for verb, inner in NESTED.items() for command in inner]
PRICE_INTERVAL = {"price": {"Interval": "PriceInterval"}}
"""Types that share a name with a type of another document, as the page calls them."""


def sections(page: Path, level: str) -> dict[str, str]:
    """Return the HTML below each heading of a level, by the words of the heading."""
    main = re.split(r'<main[^>]*>|<nav class="turn"', page.read_text(encoding="utf-8"))[1]
    found = re.split(rf'<{level} id="[^"]*">(.*?)<a class="here".*?</{level}>', main)
    return {re.sub("<[^>]+>", "", title): text for title, text in zip(found[1::2], found[2::2], strict=True)}


def rows(html: str) -> list[list[str]]:
    """Return the words of each row of the tables in HTML."""
    found = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)]
    return [[re.sub("<[^>]+>", "", cell).strip() for cell in cells] for cells in found if cells]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_of_a_verb_is_documented_once(
    command: tuple[str, ...], site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    helped = capsys.readouterr().out
    options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", re.sub(r".*?\n(?=(positional|options):\s*$)", "", helped)))
    said = {each for each in options if re.search(rf"^  (-\w(?: \S+)?, )?{each}\b", helped, re.MULTILINE)} - {"--help"}
    page = sections(site / "reference" / "commands.html", "h2")
    own = page[f"overlapscope {' '.join(command)}"]
    named = [each for row in rows(own) for each in re.findall(r"(?<![\w-])--[a-z][a-z-]+", row[0])]
    assert len(named) == len(set(named))
    also = own.partition("And <a")[2]
    shared = {row[0]: row[1] for row in rows(page["Options of several commands"])}
    for option in said:
        row = [words for name, words in shared.items() if option in re.split(r"[ ,]+", name)]
        assert (option in named) != (bool(row) and f">{option}</code>" in also), f"{option} of {' '.join(command)}"
    assert all(row[1] for row in rows(own))


def test_every_verb_is_named_once(site: Path) -> None:
    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert text.count(f'<h2 id="overlapscope-{"-".join(command)}">') == 1
    parents = [each for each in NESTED if not re.search(r"\{save,show,list\}", each)]
    assert parents == ["baseline"]


def test_every_key_of_a_policy_is_documented_once() -> None:
    gate = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    policy = re.search(r"## Policy\n.*?```toml\n(.*?)```", gate, re.DOTALL)
    assert policy
    keys = re.findall(r"^(?:# )?(\w+) = |^\[(\w+)\]", policy[1], re.MULTILINE)
    budgets = policy[1].index("[budgets]")
    named = [one or other for one, other in keys if (one or other) not in policy[1][budgets + len("[budgets]") :]]
    assert sorted([*named, "structure"]) == sorted(Policy.__struct_fields__)
    assert "table `structure`" in gate
    dry = re.search(r"\[structure\].*?\n(.*?)```", (ROOT / "docs" / "dryrun.md").read_text(encoding="utf-8"), re.DOTALL)
    assert dry
    assert sorted(re.findall(r"^(\w+) = ", dry[1], re.MULTILINE)) == sorted(StructurePolicy.__struct_fields__)
    defaults = tomllib.loads(policy[1])
    assert {name: _plain(getattr(Policy(), name)) for name in defaults if name != "budgets"} == {
        name: value for name, value in defaults.items() if name != "budgets"
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_every_field_of_a_document_is_documented_once(site: Path) -> None:
    types = sections(site / "reference" / "json_fields.html", "h3")
    seen = set()
    for name in DOCUMENTS:
        for kind, definition in schema(name)["$defs"].items():
            title = PRICE_INTERVAL.get(name, {}).get(kind, kind)
            seen.add(title)
            described = [(row[0], row[2]) for row in rows(types[title])]
            assert sorted(field for field, _ in described) == sorted(definition["properties"]), title
            assert all(words.endswith((".", "...", "'", ")")) or words for _, words in described), title
    assert seen == set(types)


def test_no_meaning_of_a_field_is_for_nothing() -> None:
    types = {each for document in DOCUMENTS.values() for each in json_fields.reached(document)}
    titles = {json_fields.title(each): each for each in types}
    assert len(titles) == len(types), "two types share a name"
    used = set()
    for title, cls in titles.items():
        for field in cls.__struct_fields__:
            own, said = json_fields.WORDS.get(title, {}), field_docs(cls).get(field)
            assert not (said and field in own), f"{title}.{field} is described in the source and in fields.toml"
            used |= {(title, field)} if field in own else set() if said else {("any", field)}
            assert json_fields.meaning(cls, field), (
                f"{title}.{field}: write a docstring below it, or a line in fields.toml"
            )
    assert {(title, field) for title, words in json_fields.WORDS.items() for field in words} - used == set()


def test_every_public_function_is_documented_once(site: Path) -> None:
    headings = [each.title for each in Page.of(site / "reference" / "python.html").headings]
    public = {f"overlapscope.{name}" for name in overlapscope.__all__ if name != "__version__"}
    for file in sorted((ROOT / "overlapscope" / "frameworks").glob("[a-z]*.py")):
        if file.stem == "framework_steps":  # what the adapters share
            continue
        module = import_module(f"overlapscope.frameworks.{file.stem}")
        names = re.findall(r"^def ([a-z]\w*)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
        public |= {f"{module.__name__}.{name}" for name in names}
    assert {name: headings.count(name) for name in public} == dict.fromkeys(public, 1)


def test_every_finding_and_recommendation_has_a_page_in_the_site_and_its_index(site: Path) -> None:
    for folder in ("findings", "advice"):
        pages = {each.stem for each in (ROOT / "docs" / folder).glob("[a-z]*.md")}
        assert {each.stem for each in (site / folder).glob("*.html")} == pages | {"index"}
        linked = [href for href, _ in Page.of(site / folder / "index.html").links_of_text]
        assert {name: linked.count(f"{name}.html") for name in pages} == dict.fromkeys(pages, 1)

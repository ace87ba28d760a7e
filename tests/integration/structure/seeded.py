"""Patch the examples as the lists say, and make a dry run of each."""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

HERE: Final = Path(__file__).parent
EXAMPLES: Final = HERE / "examples"
WORLDS: Final = {
    "ddp.py": (8, (0,)),
    "fsdp.py": (8, (0,)),
    "tensor_parallel.py": (4, (0,)),
    "two_d.py": (8, (0,)),
    "pipeline.py": (2, (0, 1)),
    "own_overlap.py": (8, (0,)),
    "conv.py": (8, (0,)),
    "grouped_query.py": (4, (0,)),
    "hybrid.py": (8, (0,)),
    "experts.py": (8, (0,)),
    "sharded_optimizer.py": (8, (0,)),
    "ring.py": (4, (0,)),
}
"""Ranks of the job of each example, and those that are run."""


class Patch(msgspec.Struct, kw_only=True, frozen=True):
    """One patch of one example; `kinds` and `line` are those of a regression."""

    name: str
    example: str
    edits: tuple[tuple[str, str, str], ...] = ()
    """File, text, and what takes its place; each text is there."""
    kinds: tuple[str, ...] = ()
    line: str = ""

    @property
    def label(self) -> str:
        """A name for the patch, also of files."""
        return f"{Path(self.example).stem} {self.name}".replace(" ", "_").replace(",", "")


def regressions() -> list[Patch]:
    """Return the seeded regressions of both lists."""
    return [
        Patch(
            name=each["name"],
            example=each["example"],
            edits=tuple(
                (each.get("file", each["example"]), old, new)
                for old, new in ((each["old"], each["new"]), *each.get("also", ()))
            ),
            kinds=tuple(each["kinds"]),
            line=each["line"],
        )
        for each in _listed("regressions.toml", "regression") + _listed("more_regressions.toml", "regression")
    ]


def neutral() -> list[Patch]:
    """Return the neutral patches of both lists, one for each example."""
    return [
        Patch(name=each["name"], example=example, edits=tuple(_edits(each, example)))
        for each in _listed("neutral.toml", "neutral") + _listed("more_neutral.toml", "neutral")
        for example in each["examples"]
    ]


def _listed(file: str, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((HERE / file).read_text())[key]
    return found


def _edits(each: dict[str, Any], example: str) -> Iterator[tuple[str, str, str]]:
    if "old" in each:
        yield example, each["old"], each["new"]
    for file, old, new in each.get("replace", ()):
        if old in (EXAMPLES / (file or example)).read_text():
            yield file or example, old, new
    if "move" in each:
        file, begin, end, target, head, imports = each["move"]
        text = (EXAMPLES / file).read_text()
        part = text[text.index(begin) : text.index(end)]
        yield target, "", head + part.rstrip() + "\n"
        yield file, part, ""
        yield file, "from torch import nn\n", f"from torch import nn\n{imports}"
    if "swap" in each:
        file, first, second, end = each["swap"]
        text = (EXAMPLES / file).read_text()
        at, then, stop = (text.index(word) for word in (first, second, end))
        yield file, text[at:stop], text[then:stop] + text[at:then]


def patched(patch: Patch, folder: Path) -> None:
    """Write the examples into a folder, patched. Raises ValueError where the text to replace is not there."""
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in patch.edits:
        path = folder / file
        text = path.read_text() if path.exists() else ""
        if old not in text:
            raise ValueError(f"{patch.name}: {file} does not contain {old!r}")
        path.write_text(text.replace(old, new) if old else new)


def dry_run(folder: Path, example: str) -> Any:
    """Return the dry run of an example in a folder; modules of other folders are forgotten first."""
    from overlapscope.dry_run.build_function import find_function  # noqa: PLC0415 - the lists are read without torch
    from overlapscope.dry_run.passes import record  # noqa: PLC0415

    world, ranks = WORLDS[example]
    with chdir(folder), _own_modules(folder):
        return record(find_function(f"{example}:build"), world_size=world, ranks=ranks, name=example)


@contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    names = {each.stem for each in (*EXAMPLES.glob("*.py"), *folder.glob("*.py"))}
    places = list(sys.path)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        sys.path[:] = places
        for name in names:
            sys.modules.pop(name, None)


def lines_of(folder: Path, text: str) -> set[str]:
    """Return the places, `file.py:34`, of the lines that contain one of the texts between `|`."""
    found = set()
    for file in folder.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if any(part in line for part in text.split("|")):
                found.add(f"{file.name}:{number}")
    return found

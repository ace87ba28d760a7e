"""The page of the public Python interface, from signatures and docstrings."""

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec

import overlapscope
from docs.site.sources import field_docs
from overlapscope import pytest_plugin
from overlapscope.capture.session import Session
from overlapscope.ingest.write_run import Written
from overlapscope.loaded_run import LoadedRun

FRAMEWORKS: Final = ("accelerate", "deepspeed", "lightning", "megatron", "torchtitan", "transformers")
FIXTURES: Final = {"overlap": pytest_plugin.Recorder, "overlapscope_dryrun": pytest_plugin.DryRunGate}
CLASSES: Final[dict[type, tuple[str, ...] | None]] = {
    LoadedRun: None,
    Written: None,
    Session: ("step", "count", "region", "comm", "close"),
}
"""What the functions return, each with its public methods; None: all of them."""


def text() -> str:
    """Return the page as Markdown."""
    functions = [overlapscope.load, overlapscope.write_run, overlapscope.dryrun, overlapscope.profile]
    lines = [
        "# Python interface",
        "",
        "Written from the docstrings. Everything that is not on this page may change without notice "
        "([stability](../stability.md)).",
        "",
        "## Functions",
        "",
    ]
    for each in functions:
        lines += _entry(f"overlapscope.{each.__name__}", each)
    lines += ["## What they return", ""]
    for cls, chosen in CLASSES.items():
        lines += _class(cls, cls.__name__, chosen)
    lines += ["## Settings and errors", ""]
    for name in overlapscope.__all__:
        value = getattr(overlapscope, name)
        if isinstance(value, type):
            lines += _class(value, f"overlapscope.{name}", ())
    lines += ["## Frameworks", "", "How each is used: [frameworks](../frameworks.md).", ""]
    for name in FRAMEWORKS:
        module = importlib.import_module(f"overlapscope.frameworks.{name}")
        for function in public_functions(module):
            lines += _entry(f"overlapscope.frameworks.{name}.{function.__name__}", function)
    lines += ["## pytest", "", "How fixtures are used: [in a test](../pytest.md).", ""]
    for name, cls in FIXTURES.items():
        lines += _class(cls, name, None, words="Fixture. ")
    return "\n".join(lines)


def public_functions(module: ModuleType) -> list[FunctionType]:
    """Return the functions that a module defines for others."""
    return [
        each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and not name.startswith("_") and each.__module__ == module.__name__
    ]


def _entry(name: str, function: Any, level: int = 3) -> list[str]:
    shown = f"{name.rpartition('.')[2]}{signature(function)}"
    return [f"{'#' * level} `{name}`", "", "```py", shown, "```", "", inspect.cleandoc(function.__doc__ or ""), ""]


def _class(cls: type, name: str, chosen: tuple[str, ...] | None, words: str = "") -> list[str]:
    lines = [f"### `{name}`", "", words + inspect.cleandoc(cls.__doc__ or ""), ""]
    if issubclass(cls, msgspec.Struct):
        described = field_docs(cls)
        lines += ["| field | default | meaning |", "|---|---|---|"]
        for each in msgspec.structs.fields(cls):
            default = "" if each.required else f"`{each.default!r}`"
            lines.append(f"| `{each.name}` | {default} | {described.get(each.name, '')} |")
        lines.append("")
    for member, value in _members(cls):
        if chosen is not None and member not in chosen:
            continue
        if isinstance(value, property):
            lines += [f"#### `{cls.__name__}.{member}`", "", inspect.cleandoc(value.__doc__ or ""), ""]
        else:
            lines += _entry(f"{cls.__name__}.{member}", value, 4)
    return lines


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def signature(function: Any) -> str:
    """Return the signature as it is written, one parameter a line where it is long."""
    found = inspect.signature(function)
    parameters = [each for each in found.parameters.values() if each.name != "self"]
    shown = found.replace(parameters=parameters)
    text = str(shown).replace("'", "").replace("typing.", "").replace("collections.abc.", "")
    if len(text) <= 90:
        return text
    rows, star = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not star:
            rows += [] if any(other.kind is other.VAR_POSITIONAL for other in parameters) else ["*"]
            star = True
        rows.append(str(each).replace("'", ""))
    returned = text.rpartition(" -> ")[2]
    return "(\n" + "".join(f"    {row},\n" for row in rows) + f") -> {returned}"

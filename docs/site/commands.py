"""The page of all commands and their options, from the parsers of the command line."""

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final, NamedTuple

from overlapscope.cli.main import VERBS

SHARED_BY: Final = 3
"""An option that so many verbs have with the same words is described once, before the verbs."""


class Option(NamedTuple):
    """An option or a positional argument of a verb."""

    name: str
    """As it is typed, with its value: `-o, --output FILE`."""
    meaning: str
    positional: bool = False


class Verb(NamedTuple):
    """A verb, or one of the commands of a verb (`baseline save`)."""

    name: str
    purpose: str
    description: str
    options: list[Option]


def text() -> str:
    """Return the page as Markdown."""
    known = list(verbs())
    shared = shared_options(known)
    lines = [
        "# Commands and options",
        "",
        "Written from the commands themselves; `overlapscope VERB --help` prints the same. "
        "[Exit codes](../json.md#exit-codes).",
        "",
        "## Options of several commands",
        "",
        "| option | meaning |",
        "|---|---|",
        *(f"| `{cell(each.name)}` | {cell(each.meaning)} |" for each in shared),
        "",
    ]
    for verb in known:
        lines += [f"## `overlapscope {verb.name}`", "", *_described(verb.description or f"{verb.purpose}."), ""]
        own = [each for each in verb.options if each not in shared]
        if own:
            lines += ["| argument | meaning |", "|---|---|"]
            lines += [f"| `{cell(each.name)}` | {cell(each.meaning)} |" for each in own]
            lines.append("")
        also = [f"`{each.name.split(', ')[-1].split(' ')[0]}`" for each in verb.options if each in shared]
        if also:
            lines += [f"And [options of several commands](#options-of-several-commands): {', '.join(also)}.", ""]
    return "\n".join(lines)


def verbs() -> Iterator[Verb]:
    """Yield every verb with its options, in the order of `overlapscope --help`."""
    for name, purpose in VERBS.items():
        module = import_module(f"overlapscope.cli.verbs.{name}")
        parser = argparse.ArgumentParser(prog=f"overlapscope {name}", description=module.__doc__)
        module.add_arguments(parser)
        yield Verb(name, purpose, parser.description or "", list(_options(parser)))
        for nested in _nested(parser):
            helps = {each.dest: each.help or "" for each in nested._choices_actions}
            for command, inner in nested.choices.items():
                described = inner.description or helps[command]
                yield Verb(f"{name} {command}", helps[command], described, list(_options(inner)))


def shared_options(known: list[Verb]) -> Mapping[Option, list[str]]:
    """Return each option that several verbs share, with their names."""
    found: dict[Option, list[str]] = {}
    for verb in known:
        for each in verb.options:
            if not each.positional:
                found.setdefault(each, []).append(verb.name)
    return {each: names for each, names in found.items() if len(names) >= SHARED_BY}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield Option(_typed(action), meaning, not action.option_strings)


def _typed(action: argparse.Action) -> str:
    """Return an option as it is typed, with its value. Pythons write this differently in their own help."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    value = action.metavar if isinstance(action.metavar, str) else choices
    names = ", ".join(action.option_strings)
    return (f"{names} {value}" if action.nargs != 0 else names) if names else value


def _nested(parser: argparse.ArgumentParser) -> list["argparse._SubParsersAction[argparse.ArgumentParser]"]:
    return [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]


def _described(description: str) -> Iterator[str]:
    """Yield a description as Markdown: its examples as a block of commands."""
    words, _, examples = description.strip().partition("\nexamples:\n")
    yield words.strip().replace("<", "\\<").replace("*", "\\*")
    if examples:
        yield from ("", "```text", *(line.strip() for line in examples.strip().splitlines()), "```")


def cell(words: str) -> str:
    """Return words that may stand in a cell of a table."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")

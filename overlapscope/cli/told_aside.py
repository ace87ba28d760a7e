"""What goes to stderr beside a result: with `--redact` as free of names as the result."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

GIVEN: Final = {
    "base": "BASE", "candidate": "CAND", "calibrate": "RUNS", "inputs": "INPUT",
    "policy": "FILE", "floor": "FILE", "output": "FILE",
}  # fmt: skip
"""What paths of the command line are called in `--help`."""


def told_aside(words: str, args: argparse.Namespace | None) -> str:
    """Give a warning or an error as it may be told: whole, or with `--redact` without names."""
    if args is None or not getattr(args, "redact", False):
        return words
    from overlapscope.report.redact_names import Names  # noqa: PLC0415 - keeps --help light

    for path, word in sorted(_given(args), key=lambda each: -len(each[0])):
        words = re.sub(rf"(?<!\w){re.escape(path)}(?!\w)", word, words)
    return Names(frozenset(each.casefold() for each in GIVEN.values())).sentence(words)


def _given(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for name, word in GIVEN.items():
        given = getattr(args, name, None)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, Path) and path.name:
                yield str(path), word

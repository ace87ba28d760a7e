"""Text from files made safe for a terminal."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from overlapscope.report.formatting import inert, inert_json

MAX_LINE: Final = 2_000
"""The JSON holds warnings whole."""
GIVEN: Final = {
    "base": "BASE", "candidate": "CAND", "calibrate": "RUNS", "inputs": "INPUT",
    "policy": "FILE", "floor": "FILE", "output": "FILE",
}  # fmt: skip
"""What paths of the command line are called in `--help`."""
LEFT_OUT: Final = "message left out by --redact; run without it to read it"


def escaped(text: str) -> str:
    """Replace the same in JSON by its JSON escape."""
    if text.replace("\n", "").isprintable():
        return inert_json(text)
    import json  # noqa: PLC0415 - seldom needed

    plain = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    return inert_json(plain)


def printable(text: str) -> str:
    """Replace what a terminal or a CI log would act upon by its code."""
    return inert(text)


def one_line(text: str) -> str:
    """Return a message on one line of bounded length, whatever the names in it hold."""
    plain = printable(text).replace("\n", "\\x0a")
    return plain if len(plain) <= MAX_LINE else f"{plain[: MAX_LINE - 3]}..."


def told_aside(words: str, args: argparse.Namespace | None, redacted: str | None = None) -> str:
    """Return a warning or an error as it may be shown.

    With `--redact` that is `redacted`; without such words, the name in `--help` of the argument that it is about.
    """
    if args is None or not getattr(args, "redact", False):
        return words
    if redacted is not None:
        return redacted
    given = sorted(_given(args), key=lambda each: -len(each[0]))
    about = (word for path, word in given if re.search(rf"(?<!\w){re.escape(path)}(?!\w)", words))
    return ": ".join([*list(about)[:1], LEFT_OUT])


def _given(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for name, word in GIVEN.items():
        given = getattr(args, name, None)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, Path) and path.name:
                yield str(path), word

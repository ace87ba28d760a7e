"""Make text from files safe for a terminal, and messages on stderr free of names with `--redact`."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from overlapscope.report.formatting import inert, inert_json

MAX_LINE: Final = 2_000
"""Longest message in characters; the JSON contains warnings in full."""
PLACEHOLDERS: Final = {
    "base": "BASE", "candidate": "CAND", "calibrate": "RUNS", "inputs": "INPUT",
    "policy": "FILE", "floor": "FILE", "output": "FILE",
}  # fmt: skip
"""Name of each path argument in `--help`."""
MESSAGE_LEFT_OUT: Final = "message left out by --redact; run without it to read it"


def escaped(text: str) -> str:
    """Return JSON with everything that a terminal or a CI log would act upon replaced by its JSON escape."""
    if text.replace("\n", "").isprintable():
        return inert_json(text)
    import json  # noqa: PLC0415 - seldom needed

    plain = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    return inert_json(plain)


def printable(text: str) -> str:
    """Return text with everything that a terminal or a CI log would act upon replaced by its code."""
    return inert(text)


def one_line(text: str) -> str:
    """Return a message on one line of bounded length, whatever names it contains."""
    plain = printable(text).replace("\n", "\\x0a")
    return plain if len(plain) <= MAX_LINE else f"{plain[: MAX_LINE - 3]}..."


def message_for_stderr(words: str, args: argparse.Namespace | None, redacted: str | None = None) -> str:
    """Return the text of a warning or an error as it may be shown on stderr.

    Without `--redact` that is `words`. With it, `redacted`; if that is None, the `--help` name of the argument that
    the message is about.
    """
    if args is None or not getattr(args, "redact", False):
        return words
    if redacted is not None:
        return redacted
    given = sorted(_given(args), key=lambda each: -len(each[0]))
    about = (word for path, word in given if re.search(rf"(?<!\w){re.escape(path)}(?!\w)", words))
    return ": ".join([*list(about)[:1], MESSAGE_LEFT_OUT])


def _given(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for name, word in PLACEHOLDERS.items():
        given = getattr(args, name, None)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, Path) and path.name:
                yield str(path), word

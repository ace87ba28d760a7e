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
LEFT_OUT: Final = "message left out by --redact; run without it to read it"


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

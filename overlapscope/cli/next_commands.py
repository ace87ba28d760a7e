"""Write the commands that an output names as a user can paste them: with the inputs and the reading options given."""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from overlapscope.display import display_path, shell_words

MAX_GIB: Final = 256
"""Default of `--max-gib`."""
_OF_RUN: Final = re.compile(r"(\boverlapscope (?:analyze|compare|explain) )RUN\b( NEW_RUN\b)?")


def inputs_as_given(paths: Iterable[Path], args: argparse.Namespace) -> str:
    """Return paths, and after them the reading options of the arguments, as a shell reads them."""
    return shell_words([*map(display_path, paths), *reading_words(args)])


def reading_words(args: argparse.Namespace) -> list[str]:
    """Return the options of `add_reading` that were given, word by word."""
    words = [
        word
        for option in ("rank", "comm", "compute")
        for value in getattr(args, option)
        for word in ((f"--{option}={value}",) if value.startswith("-") else (f"--{option}", value))
    ]
    words += ["--stacks"] if args.stacks else []
    return words + (["--max-gib", str(args.max_gib)] if args.max_gib != MAX_GIB else [])


def of_given(text: str, args: argparse.Namespace) -> str:
    """Return text whose commands name the one input that was given instead of RUN, with its reading options."""
    if len(args.inputs) != 1 or getattr(args, "redact", False):
        return text
    return of_run(text, args.inputs[0], reading_words(args))


def of_run(text: str, run: Path, options: Iterable[str] = ()) -> str:
    """Return text whose commands name `run` instead of RUN, and after it the options."""
    given, more = shell_words([display_path(run)]), "".join(f" {shell_words([each])}" for each in options)
    return _OF_RUN.sub(lambda found: f"{found[1]}{given}{found[2] or ''}{more}", text)

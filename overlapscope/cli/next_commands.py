"""Write the commands that an output names as a user can paste them: with the inputs and the reading options given."""

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from overlapscope.display import display_path, shell_words

MAX_GIB: Final = 256
"""Default of `--max-gib`."""
_OF_RUN: Final = re.compile(r"(\boverlapscope (?:analyze|compare|explain) )RUN\b( NEW_RUN\b)?")


def inputs_as_given(paths: Iterable[Path], args: argparse.Namespace) -> str:
    """Return paths, and after them the reading options of the arguments, as a shell reads them."""
    return shell_words([*map(display_path, paths), *reading_words(args)])


def reading_words(args: argparse.Namespace, *, other_inputs: bool = False) -> list[str]:
    """Return the options of `add_reading` that were given, word by word.

    For a command that reads other inputs, too, without ranks of named files: it would refuse names that it does not
    find among each of them.
    """
    words = [
        word
        for option in ("rank", "comm", "compute")
        for value in getattr(args, option)
        if not (other_inputs and option == "rank" and "=" in value)
        for word in ((f"--{option}={value}",) if value.startswith("-") else (f"--{option}", value))
    ]
    words += ["--stacks"] if args.stacks else []
    return words + (["--max-gib", str(args.max_gib)] if args.max_gib != MAX_GIB else [])


def of_given(text: str, args: argparse.Namespace) -> str:
    """Return text whose commands name the one input that was given instead of RUN, with its reading options."""
    if len(args.inputs) != 1 or getattr(args, "redact", False):
        return text
    return of_run(text, args.inputs[0], reading_words(args), reading_words(args, other_inputs=True))


def of_run(text: str, run: Path, options: Sequence[str] = (), with_new: Sequence[str] = ()) -> str:
    """Return text whose commands name `run` instead of RUN, and after it the options, or those `with_new` beside a
    NEW_RUN."""
    given = display_path(run)
    alone, beside = shell_words([given, *options]), f"{shell_words([given])} {shell_words(['NEW_RUN', *with_new])}"
    return _OF_RUN.sub(lambda found: f"{found[1]}{beside if found[2] else alone}", text)

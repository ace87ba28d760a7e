"""The sides of a comparison, read and measured."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options, warn
from overlapscope.cli.printable import one_line
from overlapscope.cli.progress import Progress
from overlapscope.cli.told_aside import told_aside
from overlapscope.errors import InputError

if TYPE_CHECKING:
    from overlapscope.analysis.replicate import Replicate
    from overlapscope.timeline.run import Run


def both_sides(
    verb: str, paths: Sequence[Path], args: argparse.Namespace, look: "Callable[[str, Run], None] | None" = None
) -> "tuple[list[list[Replicate]], tuple[list[str], list[str]]]":
    """Read base and candidate; give them, and why runs of each could not be read.

    `look` gets each run of the candidate with its name while it is in memory.
    """
    left_out: tuple[list[str], list[str]] = ([], [])
    base = measured(verb, paths[0], args, left_out=left_out[0])
    return [base, measured(verb, paths[1], args, look, left_out[1])], left_out


def measured(
    verb: str,
    path: Path,
    args: argparse.Namespace,
    look: "Callable[[str, Run], None] | None" = None,
    left_out: list[str] | None = None,
) -> "list[Replicate]":
    """Read the runs of one side, one after another; raises InputError where none of them has times.

    `look` gets each run with its name while it is in memory; `left_out` takes why some could not be read.
    """
    from overlapscope.analysis.replicate import replicate  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.sides import read_side  # noqa: PLC0415

    def note(words: str) -> None:
        said = told_aside(" ".join(words.split()), args)
        print(one_line(f"overlapscope {verb}: warning: {said}"), file=sys.stderr)

    found = []
    with Progress("reading") as progress:
        for name, loaded in read_side(path, read_options(args), progress=progress, note=note, left_out=left_out):
            warn(verb, loaded.sources, args)
            found.append(replicate(loaded, name))
            if look is not None:
                look(name, loaded)
    if not any(each.ranks for each in found):
        raise InputError(f"{path}: holds no times of any rank, so there is nothing to compare")
    return found

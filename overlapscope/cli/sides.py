"""The sides of a comparison, read and measured."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options, warn
from overlapscope.cli.printable import one_line
from overlapscope.cli.progress import Progress
from overlapscope.errors import InputError

if TYPE_CHECKING:
    from overlapscope.analysis.replicate import Replicate
    from overlapscope.timeline.run import Run


def measured(
    verb: str, path: Path, args: argparse.Namespace, look: "Callable[[str, Run], None] | None" = None
) -> "list[Replicate]":
    """Read the runs of one side, one after another; raises InputError where none of them has times.

    `look` gets each run with its name while it is in memory.
    """
    from overlapscope.analysis.replicate import replicate  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.sides import read_side  # noqa: PLC0415

    def note(words: str) -> None:
        print(one_line(f"overlapscope {verb}: warning: {' '.join(words.split())}"), file=sys.stderr)

    found = []
    with Progress("reading") as progress:
        for name, loaded in read_side(path, read_options(args), progress=progress, note=note):
            warn(verb, loaded.sources)
            found.append(replicate(loaded, name))
            if look is not None:
                look(name, loaded)
    if not any(each.ranks for each in found):
        raise InputError(f"{path}: holds no times of any rank, so there is nothing to compare")
    return found

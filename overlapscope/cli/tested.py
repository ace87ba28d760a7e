"""Runs held against the predictions that others keep, while they are read."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.prediction_file import noted_in
from overlapscope.cli.printable import one_line
from overlapscope.cli.told_aside import told_aside
from overlapscope.errors import InputError

if TYPE_CHECKING:
    from overlapscope.analysis.predictions import Outcome
    from overlapscope.timeline.run import Run


class Tested:
    """What the runs that are looked at measured of the predictions kept in `paths`."""

    def __init__(self, verb: str, paths: Iterable[Path], args: argparse.Namespace) -> None:
        self._verb = verb
        self._args = args
        self.kept = noted_in(paths)
        self.outcomes: list[Outcome] = []

    def look(self, name: str, run: "Run") -> None:
        """Hold a run against them; says on stderr why it tests none."""
        if not self.kept.predictions:
            return
        from overlapscope.analysis.predictions import outcomes  # noqa: PLC0415 - keeps --help light
        from overlapscope.whatif.observed import observed  # noqa: PLC0415

        try:
            found, without = outcomes(self.kept.predictions, [observed(run, name)])
        except InputError as error:
            found, without = [], [str(error)]
        self.outcomes += found
        for words in without:
            said = told_aside(" ".join(words.split()), self._args)
            print(one_line(f"overlapscope {self._verb}: predictions: {said}"), file=sys.stderr)

"""The inputs of a command to a run, with progress for people and with as many processes as are worth it."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options, warn
from overlapscope.cli.output import one_line, told_aside
from overlapscope.cli.prediction_file import noted_in
from overlapscope.cli.progress import Progress
from overlapscope.errors import InputError

if TYPE_CHECKING:
    from overlapscope.analysis.measured_run import Replicate
    from overlapscope.analysis.prediction_check import Outcome
    from overlapscope.analysis.scaling import Scaling
    from overlapscope.timeline.run import Run


def read_run(args: argparse.Namespace) -> "Run":
    """Read `args.inputs`. Raises InputError and UsageError as `read_inputs` does."""
    from overlapscope.cli.progress import Progress  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    with Progress("reading") as progress:
        workers = getattr(args, "workers", None)
        return read_inputs(args.inputs, read_options(args), progress=progress, workers=workers)


def read_both_sides(
    verb: str, paths: Sequence[Path], args: argparse.Namespace, look: "Callable[[str, Run], None] | None" = None
) -> "tuple[list[list[Replicate]], tuple[list[str], list[str]]]":
    """Read base and candidate; give them, and why runs of each could not be read.

    `look` gets each run of the candidate with its name while it is in memory.
    """
    left_out: tuple[list[str], list[str]] = ([], [])
    base = read_replicates(verb, paths[0], args, left_out=left_out[0])
    return [base, read_replicates(verb, paths[1], args, look, left_out[1])], left_out


def read_replicates(
    verb: str,
    path: Path,
    args: argparse.Namespace,
    look: "Callable[[str, Run], None] | None" = None,
    left_out: list[str] | None = None,
) -> "list[Replicate]":
    """Read the runs of one side, one after another; raises InputError where none of them has times.

    `look` gets each run with its name while it is in memory; `left_out` takes why some could not be read.
    """
    from overlapscope.analysis.measured_run import replicate  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.run_folder import read_side  # noqa: PLC0415

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


class PredictionTester:
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
        from overlapscope.analysis.prediction_check import outcomes  # noqa: PLC0415 - keeps --help light
        from overlapscope.whatif.measured_settings import observed  # noqa: PLC0415

        try:
            found, without = outcomes(self.kept.predictions, [observed(run, name)])
        except InputError as error:
            found, without = [], [str(error)]
        self.outcomes += found
        for words in without:
            said = told_aside(" ".join(words.split()), self._args)
            print(one_line(f"overlapscope {self._verb}: predictions: {said}"), file=sys.stderr)


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add how to ask for it."""
    parser.add_argument(
        "--scale", action="store_true", help="runs of one job at several world sizes: throughput, and what eats it"
    )
    parser.add_argument(
        "--scaling", choices=("weak", "strong"), default="weak",
        help="with --scale: whether each rank keeps its work, or all share one (default: weak)",
    )  # fmt: skip


def read_scaling(verb: str, args: argparse.Namespace) -> "Scaling":
    """Measure the runs of `args.inputs`; raises UsageError where they are all of one size."""
    from overlapscope.analysis.scaling import scaling  # noqa: PLC0415 - keeps --help light

    return scaling([run for path in args.inputs for run in read_replicates(verb, path, args)], args.scaling)

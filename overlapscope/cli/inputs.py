"""Read the sides of a comparison, or runs of several world sizes, and test stored predictions meanwhile."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import note, read_options, warn
from overlapscope.cli.progress import Progress
from overlapscope.errors import InputError

if TYPE_CHECKING:
    from overlapscope.analysis.compare.measured_run import MeasuredRun
    from overlapscope.analysis.compare.prediction_check import Outcome
    from overlapscope.analysis.compare.scaling import Scaling
    from overlapscope.analysis.structure.compare_structure import StructureComparison
    from overlapscope.timeline.run import Run


def read_both_sides(
    verb: str, paths: Sequence[Path], args: argparse.Namespace, look: "Callable[[str, Run], None] | None" = None
) -> "tuple[list[list[MeasuredRun]], tuple[list[str], list[str]]]":
    """Return base and candidate, and for each side why some of its runs could not be read.

    `look` is called with the name and the run of each candidate run while it is in memory.
    """
    left_out: tuple[list[str], list[str]] = ([], [])
    base = read_replicates(verb, paths[0], args, left_out=left_out[0], timed=False)
    return [base, read_replicates(verb, paths[1], args, look, left_out[1], timed=False)], left_out


def read_replicates(
    verb: str,
    path: Path,
    args: argparse.Namespace,
    look: "Callable[[str, Run], None] | None" = None,
    left_out: list[str] | None = None,
    *,
    timed: bool = True,
) -> "list[MeasuredRun]":
    """Read and measure the runs of one side, one after another. Raises InputError if none of them contains times.

    Without `timed` dry runs are taken too, whose structure is compared. `look` is called with each run's name and the
    run while it is in memory; reasons why runs could not be read are added to `left_out`.
    """
    from overlapscope.analysis.compare.measured_run import measure_run  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.run_folder import read_side  # noqa: PLC0415
    from overlapscope.timeline.run import is_untimed_dry_run  # noqa: PLC0415

    found, dry = [], False
    noted = partial(note, verb, args=args)
    with Progress("reading") as progress:
        for name, loaded in read_side(path, read_options(args), progress=progress, note=noted, left_out=left_out):
            warn(verb, loaded.sources, args)
            dry = dry or is_untimed_dry_run(loaded)
            found.append(measure_run(loaded, name))
            if look is not None:
                look(name, loaded)
            warn(verb, loaded.unreadable_hosts, args)
    if not any(each.ranks or (each.structure and not timed) for each in found):
        if dry:
            raise InputError(f"{path}: a dry run, which has no times to compare: see overlapscope analyze")
        raise InputError(f"{path}: contains no times of any rank, so there is nothing to compare")
    return found


class PredictionTester:
    """Tests the predictions stored in `paths` against the runs that `look` is called with."""

    def __init__(self, verb: str, paths: Iterable[Path], args: argparse.Namespace) -> None:
        from overlapscope.cli.prediction_file import read_noted  # noqa: PLC0415 - keeps --help light

        self._verb = verb
        self._args = args
        self.kept = read_noted(paths)
        self.outcomes: list[Outcome] = []

    def look(self, name: str, run: "Run") -> None:
        """Compare a run with the predictions; print on stderr why it tests none of them."""
        if not self.kept.predictions:
            return
        from overlapscope.analysis.compare.prediction_check import outcomes  # noqa: PLC0415 - keeps --help light
        from overlapscope.whatif.ddp.measured_settings import observed_run  # noqa: PLC0415

        try:
            found, without = outcomes(self.kept.predictions, [observed_run(run, name)])
        except InputError as error:
            found, without = [], [str(error)]
        self.outcomes += found
        for words in without:
            note(self._verb, words, self._args, kind="predictions")


class DryRunHolder:
    """Holds recorded runs against the dry run at `path`, if one is there."""

    def __init__(self, path: Path) -> None:
        self.dry = _dry_run(path)
        self.found: StructureComparison | None = None

    def look(self, run: "Run") -> None:
        """Compare the first run that is none itself."""
        from overlapscope.analysis.structure.conformance import conformance  # noqa: PLC0415 - keeps --help light
        from overlapscope.timeline.run import DRY_RUN  # noqa: PLC0415

        recorded = any(timeline.basis != DRY_RUN for timeline in run.ranks.values())
        if self.dry is not None and self.found is None and recorded:
            self.found = conformance(self.dry, run)


def _dry_run(path: Path) -> "Run | None":
    from overlapscope.timeline.run import DRY_RUN  # noqa: PLC0415 - keeps --help light
    from overlapscope.timeline.store.load_save import load_run  # noqa: PLC0415
    from overlapscope.timeline.store.run_directory import is_run_directory  # noqa: PLC0415

    if not is_run_directory(path):
        return None
    run = load_run(path)
    return run if run.ranks and all(each.basis == DRY_RUN for each in run.ranks.values()) else None


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add `--scale` and `--scaling`."""
    parser.add_argument(
        "--scale", action="store_true", help="compare runs of one job at several world sizes: throughput and its losses"
    )
    parser.add_argument(
        "--scaling", choices=("weak", "strong"), default="weak",
        help="with --scale: weak: the work per rank is constant; strong: the total work is constant (default: weak)",
    )  # fmt: skip


def read_scaling(verb: str, args: argparse.Namespace) -> "Scaling":
    """Measure how the runs of `args.inputs` scale. Raises UsageError if they all have one world size."""
    from overlapscope.analysis.compare.scaling import scaling  # noqa: PLC0415 - keeps --help light

    return scaling([run for path in args.inputs for run in read_replicates(verb, path, args)], args.scaling)

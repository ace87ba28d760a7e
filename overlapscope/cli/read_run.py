"""The inputs of a command to a run, with progress for people and with as many processes as are worth it."""

import argparse
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options
from overlapscope.ingest.start_ahead import start_beside

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run


def read_run(args: argparse.Namespace) -> "Run":
    """Read `args.inputs`. Raises InputError and UsageError as `read_inputs` does."""
    workers = getattr(args, "workers", None)
    with start_beside(args.inputs, workers) as processes:
        from overlapscope.cli.progress import Progress  # noqa: PLC0415 - while processes start
        from overlapscope.ingest.read import read_inputs  # noqa: PLC0415

        with Progress("reading") as progress:
            return read_inputs(args.inputs, read_options(args), progress=progress, workers=workers, processes=processes)

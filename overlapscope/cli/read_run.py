"""The inputs of a command to a run, with progress for people and with as many processes as are worth it."""

import argparse
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run


def read_run(args: argparse.Namespace) -> "Run":
    """Read `args.inputs`. Raises InputError and UsageError as `read_inputs` does."""
    from overlapscope.cli.progress import Progress  # noqa: PLC0415 - keeps --help light
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    with Progress("reading") as progress:
        workers = getattr(args, "workers", None)
        return read_inputs(args.inputs, read_options(args), progress=progress, workers=workers)

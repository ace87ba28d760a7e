"""Read the inputs of a command, with progress, in as many processes as are worth it.

Loads little itself: workers start while the command loads what it needs.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options
from overlapscope.ingest.parallel.worker_count import start_ahead

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run


def read_run(args: argparse.Namespace, meanwhile: Callable[[], None] | None = None) -> "Run":
    """Read `args.inputs`. Raises InputError and UsageError as `read_inputs` does.

    While workers start, `meanwhile` is called: this process would wait for them in the end.
    """
    workers = getattr(args, "workers", None)
    with start_ahead(workers, args.inputs) as started:
        if started and meanwhile:
            meanwhile()
        from overlapscope.cli.progress import Progress  # noqa: PLC0415 - while workers start
        from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

        with Progress("reading") as progress:
            return read_inputs(args.inputs, read_options(args), progress=progress, workers=workers, started=started)

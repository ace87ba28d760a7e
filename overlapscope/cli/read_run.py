"""Read the inputs of a command, with progress, in as many processes as are worth it.

Loads little itself: workers start while the command loads what it needs.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import read_options
from overlapscope.errors import InputError
from overlapscope.ingest.parallel.worker_count import start_ahead

if TYPE_CHECKING:
    from overlapscope.ingest.read_run import ReadJob
    from overlapscope.timeline.run import Run


def read_run(args: argparse.Namespace) -> "Run":
    """Read `args.inputs`, of one job. Raises InputError and UsageError as `read_inputs` does."""
    jobs = read_jobs(args)
    from overlapscope.ingest.read_run import only_one  # noqa: PLC0415

    return only_one(jobs, args.inputs)


def read_timed_run(args: argparse.Namespace) -> "Run":
    """Read as `read_run` does; raises InputError, too, for a dry run, which has no times."""
    loaded = read_run(args)
    from overlapscope.timeline.run import is_untimed_dry_run  # noqa: PLC0415

    if is_untimed_dry_run(loaded):
        raise InputError(
            f"{args.inputs[0]}: a dry run, which has no times: overlapscope analyze shows what it communicates, and "
            "overlapscope whatif --device what its step may take"
        )
    return loaded


def read_jobs(args: argparse.Namespace, meanwhile: Callable[[], None] | None = None) -> "list[ReadJob]":
    """Read `args.inputs`, of one job or several. Raises InputError and UsageError as `ingest.read_run.read_jobs` does.

    While workers start, `meanwhile` is called: this process would wait for them in the end.
    """
    workers = getattr(args, "workers", None)
    with start_ahead(workers, args.inputs) as started:
        if started:
            from overlapscope.ingest.parallel.process_pool import keep_freed_memory  # noqa: PLC0415 - loaded by now

            keep_freed_memory()  # as the workers do
        if started and meanwhile:
            meanwhile()
        from overlapscope.cli.progress import Progress  # noqa: PLC0415 - while workers start
        from overlapscope.ingest import read_run as inputs  # noqa: PLC0415

        with Progress("reading") as progress:
            return inputs.read_jobs(
                args.inputs, read_options(args), progress=progress, workers=workers, started=started
            )

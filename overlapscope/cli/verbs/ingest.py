"""Convert traces to a run directory: Parquet columns that open fast and that any dataframe tool can read.

Files are read by several processes, or by a Dask cluster. After an interruption, repeat the command to continue.

examples:
  overlapscope ingest traces/ -o runs/baseline
  overlapscope ingest traces/ -o runs/baseline --workers 16
  overlapscope ingest traces/ -o runs/baseline --scheduler tcp://10.0.0.1:8786
  overlapscope ingest a.json.gz b.json.gz --rank a.json.gz=0 --rank b.json.gz=1 -o runs/pair
"""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import add_inputs, add_workers, given_path, read_options, warn
from overlapscope.display import display_path, shell_words
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.ingest.parallel.process_pool import WorkerPool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ingest`."""
    add_inputs(parser)
    parser.add_argument("-o", "--output", type=given_path, required=True, metavar="RUN", help="run directory to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    add_workers(parser)
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read on the workers of a Dask cluster (tcp://HOST:8786) that see INPUT and RUN under the same paths",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Read the inputs, write the run directory."""

    if args.scheduler and args.workers:
        raise UsageError("--workers is for this machine, --scheduler for a cluster: choose one")
    if args.scheduler or (os.path.exists(args.output) and not args.force):
        return _run(args, None)
    from overlapscope.ingest.parallel.worker_count import start_ahead  # noqa: PLC0415

    with start_ahead(args.workers, args.inputs, to_disk=True) as started:
        return _run(args, started)


def _run(args: argparse.Namespace, started: "WorkerPool | None") -> int:
    import msgspec  # noqa: PLC0415 - while workers start

    from overlapscope.cli.progress import Progress  # noqa: PLC0415
    from overlapscope.ingest.parallel.dask import dask_executor  # noqa: PLC0415
    from overlapscope.ingest.parallel.work_dir import work_dir_of  # noqa: PLC0415
    from overlapscope.ingest.write_run import write_run  # noqa: PLC0415
    from overlapscope.report.formatting import count, size  # noqa: PLC0415
    from overlapscope.report.text.cross_rank import missing_ranks_text  # noqa: PLC0415

    try:
        with Progress("reading") as progress, dask_executor(args.scheduler) as executor:
            written = write_run(
                args.inputs,
                args.output,
                read_options(args),
                workers=args.workers,
                executor=executor,
                force=args.force,
                watch=progress,
                started=started,
            )
    except KeyboardInterrupt:
        if work_dir_of(args.output).exists():
            print("overlapscope ingest: files read so far are kept: repeat the command to continue", file=sys.stderr)
        raise
    warn("ingest", written.sources)
    stored = sum(
        os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(args.output) for name in names
    )
    if args.json:
        result = {
            "schema": "overlapscope.ingest/1",
            "run": display_path(args.output),
            "ranks": written.ranks,
            "missing_ranks": written.missing_ranks,
            "unread_ranks": written.unread_ranks,
            "spans": written.spans,
            "bytes": stored,
            "resumed_files": written.resumed_files,
            "sources": written.sources,
        }
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return 0
    missing = "".join(f", {each}" for each in [missing_ranks_text(written.missing_ranks, written.unread_ranks)] if each)
    before = f" ({count(written.resumed_files, 'file')} read before the interruption)" if written.resumed_files else ""
    print(
        f"{display_path(args.output)}: {count(len(written.ranks), 'rank')}{missing}, {written.spans:,} spans, "
        f"{size(stored)}{before}"
    )
    print(f"next: overlapscope analyze {shell_words([str(args.output)])}")
    return 0

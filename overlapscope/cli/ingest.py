"""Turn traces into a run directory: Parquet columns that open fast and any dataframe tool can read.

examples:
  overlapscope ingest traces/ -o runs/baseline
  overlapscope ingest a.json.gz b.json.gz --rank a.json.gz=0 --rank b.json.gz=1 -o runs/pair
"""

import argparse
import shlex
from pathlib import Path

from overlapscope.cli.arguments import add_inputs, read_options, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ingest`."""
    add_inputs(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RUN", help="run directory to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Read the inputs, write the run directory."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.cli.progress import Progress  # noqa: PLC0415
    from overlapscope.errors import UsageError  # noqa: PLC0415
    from overlapscope.ingest.read import read_inputs  # noqa: PLC0415
    from overlapscope.report.amounts import count  # noqa: PLC0415
    from overlapscope.timeline.columns import size  # noqa: PLC0415
    from overlapscope.timeline.store import save_run  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    if args.output.exists() and not args.force:
        raise UsageError(f"{args.output} exists already; choose another place, or replace it with -f")
    with Progress("reading") as progress:
        loaded = read_inputs(args.inputs, read_options(args), progress=progress)
    warn("ingest", loaded.sources)
    save_run(loaded, args.output, version=__version__, force=args.force)
    spans = sum(size(timeline.spans) for timeline in loaded.ranks.values())
    stored = sum(file.stat().st_size for file in args.output.rglob("*") if file.is_file())
    if args.json:
        result = {
            "schema": "overlapscope.ingest/1",
            "run": str(args.output),
            "ranks": list(loaded.ranks),
            "missing_ranks": list(loaded.missing_ranks),
            "spans": spans,
            "bytes": stored,
            "sources": loaded.sources,
        }
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return 0
    missing = f", {len(loaded.missing_ranks)} not recorded" if loaded.missing_ranks else ""
    print(f"{args.output}: {count(len(loaded.ranks), 'rank')}{missing}, {spans:,} spans, {stored / 2**20:.1f} MiB")
    print(f"next: overlapscope analyze {shlex.quote(str(args.output))}")
    return 0

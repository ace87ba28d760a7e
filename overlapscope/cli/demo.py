"""Train a small real model on 2 processes over gloo, record it, show its overlap.

Needs torch and no GPU; takes about 20 seconds.

examples:
  overlapscope demo
  overlapscope demo --serve
"""

import argparse
import shlex
from pathlib import Path

from overlapscope.cli.arguments import emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `demo`."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("overlapscope-demo"),
        metavar="RUN",
        help="run directory to write (default overlapscope-demo)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", action="store_true", help="then open the run in the dashboard, on any free port")


def run(args: argparse.Namespace) -> int:
    """Train, ingest, print the table and the next command."""
    import sys  # noqa: PLC0415 - keeps --help light

    from overlapscope.advice.advise import analyzed  # noqa: PLC0415
    from overlapscope.cli.demo_job import train_and_record  # noqa: PLC0415
    from overlapscope.errors import UsageError  # noqa: PLC0415
    from overlapscope.report import json, text  # noqa: PLC0415
    from overlapscope.timeline.run_folder import is_taken, replace_run  # noqa: PLC0415
    from overlapscope.timeline.store import load_run  # noqa: PLC0415

    if args.json and args.serve:
        raise UsageError("--json prints a document, --serve goes on until it is interrupted: name one of them")
    if is_taken(args.output) and not args.force:
        raise UsageError(f"{args.output} exists already; choose another place with -o, or replace it with -f")
    print("training a small model on 2 processes over gloo ...", file=sys.stderr)
    with replace_run(args.output) as place:
        train_and_record(place)
    recorded = load_run(args.output)
    analysis = analyzed(recorded)
    args.output, where = None, args.output
    if args.json:
        emit(json.render(analysis), args)
        return 0
    emit(text.render(analysis), args)
    if args.serve:
        from overlapscope_dashboards.serve import serve  # noqa: PLC0415

        print(f"\nThe run is kept in {where}.", flush=True)
        serve([where], host="127.0.0.1", port=0, say=lambda served: print(served.words(), flush=True))
        return 0
    print(f"\nThe run is kept in {where}.\nnext: overlapscope analyze {shlex.quote(str(where))} --all")
    return 0

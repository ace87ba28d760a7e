"""Show what changed from one run to another, exposed communication first, and where it comes from.

Each side is a run, a trace file, a folder of the traces of one run, or a folder of runs of the same code.

examples:
  overlapscope compare runs/baseline runs/candidate
  overlapscope compare runs/baseline/ runs/candidate/ --json -o comparison.json
"""

import argparse
import shlex
from pathlib import Path

from overlapscope.cli.arguments import add_output, add_reading, emit
from overlapscope.cli.sides import measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `compare`."""
    parser.add_argument("base", type=Path, metavar="BASE", help="run, trace, folder of traces, or folder of runs")
    parser.add_argument("candidate", type=Path, metavar="CAND", help="what is compared with it")
    add_reading(parser)
    add_output(parser)
    parser.add_argument("--all", action="store_true", help="show every metric, collective, kernel and finding")


def run(args: argparse.Namespace) -> int:
    """Read both sides, print the comparison; exit code 3 where a side has no times."""
    from overlapscope.analysis.compare import compare  # noqa: PLC0415 - keeps --help light
    from overlapscope.report import compare_text, json  # noqa: PLC0415

    base, candidate = (measured("compare", path, args) for path in (args.base, args.candidate))
    comparison = compare(base, candidate)
    if args.json:
        emit(json.render(comparison), args)
        return 0
    text = compare_text.render(comparison, all_rows=args.all)
    if not args.all:
        text += f"\nnext: overlapscope compare {shlex.join([str(args.base), str(args.candidate)])} --all\n"
    emit(text, args)
    return 0

"""Show what changed from one run to another, exposed communication first, and why.

Each side is a run, a trace file, a folder of the traces of one run, or a folder of runs of the same code.

examples:
  overlapscope compare runs/baseline runs/candidate
  overlapscope compare runs/baseline/ runs/candidate/ --json -o comparison.json
  overlapscope compare runs/baseline runs/candidate --record
  overlapscope compare runs/dry runs/recorded
  overlapscope compare --scale runs/8 runs/16 runs/32
  overlapscope compare --fleet runs/
"""

import argparse
import sys
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import add_output, add_reading, add_workers, emit, given_path
from overlapscope.cli.inputs import DryRunHolder, PredictionTester, add_scale, read_both_sides, read_scaling
from overlapscope.cli.next_commands import inputs_as_given
from overlapscope.cli.output import one_line
from overlapscope.display import display_path
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `compare`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        type=given_path,
        metavar="BASE CAND",
        help="each a run, a trace, a folder of traces, or a folder of runs",
    )
    add_scale(parser)
    parser.add_argument(
        "--record",
        action="store_true",
        help="store in BASE how CAND compares with the predictions that `advise --record` stored there",
    )
    parser.add_argument(
        "--fleet", action="store_true",
        help="compare all runs below one folder: worst first, the trend of each job, hosts that straggle beyond chance",
    )  # fmt: skip
    add_reading(parser)
    add_workers(parser)
    add_output(parser)
    parser.add_argument("--all", action="store_true", help="show every metric, collective, kernel and finding")


def run(args: argparse.Namespace) -> int:
    """Read both sides, print the comparison; exit code 3 if a side contains no times."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.analysis.compare.compare import compare  # noqa: PLC0415
    from overlapscope.cli.prediction_file import add_noted, require_run_directory  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import compare as compare_text  # noqa: PLC0415

    if args.fleet:
        return _fleet(args)
    if args.workers:
        raise UsageError("--workers is for --fleet; `overlapscope ingest` has it for reading traces")
    if args.scale and args.record:
        raise UsageError("--record compares CAND with predictions in BASE; it cannot be used with --scale")
    if args.scale:
        return _scale(args)
    if len(args.inputs) != 2:
        raise UsageError("name two sides, BASE and CAND; for several world sizes of one job, add --scale")
    if args.record:
        require_run_directory(args.inputs[0])
    tested = PredictionTester("compare", args.inputs[:1], args)
    held = DryRunHolder(args.inputs[0])

    def look(name: str, run: "Run") -> None:
        tested.look(name, run)
        held.look(run)

    (base, candidate), left_out = read_both_sides("compare", args.inputs, args, look)
    comparison = msgspec.structs.replace(compare(base, candidate, left_out=left_out), predictions=tested.outcomes)
    if held.found is not None:
        # A dry run has another basis, and no device: that is no finding.
        kept = [each for each in comparison.findings if not each.id.startswith(("differs_job:device", "differs_rec"))]
        comparison = msgspec.structs.replace(comparison, structure=held.found, findings=kept)
    if args.record and tested.outcomes:
        add_noted(args.inputs[0], tested=tested.outcomes)
    if args.json:
        emit(json.render(comparison), args)
        return 0
    text = compare_text.render(comparison, all_rows=args.all)
    if not args.all:
        text += f"\nnext: overlapscope compare {inputs_as_given(args.inputs, args)} --all\n"
    emit(text, args)
    return 0


def _scale(args: argparse.Namespace) -> int:
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.sheet import scaling as scaling_text  # noqa: PLC0415

    found = read_scaling("compare", args)
    emit(json.render(found) if args.json else scaling_text.render(found), args)
    return 0


def _fleet(args: argparse.Namespace) -> int:
    from overlapscope.analysis.compare.fleet import fleet  # noqa: PLC0415
    from overlapscope.cli.analysis_cache import load_document  # noqa: PLC0415
    from overlapscope.cli.progress import RunProgress  # noqa: PLC0415
    from overlapscope.fleet.find import runs_below  # noqa: PLC0415
    from overlapscope.fleet.read import read_fleet  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.sheet import fleet as fleet_text  # noqa: PLC0415

    if args.scale or args.record:
        raise UsageError(f"--fleet and {'--scale' if args.scale else '--record'} cannot be used together")
    if args.rank or args.comm or args.compute:
        raise UsageError("--rank, --comm and --compute say how to read traces; --fleet compares run directories")
    if len(args.inputs) != 1:
        raise UsageError("--fleet needs one folder with run directories below it")
    folder = args.inputs[0]
    with RunProgress("reading") as progress:
        measured = read_fleet(folder, runs_below(folder), workers=args.workers, progress=progress, stored=load_document)
    for reason in measured.left_out:
        print(one_line(f"overlapscope compare: warning: left out: {reason}"), file=sys.stderr)
    if not measured.runs:
        raise InputError(f"{display_path(folder)}: none of its {len(measured.left_out)} runs can be read")
    found = fleet(measured.runs, measured.left_out)
    emit(json.render(found) if args.json else fleet_text.render(found, all_rows=args.all), args)
    return 0

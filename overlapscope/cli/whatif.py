"""Predict the step of a recorded job under other settings, and say whether to change them.

examples:
  overlapscope whatif runs/baseline
  overlapscope whatif runs/baseline --bucket-cap-mb 1,5,10,25,100 --json
"""

import argparse

from overlapscope.cli.arguments import add_inputs, add_output, emit, read_options, warn
from overlapscope.cli.plan import caps_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `whatif`."""
    add_inputs(parser)
    parser.add_argument("--bucket-cap-mb", metavar="N,N,...", help="caps to try, in MiB as torch counts them")
    parser.add_argument("--no-search", action="store_true", help="try caps only, no list of caps")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Read the recording, print the answer."""
    from overlapscope.cli.progress import Progress  # noqa: PLC0415 - keeps --help light
    from overlapscope.errors import InputError  # noqa: PLC0415
    from overlapscope.ingest.read import read_inputs  # noqa: PLC0415
    from overlapscope.report import json, whatif_text  # noqa: PLC0415
    from overlapscope.whatif.answer import answer  # noqa: PLC0415
    from overlapscope.whatif.from_run import from_run  # noqa: PLC0415

    caps = caps_of(args.bucket_cap_mb)
    with Progress("reading") as progress:
        loaded = read_inputs(args.inputs, read_options(args), progress=progress)
    warn("whatif", loaded.sources)
    try:
        case = from_run(loaded)
    except InputError as error:
        raise InputError(f"{args.inputs[0]}: {error}") from error
    found = answer(case, caps, search=not args.no_search)
    emit(json.render(found) if args.json else whatif_text.render(found, recorded=True), args)
    return 0

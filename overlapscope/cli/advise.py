"""Recommend what to change, with the predicted gain, how to apply it and how to verify it.

examples:
  overlapscope advise runs/baseline
  overlapscope advise runs/baseline --json
"""

import argparse

from overlapscope.cli.arguments import add_inputs, add_output, emit, read_options, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `advise`."""
    add_inputs(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Read the recording, print recommendations; with `--json` the analysis that holds them."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.advice.advise import advise  # noqa: PLC0415
    from overlapscope.analysis.across import across  # noqa: PLC0415
    from overlapscope.analysis.analyze import analyze  # noqa: PLC0415
    from overlapscope.cli.progress import Progress  # noqa: PLC0415
    from overlapscope.ingest.read import read_inputs  # noqa: PLC0415
    from overlapscope.report import advice_text, json  # noqa: PLC0415

    with Progress("reading") as progress:
        loaded = read_inputs(args.inputs, read_options(args), progress=progress)
    warn("advise", loaded.sources)
    together = across(loaded)
    analysis = analyze(loaded, together)
    found, reasons = advise(loaded, analysis, together)
    if args.json:
        emit(json.render(msgspec.structs.replace(analysis, recommendations=found)), args)
    else:
        emit(advice_text.render(found, reasons), args)
    return 0

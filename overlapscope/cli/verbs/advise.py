"""Recommend what to change, with the predicted gain, how to apply it and how to verify it.

examples:
  overlapscope advise runs/baseline
  overlapscope advise runs/baseline --json
  overlapscope advise runs/baseline --record
"""

import argparse
import sys
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import add_inputs, add_output, add_stated, emit, warn, with_stated
from overlapscope.cli.next_commands import of_given
from overlapscope.cli.output import one_line
from overlapscope.cli.scenario_options import parse_caps
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.analysis.compare.prediction_check import Prediction
    from overlapscope.whatif.ddp.ddp_recording import RecordedCase
    from overlapscope.whatif.result import WhatIf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `advise`."""
    add_inputs(parser)
    parser.add_argument("--bucket-cap-mb", metavar="N,N,...", help="bucket caps to try, in MiB (torch's bucket_cap_mb)")
    parser.add_argument(
        "--record", action="store_true", help="store the predictions in the run: compare tests later runs against them"
    )
    parser.add_argument("--date", metavar="YYYY-MM-DD", help="with --record: the date to store (default: today, UTC)")
    add_output(parser)
    add_stated(parser)


def run(args: argparse.Namespace) -> int:
    """Read the recording, print recommendations; with `--json` the analysis that contains them."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.advice.advise import advise  # noqa: PLC0415
    from overlapscope.advice.noted_predictions import predictions_to_record  # noqa: PLC0415
    from overlapscope.analysis.analyze import analyze  # noqa: PLC0415
    from overlapscope.analysis.cross_rank.across_ranks import match_and_align  # noqa: PLC0415
    from overlapscope.analysis.graph.built_graphs import BuiltGraphs  # noqa: PLC0415
    from overlapscope.analysis.rank_summaries import summarize_ranks  # noqa: PLC0415
    from overlapscope.analysis.rank_summary import steps_and_compute  # noqa: PLC0415
    from overlapscope.analysis.result import with_costs  # noqa: PLC0415
    from overlapscope.cli.prediction_file import read_noted  # noqa: PLC0415
    from overlapscope.cli.read_run import read_timed_run  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import advice as advice_text  # noqa: PLC0415
    from overlapscope.report.text import critical_path  # noqa: PLC0415
    from overlapscope.report.text import predictions as predictions_text  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    caps, made_at = parse_caps(args.bucket_cap_mb), _date(args)
    kept = read_noted(args.inputs)
    loaded = read_timed_run(args)
    warn("advise", loaded.sources)
    graphs = BuiltGraphs(loaded)
    alone = summarize_ranks(loaded, graphs)
    together = match_and_align(loaded, steps_and_compute(alone))
    analysis = analyze(loaded, together, None, alone, graphs)
    warn("advise", loaded.unreadable_hosts)
    predictions: list[Prediction] = []

    def keep(case: "RecordedCase", predicted: "WhatIf") -> None:
        predictions.extend(predictions_to_record(predicted, case.recorded, made_at=made_at, version=__version__))

    found, reasons = advise(loaded, analysis, together, caps, keep, alone, graphs)
    analysis = with_costs(msgspec.structs.replace(analysis, recommendations=found))
    analysis = with_stated("advise", analysis, args)
    if args.json:
        emit(json.render(analysis), args)
    else:
        earlier = predictions_text.earlier(kept)
        bound = critical_path.bound_text(analysis)
        text = advice_text.render(analysis.recommendations, reasons, bound) + (f"\n{earlier}\n" if earlier else "")
        emit(of_given(text, args), args)
    if args.record:
        _record(args, predictions)
    return 0


def _date(args: argparse.Namespace) -> str:
    """Return the date to store. Raises UsageError, before anything is read, if predictions cannot be stored."""
    from overlapscope.cli.prediction_file import require_run_directory  # noqa: PLC0415 - keeps --help light

    if args.date is not None and not args.record:
        raise UsageError("--date is the date that --record stores; add --record")
    if args.record:
        if len(args.inputs) != 1:
            raise UsageError("--record stores predictions in the run they were made from: name one run")
        require_run_directory(args.inputs[0])
    try:
        return (date.fromisoformat(args.date) if args.date else datetime.now(UTC).date()).isoformat()
    except ValueError:
        raise UsageError(f"--date takes a date as 2026-01-31, not {args.date!r}") from None


def _record(args: argparse.Namespace, predictions: "list[Prediction]") -> None:
    from overlapscope.cli.prediction_file import add_noted  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.formatting import count  # noqa: PLC0415

    if not predictions:
        text = "nothing was predicted, so nothing is stored"
    else:
        text = f"{count(len(predictions), 'prediction')} stored in {add_noted(args.inputs[0], predictions)}"
    print(one_line(f"overlapscope advise: {text}"), file=sys.stderr)

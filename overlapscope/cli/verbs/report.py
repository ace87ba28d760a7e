"""Write a report of one run, of two compared runs, of many runs, or of saved JSON of analyze, compare, gate or report.

examples:
  overlapscope report runs/candidate --format openmetrics -o metrics.txt
  overlapscope report runs/baseline runs/candidate --format html -o report.html
  overlapscope gate runs/baseline runs/candidate --json -o gate.json; overlapscope report gate.json --format junit
  overlapscope report runs/monday runs/tuesday runs/wednesday --format html -o history.html
  overlapscope report --scale runs/8 runs/16 runs/32 --format html -o scaling.html
  overlapscope report runs/candidate --redact --format html -o to_send.html
  overlapscope report runs/candidate --to tensorboard=logs
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import STATED, add_output, add_reading, add_stated, emit, given_path, warn, with_stated
from overlapscope.cli.inputs import PredictionTester, add_scale, read_both_sides, read_replicates, read_scaling
from overlapscope.cli.output import one_line
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.report.sheet.document import Document

FORMATS = ("html", "md", "json", "junit", "openmetrics")
MAX_BYTES = 256 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `report`."""
    parser.add_argument(
        "inputs", nargs="+", type=given_path, metavar="INPUT",
        help="a run; a base and a candidate; more runs, or a folder of runs, in order; or one saved JSON file",
    )  # fmt: skip
    parser.add_argument("--history", action="store_true", help="treat two runs as a history, not as base and candidate")
    add_scale(parser)
    parser.add_argument("--format", choices=FORMATS, default="md", help="default: md")
    parser.add_argument(
        "--to",
        metavar="TRACKER[=PLACE]",
        help="log one run's figures with tensorboard, wandb or mlflow instead of writing a report: PLACE is a folder, "
        "of mlflow a tracking URI; wandb works offline unless WANDB_MODE says otherwise",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names of files, hosts, groups, modules and kernels, and omit sentences; no figure changes",
    )
    add_reading(parser)
    add_stated(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the runs or load the saved document, and write the report."""
    from overlapscope.analysis.result import Analysis  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.formats import html, json, junit, markdown, openmetrics  # noqa: PLC0415
    from overlapscope.report.redact import redacted  # noqa: PLC0415
    from overlapscope.report.sheet.analysis import sheet_of  # noqa: PLC0415
    from overlapscope.report.trackers import log  # noqa: PLC0415

    if args.to is not None and (args.json or args.output is not None or args.format != "md"):
        raise UsageError("--to logs figures; --json, --format and -o write a report: use one of them")
    if args.json and args.format not in ("md", "json"):
        raise UsageError(f"--json and --format {args.format} contradict each other; use one")
    document = _document(args)
    if isinstance(document, Analysis):
        document = with_stated("report", document, args)
    elif any(getattr(args, name) is not None for name in STATED):
        raise UsageError("--tokens-per-step, --flops-per-step, --peak-tflops, --dtype and --price are for one run")
    if args.redact:
        document = redacted(document)
    if args.to is not None:
        if not isinstance(document, Analysis):
            raise UsageError("--to logs one run; name one")
        name = "run" if args.redact else _name(args.inputs[0])
        print(f"logged: {one_line(log(document, name, args.to))}")
        return 0
    if args.json or args.format == "json":
        args.json = True
        emit(json.render(document), args)
    elif args.format == "md":
        emit(markdown.render(sheet_of(document)), args)
    else:
        renderers = {"html": html.render, "junit": junit.render, "openmetrics": openmetrics.render}
        emit(renderers[args.format](document), args)
    return 0


def _name(path: Path) -> str:
    """Return the name of a run: of its folder, or of its file without endings; what is no word, as of 1.5b, is none."""
    name = path.resolve().name or "run"
    while not path.is_dir() and Path(name).suffix[1:].isalpha():
        name = Path(name).stem
    return name


def _document(args: argparse.Namespace) -> "Document":
    import msgspec  # noqa: PLC0415

    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415
    from overlapscope.analysis.compare.compare import compare  # noqa: PLC0415
    from overlapscope.analysis.compare.history import history  # noqa: PLC0415
    from overlapscope.analysis.compare.prediction_check import add_outcomes  # noqa: PLC0415
    from overlapscope.cli.read_run import read_run  # noqa: PLC0415
    from overlapscope.ingest.run_folder import find_runs  # noqa: PLC0415

    if args.scale:
        if args.history:
            raise UsageError("--scale and --history are two different reports; use one")
        return read_scaling("report", args)
    folder_of_runs = len(args.inputs) == 1 and len(find_runs(args.inputs[0])[0]) > 1
    if args.history or folder_of_runs or len(args.inputs) > 2:
        tested = PredictionTester("report", args.inputs, args)
        document = history([run for path in args.inputs for run in read_replicates("report", path, args, tested.look)])
        return msgspec.structs.replace(document, predictions=add_outcomes(tested.kept, tested=tested.outcomes).outcomes)
    if len(args.inputs) == 2:
        tested = PredictionTester("report", args.inputs[:1], args)
        (base, candidate), left_out = read_both_sides("report", args.inputs, args, tested.look)
        return msgspec.structs.replace(compare(base, candidate, left_out=left_out), predictions=tested.outcomes)
    saved = _saved(args.inputs[0])
    if saved is not None:
        return saved
    loaded = read_run(args)
    analysis = analyze_with_advice(loaded)
    warn("report", analysis.sources, args)
    return analysis


def _saved(path: Path) -> "Document | None":
    """Return the document of a saved JSON file; None for any other input."""
    from overlapscope.report.sheet.document import HEAD_BYTES, decoded, is_document  # noqa: PLC0415

    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if not is_document(head):
                return None
            content = head + file.read(MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES // 2**20} MiB")
    try:
        return decoded(content)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error

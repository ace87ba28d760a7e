"""Predict the step time of a described workload under other settings, and recommend whether to change them.

examples:
  overlapscope plan WORKLOAD.toml
  overlapscope plan WORKLOAD.toml --bucket-cap-mb 1,5,10,25,100 --json
  overlapscope plan WORKLOAD.toml --compress powersgd:2,topk:0.01
  overlapscope plan WORKLOAD.toml --zero-stage 1,2,3 --partition-mb 4 --priority
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.cli.arguments import add_output, emit
from overlapscope.cli.scenario_options import add_scenario_options, channel_tables, parse_caps, requested_of
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.timeline.facts import Facts
    from overlapscope.whatif.workload.workload_file import WorkloadDocument

MAX_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `plan`."""
    parser.add_argument(
        "workload", type=Path, metavar="WORKLOAD.toml", help="description of the workload, see docs/whatif.md"
    )
    parser.add_argument("--bucket-cap-mb", metavar="N,N,...", help="bucket caps to try, in MiB (torch's bucket_cap_mb)")
    parser.add_argument("--compress", metavar="METHOD:N,...", help="compress gradients: powersgd:RANK, topk:SHARE")
    add_scenario_options(parser)
    parser.add_argument(
        "--channels", metavar="N=TABLE,...", help="all-reduce with N NCCL channels, measured by nccl-tests in TABLE"
    )
    parser.add_argument("--no-search", action="store_true", help="try only the given caps, search no others")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Read the description and its table, print the predictions."""
    from overlapscope.report.formats import json  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.text import whatif as whatif_text  # noqa: PLC0415 - keeps --help light
    from overlapscope.whatif.cost.compression import parse_compressions  # noqa: PLC0415
    from overlapscope.whatif.ddp.ddp_predict import predict_ddp  # noqa: PLC0415
    from overlapscope.whatif.ddp.plan import plan  # noqa: PLC0415
    from overlapscope.whatif.requested import with_requested  # noqa: PLC0415

    caps, by_channels = parse_caps(args.bucket_cap_mb), channel_tables(args.channels)
    asked = replace(requested_of(args), channels=tuple(dict.fromkeys(each for each, _ in by_channels)))
    compressions = parse_compressions(args.compress) if args.compress else []
    document = _document(args.workload)
    tables = [(channels, str(path), _table(path)) for channels, path in by_channels]
    file = document.collectives.file
    made = plan(document, None if file is None else _table(args.workload.parent / file), tables)
    found = predict_ddp(made, caps, search=not args.no_search, compressions=compressions)
    found = with_requested(found, made, asked, optimizer=document.optimizer.name)
    emit(json.render(found) if args.json else whatif_text.render(found), args)
    return 0


def _document(path: Path) -> "WorkloadDocument":
    import tomllib  # noqa: PLC0415

    from overlapscope.whatif.workload.workload_file import parse_workload  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{path}: is larger than {MAX_BYTES >> 20} MiB; this is not a workload description")
        return parse_workload(tomllib.loads(content.decode("utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _table(path: Path) -> "Facts":
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    return read_inputs([path]).facts

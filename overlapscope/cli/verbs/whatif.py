"""Predict the step time of a recorded job under other settings, and recommend whether to change them.

examples:
  overlapscope whatif runs/baseline
  overlapscope whatif runs/baseline --bucket-cap-mb 1,5,10,25,100 --json
  overlapscope whatif runs/baseline --zero-stage 1,2,3 --no-search
  overlapscope whatif runs/fsdp --link-speed 0.5,2 --list
  overlapscope whatif runs/dry --device h100-sxm --links 8xh100-nvswitch,roce-400
"""

import argparse
from typing import TYPE_CHECKING, Final

from overlapscope.cli.arguments import add_inputs, add_output, emit, warn
from overlapscope.cli.next_commands import of_given
from overlapscope.cli.price_options import add_price_options, priced, require_price_options
from overlapscope.cli.scenario_options import add_scenario_options, parse_caps, requested_channels, requested_of
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run
    from overlapscope.whatif.step_graph.graph_predict import ReplayOptions

MAX_FACTORS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `whatif`."""
    add_inputs(parser)
    parser.add_argument("--bucket-cap-mb", metavar="N,N,...", help="bucket caps to try, in MiB (torch's bucket_cap_mb)")
    parser.add_argument("--link-speed", metavar="N,N,...", help="links N times as fast (not for DDP)")
    parser.add_argument("--algorithm", metavar="NAME,...", help="time collectives by these formulas (not for DDP)")
    add_scenario_options(parser)
    add_price_options(parser)
    parser.add_argument(
        "--channels", metavar="N,N,...", help="show how to try N NCCL channels; their gain is not predicted"
    )
    parser.add_argument("--list", action="store_true", help="list the settings that can be replayed here")
    parser.add_argument("--no-search", action="store_true", help="try only the given caps, search no others")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Read the recording, print the predictions."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.advice.nccl_trials import channel_trials  # noqa: PLC0415
    from overlapscope.cli.read_run import read_run, read_timed_run  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import price as price_text  # noqa: PLC0415
    from overlapscope.report.text import whatif as whatif_text  # noqa: PLC0415
    from overlapscope.whatif.predict import predict_recording  # noqa: PLC0415

    caps, wanted, asked = parse_caps(args.bucket_cap_mb), _wanted(args), requested_of(args)
    channels = requested_channels(args.channels)
    prices = require_price_options(args)
    loaded = read_run(args) if prices else read_timed_run(args)
    warn("whatif", loaded.sources)
    try:
        if prices:
            found_prices = priced(loaded, args).prices
            emit(json.render(found_prices) if args.json else price_text.render(found_prices), args)
            return 0
        if args.list:
            listed = _listed(loaded, as_json=args.json)
            warn("whatif", loaded.unreadable_hosts)
            emit(listed, args)
            return 0
        _fitting(loaded, args)
        trials = channel_trials(loaded, channels)
        found = predict_recording(loaded, caps, wanted, asked, search=not args.no_search)
    except InputError as error:
        raise InputError(f"{args.inputs[0]}: {error}") from error
    warn("whatif", loaded.unreadable_hosts)
    found = msgspec.structs.replace(found, trials=[] if found.waiting else trials)
    emit(json.render(found) if args.json else of_given(whatif_text.render(found, recorded=True), args), args)
    return 0


def _fitting(run: "Run", args: argparse.Namespace) -> None:
    """Raise UsageError for options that cannot be used with this kind of recording."""
    from overlapscope.whatif.parallelism import parallelism_of, shows_ddp, unsupported_options  # noqa: PLC0415

    kind = parallelism_of(run)
    for option, why in unsupported_options(kind, is_ddp=shows_ddp(run)).items():
        if getattr(args, option.removeprefix("--").replace("-", "_")):
            what = "this recording" if kind == "other" else f"a recording of kind {kind}"
            raise UsageError(f"{option} cannot be used with {what}: {why}; --list shows what can")


def _listed(run: "Run", *, as_json: bool) -> str:
    import msgspec  # noqa: PLC0415

    from overlapscope.advice.nccl_trials import why_no_channel_trials  # noqa: PLC0415
    from overlapscope.report.text.whatif import render_list  # noqa: PLC0415
    from overlapscope.whatif.listing import replayable_settings  # noqa: PLC0415
    from overlapscope.whatif.parallelism import NOT_REPLAYED  # noqa: PLC0415

    listing = replayable_settings(run, {"--channels": why} if (why := why_no_channel_trials(run)) else {})
    if not as_json:
        return render_list(listing)
    document = {"schema": "overlapscope.whatif-list/1", **msgspec.structs.asdict(listing), "not_replayed": NOT_REPLAYED}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _wanted(args: argparse.Namespace) -> "ReplayOptions":
    from overlapscope.whatif.cost.formulas import ALGORITHMS  # noqa: PLC0415
    from overlapscope.whatif.step_graph.graph_predict import ReplayOptions  # noqa: PLC0415

    try:
        speeds = tuple(float(each) for each in args.link_speed.split(",")) if args.link_speed else (2.0,)
    except ValueError as error:
        raise UsageError(f"--link-speed {args.link_speed}: give numbers with commas, e.g. 0.5,2") from error
    if not all(1e-3 <= each <= 1e3 for each in speeds) or len(speeds) > MAX_FACTORS:
        raise UsageError(f"--link-speed: give at most {MAX_FACTORS} factors from 0.001 to 1000")
    algorithms = tuple(args.algorithm.split(",")) if args.algorithm else ()
    unknown = [each for each in algorithms if each not in ALGORITHMS]
    if unknown:
        raise UsageError(f"--algorithm {unknown[0]}: must be one of {', '.join(sorted(ALGORITHMS))}")
    return ReplayOptions(link_speeds=speeds, algorithms=algorithms)

"""Show where the time went, exposed communication first.

examples:
  overlapscope analyze rank0.pt.trace.json.gz
  overlapscope analyze traces/ --json -o analysis.json
  overlapscope analyze traces/ --bandwidth all_reduce_perf.log
  overlapscope analyze traces/ --comm 'my_allreduce_.*'
"""

import argparse
import shlex

from overlapscope.cli.arguments import add_inputs, add_output, add_workers, emit, read_options, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `analyze`."""
    add_inputs(parser)
    add_output(parser)
    add_workers(parser)
    parser.add_argument(
        "--bandwidth",
        metavar="FILE|PRESET",
        help="what collectives could reach: nccl-tests output or a CSV table of this machine, or a preset "
        "(8xh100-nvswitch, 16xa100-80-efa, 16xa100-40-roce, 8xmi300x)",
    )
    parser.add_argument("--all", action="store_true", help="show every rank, step, collective and finding")


def run(args: argparse.Namespace) -> int:
    """Read the inputs, print the table or the JSON."""
    from overlapscope.cli.kept_analysis import (  # noqa: PLC0415 - keeps --help light
        WORTH_SPANS,
        keep_analysis,
        kept_analysis,
        sources_of,
        state_of,
    )

    place = args.inputs[0]
    plain = len(args.inputs) == 1 and not (args.bandwidth or args.rank or args.comm or args.compute)
    known = kept_analysis(place) if plain else None
    if known is not None and args.json:
        warn("analyze", sources_of(known))
        emit(known, args)
        return 0
    import msgspec  # noqa: PLC0415

    from overlapscope.advice.advise import analyzed  # noqa: PLC0415
    from overlapscope.analysis.analyze import Analysis  # noqa: PLC0415
    from overlapscope.cli.progress import Progress  # noqa: PLC0415
    from overlapscope.ingest.bandwidth_presets import reference_bandwidths  # noqa: PLC0415
    from overlapscope.ingest.read import read_inputs  # noqa: PLC0415
    from overlapscope.ingest.shown import shown  # noqa: PLC0415
    from overlapscope.timeline.run import is_run_directory  # noqa: PLC0415

    if known is not None:
        analysis = msgspec.json.decode(known, type=Analysis)
    else:
        made_of = state_of(place) if plain and is_run_directory(place) else None
        with Progress("reading") as progress:
            loaded = read_inputs(args.inputs, read_options(args), progress=progress, workers=args.workers)
        analysis = analyzed(loaded, reference_bandwidths(args.bandwidth) if args.bandwidth else None)
        if made_of is not None and sum(each.num_spans for each in loaded.ranks.values()) >= WORTH_SPANS:
            from overlapscope.report import json  # noqa: PLC0415 - the table does not need every schema

            keep_analysis(place, json.render(analysis), made_of)
    warn("analyze", analysis.sources)
    if args.json:
        from overlapscope.report import json  # noqa: PLC0415

        emit(json.render(analysis), args)
        return 0
    from overlapscope.report import text  # noqa: PLC0415

    table = text.render(analysis, all_rows=args.all)
    given = [shown(path) for path in args.inputs]
    for option in ("rank", "comm", "compute"):
        given += [word for value in getattr(args, option) for word in (f"--{option}", value)]
    if any(each.whole.comm_ns for each in analysis.ranks):
        table += (
            f"\nFor gains, how to apply, and other buckets replayed:\nnext: overlapscope advise {shlex.join(given)}\n"
        )
    if not is_run_directory(args.inputs[0]):
        table += f"\nTo keep this as a run that opens fast:\nnext: overlapscope ingest {shlex.join(given)} -o RUN\n"
    emit(table, args)
    return 0

"""Show where the time went, exposed communication first.

examples:
  overlapscope analyze rank0.pt.trace.json.gz
  overlapscope analyze traces/ --json -o analysis.json
  overlapscope analyze traces.tar.gz nccl.*.log
  overlapscope analyze s3://bucket/traces/job-1234
  overlapscope analyze runs/baseline
  overlapscope analyze --watch runs/being-recorded
  overlapscope analyze traces/ --bandwidth all_reduce_perf.log
  overlapscope analyze traces/ --comm 'my_allreduce_.*'
  overlapscope analyze runs/job --tokens-per-step 4194304 --flops-per-step 2.1e17 --dtype bf16 --price 2.50
"""

import argparse
import sys
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import (
    STATED,
    add_inputs,
    add_output,
    add_stated,
    add_workers,
    emit,
    warnings_of,
    with_stated,
)
from overlapscope.cli.next_commands import inputs_as_given, of_given

if TYPE_CHECKING:
    from overlapscope.analysis.result import Analysis
    from overlapscope.cli.analysis_cache import StoredAnalysis


_SEVERAL = "\nTo store a job as a run, or for advice, name the files of that job alone.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `analyze`."""
    add_inputs(parser)
    add_output(parser)
    add_workers(parser)
    add_stated(parser)
    parser.add_argument(
        "--bandwidth",
        metavar="FILE|PRESET",
        help="reference bandwidth for collectives: nccl-tests output or a CSV table of this machine, or a preset "
        "(8xh100-nvswitch, 16xa100-80-efa, 16xa100-40-roce, 8xmi300x)",
    )
    parser.add_argument("--all", action="store_true", help="show every rank, step, collective and finding")
    parser.add_argument(
        "--watch", action="store_true", help="show the overview while the run is being recorded, until Ctrl-C"
    )


def run(args: argparse.Namespace) -> int:
    """Analyze the inputs, or use the stored analysis; print the table or the JSON."""
    if args.watch:
        from overlapscope.cli.watch import watch  # noqa: PLC0415 - keeps --help light

        return watch(args)
    from overlapscope.cli.analysis_cache import load_analysis  # noqa: PLC0415 - as above

    stated = any(getattr(args, name) is not None for name in STATED)
    plain = len(args.inputs) == 1 and not (args.bandwidth or args.rank or args.comm or args.compute)
    result = load_analysis(args.inputs[0]) if plain else None
    if result is None:
        result = _analyze(args, may_store=plain and not stated)
    elif stated or (args.all and not args.json):
        result = _shown_again(result, args)
    sys.stderr.write(result.warnings)
    emit(result.document if args.json else result.table, args)
    return 0


def _analyze(args: argparse.Namespace, *, may_store: bool) -> "StoredAnalysis":
    """Read and analyze the inputs; store the result in a run directory that is large enough."""
    from overlapscope.cli.analysis_cache import MIN_SPANS, StoredAnalysis, state_of, store_analysis  # noqa: PLC0415
    from overlapscope.cli.read_run import read_jobs  # noqa: PLC0415 - the rest is loaded when processes have started
    from overlapscope.timeline.store.run_directory import is_run_directory  # noqa: PLC0415

    place = args.inputs[0]
    state = state_of(place) if may_store and is_run_directory(place) else None
    jobs = read_jobs(args, meanwhile=_load_rooms)
    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import analysis as text  # noqa: PLC0415

    bandwidth = None
    if args.bandwidth:
        from overlapscope.ingest.reference_bandwidth import reference_bandwidths  # noqa: PLC0415 - few ask for it

        bandwidth = reference_bandwidths(args.bandwidth)
    if len(jobs) > 1:
        parts = []
        for number, job in enumerate(jobs, 1):
            analysis = with_stated("analyze", analyze_with_advice(job.run, bandwidth, workers=args.workers), args)
            because = f"\nNot of the jobs above: {job.why}." if job.why else ""
            parts.append(
                StoredAnalysis(
                    warnings=warnings_of("analyze", analysis.sources),
                    table=f"Job {number} of {len(jobs)}: {job.title}{because}\n\n"
                    + text.render(analysis, all_rows=args.all),
                    document=json.render(analysis).rstrip(),
                )
            )
        return StoredAnalysis(
            warnings="".join(each.warnings for each in parts),
            table="\n\n".join(each.table for each in parts) + _SEVERAL,
            document="[\n" + ",\n".join(each.document for each in parts) + "\n]\n",
        )
    loaded = jobs.pop().run
    analysis = with_stated("analyze", analyze_with_advice(loaded, bandwidth, workers=args.workers), args)
    stores = state is not None and sum(each.num_spans for each in loaded.ranks.values()) >= MIN_SPANS
    del loaded  # free its memory for the output
    found = StoredAnalysis(
        warnings=warnings_of("analyze", analysis.sources),
        table=_table(analysis, args, all_rows=args.all) if stores or not args.json else "",
        document=json.render(analysis) if stores or args.json else "",
    )
    if state is not None and stores:
        store_analysis(place, found._replace(table=_table(analysis, args)) if args.all else found, state)
    return found


def _load_rooms() -> None:
    """Load what a large input will need, with the parts of numpy that it loads only when they are first used."""
    import numpy.ma  # noqa: PLC0415
    import numpy.random  # noqa: F401, PLC0415

    import overlapscope.advice.advise  # noqa: PLC0415
    import overlapscope.analysis.graph.building.build  # noqa: PLC0415
    import overlapscope.analysis.graph.rank_causes  # noqa: PLC0415
    import overlapscope.analysis.graph.step_paths  # noqa: PLC0415
    import overlapscope.report.formats.json  # noqa: PLC0415
    import overlapscope.report.text.analysis  # noqa: F401, PLC0415


def _shown_again(stored: "StoredAnalysis", args: argparse.Namespace) -> "StoredAnalysis":
    """Return the stored analysis with what the arguments state, and as many rows as they ask for."""
    import msgspec  # noqa: PLC0415

    from overlapscope.analysis.result import Analysis  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415

    analysis = with_stated("analyze", msgspec.json.decode(stored.document, type=Analysis), args)
    return stored._replace(
        table="" if args.json else _table(analysis, args, all_rows=args.all),
        document=json.render(analysis) if args.json else "",
    )


def _table(analysis: "Analysis", args: argparse.Namespace, *, all_rows: bool = False) -> str:
    """Return the text and the next commands to type."""
    from overlapscope.report.text import analysis as text  # noqa: PLC0415
    from overlapscope.timeline.store.run_directory import is_run_directory  # noqa: PLC0415

    table = of_given(text.render(analysis, all_rows=all_rows), args)
    given = inputs_as_given(args.inputs, args)
    if analysis.recommendations or any(each.whole.comm_ns for each in analysis.ranks):
        table += f"\nFor predicted gains and how to apply them:\nnext: overlapscope advise {given}\n"
    if not is_run_directory(args.inputs[0]):
        table += f"\nTo store this as a run that opens fast:\nnext: overlapscope ingest {given} -o RUN\n"
    return table

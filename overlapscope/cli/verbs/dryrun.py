"""Run one training step of your code without a device, weights or a network, and record what it communicates.

FUNCTION(device) makes model, optimizer and batch on that device and returns the step: a function without arguments.
The module is imported and the function is called: this runs their code.

examples:
  overlapscope dryrun train:build --world 1024 -o runs/dry
  overlapscope dryrun train.py:build --world 64 --rank 0,8,16 -o runs/dry
  overlapscope dryrun train.py:build --mesh dp=128,tp=8 -o runs/dry
  overlapscope dryrun train:build --world 64 --device h100-sxm --links 8xh100-nvswitch,roce-400 -o runs/dry
  overlapscope dryrun models:make --fsdp2 --input 8x2048:int64 --world 256 -o runs/dry
"""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from overlapscope.cli.arguments import given_path
from overlapscope.cli.price_options import add_price_options, priced, require_price_options
from overlapscope.display import shell_words
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.timeline.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `dryrun`."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="builds the step; also FILE.py:NAME")
    parser.add_argument("--world", type=int, metavar="N", help="ranks of the job; with --mesh the product of its sizes")
    parser.add_argument(
        "--mesh", metavar="NAME=SIZE,...",
        help="dimensions of a DeviceMesh, such as dp=128,tp=8: FUNCTION(device, mesh); with --fsdp2 one or two",
    )  # fmt: skip
    parser.add_argument(
        "--rank", action="append", default=[], metavar="R,...",
        help="ranks to run as, one after the other (default: 0): one of each pipeline stage, others are alike",
    )  # fmt: skip
    wrapper = parser.add_mutually_exclusive_group()
    wrapper.add_argument("--ddp", dest="wrapper", action="store_const", const="ddp",
                         help="FUNCTION() returns a module, or a module and inputs: wrap it in DDP")  # fmt: skip
    wrapper.add_argument("--fsdp2", dest="wrapper", action="store_const", const="fsdp2",
                         help="the same, sharded by FSDP2: each block of a ModuleList or Sequential")  # fmt: skip
    parser.add_argument("--input", action="append", default=[], metavar="SHAPE[:DTYPE]",
                        help="example input for --ddp or --fsdp2, such as 8x2048:int64")  # fmt: skip
    add_price_options(parser)
    parser.add_argument("-o", "--output", type=given_path, required=True, metavar="RUN", help="run directory to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing run")
    parser.add_argument("--json", action="store_true", help="print the analysis as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the step as each rank, write the run, print what it communicates."""
    if args.input and not args.wrapper:
        raise UsageError("--input is for --ddp and --fsdp2")
    ranks, prices, mesh = _ranks(args.rank), require_price_options(args), _mesh(args.mesh)
    if args.world is None and not mesh:
        raise UsageError("--world N is needed: the ranks of the job, or --mesh with the sizes of its dimensions")
    world_size = math.prod(mesh.values()) if args.world is None else args.world
    from overlapscope.ingest.write_run import require_output_free  # noqa: PLC0415 - keeps --help light

    require_output_free(args.output, force=args.force)
    from overlapscope.dry_run.adapters import step_of_module  # noqa: PLC0415 - keeps --help light
    from overlapscope.dry_run.build_function import find_function  # noqa: PLC0415
    from overlapscope.dry_run.passes import record, require_torch  # noqa: PLC0415

    require_torch()  # before the module is imported: what it lacks in an older one is not the cause
    # What the user's code prints is no output of ours, and our arguments are none of its own.
    with redirect_stdout(sys.stderr), _arguments_of(args.function):
        build = find_function(args.function)
        if args.wrapper:
            build = step_of_module(build, args.wrapper, args.input)
        recorded = record(build, world_size=world_size, ranks=ranks, mesh=mesh, name=args.function)
    text = ""
    if prices:
        recorded, text = _with_prices(recorded, args)
    _save(recorded, args)
    _show(recorded, args, text)
    return 0


@contextmanager
def _arguments_of(function: str) -> Iterator[None]:
    before = sys.argv
    sys.argv = [function.rpartition(":")[0]]
    try:
        yield
    finally:
        sys.argv = before


def _with_prices(recorded: "Run", args: argparse.Namespace) -> "tuple[Run, str]":
    """Return the run with priced times, and the text that says what they are."""
    from overlapscope.report.text import price  # noqa: PLC0415
    from overlapscope.whatif.pricing.prices import with_prices  # noqa: PLC0415

    found = priced(recorded, args)
    return with_prices(recorded, found), price.render(found.prices)


def _ranks(given: list[str]) -> list[int]:
    words = [word for each in given for word in each.split(",")] or ["0"]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--rank must be numbers of ranks, such as 0,8,16, not {','.join(words)!r}")
    return [int(word) for word in words]


def _mesh(given: str | None) -> dict[str, int]:
    pairs = [word.partition("=") for word in given.split(",")] if given is not None else []
    if not all(name.isidentifier() and size.isdecimal() and len(size) < 8 and int(size) for name, _, size in pairs):
        raise UsageError(f"--mesh must be names and sizes, such as dp=128,tp=8, not {given!r}")
    mesh = {name: int(size) for name, _, size in pairs}
    if len(mesh) < len(pairs):
        raise UsageError(f"--mesh names a dimension twice: {given}")
    return mesh


def _show(recorded: "Run", args: argparse.Namespace, prices: str) -> None:
    from overlapscope.advice.advise import analyze_with_advice  # noqa: PLC0415
    from overlapscope.cli.arguments import warn  # noqa: PLC0415
    from overlapscope.cli.output import escaped, printable  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.text import analysis as text  # noqa: PLC0415

    warn("dryrun", recorded.sources)
    found = analyze_with_advice(recorded)
    if args.json:
        sys.stdout.write(escaped(json.render(found)))
        return
    next_command = f"next: overlapscope analyze {shell_words([str(args.output)])}"
    sys.stdout.write(printable("\n".join(filter(None, [text.render(found), prices, f"{next_command}\n"]))))


def _save(recorded: "Run", args: argparse.Namespace) -> None:
    from overlapscope.timeline.store.load_save import save_run  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    save_run(recorded, args.output, version=__version__, force=args.force)

"""Command-line arguments that several verbs share, and the output that they control."""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.analysis.cost.peak_flops import DTYPES
from overlapscope.cli.next_commands import MAX_GIB
from overlapscope.cli.output import escaped, message_for_stderr, one_line, printable
from overlapscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlapscope.analysis.result import Analysis, SourceInfo
    from overlapscope.ingest.options import ReadOptions
    from overlapscope.timeline.run import Source

MAX_WORKERS = 1024
MANY_ALIKE: Final = 4
"""From so many files on with the same warning it is printed once. A choice."""
STATED: Final = ("tokens_per_step", "flops_per_step", "peak_tflops", "dtype", "price_per_gpu_hour")
"""Arguments of `add_stated`: the fields of `Stated` of `analysis.cost`."""


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the input paths and how to read them."""
    parser.add_argument(
        "inputs", nargs="+", type=given_path, metavar="INPUT",
        help="trace or log, plain or gzip; folder or archive (tar, tar.gz, zip) of them; URL of a file or folder "
        "(s3://, gs://, https://, ...); or one run directory",
    )  # fmt: skip
    add_reading(parser)


def given_path(text: str) -> Path:
    """Return the path of an argument; an empty one (a shell variable that is not set) is not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: is a variable not set?")
    return Path(text)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add how to read the inputs."""
    parser.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="[FILE=]N",
        help="rank of the only input, or of the input with that file name; by-name numbers inputs that state no rank "
        "in the order of their names",
    )
    parser.add_argument(
        "--comm",
        action="append",
        default=[],
        metavar="PATTERN",
        help="kernels with matching names are communication",
    )
    parser.add_argument(
        "--compute", action="append", default=[], metavar="PATTERN", help="kernels with matching names are compute"
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="keep all functions of Python stacks (torch: with_stack=True), not only calls of modules and functions of "
        "3 ms or more",
    )
    parser.add_argument(
        "--max-gib",
        type=float,
        default=MAX_GIB,
        metavar="N",
        help="refuse a file that decompresses to more (default %(default)s)",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add `--workers`."""
    parser.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="processes that read files, or parts of one file, or analyze ranks, in parallel (default: one per core if "
        "files are large, or ranks many; 1: no other process)",
    )


def _workers(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to {MAX_WORKERS}")
    return int(text)


def add_stated(parser: argparse.ArgumentParser) -> None:
    """Add what the user states about a run: what a step processes, the peak of a device, the price of its time."""
    group = parser.add_argument_group("throughput and cost", "used where the run itself does not know them")
    for field, option, metavar, words in (
        ("tokens_per_step", "--tokens-per-step", "N", "tokens that the whole job processes in a step"),
        ("flops_per_step", "--flops-per-step", "N", "model FLOPs of a step of the whole job, forward and backward"),
        ("peak_tflops", "--peak-tflops", "X", "peak of one device in TFLOP/s, for MFU"),
        (
            "price_per_gpu_hour",
            "--price",
            "PER_GPU_HOUR",
            "what one GPU costs an hour: what is lost is also shown as money a day",
        ),
    ):
        group.add_argument(option, type=_amount, metavar=metavar, dest=field, help=words)
    group.add_argument(
        "--dtype", choices=DTYPES, help="data type of the matrix products: MFU then uses the device's published peak"
    )


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def with_stated(verb: str, analysis: "Analysis", args: argparse.Namespace) -> "Analysis":
    """Return the analysis with what the arguments of `add_stated` say; print on stderr which of them is not used."""
    given = {name: value for name in STATED if (value := getattr(args, name)) is not None}
    if not given or analysis.throughput is None:
        return analysis
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.analysis.cost import throughput  # noqa: PLC0415
    from overlapscope.analysis.result import with_costs  # noqa: PLC0415

    found = analysis.throughput
    for name, known in (("tokens_per_step", found.tokens), ("flops_per_step", found.flops_per_device)):
        if name in given and known is not None:
            note(verb, f"--{name.replace('_', '-')} is not used: the run knows it ({known.known_from})", args)
    stated = throughput.with_stated(found, throughput.Stated(**given))
    if "price_per_gpu_hour" in given and stated.exposed_price_a_day is stated.idle_price_a_day is None:
        note(verb, f"--price is not used: {stated.reasons['idle_gpu_hours_a_day']}", args)
    return with_costs(msgspec.structs.replace(analysis, throughput=stated))


def read_options(args: argparse.Namespace) -> "ReadOptions":
    """Return the reading options of the arguments. Raises UsageError for a bad one."""
    from overlapscope.ingest.options import ReadOptions, parse_ranks_option  # noqa: PLC0415 - keeps --help light

    if not 0 < args.max_gib <= 2**30:
        raise UsageError("--max-gib must be more than 0 and a possible size")
    return ReadOptions(
        comm=tuple(args.comm),
        compute=tuple(args.compute),
        ranks=parse_ranks_option(args.rank),
        max_bytes=int(args.max_gib * 2**30),
        stacks=args.stacks,
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, `-o` and `-f`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", type=given_path, metavar="FILE", help="write to FILE instead of the terminal")
    parser.add_argument("-f", "--force", action="store_true", help="let -o replace an existing file")


def note(verb: str, words: str, args: argparse.Namespace | None = None, kind: str = "warning") -> None:
    """Print one line on stderr; without names if `args` contain `--redact`."""
    text = message_for_stderr(" ".join(words.split()), args)
    print(one_line(f"overlapscope {verb}: {kind}: {text}"), file=sys.stderr)


def warn(verb: str, sources: "Iterable[Source | SourceInfo]", args: argparse.Namespace | None = None) -> None:
    """Print the warnings of each source on stderr."""
    sys.stderr.write(warnings_of(verb, sources, args))


def warnings_of(verb: str, sources: "Iterable[Source | SourceInfo]", args: argparse.Namespace | None = None) -> str:
    """Return the warnings of each source, one line each, and one for all sources where `MANY_ALIKE` or more have the
    same; without names if `args` contain `--redact`."""
    lines = []
    found = [(source.path, " ".join(warning.split())) for source in sources for warning in source.warnings]
    times, said = Counter(warning for _, warning in found), set[str]()
    for path, warning in found:
        alike = times[warning] >= MANY_ALIKE
        if not alike or warning not in said:
            more = f" (and {times[warning] - 1} more files)" if alike else ""
            text = message_for_stderr(f"{path}: {warning}{more}", args)
            lines.append(f"{one_line(f'overlapscope {verb}: warning: {text}')}\n")
        said.add(warning)
    return "".join(lines)


def emit(text: str, args: argparse.Namespace) -> None:
    """Print the text, or write it to the file of `-o`.

    Raises UsageError if the file exists and `-f` is not given, InputError if it cannot be written; no half-written new
    file is left behind.
    """
    if args.output is None:
        sys.stdout.write(escaped(text) if args.json else printable(text))
        return
    new = False
    try:
        with open(args.output, "w" if args.force else "x", encoding="utf-8") as file:
            new = not args.force
            file.write(text if args.json else printable(text))
    except FileExistsError as error:
        raise UsageError(f"{args.output} exists already; choose another name, or replace it with -f") from error
    except OSError as error:
        if new:
            args.output.unlink(missing_ok=True)
        raise InputError(f"{args.output}: cannot be written: {error.strerror or error}") from error

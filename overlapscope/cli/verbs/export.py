"""Write a run as one trace for ui.perfetto.dev: all ranks on one clock, with tracks for steps, causes, critical path.

examples:
  overlapscope export runs/baseline --format perfetto -o baseline.json.gz
  overlapscope export traces/ --ranks 0-3,6 --steps 5-7 -o part.json.gz
"""

import argparse
import gzip
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from overlapscope.cli.arguments import add_inputs, given_path, warn
from overlapscope.display import list_some
from overlapscope.errors import InputError, UsageError
from overlapscope.files.atomic import atomic_file

COMPRESSION = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    add_inputs(parser)
    parser.add_argument("--format", choices=["perfetto"], default="perfetto", help="perfetto: Chrome JSON trace format")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks, such as 0-3,6")
    parser.add_argument("--steps", metavar="LIST", help="only these steps, such as 5-7")
    parser.add_argument(
        "-o",
        "--output",
        type=given_path,
        required=True,
        metavar="FILE",
        help="file to write; compressed if it ends in .gz",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print JSON about what was written")


def run(args: argparse.Namespace) -> int:
    """Read the inputs, write the trace."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.cli.read_run import read_timed_run  # noqa: PLC0415
    from overlapscope.report.formatting import count, size  # noqa: PLC0415
    from overlapscope.report.perfetto.export import ExportSelection, PerfettoTrace  # noqa: PLC0415
    from overlapscope.version import __version__  # noqa: PLC0415

    ranges = {option: numbers(option, getattr(args, option)) for option in ("ranks", "steps")}
    loaded = read_timed_run(args)
    warn("export", loaded.sources)
    steps = {step for timeline in loaded.ranks.values() for step in timeline.steps.step.tolist()}
    choice = ExportSelection(
        ranks=chosen("ranks", ranges["ranks"], loaded.ranks), steps=chosen("steps", ranges["steps"], steps)
    )
    trace = PerfettoTrace(run=loaded, choice=choice, version=__version__)
    if trace.is_empty:
        raise InputError(f"{args.inputs[0]}: contains no times, so there is nothing to show")
    written = write_file(args.output, trace.pieces(), force=args.force)
    warn("export", loaded.unreadable_hosts)
    if args.json:
        result = {
            "schema": "overlapscope.export/1",
            "output": str(args.output),
            "format": args.format,
            "ranks": trace.ranks,
            "steps": None if choice.steps is None else sorted(choice.steps),
            "events": trace.events,
            "bytes": written,
            "base_time_ns": trace.base_ns,
        }
        print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
        return 0
    print(f"{args.output}: {count(len(trace.ranks), 'rank')}, {trace.events:,} events, {size(written)}")
    print("next: open it in https://ui.perfetto.dev, which reads it in your browser and sends it nowhere")
    return 0


def numbers(option: str, value: str | None) -> list[range] | None:
    """Parse a list such as `0-3,6`. Raises UsageError for anything else."""
    if value is None:
        return None
    found = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", part)
        if not match:
            raise UsageError(f"--{option} {value}: give numbers and ranges, such as 0-3,6")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"--{option} {value}: {part.strip()} is empty; write the smaller number first")
        found.append(range(first, last + 1))
    return found


def chosen(option: str, ranges: list[range] | None, known: Iterable[int]) -> frozenset[int] | None:
    """Return the known numbers within `ranges`. Raises UsageError for a range that contains none of them."""
    if ranges is None:
        return None
    there = sorted(known)
    for each in ranges:
        if not any(number in each for number in there):
            asked = f"{each[0]}" if len(each) == 1 else f"{each[0]}-{each[-1]}"
            has = list_some(there, 16) or "none"
            raise UsageError(f"--{option} {asked}: the input has none of these; it has {has}")
    return frozenset(number for number in there if any(number in each for each in ranges))


def write_file(path: Path, pieces: Iterable[str], *, force: bool) -> int:
    """Write text as UTF-8, gzip-compressed if the name ends in `.gz`; return the size of the file in bytes.

    Raises UsageError if the file exists and `force` is not given, or if the path is not a file; InputError if it cannot
    be written. After a failure the older file is unchanged.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a folder or a device; name a file")
    empty = False
    try:
        if not force:
            with open(path, "x", encoding="utf-8"):
                empty = True  # from here on we own the name
        with atomic_file(path, durable=True) as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed:
                    _write(packed.write, pieces)
            else:
                _write(file.write, pieces)
        empty = False
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; choose another name, or replace it with -f") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if empty:
            path.unlink(missing_ok=True)
    return path.stat().st_size


def _write(write: Callable[[bytes], object], pieces: Iterable[str]) -> None:
    for piece in pieces:
        write(piece.encode("utf-8", "replace"))

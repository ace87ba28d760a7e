"""Check what this machine can read and record, what is missing, how to get it, and how its versions were tried.

With --gpu, ten minutes of measurements on one GPU: whether recordings there are right, and what they cost. Exit code 1
if a check is refused, 3 without a device.

examples:
  overlapscope doctor
  overlapscope doctor --gpu -o gpu-report
"""

import argparse
import sys
from pathlib import Path

from overlapscope.cli.arguments import add_output, emit
from overlapscope.cli.output import one_line, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `doctor`."""
    add_output(parser)
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="measure on this machine's first GPU whether recordings are right; -o is then a folder for the report and "
        "small recordings (less than 3 MB)",
    )
    parser.add_argument(
        "--check", action="append", default=[], metavar="NAME", help="with --gpu: run this check only, such as C7a"
    )


def run(args: argparse.Namespace) -> int:
    """Run the checks and print them; without `--gpu` always return 0, because something missing is not a failure."""
    if args.gpu:
        return _check_gpu(args)
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.capture.host.doctor import examine  # noqa: PLC0415
    from overlapscope.capture.host.installed_software import installed_versions  # noqa: PLC0415
    from overlapscope.errors import UsageError  # noqa: PLC0415

    if args.check:
        raise UsageError("--check names a check of --gpu; say doctor --gpu --check NAME")
    checks, versions = examine(), installed_versions()
    if args.json:
        report = {"schema": "overlapscope.doctor/1", "checks": checks, "versions": versions}
        emit(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n", args)
        return 0
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.available else 'missing'}  {check.name.ljust(width)}  {check.detail}")
        if check.remedy:
            lines.append(f"{'':{width + 11}}to get it: {check.remedy}")
    cells = [("version of", "here", "status", "by"), *((v.software, v.version, v.status, v.by) for v in versions)]
    widths = [max(len(row[at]) for row in cells) for at in range(3)]
    lines.append("")
    lines += ["  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in cells]
    emit("\n".join(lines) + "\n", args)
    return 0


def _check_gpu(args: argparse.Namespace) -> int:
    """Run the checks of a GPU; return 1 if one is refused."""
    from overlapscope.gpu_check.run_checks import as_json, run_checks  # noqa: PLC0415 - keeps --help light
    from overlapscope.gpu_check.table import as_text  # noqa: PLC0415

    if args.output is not None:
        _make_folder(args.output, force=args.force)

    def say(words: str) -> None:
        print(one_line(f"overlapscope doctor: {words}"), file=sys.stderr, flush=True)

    document = run_checks(args.output, say, chosen=args.check)
    if args.output is None or not args.json:
        sys.stdout.write(as_json(document) if args.json else printable(as_text(document)))
    if args.output is not None:
        say(f"the report and its recordings are in {args.output}")
    return int(document.count("refused") > 0)


def _make_folder(folder: Path, *, force: bool) -> None:
    """Make the folder of a report. Raises UsageError where one with files is there, unless it may be replaced."""
    from overlapscope.errors import InputError, UsageError  # noqa: PLC0415

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not force:
            raise UsageError(f"{folder} exists already and is not empty; choose another name, or write into it with -f")
    except FileExistsError as error:
        raise UsageError(f"{folder} is a file; --gpu writes a folder") from error
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from error

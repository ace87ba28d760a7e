"""Check what this machine can read and record, what is missing, and how to get it.

example:
  overlapscope doctor
"""

import argparse

from overlapscope.cli.arguments import add_output, emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `doctor`."""
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the checks and print them; always return 0, because something missing is not a failure."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from overlapscope.capture.host.doctor import examine  # noqa: PLC0415

    checks = examine()
    if args.json:
        report = {"schema": "overlapscope.doctor/1", "checks": checks}
        emit(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n", args)
        return 0
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.available else 'missing'}  {check.name.ljust(width)}  {check.detail}")
        if check.remedy:
            lines.append(f"{'':{width + 11}}to get it: {check.remedy}")
    emit("\n".join(lines) + "\n", args)
    return 0

"""Check what this machine can read and record, what is missing, how to get it, and how its versions were tried.

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
    from overlapscope.capture.host.installed_software import installed_versions  # noqa: PLC0415

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

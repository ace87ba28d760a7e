"""Judge whether a candidate regressed against a baseline, with an exit code for CI.

Each side is a run, a trace file, a folder of the traces of one run, or a folder of runs of the same code.
Exit codes: 0 passed, 1 regressed, 2 usage or policy, 3 nothing usable or not comparable, 4 inconclusive, if asked.

examples:
  overlapscope gate runs/baseline runs/candidate
  overlapscope gate runs/baseline/ runs/candidate/ --policy gate.toml --fail-on inconclusive --json -o gate.json
  overlapscope gate --calibrate runs/unchanged/ -o floor.json
  overlapscope gate runs/baseline runs/candidate --floor floor.json
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlapscope.cli.arguments import add_output, add_reading, emit, given_path
from overlapscope.cli.inputs import PredictionTester, read_both_sides, read_replicates
from overlapscope.cli.next_commands import inputs_as_given, reading_words
from overlapscope.cli.policy_file import read_floor, read_policy
from overlapscope.display import shell_words
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.gate.policy import Policy
    from overlapscope.gate.verdict import Gate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gate`."""
    parser.add_argument(
        "base", nargs="?", type=given_path, metavar="BASE", help="run, or folder of runs of the same code"
    )
    parser.add_argument(
        "candidate", nargs="?", type=given_path, metavar="CAND", help="the run, or folder of runs, to judge"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE",
        help="TOML file with the policy (default: [tool.overlapscope.gate] of ./pyproject.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-mismatch", action="append", default=[], metavar="KEY",
        help="judge runs that differ in this key, for example world_size or device",
    )  # fmt: skip
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="VERDICT",
        help="inconclusive: exit with code 4 if the verdict is inconclusive",
    )
    parser.add_argument("--floor", type=Path, metavar="FILE", help="noise floor that --calibrate wrote")
    parser.add_argument(
        "--calibrate", type=Path, metavar="RUNS",
        help="measure how much runs of unchanged code in this folder differ; -o FILE stores it for --floor",
    )  # fmt: skip
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names of files, hosts, groups, modules and kernels in the result, and omit sentences",
    )
    add_reading(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Judge the candidate, or calibrate; return the exit code."""
    if args.calibrate is not None:
        if args.base is not None:
            raise UsageError("--calibrate takes one folder of runs, and no BASE or CAND")
        if args.redact:
            message = "--redact cannot be used with --calibrate: a noise floor has to name its runs and their job"
            raise UsageError(message, redacted=message)
        return _calibrate(args)
    if args.base is None or args.candidate is None:
        raise UsageError("name BASE and CAND, two runs or folders of runs; or --calibrate RUNS")
    return _judge(args)


def _judge(args: argparse.Namespace) -> int:
    from overlapscope.gate.verdict import judge  # noqa: PLC0415 - keeps --help light
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.sheet import gate_text  # noqa: PLC0415

    policy = _policy(args)
    floor = read_floor(Path(policy.floor)) if policy.floor is not None else None
    tested = PredictionTester("gate", [args.base], args)
    (base, candidate), left_out = read_both_sides("gate", (args.base, args.candidate), args, tested.look)
    gate = judge(base, candidate, policy, floor, left_out)
    gate = replace(gate, comparison=replace(gate.comparison, predictions=tested.outcomes))
    if args.redact:
        from overlapscope.report.redact import redacted  # noqa: PLC0415

        gate = redacted(gate)
    emit(json.render(gate) if args.json else gate_text.render(gate) + _next(gate, args), args)
    if os.environ.get("GITHUB_ACTIONS"):
        from overlapscope.report.formats.github import annotations  # noqa: PLC0415

        # GitHub also reads them on stderr, where they do not mix with the JSON.
        sys.stderr.writelines(f"{each}\n" for each in annotations(gate))
    return gate.exit_code


def _policy(args: argparse.Namespace) -> "Policy":
    """Return the policy of the file, with the additions of the command line."""
    from overlapscope.gate.policy import known_failure, known_key  # noqa: PLC0415

    policy = read_policy(args.policy)
    return replace(
        policy,
        allow_mismatch=(*policy.allow_mismatch, *map(known_key, args.allow_mismatch)),
        fail_on=(*policy.fail_on, *map(known_failure, args.fail_on)),
        floor=policy.floor if args.floor is None else str(args.floor),
    )


def _next(gate: "Gate", args: argparse.Namespace) -> str:
    paths = "BASE CAND" if args.redact else inputs_as_given([args.base, args.candidate], args)
    if gate.verdict == "not_comparable":
        return f"\nnext: overlapscope compare {paths}\n"
    if gate.verdict != "passed":
        return f"\nnext: overlapscope compare {paths} --all\n"
    uncalibrated = any(each.gates and each.calibrated is False for each in gate.metrics)
    options = [] if args.redact else reading_words(args, other_inputs=True)
    calibrated = shell_words(["--calibrate", "RUNS", "-o", "floor.json", *options])
    return f"\nnext: overlapscope gate {calibrated}\n" if uncalibrated else ""


def _calibrate(args: argparse.Namespace) -> int:
    from overlapscope.gate.calibrate import calibrate  # noqa: PLC0415
    from overlapscope.report.formats import json  # noqa: PLC0415
    from overlapscope.report.sheet import gate_text  # noqa: PLC0415

    policy = _policy(args)
    floor = calibrate(read_replicates("gate", args.calibrate, args))
    if args.json or args.output is not None:
        keep = argparse.Namespace(**{**vars(args), "json": True})
        emit(json.render(floor), keep)
    if not args.json:
        to_terminal = argparse.Namespace(output=None, json=False)
        name = "FLOOR" if args.output is None else str(args.output)
        given = shell_words(["BASE", "CAND", "--floor", name, *reading_words(args, other_inputs=True)])
        emit(gate_text.render_noise_floor(floor, policy.alpha, policy.metrics), to_terminal)
        emit(f"\nnext: overlapscope gate {given}\n", to_terminal)
    return 0

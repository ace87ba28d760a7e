"""Runs of one job at several world sizes, for the verbs that tell of them."""

import argparse
from typing import TYPE_CHECKING

from overlapscope.cli.sides import measured

if TYPE_CHECKING:
    from overlapscope.analysis.scaling import Scaling


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add how to ask for it."""
    parser.add_argument(
        "--scale", action="store_true", help="runs of one job at several world sizes: throughput, and what eats it"
    )
    parser.add_argument(
        "--scaling", choices=("weak", "strong"), default="weak",
        help="with --scale: whether each rank keeps its work, or all share one (default: weak)",
    )  # fmt: skip


def scaled(verb: str, args: argparse.Namespace) -> "Scaling":
    """Measure the runs of `args.inputs`; raises UsageError where they are all of one size."""
    from overlapscope.analysis.scaling import scaling  # noqa: PLC0415 - keeps --help light

    return scaling([run for path in args.inputs for run in measured(verb, path, args)], args.scaling)

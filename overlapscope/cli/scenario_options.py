"""Options of `whatif` and `plan` for steps that are replayed where somebody asks for them."""

import argparse
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.whatif.requested import Asked

MOST = 20
MOST_CHANNELS = 64
"""NCCL takes no more (32 before 2.25)."""


def add_scenario_options(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("--zero-stage", metavar="N,N,...", help="optimizer (1), gradients (2), parameters (3) sharded")
    parser.add_argument("--partition-mb", metavar="N,N,...", help="buckets sent in pieces of so many MiB")
    parser.add_argument(
        "--priority", action="store_true", help="what the next forward needs first is sent first, and all it waits for"
    )


def requested_of(args: argparse.Namespace) -> "Asked":
    """Return what was asked for. Raises UsageError for what cannot be."""
    from overlapscope.whatif.requested import Asked  # noqa: PLC0415 - keeps --help light

    stages = _numbers("--zero-stage", args.zero_stage, "1,2,3")
    if any(each not in (1, 2, 3) for each in stages):
        raise UsageError(f"--zero-stage {args.zero_stage}: there are stages 1, 2 and 3")
    partitions = _numbers("--partition-mb", args.partition_mb, "1,4")
    if not all(0 < each < 1e9 for each in partitions):
        raise UsageError(f"--partition-mb {args.partition_mb}: a piece must be more than 0")
    return Asked(
        zero_stages=tuple(dict.fromkeys(map(int, stages))),
        partitions_mb=tuple(dict.fromkeys(partitions)),
        priority=args.priority,
    )


def channel_tables(text: str | None) -> list[tuple[int, Path]]:
    """Return the tables that an argument lists, e.g. `8=table8.txt`. Raises UsageError for what NCCL does not take."""
    pairs = [each.partition("=") for each in text.split(",")] if text is not None else []
    if not all(name for _, _, name in pairs):
        raise UsageError(f"--channels {text}: give a table of nccl-tests for each number, e.g. 8=table8.txt")
    numbers = requested_channels(",".join(number for number, _, _ in pairs) if pairs else None)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--channels {text}: give one table for each number")
    return [(number, Path(name)) for number, (_, _, name) in zip(numbers, pairs, strict=True)]


def requested_channels(text: str | None) -> list[int]:
    """Return the numbers of channels to try. Raises UsageError for what NCCL does not take."""
    found = _numbers("--channels", text, "4,8")
    if any(each != int(each) or not 1 <= each <= MOST_CHANNELS for each in found):
        raise UsageError(f"--channels {text}: give whole numbers from 1 to {MOST_CHANNELS}")
    return [int(each) for each in found]


def _numbers(option: str, text: str | None, example: str) -> list[float]:
    if text is None:
        return []
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} {text}: give numbers with commas between them, e.g. {example}") from error
    if not all(map(isfinite, found)):
        raise UsageError(f"{option} {text}: give numbers with commas between them, e.g. {example}")
    if len(found) > MOST:
        raise UsageError(f"{option}: at most {MOST} at once")
    return found

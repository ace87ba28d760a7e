"""Options of `whatif` and `plan` for settings that are replayed only when the user asks for them."""

import argparse
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from overlapscope.whatif.requested import RequestedSettings

MAX_NUMBERS = 20
MAX_CAPS = 1000
MAX_CHANNELS = 64
"""NCCL's maximum (32 before 2.25)."""


def add_scenario_options(parser: argparse.ArgumentParser) -> None:
    """Add `--zero-stage`, `--partition-mb` and `--priority`."""
    parser.add_argument(
        "--zero-stage", metavar="N,N,...", help="shard the optimizer state (1), also gradients (2), also parameters (3)"
    )
    parser.add_argument("--partition-mb", metavar="N,N,...", help="send buckets in pieces of N MiB")
    parser.add_argument(
        "--priority",
        action="store_true",
        help="send first what the next forward needs first, and wait for all of it",
    )


def parse_caps(text: str | None) -> list[float]:
    """Return the caps of `--bucket-cap-mb`, none without it. Raises UsageError for an impossible cap."""
    caps = _numbers("--bucket-cap-mb", text, "1,10,25", MAX_CAPS)
    if not all(0 < each < 1e9 for each in caps):
        raise UsageError(f"--bucket-cap-mb {text}: a cap must be more than 0")
    return caps


def requested_of(args: argparse.Namespace) -> "RequestedSettings":
    """Return the requested settings. Raises UsageError for impossible ones."""
    from overlapscope.whatif.requested import RequestedSettings  # noqa: PLC0415 - keeps --help light

    stages = _numbers("--zero-stage", args.zero_stage, "1,2,3")
    if any(each not in (1, 2, 3) for each in stages):
        raise UsageError(f"--zero-stage {args.zero_stage}: a stage is 1, 2 or 3")
    partitions = _numbers("--partition-mb", args.partition_mb, "1,4")
    if not all(0 < each < 1e9 for each in partitions):
        raise UsageError(f"--partition-mb {args.partition_mb}: a piece must be more than 0")
    return RequestedSettings(
        zero_stages=tuple(dict.fromkeys(map(int, stages))),
        partitions_mb=tuple(dict.fromkeys(partitions)),
        priority=args.priority,
    )


def channel_tables(text: str | None) -> list[tuple[int, Path]]:
    """Return the (channels, table) pairs of e.g. `8=table8.txt`. Raises UsageError for a number that NCCL refuses."""
    pairs = [each.partition("=") for each in text.split(",")] if text is not None else []
    if not all(name for _, _, name in pairs):
        raise UsageError(f"--channels {text}: give a table of nccl-tests for each number, e.g. 8=table8.txt")
    numbers = requested_channels(",".join(number for number, _, _ in pairs) if pairs else None)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--channels {text}: give one table for each number")
    return [(number, Path(name)) for number, (_, _, name) in zip(numbers, pairs, strict=True)]


def requested_channels(text: str | None) -> list[int]:
    """Return the numbers of channels to try. Raises UsageError for a number that NCCL does not accept."""
    found = _numbers("--channels", text, "4,8")
    if any(each != int(each) or not 1 <= each <= MAX_CHANNELS for each in found):
        raise UsageError(f"--channels {text}: give whole numbers from 1 to {MAX_CHANNELS}")
    return [int(each) for each in found]


def _numbers(option: str, text: str | None, example: str, most: int = MAX_NUMBERS) -> list[float]:
    if text is None:
        return []
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = [nan]
    if not all(map(isfinite, found)):
        raise UsageError(f"{option} {text}: give numbers with commas between them, e.g. {example}")
    if len(found) > most:
        raise UsageError(f"{option}: at most {most} at once")
    return found

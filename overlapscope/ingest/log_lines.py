"""The contract of a format whose lines stand among the others of a training log."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from overlapscope.timeline.facts import Facts


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines of one format gave."""

    facts: Facts = msgspec.field(default_factory=Facts)
    lines: int = 0
    """Lines that were understood; 0 when the log has none of the format."""
    dropped: int = 0
    """Lines that are of the format, but too damaged to be understood."""
    warnings: tuple[str, ...] = ()


class LogLines(Protocol):
    """Takes the lines of one format out of a log."""

    def wants(self, line: bytes) -> bool:
        """Whether the line may be of the format; asked of every line, so it must be quick."""

    def take(self, line: str) -> None:
        """Take a line that is wanted, without colours and launcher's prefix."""

    def found(self, source: str) -> Found:
        """Give what all lines told; `source` is the log as it is shown."""


class LogFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One format of lines."""

    name: str
    in_text: Callable[[bytes], bool]
    """Whether a part of a log surely holds lines of it, and does not merely speak of them."""
    lines: Callable[[], LogLines]

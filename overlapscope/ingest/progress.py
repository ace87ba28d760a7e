"""Who wants to know how far reading has come."""

from pathlib import Path
from typing import Protocol


class Watch(Protocol):
    """Follows the reading of many files."""

    def begin(self, files: int, done: int) -> None:
        """Learn how many files there are, and how many need not be read again."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Learn that so many more bytes of a file were read."""

    def done(self, path: Path) -> None:
        """Learn that a file is done with."""


class Unwatched:
    """Nobody."""

    def begin(self, files: int, done: int) -> None:
        """Ignore it."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Ignore it."""

    def done(self, path: Path) -> None:
        """Ignore it."""

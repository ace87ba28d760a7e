"""Callbacks that follow the progress of reading many files."""

from pathlib import Path
from typing import Protocol


class ProgressWatcher(Protocol):
    """Receives the progress of reading many files."""

    def begin(self, files: int, done: int) -> None:
        """Receive the number of files, and how many of them need not be read again."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Receive the number of bytes of a file read since the last call."""

    def done(self, path: Path) -> None:
        """Receive the path of a file that is finished."""


class NoProgress:
    """Ignores all progress."""

    def begin(self, files: int, done: int) -> None:
        """Do nothing."""

    def __call__(self, path: Path, read_bytes: int) -> None:
        """Do nothing."""

    def done(self, path: Path) -> None:
        """Do nothing."""

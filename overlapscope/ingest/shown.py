"""Paths as text that can be printed and stored."""

import os
from pathlib import Path


def shown(path: Path) -> str:
    """Give a path as text, whatever bytes its name holds."""
    return os.fsencode(path).decode("utf-8", "replace")


def shown_name(path: Path) -> str:
    """Give the last part of a path as text."""
    return shown(Path(path.name))

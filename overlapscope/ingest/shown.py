"""Paths as text that can be printed and stored."""

import os
import re
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/(?=[^/])")
"""How a URL begins that was made a path, which has no empty parts."""


def shown(path: Path) -> str:
    """Give a path as text, whatever bytes its name holds."""
    text = os.fsencode(path).decode("utf-8", "replace")
    found = _URL.match(text)
    return text if found is None else f"{found[1]}://{'/' if found[1] == 'file' else ''}{text[found.end() :]}"


def shown_name(path: Path) -> str:
    """Give the last part of a path as text."""
    return shown(Path(path.name))

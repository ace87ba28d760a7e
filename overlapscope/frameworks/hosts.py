"""Importing a host package, or saying which one is missing."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from overlapscope.errors import UsageError


def imported(names: Sequence[str], install: str) -> list[Any]:
    """Give those of the modules that the process has imported already, else the first that is installed.

    Raises UsageError, naming the package to install, when there is none.
    """
    loaded = [sys.modules[name] for name in names if name in sys.modules]
    if loaded:
        return loaded
    for name in names:
        try:
            there = find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package is missing
            there = False
        if there:
            return [import_module(name)]
    raise UsageError(f"{' or '.join(names)} is not installed: pip install {install}")

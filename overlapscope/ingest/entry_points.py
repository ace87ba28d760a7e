"""Whether installed packages bring anything, without what parses the metadata of them all.

`importlib.metadata` and what it imports take as long to load as all of reading's own modules together, and nearly
always to say that there is nothing. What it would find stands under the group's name in a package's file
`entry_points.txt`: where no such file holds that name, it would find nothing.
"""

import os
import sys
from importlib.machinery import PathFinder
from typing import Final

_METADATA: Final = (".dist-info", ".egg-info")


def may_be_brought(group: str) -> bool:
    """Whether `importlib.metadata.entry_points(group=group)` may give any; no is certain."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True  # packages may be anywhere
    return any(_may_bring(folder or ".", group.encode()) for folder in sys.path)


def _may_bring(folder: str, group: bytes) -> bool:
    """Whether a package in a place of modules may bring something; where that is no folder, nobody has looked."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(
        _stands_in(os.path.join(folder, name, "entry_points.txt"), group)
        for name in names
        if name.lower().endswith(_METADATA) or name.lower() == "egg-info"
    )


def _stands_in(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return text in file.read()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True

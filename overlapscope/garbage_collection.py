"""Python's search for cycles of dead objects, which here are few: for processes that are ours from start to end."""

import atexit
import gc
from typing import Final

OBJECTS_BETWEEN_SEARCHES: Final = 200_000
"""Instead of 700 new ones, which took a tenth of reading."""


def search_seldom() -> None:
    """Search seldom, and not once more through all that there is when the process ends, which takes a tenth again."""
    gc.set_threshold(OBJECTS_BETWEEN_SEARCHES)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)

"""Recognise our own Perfetto export, so that it is refused with a reason and not read as a recording.

The clocks of its ranks are corrected, and its tracks hold computed figures beside what ran. Read as a trace, both would
count as recorded.
"""

import re
from pathlib import Path
from typing import Final

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.reader import Head, ReadContext, Reader, Reading

SCHEMA: Final = "overlapscope.perfetto/1"
"""Schema name in the first lines of every export."""


def recognises(head: Head) -> bool:
    """Return whether the file states the schema of our export."""
    return re.search(rb'"schema"\s*:\s*"overlapscope\.perfetto/', head.content[:1024]) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Raise InputError that names the command which wrote the file."""
    del context
    raise InputError(
        f"{display_path(path)}: was written by `overlapscope export` for ui.perfetto.dev; analyze the original traces "
        "or the saved run instead"
    )


READER = Reader(format="perfetto export", recognises=recognises, read=read)

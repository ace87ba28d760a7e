"""Our own export for Perfetto, recognised so that it is not mistaken for a recording: it is refused, with a word why.

Its ranks' clocks are corrected, and its tracks hold figures beside what ran: read as a trace, both would count as
recorded.
"""

import re
from pathlib import Path
from typing import Final

from overlapscope.display import shown
from overlapscope.errors import InputError
from overlapscope.ingest.reader import Head, ReadContext, Reader, Reading

SCHEMA: Final = "overlapscope.perfetto/1"
"""Stands in the first lines of every export."""
FORMAT: Final = "perfetto export"
_MARK: Final = rb'"schema"\s*:\s*"overlapscope\.perfetto/'
_WITHIN: Final = 1024


def recognises(head: Head) -> bool:
    """Return whether the file says of itself that it is one."""
    return re.search(_MARK, head.content[:_WITHIN]) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Raise InputError."""
    del context
    raise InputError(
        f"{shown(path)}: was made by `overlapscope export`, to be looked at in ui.perfetto.dev; analyze the traces or "
        "the run that it was made from"
    )


READER = Reader(format=FORMAT, recognises=recognises, read=read)

"""Know a PyTorch execution trace."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "execution_trace"
_SCHEMA: Final = rb'"schema"\s*:\s*"[^"]{1,80}"'
NODES: Final = rb'"nodes"\s*:\s*\['
"""Where its nodes begin."""


def recognises(head: Head) -> bool:
    """Whether the file is an object with a schema and nodes that are the observer's."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text or not re.search(_SCHEMA, text) or not re.search(NODES, text):
        return False
    return b'"rf_id"' in text or b'"ctrl_deps"' in text


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.execution_trace`."""
    from overlapscope.ingest.execution_trace import read_execution_trace  # noqa: PLC0415 - loaded for such a file

    return read_execution_trace(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)

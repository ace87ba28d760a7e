"""Recognise a PyTorch execution trace."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

_SCHEMA: Final = rb'"schema"\s*:\s*"[^"]{1,80}"'
NODES: Final = rb'"nodes"\s*:\s*\['
"""Beginning of the list of nodes."""


def recognises(head: Head) -> bool:
    """Return whether the file is an object with a schema and with nodes of torch's execution trace observer."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] != b"{" or b'"traceEvents"' in text or not re.search(_SCHEMA, text) or not re.search(NODES, text):
        return False
    return b'"rf_id"' in text or b'"ctrl_deps"' in text


READER = Reader(
    format="execution_trace",
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.execution_trace.reader:read_execution_trace"),
)

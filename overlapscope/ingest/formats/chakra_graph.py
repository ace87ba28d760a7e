"""Know a Chakra trace as a JSON object."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "chakra_graph"
_GRAPH: Final = rb'"workload_graph"\s*:\s*\['


def recognises(head: Head) -> bool:
    """Whether the file is an object with a workload graph."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text[:1] == b"{" and b'"traceEvents"' not in text and re.search(_GRAPH, text) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.chakra_graph`."""
    from overlapscope.ingest.chakra_graph import read_graph  # noqa: PLC0415 - loaded for such a file

    return read_graph(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)

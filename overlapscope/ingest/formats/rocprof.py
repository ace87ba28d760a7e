"""Know the JSON of rocprofv3."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "rocprofv3"
_BEGINS: Final = rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:\s*[\[{]'


def recognises(head: Head) -> bool:
    """Whether the file begins as rocprofv3's JSON does."""
    return re.match(_BEGINS, head.content.removeprefix(b"\xef\xbb\xbf")) is not None


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.rocprof`."""
    from overlapscope.ingest.rocprof import read_rocprof  # noqa: PLC0415 - loaded for such a file

    return read_rocprof(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read)

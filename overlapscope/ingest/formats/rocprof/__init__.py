"""Recognise the JSON of rocprofv3."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

_BEGINS: Final = rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:\s*[\[{]'


def recognises(head: Head) -> bool:
    """Return whether the file begins like rocprofv3's JSON."""
    return re.match(_BEGINS, head.content.removeprefix(b"\xef\xbb\xbf")) is not None


READER = Reader(
    format="rocprofv3", recognises=recognises, read=lazy_read("overlapscope.ingest.formats.rocprof.reader:read_rocprof")
)

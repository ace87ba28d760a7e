"""Recognise a Horovod timeline."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

_OPERATIONS: Final = rb"(?:ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|ADASUM|REDUCESCATTER|JOIN|BARRIER)"
_MARKS: Final = (
    rb'"name"\s*:\s*"NEGOTIATE_' + _OPERATIONS + rb'"',
    rb'"name"\s*:\s*"CYCLE_START"',
    rb'"ph"\s*:\s*"B"\s*,\s*"name"\s*:\s*"' + _OPERATIONS + rb'"',
)


def recognises(head: Head) -> bool:
    """Return whether the file is an array that begins with Horovod's own events."""
    text = head.content.lstrip(b"\xef\xbb\xbf \t\r\n")
    return re.match(rb"\[\s*\{", text) is not None and any(re.search(mark, text) for mark in _MARKS)


READER = Reader(
    format="horovod", recognises=recognises, read=lazy_read("overlapscope.ingest.formats.horovod.reader:read_horovod")
)

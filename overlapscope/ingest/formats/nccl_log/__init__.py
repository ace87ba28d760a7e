"""Recognise an NCCL or RCCL log (`NCCL_DEBUG=INFO`)."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

FORMAT: Final = "nccl-log"
_JSON: Final = rb"\s*(?:\{|\[\s*[\[{\"\]])"


def recognises(head: Head) -> bool:
    """Return whether the beginning of a file holds a line with NCCL's prefix; other mentions of NCCL do not count."""
    if b" NCCL " not in head.content or re.match(_JSON, head.content):
        return False
    from overlapscope.ingest.formats.nccl_log.line_prefix import is_nccl_line  # noqa: PLC0415 - loaded only for logs

    return any(is_nccl_line(line) for line in head.content.split(b"\n") if b" NCCL " in line)


READER = Reader(
    format=FORMAT,
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.nccl_log.reader:read_nccl_log"),
    anywhere=True,
)

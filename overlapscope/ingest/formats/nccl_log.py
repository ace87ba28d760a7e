"""Know an NCCL or RCCL log (`NCCL_DEBUG=INFO`)."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

FORMAT: Final = "nccl-log"
_JSON: Final = rb"\s*(?:\{|\[\s*[\[{\"\]])"


def recognises(head: Head) -> bool:
    """Whether the beginning of a file holds a line of the library, with its prefix; other words on it do not count."""
    if b" NCCL " not in head.content or re.match(_JSON, head.content):
        return False
    from overlapscope.ingest.nccl_prefix import is_nccl_line  # noqa: PLC0415 - loaded for what may be such a log

    return any(is_nccl_line(line) for line in head.content.split(b"\n") if b" NCCL " in line)


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.nccl_log`."""
    from overlapscope.ingest.nccl_log import read_nccl_log  # noqa: PLC0415 - loaded for such a file

    return read_nccl_log(path, context)


READER = Reader(format=FORMAT, recognises=recognises, read=read, anywhere=True)

"""Know a training log that holds lines of a known format."""

import re
from pathlib import Path
from typing import Final

from overlapscope.ingest.reading import Head, ReadContext, Reader, Reading

_JSON: Final = rb"[\s\x00]*(?:\{\s*[\"}]|\[\s*[{\]])"


def recognises(head: Head) -> bool:
    """Whether a text holds lines of a known format."""
    if re.match(_JSON, head.content):
        return False
    from overlapscope.ingest.training_log import FORMATS  # noqa: PLC0415 - loaded for what may be such a log

    return any(each.in_text(head.content) for each in FORMATS)


def read(path: Path, context: ReadContext) -> Reading:
    """Read it, see `ingest.training_log`."""
    from overlapscope.ingest.training_log import read_training_log  # noqa: PLC0415 - loaded for such a file

    return read_training_log(path, context)


READER = Reader(format="training_log", recognises=recognises, read=read, anywhere=True)

"""Recognise a training log that holds lines of a known format."""

import re
from typing import Final

from overlapscope.ingest.reader import Head, Reader, lazy_read

_JSON: Final = rb"[\s\x00]*(?:\{\s*[\"}]|\[\s*[{\]])"


def recognises(head: Head) -> bool:
    """Return whether a text holds lines of a known format."""
    if re.match(_JSON, head.content):
        return False
    from overlapscope.ingest.formats.training_log.reader import FORMATS  # noqa: PLC0415 - loaded only for logs

    return any(each.in_text(head.content) for each in FORMATS)


READER = Reader(
    format="training_log",
    recognises=recognises,
    read=lazy_read("overlapscope.ingest.formats.training_log.reader:read_training_log"),
    anywhere=True,
)

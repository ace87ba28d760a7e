"""How tests of hostile input look at a reader: a result, or one error that can be read."""

from pathlib import Path

from overlapscope.errors import InputError
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.ingest.registry import read_head


def read_or_refuse(reader: Reader, path: Path) -> Reading | None:
    """Return what the reader makes of a file; None where it refuses, on one line that names the file."""
    reader.recognises(read_head(path))
    try:
        return reader.read(path, ReadContext())
    except InputError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
    return None
